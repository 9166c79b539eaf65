"""Delayed messages of a topic: what waits for its time, and taking one back."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.produce import delayed_admin, operator_sends
from messagestore.produce.delayed_admin import Waiting, WaitingMessage
from metadata.actors import Actor
from metadata.errors import NodeUnavailable
from portal.auth import error_words
from portal.auth.access import actor, may
from portal.kit import bodies, pages, places
from portal.kit.pages import Fact, to
from portal.kit.tables import (
    Cell,
    Column,
    Empty,
    Table,
    Text,
    code,
    long,
    plain,
    text,
    when,
)
from portal.views.topics.topic_actions import TopicAction

SHOWN = 50


def delayed(request: HttpRequest, name: str) -> HttpResponse:
    """Show the messages of a topic that wait for their time, and the nodes that do not
    tell.
    """
    found, missing = _asked(name, request.GET.get("after") or None, actor(request))
    return pages.show(
        request,
        "topics/delayed",
        _("Delayed messages of %s") % name,
        status=200 if found else 503,
        **places.of_topic(name, "delayed"),
        name=name,
        live=True,
        missing=missing,
        tiles=[Fact(_("Waiting"), found.count if found else None, kind="number")],
        table=_table(name, found, known=not missing, recalls=may(request, "produce", name)),
        following=f"?after={found.next}" if found and found.next else "",
    )


def _asked(name: str, after: str | None, who: Actor) -> tuple[Waiting | None, list[str]]:
    try:
        found = delayed_admin.of_topic(topic=name, after=after, limit=SHOWN, actor=who)
    except NodeUnavailable as error:
        return None, [error_words.said(error)]
    return found, [
        _("Node %s does not answer, so its messages are not listed.") % node
        for node in found.away
    ]


def _table(name: str, found: Waiting | None, *, known: bool, recalls: bool) -> Table:
    columns: list[Column[WaitingMessage]] = [
        Column(_("Message"), lambda one: code(one.message_id)),
        Column(_("Due"), lambda one: when(one.row.due_at_ms)),
        Column(_("Key"), lambda one: code(one.row.key)),
        Column(_("Tag"), lambda one: text(one.row.tag)),
        Column(_("Size"), lambda one: Cell(len(one.row.body), "size"), right=True),
        Column(_("Body"), lambda one: long(bodies.preview(one.row.body) or None)),
    ]
    if recalls:
        columns.append(
            Column(
                _("Action"),
                lambda one: text(_("recall"), to("recall", name, one.message_id)),
            )
        )
    hint = Empty(_("No delayed messages. Send one:"), f"catmq send {name} --delay 60s")
    messages = found.messages if found else ()
    return plain(
        columns, messages, hint if known else Empty(_("The delayed messages are unknown."))
    )


class Recall(TopicAction):
    right = "produce"
    danger = True
    button = lazy("Recall")
    title = lazy("Recall %(message_id)s")
    back_to = ("delayed", "name")
    would = lazy(
        "The message will be deleted before it is delivered, so no group reads it."
    )

    def run(self, fields: dict[str, Any]) -> Text:
        operator_sends.recall(
            topic=self.name, message_id=self.word("message_id"), actor=self.actor
        )
        return _("Message %s was recalled.") % self.word("message_id")
