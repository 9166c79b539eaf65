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
from portal.kit import bodies, pages, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.tables import (
    Cell,
    Column,
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
    who = actor(request)
    waiting = pending.waiting(group=name, actor=who, topic=topic, limit=SHOWN)
    found = dead_letters.page(
        group=name, topic=topic, error=error, after=request.GET.get("after", ""), limit=SHOWN, actor=who
    )
    summary = dead_letters.summary(group=name, topic=topic, actor=who)
    return pages.show(
        request,
        "failures",
        _("Failed messages of %s") % name,
        section="groups",
        live=True,
        name=name,
        topic=topic,
        error=error,
        actions=_actions(name, topic, error, count=_count(summary, error)),
        away=sorted({*waiting.away, *found.away, *summary.away}),
        waiting=_waiting(waiting),
        errors=_errors(name, summary),
        dead=found.messages,
        table=_dead(name, found),
        following=_link(topic=topic, error=error, after=found.next) if found.next else "",
        redrives=_redrives(redrive_rows.page(group=name, limit=MOST_REDRIVES, actor=who)),
    )


def _link(**words: str | None) -> str:
    return "?" + urlencode({name: value for name, value in words.items() if value})


def _count(summary: Summary, error: str | None) -> int:
    """Count the dead messages the page is about."""
    return sum(one.count for one in summary.errors if error in (None, one.error_class))


def _actions(name: str, topic: str | None, error: str | None, *, count: int) -> list[Link]:
    """Return the actions on all that the page is about; how many that are, stands on the buttons."""
    if not count:
        return []
    which = _link(topic=topic, error=error, everything="" if topic or error else "on")
    redrive, drop = _("Redrive all %s dead messages"), _("Drop all %s dead messages")
    if topic or error:
        redrive, drop = _("Redrive the %s of this kind"), _("Drop the %s of this kind")
    found = [
        Link(redrive % counted(count), to("redrive", name) + which),
        Link(drop % counted(count), to("dead-drop", name) + which, "danger"),
    ]
    if dead_letter_counts.unseen(group=name):
        found.insert(0, Link(_("Mark as seen"), to("dead-seen", name)))
    return found


def _waiting(found: PendingRetries) -> Table:
    columns = (
        Column(_("Topic")), Column(_("Message")), Column(_("Key")), Column(_("Attempt"), right=True),
        Column(_("Next try (UTC)")), Column(_("Error")),
    )  # fmt: skip
    hint = Empty(_("Nothing waits for another try."))
    return plain(columns, [_waits(one) for one in found.messages], hint)


def _waits(one: PendingRetry) -> Sequence[Cell]:
    message = f"{one.queue}-{one.offset}"
    return (
        rows.topic(one.topic),
        code(message, to("message", one.topic, message)),
        long(one.key),
        number(one.attempt),
        when(one.due_at_ms),
        long(one.error or None),
    )


def _errors(name: str, summary: Summary) -> Table:
    columns = (
        Column(_("Error")), Column(_("Topic")), Column(_("Dead"), right=True), Column(_("First (UTC)")),
        Column(_("Last (UTC)")), Column(_("Do")),
    )  # fmt: skip
    hint = Empty(_("No message is dead."))
    return plain(columns, [_error(name, one) for one in summary.errors], hint)


def _error(name: str, one: DeadCount) -> Sequence[Cell]:
    which = _link(topic=one.topic, error=one.error_class)
    return (
        code(one.error_class, to("failures", name) + which),
        rows.topic(one.topic),
        number(one.count),
        when(one.first_at_ms),
        when(one.last_at_ms),
        text(_("redrive"), to("redrive", name) + which),
    )


def _dead(name: str, found: DeadPage) -> Table:
    columns = (
        Column(_("Message")), Column(_("Topic")), Column(_("Key")), Column(_("Tries"), right=True),
        Column(_("Died (UTC)")), Column(_("Error")),
    )  # fmt: skip
    hint = Empty(_("No message is dead, or none of this kind."))
    return plain(columns, [_died(name, one) for one in found.messages], hint)


def _died(name: str, one: DeadLetterInfo) -> Sequence[Cell]:
    return (
        code(one.id, to("dead", name, one.id)),
        rows.topic(one.topic),
        long(one.key),
        number(one.attempts),
        when(one.died_at_ms),
        long(one.error or one.error_class),
    )


def _redrives(found: Sequence[RedriveView]) -> Table:
    columns = (
        Column(_("Asked for (UTC)")), Column(_("By")), Column(_("State")),
        Column(_("Brought back"), right=True), Column(_("Of"), right=True),
        Column(_("Skipped"), right=True), Column(_("Detail")),
    )  # fmt: skip
    return plain(columns, [_redrive(one) for one in found], Empty(_("No message was brought back yet.")))


def _redrive(one: RedriveView) -> Sequence[Cell]:
    return (
        when(one.created_at_ms),
        text(one.asked_by),
        rows.state(one.state),
        number(one.redriven),
        number(one.total),
        number(one.skipped),
        long(one.detail or None),
    )


def dead_message(request: HttpRequest, name: str, message_id: str) -> HttpResponse:
    """One dead message, whole."""
    found = dead_letters.show(group=name, message=message_id, actor=actor(request))
    about = found.about
    origin = f"{about.queue}-{about.offset}"
    facts = [
        Fact(_("Topic"), about.topic, to("topic", about.topic), kind="code"),
        Fact(_("Sent as"), origin, to("message", about.topic, origin), kind="code"),
        Fact(_("Key"), about.key, kind="code"),
        Fact(_("Tag"), about.tag),
        Fact(_("Trace id"), about.trace_id, kind="code"),
        Fact(_("Tries"), about.attempts),
        Fact(_("First failed (UTC)"), about.first_failed_at_ms, kind="when"),
        Fact(_("Died (UTC)"), about.died_at_ms, kind="when"),
        Fact(_("Size"), size(about.size)),
        Fact(_("Kind of error"), badge(about.error_class).value, kind="badge", tone="bad"),
        Fact(_("Error"), about.error or None),
    ]
    actions = [
        Link(_("Redrive"), f"{to('redrive', name)}?ids={message_id}"),
        Link(_("Drop"), f"{to('dead-drop', name)}?ids={message_id}", "danger"),
    ]
    headers = sorted((found.headers or {}).items())
    return pages.show(
        request, "dead", message_id, section="groups", name=name, facts=facts, actions=actions,
        headers=headers, body=bodies.shown(found.body),
    )  # fmt: skip
