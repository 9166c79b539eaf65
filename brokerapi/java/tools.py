"""Reports of Java clients about themselves, which go to the log, shortened; and the address
they have.
"""

from __future__ import annotations

import logging
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema

from brokerapi.endpoint import Call, Endpoint
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
    """POST tool/addLog: steps of a message, which we never ask for."""

    body = Body(Report)
    level = logging.DEBUG

    def answer_to(self, call: Call, asked: Report) -> dict[str, Any]:
        who = asked.consumerName or asked.clientIp or ""
        where = asked.consumerGroupName or asked.topicName or ""
        words = (asked.subject, asked.method, asked.action, asked.msg, asked.content)
        text = " ".join(word for word in words if word)[:MOST_CHARS]
        log.log(
            self.level, "Java client %r %r: %r", who[:MOST_CHARS], where[:MOST_CHARS], text
        )
        return {}


class AddOpLog(AddLog):
    """POST tool/addOpLog: what the client began, stopped or was told."""


class AddCat(AddLog):
    """POST tool/addCat: sends and pulls that failed."""

    level = logging.INFO


class SendMail(AddLog):
    """POST tool/sendMail: troubles that a person is to hear of. They are in the log; no
    mail is sent.
    """

    level = logging.WARNING


class GetIp(Endpoint):
    """GET tool/getIp: the address of the client, as text."""

    public = True

    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        """Answer the address."""
        address = call.request.META.get("REMOTE_ADDR", "")
        try:
            java_actor(address)
        except Exception as error:  # noqa: BLE001 - as JavaEndpoint does
            return refusal(call, error)
        return HttpResponse(address, "text/plain; charset=utf-8")
