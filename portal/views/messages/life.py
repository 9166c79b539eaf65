"""The life line of a message: its recorded events in order, and notes on events that are
not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from messagestore.engine.messages import StoredMessage
from messagestore.inspect import browse
from messagestore.inspect.delivery_status import DeliveryStatus
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.groups.handling_traces import TraceView
from metadata.rules.groups.states import HandlingOutcome
from metadata.rules.trace_context import TRACEPARENT, parse_traceparent
from metadata.topics import producers
from portal.kit import cells
from portal.kit.pages import Step, page_url
from portal.kit.tables import Text
from portal.templatetags.formats import format_count, format_duration, format_time

# Clients named as possible senders.
MAX_CLIENTS = 3


def life_steps(
    stored: StoredMessage,
    sender_text: Text,
    statuses: Sequence[DeliveryStatus],
    traces: Sequence[TraceView],
) -> list[Step]:
    """Return the steps of a message: sent, stored, its deliveries, and its outcome in each
    group.
    """
    position = _("%(queue)s, offset %(offset)s") % {
        "queue": cells.queue_name(stored.queue),
        "offset": format_count(stored.offset),
    }
    return [
        Step(_("Sent"), sender_text),
        Step(_("Stored in its queue"), position, stored.stored_at_ms, "ok"),
        *map(_attempt_step, traces),
        *(step for status in statuses for step in _group_steps(status)),
    ]


def describe_sender(topic: str, stored: StoredMessage, actor: Actor) -> Text:
    """Describe the sender of a message.

    The message stores the sender's name. Clients that sent under this name at that time are
    named, too.
    """
    name = browse.read_sender(
        topic=topic, queue=stored.queue, offset=stored.offset, actor=actor
    )
    # Retries are sent by the server, so no client is their sender.
    is_retry = snapshot.origin_of(topic) is not None
    sentences: list[Text] = [_("The sender is not recorded.")]
    if is_retry and name == "redrive":
        sentences = [_("Redriven from the dead letters.")]
    elif name:
        sentences = [_("By %s.") % name]
        if not is_retry:
            sentences += _possible_clients(topic, name, stored.stored_at_ms, actor)
    if trace := parse_traceparent((stored.headers or {}).get(TRACEPARENT)):
        sentences.append(
            _("It belongs to the trace %(trace)s, and was sent in its span %(span)s.")
            % {"trace": trace.trace_id, "span": trace.parent_id}
        )
    elif stored.trace_id:
        sentences.append(_("The trace id is %s.") % stored.trace_id)
    return " ".join(map(str, sentences))


def _possible_clients(topic: str, name: str, at_ms: int, actor: Actor) -> Iterator[Text]:
    """Name the clients that sent under this name at that time. The message does not record
    which of them sent it.
    """
    clients = producers.list_clients(topic=topic, name=name, at_ms=at_ms, actor=actor)
    if clients:
        names = [
            f"{client.address} ({client.sdk})" if client.sdk else client.address
            for client in clients[:MAX_CLIENTS]
        ]
        ellipsis = ["…"] if len(clients) > MAX_CLIENTS else []
        yield _("It sent at that time from: %s.") % ", ".join([*names, *ellipsis])


def _attempt_step(trace: TraceView) -> Step:
    """Describe a traced attempt."""
    names = {"group": trace.group, "member": trace.member}
    title = _("%(group)s: delivered to %(member)s") % names
    # The member measures the time itself, so its clock does not matter.
    took = format_duration(trace.took_ms)
    texts: dict[str, str] = {
        HandlingOutcome.HANDLED: _("Handled in %s.") % took,
        HandlingOutcome.FAILED: _("Failed after %s.") % took,
        HandlingOutcome.DELIVERED: _("The client does not report how long it took."),
    }
    text = texts[trace.outcome]
    if trace.attempt:
        text = f"{_('Retry %s.') % format_count(trace.attempt)} {text}"
    tones: dict[str, str] = {HandlingOutcome.HANDLED: "ok", HandlingOutcome.FAILED: "warn"}
    tone = tones.get(trace.outcome, "")
    return Step(title, text, trace.at_ms, tone, page_url("group", trace.group))


def _group_steps(status: DeliveryStatus) -> Iterator[Step]:
    """Yield the steps of a message in a group."""
    href = page_url("group", status.group)
    if status.first_failed_at_ms is not None:
        title = _("%s: failed first") % status.group
        yield Step(
            title,
            _("The last error: %s") % status.error if status.error else "",
            status.first_failed_at_ms,
            "warn",
            href,
        )
    for redrive in status.redrives:
        yield Step(_("%s: dead letter") % status.group, "", redrive.died_at_ms, "bad", href)
        title = _("%s: redriven from the dead letters") % status.group
        yield Step(title, "", redrive.at_ms, "warn", href)
    attempts_text = ngettext(
        "After %s attempt.", "After %s attempts.", status.attempt or 0
    ) % format_count(status.attempt)
    if status.state == "unread":
        messages_before = status.ahead or 0
        text = ngettext(
            "%s message comes before it.", "%s messages come before it.", messages_before
        ) % format_count(messages_before)
        yield Step(_("%s: not read yet") % status.group, text, None, "warn", href)
    elif status.state == "read":
        yield _committed_step(status, href)
    elif status.state == "skipped":
        yield Step(
            _("%s: skipped") % status.group,
            {
                "reset": _("The group's offset was reset to one behind it."),
                "filter": _("The subscription's filter does not take it."),
                "start": _("The subscription began behind it."),
            }[status.skipped_by],
            status.by_ms,
            "",
            href,
        )
    elif status.state == "waiting":
        yield Step(
            _("%s: waiting for a retry") % status.group,
            attempts_text,
            status.at_ms,
            "warn",
            href,
        )
    else:
        page = page_url("dead", status.group, status.dead_id) if status.dead_id else href
        yield Step(
            _("%s: dead letter") % status.group, attempts_text, status.at_ms, "bad", page
        )
        if status.state == "removed":
            text = _("It was redriven to its topic, deleted, or has expired.")
            yield Step(
                _("%s: no longer a dead letter") % status.group, text, None, "", href
            )


def _committed_step(status: DeliveryStatus, href: str) -> Step:
    """Describe a committed message.

    It is shown as "handled" only if no failure can have been overlooked.
    """
    sentences: list[Text] = []
    if status.attempt:
        sentences.append(
            ngettext(
                "After %s failed attempt.", "After %s failed attempts.", status.attempt
            )
            % format_count(status.attempt)
        )
    # A commit has no time of its own. Samples of the position bound it.
    if status.after_ms is not None and status.by_ms is not None:
        times = {"after": format_time(status.after_ms), "by": format_time(status.by_ms)}
        sentences.append(_("Committed between %(after)s and %(by)s UTC.") % times)
    elif status.by_ms is None:
        sentences.append(_("The time is not recorded."))
    # Partial records could hide a failure, so nothing is claimed then.
    if not status.partly:
        return Step(
            _("%s: handled") % status.group,
            " ".join(map(str, sentences)),
            status.by_ms,
            "ok",
            href,
        )
    sentences.append(
        _(
            "It is not known whether it failed: records are older than two days, a node is away, "
            "or you may not manage the group."
        )
    )
    return Step(
        _("%s: committed") % status.group,
        " ".join(map(str, sentences)),
        status.by_ms,
        "",
        href,
    )
