"""Doctor: the faults of the installation, and of the way to a broker."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.http import longpoll
from brokerapi.schema import operation
from brokerapi.shapes.doctor_shapes import (
    ConnectionAnswer,
    ConnectionQuery,
    DoctorReportAnswer,
)
from messagestore.doctor import diagnosis
from metadata.config import config
from metadata.db import access


class Doctor(Endpoint):
    @operation("runDoctor", tag="nodes", answer=DoctorReportAnswer)
    def get(self, call: Call) -> HttpResponse:
        """Checks nodes, metadata, brokers, jobs, keys, alarms and retention, and returns
        what is wrong. Takes up to 10 s. Needs `admin` on everything.
        """
        return call.answer(
            DoctorReportAnswer.from_view(diagnosis.examine(actor=call.actor))
        )


class Connection(Endpoint):
    @operation("tryConnection", tag="nodes", query=ConnectionQuery, answer=ConnectionAnswer)
    def get(self, call: Call) -> HttpResponseBase:
        """Waits like a pull without messages, so that a client can find out if a proxy cuts
        long polls or holds back answers. Needs `admin` on everything.
        """
        access.require_everything(call.actor, "*", what="installation")
        query = call.query(ConnectionQuery)
        # Without REMOTE_PORT the peer is a Unix domain socket, so there is a proxy.
        peer_port = int(call.request.META.get("REMOTE_PORT") or 0)

        def hold() -> ConnectionAnswer:
            waited_ms = longpoll.hold(wait_ms=query.wait_ms, actor=call.actor)
            return ConnectionAnswer(
                peer_port=peer_port, waited_ms=waited_ms, max_wait_ms=config.max_wait_ms
            )

        def parts() -> Iterator[bytes]:
            # White space before a value is JSON. It shows when the first byte arrives.
            yield b" "
            yield msgspec.json.encode(hold())

        if query.form == "parts" and call.request.method == "GET":
            return StreamingHttpResponse(parts(), content_type="application/json")
        return call.answer(hold())
