"""The report of the doctor, and the trial of a connection."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from brokerapi.shapes import base
from brokerapi.shapes.fields import Answer, Number, Text
from metadata.config import config


class DoctorFindingAnswer(Answer):
    """A fault, why it matters and what to do."""

    severity = Text(help_text="`warning`, or `error`: something does not work")
    key = Text(help_text="name of the fault, which keeps its meaning in later releases")
    kind = Text(help_text="node, metadata, broker, job, key, alarm, topic or doctor")
    name = Text(help_text="name of the object; empty for the whole installation")
    cause = Text(help_text="what is wrong")
    why = Text(help_text="why it matters")
    remedy = Text(help_text="what to do")


class DoctorReportAnswer(Answer):
    """Faults of the installation, errors first."""

    exit_code = Number(help_text="0: no findings; 1: only warnings; 2: errors")
    checks = Number(help_text="number of checks that were made")
    findings = DoctorFindingAnswer(many=True)


class ConnectionQuery(base.Request, kw_only=True):
    """How long the broker holds the request. With `parts` it sends the head and a blank at
    once, as JSON, and the rest afterwards.
    """

    wait_ms: Annotated[int, Meta(ge=0, le=config.max_wait_ms)] = 0
    form: Literal["whole", "parts"] = "whole"


class ConnectionAnswer(Struct, kw_only=True):
    """The way of a request."""

    peer_port: Annotated[
        int,
        Meta(
            description="port of the peer that the broker sees, the client or a proxy; 0 if "
            "it has none"
        ),
    ]
    waited_ms: Annotated[
        int,
        Meta(
            description="how long the request was held; shorter than asked for if the broker "
            "stops, or has too many waiting requests"
        ),
    ]
    max_wait_ms: Annotated[int, Meta(description="the longest wait of a pull")]
