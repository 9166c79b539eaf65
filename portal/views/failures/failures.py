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
from portal.kit import bodies, pages, places, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Table,
    badge,
    code,
    long,
    number,
    plain,
    text,
    when,
)
from portal.templatetags.shapes import count as counted
from portal.templatetags.shapes import size

SHOWN = 50
MOST_REDRIVES = 5


def failures(request: HttpRequest, name: str) -> HttpResponse:
    """One group's failed and dead messages."""
    topic, error = request.GET.get("topic") or None, request.GET.get("error") or None
    key = request.GET.get("key") or None
    who = actor(request)
    waiting = pending.waiting(group=name, actor=who, topic=topic, limit=SHOWN)
    found = dead_letters.page(
        group=name,
        topic=topic,
        error=error,
        key=key,
        after=request.GET.get("after", ""),
        limit=SHOWN,
        actor=who,
    )
    summary = dead_letters.summary(group=name, topic=topic, actor=who)
    return pages.show(
        request,
        "groups/failures",
        _("Retries and dead letters of %s") % name,
        **places.of_group(request, name, "failures"),
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
        redrives=_redrives(
            redrive_rows.list_redrives(group=name, limit=MOST_REDRIVES, actor=who)
        ),
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
            redrive % counted(count), f"{to('redrive', name)}{which}&preview=yes", "primary"
        ),
        Link(drop % counted(count), to("dead-drop", name) + which, "danger"),
    ]
    if dead_letter_counts.has_unseen(group=name):
        found.append(Link(_("Mark as seen"), to("dead-seen", name)))
    return found


def _waiting(found: PendingRetries) -> Table:
    columns: Columns[PendingRetry] = [
        Column(_("Topic"), lambda one: rows.topic(one.topic)),
        Column(_("Message"), lambda one: _origin(one.topic, f"{one.queue}-{one.offset}")),
        Column(_("Key"), lambda one: long(one.key)),
        Column(_("Attempt"), lambda one: number(one.attempt), right=True),
        Column(_("Next attempt"), lambda one: when(one.due_at_ms)),
        Column(_("Error"), lambda one: long(one.error or None)),
    ]
    return plain(columns, found.messages, Empty(_("No pending retries")))


def _origin(topic: str, message: str) -> Cell:
    return code(message, to("message", topic, message))


def _errors(name: str, summary: Summary) -> Table:
    def which(one: DeadCount) -> str:
        return _link(topic=one.topic, error=one.error_class)

    columns: Columns[DeadCount] = [
        Column(
            _("Error"), lambda one: code(one.error_class, to("failures", name) + which(one))
        ),
        Column(_("Topic"), lambda one: rows.topic(one.topic)),
        Column(_("Dead letters"), lambda one: number(one.count), right=True),
        Column(_("First"), lambda one: when(one.first_at_ms)),
        Column(_("Last"), lambda one: when(one.last_at_ms)),
        Column(
            _("Action"), lambda one: text(_("redrive"), to("redrive", name) + which(one))
        ),
    ]
    return plain(columns, summary.errors, Empty(_("No dead letters")))


def _dead(name: str, found: DeadPage) -> Table:
    columns: Columns[DeadLetterInfo] = [
        Column(_("Message"), lambda one: code(one.id, to("dead", name, one.id))),
        Column(_("Topic"), lambda one: rows.topic(one.topic)),
        Column(_("Key"), lambda one: long(one.key)),
        Column(_("Attempts"), lambda one: number(one.attempts), right=True),
        Column(_("Dead since"), lambda one: when(one.died_at_ms)),
        Column(_("Error"), lambda one: long(one.error or one.error_class)),
    ]
    hint = Empty(_("No matching dead letters"))
    return plain(columns, found.messages, hint)


def _redrives(found: Sequence[RedriveView]) -> Table:
    columns: Columns[RedriveView] = [
        Column(_("Requested"), lambda one: when(one.created_at_ms)),
        Column(_("Requested by"), lambda one: text(one.asked_by)),
        Column(_("State"), lambda one: rows.state(one.state)),
        Column(_("Redriven"), lambda one: number(one.redriven), right=True),
        Column(_("Total"), lambda one: number(one.total), right=True),
        Column(_("Skipped"), lambda one: number(one.skipped), right=True),
        Column(_("Detail"), lambda one: long(one.detail or None)),
    ]
    return plain(columns, found, Empty(_("No redrives yet")))


def dead_message(request: HttpRequest, name: str, message_id: str) -> HttpResponse:
    found = dead_letters.show(group=name, message=message_id, actor=actor(request))
    about = found.about
    origin = f"{about.queue}-{about.offset}"
    facts = [
        Fact(_("Topic"), about.topic, to("topic", about.topic), kind="code"),
        Fact(_("Sent as"), origin, to("message", about.topic, origin), kind="code"),
        Fact(_("Key"), about.key, kind="code"),
        Fact(_("Tag"), about.tag),
        Fact(_("Trace id"), about.trace_id, kind="code"),
        Fact(_("Attempts"), about.attempts),
        Fact(_("First failed"), about.first_failed_at_ms, kind="when"),
        Fact(_("Dead since"), about.died_at_ms, kind="when"),
        Fact(_("Size"), size(about.size)),
        Fact(_("Error class"), badge(about.error_class).value, kind="badge", tone="bad"),
        Fact(_("Error"), about.error or None, kind="long"),
    ]
    actions = [
        Link(_("Redrive"), f"{to('redrive', name)}?ids={message_id}"),
        Link(_("Delete"), f"{to('dead-drop', name)}?ids={message_id}", "danger"),
    ]
    headers = sorted((found.headers or {}).items())
    place = places.of_group(request, name, "failures")
    place["crumbs"].append(Link(_("Retries and dead letters"), to("failures", name)))
    return pages.show(
        request, "topics/dead", message_id, **place, name=name, facts=facts, actions=actions,
        headers=headers, body=bodies.shown(found.body),
    )  # fmt: skip
