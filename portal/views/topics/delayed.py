"""Delayed messages of a topic: the list, and the recall of a message."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.produce import delayed_admin, operator_sends
from messagestore.produce.delayed_admin import Waiting, WaitingMessage
from metadata.errors import NodeUnavailable
from metadata.rules.rights import Right
from portal.auth import error_texts
from portal.auth.access import actor, may
from portal.kit import bodies, navigation, pages
from portal.kit.pages import Fact, page_url
from portal.kit.tables import (
    Cell,
    Column,
    EmptyHint,
    Text,
    code,
    long,
    simple_table,
    text,
    timestamp,
)
from portal.views.topics.topic_actions import TopicAction

# Messages on a page.
MESSAGES_PER_PAGE = 50


def delayed(request: HttpRequest, name: str) -> HttpResponse:
    """Show the delayed messages of a topic, and the nodes that did not answer."""
    # A node that does not answer hides its messages, so the page names it.
    page: Waiting | None = None
    try:
        page = delayed_admin.of_topic(
            topic=name,
            after=request.GET.get("after") or None,
            limit=MESSAGES_PER_PAGE,
            actor=actor(request),
        )
        problems = [
            _("Node %s does not answer, so its messages are not listed.") % node
            for node in page.away
        ]
    # No node answered.
    except NodeUnavailable as error:
        problems = [error_texts.describe_error(error)]
    columns: list[Column[WaitingMessage]] = [
        Column(_("Message"), lambda row: code(row.message_id)),
        Column(_("Due"), lambda row: timestamp(row.row.due_at_ms)),
        Column(_("Key"), lambda row: code(row.row.key)),
        Column(_("Tag"), lambda row: text(row.row.tag)),
        Column(_("Size"), lambda row: Cell(len(row.row.body), "size"), right=True),
        Column(_("Body"), lambda row: long(bodies.preview_line(row.row.body) or None)),
    ]
    if may(request, Right.PRODUCE, name):
        columns.append(
            Column(
                _("Action"),
                lambda row: text(_("recall"), page_url("recall", name, row.message_id)),
            )
        )
    hint = EmptyHint(_("No delayed messages. Send one:"), f"catmq send {name} --delay 60s")
    # An empty list must not look complete while a node is missing.
    messages = page.messages if page else ()
    return pages.render_page(
        request,
        "topics/delayed",
        _("Delayed messages of %s") % name,
        status=200 if page else 503,
        **navigation.for_topic(name, "delayed"),
        name=name,
        live=True,
        missing=problems,
        tiles=[Fact(_("Waiting"), page.count if page else None, kind="number")],
        table=simple_table(
            columns,
            messages,
            hint if (not problems) else EmptyHint(_("The delayed messages are unknown.")),
        ),
        following=f"?after={page.next}" if page and page.next else "",
    )


class Recall(TopicAction):
    right = Right.PRODUCE
    danger = True
    button = lazy("Recall")
    title = lazy("Recall %(message_id)s")
    back_to = ("delayed", "name")
    effect = lazy(
        "The message will be deleted before it is delivered, so no group reads it."
    )

    def run(self, fields: dict[str, Any]) -> Text:
        operator_sends.recall(
            topic=self.name, message_id=self.url_argument("message_id"), actor=self.actor
        )
        return _("Message %s was recalled.") % self.url_argument("message_id")
