"""The life line of a message: what is recorded of it, in order, and what is not."""

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
from metadata.topics import producers
from portal.kit import cells
from portal.kit.pages import Step, page_url
from portal.kit.tables import Text
from portal.templatetags.formats import format_count, format_duration, format_time

MAX_CLIENTS = 3  # that are named


def life_steps(
    stored: StoredMessage,
    sent: Text,
    found: Sequence[DeliveryStatus],
    traces: Sequence[TraceView],
) -> list[Step]:
    """Return the steps of a message: sent, stored, who had it, and what became of it in
    each group.
    """
    place = _("%(queue)s, offset %(offset)s") % {
        "queue": cells.queue_name(stored.queue),
        "offset": format_count(stored.offset),
    }
    return [
        Step(_("Sent"), sent),
        Step(_("Stored in its queue"), place, stored.stored_at_ms, "ok"),
        *map(_attempt, traces),
        *(step for one in found for step in _in_group(one)),
    ]


def describe_sender(topic: str, stored: StoredMessage, actor: Actor) -> Text:
    """Describe the sender by the name stored with the message, and the clients that sent
    under it then.
    """
    name = browse.sender(topic=topic, queue=stored.queue, offset=stored.offset, actor=actor)
    is_retry = snapshot.origin_of(topic) is not None
    said: list[Text] = [_("The sender is not recorded.")]
    if is_retry and name == "redrive":
        said = [_("Redriven from the dead letters.")]
    elif name:
        said = [_("By %s.") % name]
        if not is_retry:
            said += _clients(topic, name, stored.stored_at_ms, actor)
    if stored.trace_id:
        said.append(_("The trace id is %s.") % stored.trace_id)
    return " ".join(map(str, said))


def _clients(topic: str, name: str, at_ms: int, actor: Actor) -> Iterator[Text]:
    """Name the clients that sent under this name at that time; which of them it was is not
    recorded.
    """
    found = producers.clients_of(topic=topic, name=name, at_ms=at_ms, actor=actor)
    if found:
        named = [
            f"{one.address} ({one.sdk})" if one.sdk else one.address
            for one in found[:MAX_CLIENTS]
        ]
        more = ["…"] if len(found) > MAX_CLIENTS else []
        yield _("It sent at that time from: %s.") % ", ".join([*named, *more])


def _attempt(one: TraceView) -> Step:
    """Describe a traced attempt; a member reports it itself, so its clock has no part in
    the time.
    """
    words = {"group": one.group, "member": one.member}
    title = _("%(group)s: delivered to %(member)s") % words
    time = format_duration(one.took_ms)
    text = {
        "handled": _("Handled in %s.") % time,
        "failed": _("Failed after %s.") % time,
        "delivered": _("The client does not report how long it took."),
    }[one.outcome]
    if one.attempt:
        text = f"{_('Retry %s.') % format_count(one.attempt)} {text}"
    tone = {"handled": "ok", "failed": "warn"}.get(one.outcome, "")
    return Step(title, text, one.at_ms, tone, page_url("group", one.group))


def _in_group(one: DeliveryStatus) -> Iterator[Step]:
    href = page_url("group", one.group)
    if one.first_failed_at_ms is not None:
        title = _("%s: failed first") % one.group
        yield Step(title, _error(one), one.first_failed_at_ms, "warn", href)
    for redrive in one.redrives:
        yield Step(_("%s: dead letter") % one.group, "", redrive.died_at_ms, "bad", href)
        title = _("%s: redriven from the dead letters") % one.group
        yield Step(title, "", redrive.at_ms, "warn", href)
    after = ngettext(
        "After %s attempt.", "After %s attempts.", one.attempt or 0
    ) % format_count(one.attempt)
    if one.state == "unread":
        ahead = one.ahead or 0
        text = ngettext(
            "%s message comes before it.", "%s messages come before it.", ahead
        ) % format_count(ahead)
        yield Step(_("%s: not read yet") % one.group, text, None, "warn", href)
    elif one.state == "read":
        yield _read(one, href)
    elif one.state == "skipped":
        yield Step(_("%s: skipped") % one.group, _skipped(one), one.by_ms, "", href)
    elif one.state == "waiting":
        yield Step(_("%s: waiting for a retry") % one.group, after, one.at_ms, "warn", href)
    else:
        page = page_url("dead", one.group, one.dead_id) if one.dead_id else href
        yield Step(_("%s: dead letter") % one.group, after, one.at_ms, "bad", page)
        if one.state == "removed":
            text = _("It was redriven to its topic, deleted, or has expired.")
            yield Step(_("%s: no longer a dead letter") % one.group, text, None, "", href)


def _error(one: DeliveryStatus) -> Text:
    return _("The last error: %s") % one.error if one.error else ""


def _read(one: DeliveryStatus, href: str) -> Step:
    """Describe a committed message; it is "handled" only if no failure of it can have been
    overlooked.
    """
    said: list[Text] = []
    if one.attempt:
        said.append(
            ngettext("After %s failed attempt.", "After %s failed attempts.", one.attempt)
            % format_count(one.attempt)
        )
    if one.after_ms is not None and one.by_ms is not None:
        times = {"after": format_time(one.after_ms), "by": format_time(one.by_ms)}
        said.append(_("Committed between %(after)s and %(by)s UTC.") % times)
    elif one.by_ms is None:
        said.append(_("The time is not recorded."))
    if not one.partly:
        return Step(
            _("%s: handled") % one.group, " ".join(map(str, said)), one.by_ms, "ok", href
        )
    said.append(
        _(
            "It is not known whether it failed: records are older than two days, a node is away, "
            "or you may not manage the group."
        )
    )
    return Step(
        _("%s: committed") % one.group, " ".join(map(str, said)), one.by_ms, "", href
    )


def _skipped(one: DeliveryStatus) -> Text:
    return {
        "reset": _("The group's offset was reset to one behind it."),
        "filter": _("The subscription's filter does not take it."),
        "start": _("The subscription began behind it."),
    }[one.skipped_by]
