"""Failures of a group's handlers: messages that wait for their next try, and the dead."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.retries import dead_letters, pending
from messagestore.retries.dead_letters import DeadCount, DeadLetterInfo, DeadPage, Summary
from messagestore.retries.pending import PendingRetries, PendingRetry
from metadata import redrive_rows
from metadata.monitoring import dead_letter_counts
from metadata.redrive_rows import RedriveView
from portal.auth.access import actor
from portal.kit import bodies, cells, navigation, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Table,
    badge,
    code,
    long,
    number,
    simple_table,
    text,
    timestamp,
)
from portal.templatetags.formats import format_count as counted
from portal.templatetags.formats import format_size

MESSAGES_PER_PAGE = 50
MAX_REDRIVES = 5


def failures(request: HttpRequest, name: str) -> HttpResponse:
    """One group's failed and dead messages."""
    topic, error = request.GET.get("topic") or None, request.GET.get("error") or None
    key = request.GET.get("key") or None
    who = actor(request)
    waiting = pending.waiting(group=name, actor=who, topic=topic, limit=MESSAGES_PER_PAGE)
    found = dead_letters.page(
        group=name,
        topic=topic,
        error=error,
        key=key,
        after=request.GET.get("after", ""),
        limit=MESSAGES_PER_PAGE,
        actor=who,
    )
    summary = dead_letters.summary(group=name, topic=topic, actor=who)
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
        actions=[] if key else _actions(name, topic, error, count=_count(summary, error)),
        away=sorted({*waiting.away, *found.away, *summary.away}),
        waiting=_waiting(waiting),
        errors=_errors(name, summary),
        dead=found.messages,
        table=_dead(name, found),
        following=_link(topic=topic, error=error, key=key, after=found.next)
        if found.next
        else "",
        redrives=_redrives(redrive_rows.page(group=name, limit=MAX_REDRIVES, actor=who)),
    )


def _link(**words: str | None) -> str:
    return "?" + urlencode({name: value for name, value in words.items() if value})


def _count(summary: Summary, error: str | None) -> int:
    """Count the dead messages the page is about."""
    return sum(one.count for one in summary.errors if error in (None, one.error_class))


def _actions(name: str, topic: str | None, error: str | None, *, count: int) -> list[Link]:
    """Return the actions on all that the page is about; how many that are, stands on the
    buttons.
    """
    if not count:
        return []
    which = _link(topic=topic, error=error, everything="" if topic or error else "on")
    redrive, drop = _("Redrive all %s dead letters"), _("Delete all %s dead letters")
    if topic or error:
        redrive, drop = _("Redrive the %s of this kind"), _("Delete the %s of this kind")
    found = [
        Link(
            redrive % counted(count),
            f"{page_url('redrive', name)}{which}&preview=yes",
            "primary",
        ),
        Link(drop % counted(count), page_url("dead-drop", name) + which, "danger"),
    ]
    if dead_letter_counts.unseen(group=name):
        found.append(Link(_("Mark as seen"), page_url("dead-seen", name)))
    return found


def _waiting(found: PendingRetries) -> Table:
    columns: Columns[PendingRetry] = [
        Column(_("Topic"), lambda row: cells.topic(row.topic)),
        Column(_("Message"), lambda row: _origin(row.topic, f"{row.queue}-{row.offset}")),
        Column(_("Key"), lambda row: long(row.key)),
        Column(_("Attempt"), lambda row: number(row.attempt), right=True),
        Column(_("Next attempt"), lambda row: timestamp(row.due_at_ms)),
        Column(_("Error"), lambda row: long(row.error or None)),
    ]
    return simple_table(columns, found.messages, EmptyHint(_("No pending retries")))


def _origin(topic: str, message: str) -> Cell:
    return code(message, page_url("message", topic, message))


def _errors(name: str, summary: Summary) -> Table:
    def which(one: DeadCount) -> str:
        return _link(topic=one.topic, error=one.error_class)

    columns: Columns[DeadCount] = [
        Column(
            _("Error"),
            lambda row: code(row.error_class, page_url("failures", name) + which(row)),
        ),
        Column(_("Topic"), lambda row: cells.topic(row.topic)),
        Column(_("Dead letters"), lambda row: number(row.count), right=True),
        Column(_("First"), lambda row: timestamp(row.first_at_ms)),
        Column(_("Last"), lambda row: timestamp(row.last_at_ms)),
        Column(
            _("Action"),
            lambda row: text(_("redrive"), page_url("redrive", name) + which(row)),
        ),
    ]
    return simple_table(columns, summary.errors, EmptyHint(_("No dead letters")))


def _dead(name: str, found: DeadPage) -> Table:
    columns: Columns[DeadLetterInfo] = [
        Column(_("Message"), lambda row: code(row.id, page_url("dead", name, row.id))),
        Column(_("Topic"), lambda row: cells.topic(row.topic)),
        Column(_("Key"), lambda row: long(row.key)),
        Column(_("Attempts"), lambda row: number(row.attempts), right=True),
        Column(_("Dead since"), lambda row: timestamp(row.died_at_ms)),
        Column(_("Error"), lambda row: long(row.error or row.error_class)),
    ]
    hint = EmptyHint(_("No matching dead letters"))
    return simple_table(columns, found.messages, hint)


def _redrives(found: Sequence[RedriveView]) -> Table:
    columns: Columns[RedriveView] = [
        Column(_("Requested"), lambda row: timestamp(row.created_at_ms)),
        Column(_("Requested by"), lambda row: text(row.asked_by)),
        Column(_("State"), lambda row: cells.state(row.state)),
        Column(_("Redriven"), lambda row: number(row.redriven), right=True),
        Column(_("Total"), lambda row: number(row.total), right=True),
        Column(_("Skipped"), lambda row: number(row.skipped), right=True),
        Column(_("Detail"), lambda row: long(row.detail or None)),
    ]
    return simple_table(columns, found, EmptyHint(_("No redrives yet")))


def dead_message(request: HttpRequest, name: str, message_id: str) -> HttpResponse:
    found = dead_letters.show(group=name, message=message_id, actor=actor(request))
    about = found.about
    origin = f"{about.queue}-{about.offset}"
    facts = [
        Fact(_("Topic"), about.topic, page_url("topic", about.topic), kind="code"),
        Fact(_("Sent as"), origin, page_url("message", about.topic, origin), kind="code"),
        Fact(_("Key"), about.key, kind="code"),
        Fact(_("Tag"), about.tag),
        Fact(_("Trace id"), about.trace_id, kind="code"),
        Fact(_("Attempts"), about.attempts),
        Fact(_("First failed"), about.first_failed_at_ms, kind="when"),
        Fact(_("Dead since"), about.died_at_ms, kind="when"),
        Fact(_("Size"), format_size(about.size)),
        Fact(_("Error class"), badge(about.error_class).value, kind="badge", tone="bad"),
        Fact(_("Error"), about.error or None, kind="long"),
    ]
    actions = [
        Link(_("Redrive"), f"{page_url('redrive', name)}?ids={message_id}"),
        Link(_("Delete"), f"{page_url('dead-drop', name)}?ids={message_id}", "danger"),
    ]
    headers = sorted((found.headers or {}).items())
    place = navigation.for_group(request, name, "failures")
    place["crumbs"].append(Link(_("Retries and dead letters"), page_url("failures", name)))
    return pages.render_page(
        request, "topics/dead", message_id, **place, name=name, facts=facts, actions=actions,
        headers=headers, body=bodies.render_body(found.body),
    )  # fmt: skip
