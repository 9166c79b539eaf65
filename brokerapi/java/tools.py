"""Reports of Java clients about themselves, which are logged, shortened; and the address of
a client.
"""

from __future__ import annotations

import logging
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema

from brokerapi.endpoint import Call, PublicEndpoint
from brokerapi.java.endpoint import Body, JavaEndpoint, JavaRequest, java_actor, refusal

log = logging.getLogger(__name__)
MOST_CHARS = 300


class Report(JavaRequest):
    consumerGroupName: str | None = None
    consumerName: str | None = None
    topicName: str | None = None
    content: str | None = None
    subject: str | None = None
    method: str | None = None
    action: str | None = None
    msg: str | None = None
    type: int | None = None


class AddLog(JavaEndpoint):
    """POST tool/addLog: steps of a message. The broker never requests them."""

    body = Body(Report)
    level = logging.DEBUG

    def answer_to(self, call: Call, request: Report) -> dict[str, Any]:
        client = request.consumerName or request.clientIp or ""
        group_or_topic = request.consumerGroupName or request.topicName or ""
        texts = (
            request.subject,
            request.method,
            request.action,
            request.msg,
            request.content,
        )
        log.log(
            self.level,
            "Java client %r %r: %r",
            client[:MOST_CHARS],
            group_or_topic[:MOST_CHARS],
            " ".join(part for part in texts if part)[:MOST_CHARS],
        )
        return {}


class AddOpLog(AddLog):
    """POST tool/addOpLog: the starts and stops of the client, and the changes that it was
    sent.
    """


class AddCat(AddLog):
    """POST tool/addCat: sends and pulls that failed."""

    level = logging.INFO


class SendMail(AddLog):
    """POST tool/sendMail: problems that a person should know. They are logged; no mail is
    sent.
    """

    level = logging.WARNING


class GetIp(PublicEndpoint):
    """GET tool/getIp: the address of the client, as text."""

    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        address = call.request.META.get("REMOTE_ADDR", "")
        try:
            java_actor(address)
        except Exception as error:  # noqa: BLE001 - as JavaEndpoint does
            return refusal(call, error)
        return HttpResponse(address, "text/plain; charset=utf-8")
