"""Pages of failed messages of a group: pending retries and dead letters."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.retries import dead_letters, pending
from messagestore.retries.dead_letters import DeadCount, DeadLetterInfo
from messagestore.retries.pending import PendingRetry
from metadata import redrive_rows
from metadata.monitoring import dead_letter_counts
from metadata.redrive_rows import RedriveView
from portal.auth.access import actor
from portal.kit import bodies, cells, navigation, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    badge,
    code,
    long,
    number,
    simple_table,
    text,
    timestamp,
)
from portal.templatetags.formats import format_count, format_size

# Retries and dead letters on a page.
MESSAGES_PER_PAGE = 50
# Latest redrives on the page.
MAX_REDRIVES = 5


def failures(request: HttpRequest, name: str) -> HttpResponse:
    """Show a group's pending retries and dead letters."""
    topic, error = request.GET.get("topic") or None, request.GET.get("error") or None
    key = request.GET.get("key") or None
    # Retries, dead letters and their summary are read from all retry nodes.
    current_actor = actor(request)
    retries = pending.waiting(
        group=name, actor=current_actor, topic=topic, limit=MESSAGES_PER_PAGE
    )
    dead_page = dead_letters.page(
        group=name,
        topic=topic,
        error=error,
        key=key,
        after=request.GET.get("after", ""),
        limit=MESSAGES_PER_PAGE,
        actor=current_actor,
    )
    summary = dead_letters.summary(group=name, topic=topic, actor=current_actor)
    retry_columns: Columns[PendingRetry] = [
        Column(_("Topic"), lambda row: cells.topic(row.topic)),
        Column(
            _("Message"),
            lambda row: code(
                f"{row.queue}-{row.offset}",
                page_url("message", row.topic, f"{row.queue}-{row.offset}"),
            ),
        ),
        Column(_("Key"), lambda row: long(row.key)),
        Column(_("Attempt"), lambda row: number(row.attempt), right=True),
        Column(_("Next attempt"), lambda row: timestamp(row.due_at_ms)),
        Column(_("Error"), lambda row: long(row.error or None)),
    ]

    def filter_of(row: DeadCount) -> str:
        return _query_string(topic=row.topic, error=row.error_class)

    error_columns: Columns[DeadCount] = [
        Column(
            _("Error"),
            lambda row: code(row.error_class, page_url("failures", name) + filter_of(row)),
        ),
        Column(_("Topic"), lambda row: cells.topic(row.topic)),
        Column(_("Dead letters"), lambda row: number(row.count), right=True),
        Column(_("First"), lambda row: timestamp(row.first_at_ms)),
        Column(_("Last"), lambda row: timestamp(row.last_at_ms)),
        Column(
            _("Action"),
            lambda row: text(_("redrive"), page_url("redrive", name) + filter_of(row)),
        ),
    ]
    dead_columns: Columns[DeadLetterInfo] = [
        Column(_("Message"), lambda row: code(row.id, page_url("dead", name, row.id))),
        Column(_("Topic"), lambda row: cells.topic(row.topic)),
        Column(_("Key"), lambda row: long(row.key)),
        Column(_("Attempts"), lambda row: number(row.attempts), right=True),
        Column(_("Dead since"), lambda row: timestamp(row.died_at_ms)),
        Column(_("Error"), lambda row: long(row.error or row.error_class)),
    ]
    redrive_columns: Columns[RedriveView] = [
        Column(_("Requested"), lambda row: timestamp(row.created_at_ms)),
        Column(_("Requested by"), lambda row: text(row.asked_by)),
        Column(_("State"), lambda row: cells.state(row.state)),
        Column(_("Redriven"), lambda row: number(row.redriven), right=True),
        Column(_("Total"), lambda row: number(row.total), right=True),
        Column(_("Skipped"), lambda row: number(row.skipped), right=True),
        Column(_("Detail"), lambda row: long(row.detail or None)),
    ]
    return pages.render_page(
        request,
        "groups/failures",
        _("Retries and dead letters of %s") % name,
        **navigation.for_group(request, name, "failures"),
        live=True,
        name=name,
        topic=topic,
        error=error,
        key=key,
        actions=[]
        if key
        else _actions(
            name,
            topic,
            error,
            count=sum(
                error_count.count
                for error_count in summary.errors
                if error in (None, error_count.error_class)
            ),
        ),
        away=sorted({*retries.away, *dead_page.away, *summary.away}),
        waiting=simple_table(
            retry_columns, retries.messages, EmptyHint(_("No pending retries"))
        ),
        errors=simple_table(error_columns, summary.errors, EmptyHint(_("No dead letters"))),
        dead=dead_page.messages,
        table=simple_table(
            dead_columns, dead_page.messages, EmptyHint(_("No matching dead letters"))
        ),
        following=_query_string(topic=topic, error=error, key=key, after=dead_page.next)
        if dead_page.next
        else "",
        redrives=simple_table(
            redrive_columns,
            redrive_rows.list_redrives(group=name, limit=MAX_REDRIVES, actor=current_actor),
            EmptyHint(_("No redrives yet")),
        ),
    )


