"""Causes of a group's lag in words, each with a remedy and a link to the page where it is
applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from metadata.rules.groups.lag_causes import Cause
from portal.kit import cells
from portal.kit.pages import Link, page_url
from portal.kit.tables import Text
from portal.templatetags.formats import format_count, format_duration, format_rate


@dataclass(frozen=True, slots=True)
class CauseText:
    """A cause in words. `tone` is bad, warn or ''. `link` leads to a remedy, `command` can
    be pasted.
    """

    title: Text
    text: Text
    tone: str = "warn"
    link: Link | None = None
    command: str = ""


_Describer = Callable[[Cause, str, bool], CauseText]
# By kind of cause. A describer gets the cause, the group, and whether the user manages it.
_DESCRIBERS: dict[str, _Describer] = {}


def _describes(kind: str) -> Callable[[_Describer], _Describer]:
    """Register the function that describes causes of a kind."""

    def register(describer: _Describer) -> _Describer:
        _DESCRIBERS[kind] = describer
        return describer

    return register


def describe_causes(
    causes: Sequence[Cause], *, group: str, manages: bool
) -> list[CauseText]:
    """Return the causes in words. Links to changes are only for users who `manage` the
    group.
    """
    return [_DESCRIBERS[cause.kind](cause, group, manages) for cause in causes]


def _queue_names(cause: Cause) -> str:
    return ", ".join(cells.queue_name(int(queue)) for queue in cause.about)


def _list_names(cause: Cause) -> str:
    return ", ".join(map(str, cause.about))


def _percent(value: Any) -> str:
    return f"{100 * float(value):.0f} %"


def _link_for_managers(group: str, label: str, page: str, manages: bool) -> Link | None:
    return Link(label, page_url(page, group)) if manages else None


@_describes("away")
def _describe_silent_node(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _("Nobody can read these queues until it is back: %s.") % _queue_names(cause)
    return CauseText(_("A node does not answer"), text, "bad")


@_describes("corrupt")
def _describe_corruption(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "Nothing behind the hole is delivered: %s. The alarm says what to do."
    ) % _queue_names(cause)
    return CauseText(
        _("A queue is corrupt"), text, "bad", Link(_("Alarms"), page_url("alarms"))
    )


@_describes("paused")
def _describe_pause(cause: Cause, group: str, manages: bool) -> CauseText:
    lag = int(cause.figures["lag"] or 0)
    text = ngettext(
        "%s message waits until it is resumed.",
        "%s messages wait until it is resumed.",
        lag,
    )
    return CauseText(
        _("The group is paused"),
        text % format_count(lag),
        link=_link_for_managers(group, _("Resume"), "group-start", manages),
    )


@_describes("topics_paused")
def _describe_paused_topics(cause: Cause, group: str, manages: bool) -> CauseText:
    link = (
        Link(_("Resume"), page_url("subscription-settings", group, cause.about[0]))
        if manages
        else None
    )
    return CauseText(
        _("Reading is paused"),
        _("Paused topics with unread messages: %s.") % _list_names(cause),
        link=link,
    )


@_describes("queues_paused")
def _describe_paused_queues(cause: Cause, _group: str, _manages: bool) -> CauseText:
    return CauseText(
        _("Queues are paused"),
        _("Paused queues with unread messages: %s.") % _queue_names(cause),
    )


@_describes("no_members")
def _describe_no_members(cause: Cause, group: str, _manages: bool) -> CauseText:
    lag = int(cause.figures["lag"] or 0)
    text = ngettext(
        "No consumer is in the group, and %s message waits. Start one:",
        "No consumer is in the group, and %s messages wait. Start one:",
        lag,
    )
    command = f"catmq consume --group {group} {cause.about[0]}"
    return CauseText(
        _("The group has no members"), text % format_count(lag), "bad", command=command
    )


@_describes("standing_by")
def _describe_standby(cause: Cause, group: str, manages: bool) -> CauseText:
    members = int(cause.figures["members"] or 0)
    text = ngettext(
        "%d member is connected, but the limits of the group let none read.",
        "%d members are connected, but the limits of the group let none read.",
        members,
    )
    link = _link_for_managers(group, _("Settings"), "group-settings", manages)
    return CauseText(_("All members stand by"), text % members, "bad", link)


@_describes("no_owner")
def _describe_no_owner(cause: Cause, group: str, manages: bool) -> CauseText:
    text = _("Unread messages lie in queues that no member owns: %s.") % _queue_names(cause)
    link = _link_for_managers(group, _("Rebalance"), "group-rebalance", manages)
    return CauseText(_("Queues have no owner"), text, "bad", link)


@_describes("silent_member")
def _describe_silent_member(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "It holds queues and sends no heartbeats: %s. After the session timeout, others get them. "
        "Look at its process."
    )
    return CauseText(_("A member is silent"), text % _list_names(cause), "bad")


@_describes("unfinished_leases")
def _describe_unfinished_leases(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "Members do not finish what they have. New messages are not leased in queues: %s"
    )
    return CauseText(_("Too many unfinished leases"), text % _queue_names(cause), "bad")


@_describes("no_pulls")
def _describe_no_pulls(_cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "They send heartbeats, but have pulled nothing for minutes. Their handlers hang, "
        "or their circuit "
        "breaker is open. Look at their logs."
    )
    return CauseText(_("Members ask for no messages"), text, "bad")


@_describes("blocked_in_order")
def _describe_blocked_queue(_cause: Cause, group: str, manages: bool) -> CauseText:
    text = _(
        "The subscription is ordered, so a message that fails blocks its queue until it "
        "succeeds or its "
        "retries are used up. Look at the logs of the members."
    )
    link = _link_for_managers(group, _("Retries and dead letters"), "failures", manages)
    return CauseText(_("A failing message blocks its queue"), text, "bad", link)


@_describes("nothing_finished")
def _describe_hanging_handlers(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "Members pull %s messages/s and finish none: the handler hangs, takes very long, "
        "or the process is "
        "restarted again and again."
    )
    return CauseText(
        _("Nothing is handled"), text % format_rate(_float(cause.figures["pulled"])), "bad"
    )


@_describes("long_handler")
def _describe_long_handler(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "A handler of %(member)s is at work on %(queue)s, offset %(offset)s, for %(time)s. "
        "Look at that "
        "message, and at what the handler waits for."
    )
    values = {
        "member": cause.figures["member"],
        "queue": _queue_names(cause),
        "offset": format_count(cause.figures["offset"]),
        "time": format_duration(round(_float(cause.figures["running_ms"]) or 0)),
    }
    return CauseText(_("A handler runs for very long"), text % values)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


@_describes("hot_key")
def _describe_hot_key(cause: Cause, _group: str, _manages: bool) -> CauseText:
    queue, key = cells.queue_name(int(cause.about[0])), cause.about[1]
    text = _(
        "%(share)s of the unread messages are in %(queue)s, and %(of_keys)s of those that "
        "wait first "
        "have the key %(key)s. One key is read by one member, so more members do not help: "
        "give the messages "
        "finer keys."
    )
    values = {
        "share": _percent(cause.figures["share"]),
        "of_keys": _percent(cause.figures["of_keys"]),
        "queue": queue,
        "key": key,
    }
    return CauseText(_("One key has most messages"), text % values)


@_describes("hot_queue")
def _describe_hot_queue(cause: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "%(share)s of the unread messages are in %(queue)s, which %(owner)s reads. Look at "
        "that member, "
        "and at the keys of the messages."
    )
    values = {
        "share": _percent(cause.figures["share"]),
        "queue": _queue_names(cause),
        "owner": cause.figures["owner"] or _("nobody"),
    }
    return CauseText(_("One queue has most messages"), text % values)


@_describes("failing")
def _describe_failures(cause: Cause, group: str, manages: bool) -> CauseText:
    text = _(
        "Dead letters of the last hour: %(dead)s. Retries that wait to be read: %(retries)s."
    )
    counts = {name: format_count(cause.figures[name]) for name in ("dead", "retries")}
    link = _link_for_managers(group, _("Retries and dead letters"), "failures", manages)
    return CauseText(_("Many messages fail"), text % counts, link=link)


@_describes("rebalancing")
def _describe_rebalances(cause: Cause, group: str, _manages: bool) -> CauseText:
    text = _(
        "%s rebalances in ten minutes. Queues stand still during each. Look at why members "
        "come and go."
    )
    link = Link(_("Rebalances"), f"{page_url('rebalances')}?q={group}&of=group")
    return CauseText(
        _("Members come and go"),
        text % format_count(cause.figures["rebalances"]),
        link=link,
    )


@_describes("reset")
def _describe_reset(cause: Cause, group: str, _manages: bool) -> CauseText:
    text = _(
        "%s moved the offsets back in the last ten minutes, so messages are read again."
    ) % _list_names(cause)
    return CauseText(
        _("Offsets were reset"),
        text,
        "",
        Link(_("Offset resets"), page_url("moves", group)),
    )


@_describes("slow_handler")
def _describe_slow_handler(cause: Cause, group: str, manages: bool) -> CauseText:
    rates = {name: format_rate(_float(cause.figures[name])) for name in ("handled", "sent")}
    sentences = [
        _("%(sent)s messages/s are sent, and the members handle %(handled)s/s.") % rates
    ]
    if cause.figures["message_ms"]:
        sentences.append(
            _("A message takes a thread about %s.")
            % format_duration(round(float(cause.figures["message_ms"])))
        )
    if cause.figures["has_room"]:
        sentences.append(
            _("Start more members, give them more threads, or make the handler faster.")
        )
    else:
        sentences.append(
            _(
                "Every queue has a member: give the members more threads, make the handler "
                "faster, or expand "
                "the topic."
            )
        )
    return CauseText(_("The handler is too slow"), " ".join(map(str, sentences)))


@_describes("more_was_sent")
def _describe_catching_up(cause: Cause, _group: str, _manages: bool) -> CauseText:
    rates = {name: format_rate(_float(cause.figures[name])) for name in ("handled", "sent")}
    text = (
        _(
            "The members handle %(handled)s messages/s and %(sent)s/s are sent, so the lag shrinks."
        )
        % rates
    )
    return CauseText(_("More was sent than handled, but it catches up"), text, "ok")