def _query_string(**parameters: str | None) -> str:
    return "?" + urlencode({name: value for name, value in parameters.items() if value})


def _actions(name: str, topic: str | None, error: str | None, *, count: int) -> list[Link]:
    """Return the actions on all dead letters that the page's filter matches.

    Their number stands on the buttons.
    """
    if not count:
        return []
    query = _query_string(
        topic=topic, error=error, everything="" if topic or error else "on"
    )
    redrive_label, delete_label = (
        _("Redrive all %s dead letters"),
        _("Delete all %s dead letters"),
    )
    # The labels must not promise all dead letters.
    if topic or error:
        redrive_label, delete_label = (
            _("Redrive the %s of this kind"),
            _("Delete the %s of this kind"),
        )
    links = [
        Link(
            redrive_label % format_count(count),
            f"{page_url('redrive', name)}{query}&preview=yes",
            "primary",
        ),
        Link(
            delete_label % format_count(count),
            page_url("dead-drop", name) + query,
            "danger",
        ),
    ]
    if dead_letter_counts.has_unseen(group=name):
        links.append(Link(_("Mark as seen"), page_url("dead-seen", name)))
    return links


def dead_message(request: HttpRequest, name: str, message_id: str) -> HttpResponse:
    """Show a dead letter."""
    letter = dead_letters.show(group=name, message=message_id, actor=actor(request))
    info = letter.about
    origin = f"{info.queue}-{info.offset}"
    facts = [
        Fact(_("Topic"), info.topic, page_url("topic", info.topic), kind="code"),
        Fact(_("Sent as"), origin, page_url("message", info.topic, origin), kind="code"),
        Fact(_("Key"), info.key, kind="code"),
        Fact(_("Tag"), info.tag),
        Fact(_("Trace id"), info.trace_id, kind="code"),
        Fact(_("Attempts"), info.attempts),
        Fact(_("First failed"), info.first_failed_at_ms, kind="when"),
        Fact(_("Dead since"), info.died_at_ms, kind="when"),
        Fact(_("Size"), format_size(info.size)),
        Fact(_("Error class"), badge(info.error_class).value, kind="badge", tone="bad"),
        Fact(_("Error"), info.error or None, kind="long"),
    ]
    actions = [
        Link(_("Redrive"), f"{page_url('redrive', name)}?ids={message_id}"),
        Link(_("Delete"), f"{page_url('dead-drop', name)}?ids={message_id}", "danger"),
    ]
    headers = sorted((letter.headers or {}).items())
    context = navigation.for_group(request, name, "failures")
    context["crumbs"].append(
        Link(_("Retries and dead letters"), page_url("failures", name))
    )
    return pages.render_page(
        request, "topics/dead", message_id, **context, name=name, facts=facts,
        actions=actions, headers=headers, body=bodies.render_body(letter.body),
    )  # fmt: skip
