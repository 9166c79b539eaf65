"""Causes of a group's lag in words, each with what to do and the page where it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from metadata.rules.groups.lagging import Cause
from portal.kit import cells
from portal.kit.pages import Link, page_url
from portal.kit.tables import Text
from portal.templatetags.formats import format_count, format_duration, format_rate


@dataclass(frozen=True, slots=True)
class CauseText:
    """A cause on a page; `tone` is bad, warn or ''; `link` leads to what helps, `command`
    may be pasted.
    """

    title: Text
    text: Text
    tone: str = "warn"
    link: Link | None = None
    command: str = ""


def describe_causes(
    found: Sequence[Cause], *, group: str, manages: bool
) -> list[CauseText]:
    """Return all causes in words; links to changes only for who may make them."""
    return [_WORDS[one.kind](one, group, manages) for one in found]


def _queues(one: Cause) -> str:
    return ", ".join(cells.queue_name(int(queue)) for queue in one.about)


def _names(one: Cause) -> str:
    return ", ".join(map(str, one.about))


def _percent(value: Any) -> str:
    return f"{100 * float(value):.0f} %"


def _settings(group: str, label: str, page: str, manages: bool) -> Link | None:
    return Link(label, page_url(page, group)) if manages else None


def _away(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _("Nobody can read these queues until it is back: %s.") % _queues(one)
    return CauseText(_("A node does not answer"), text, "bad")


def _corrupt(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "Nothing behind the hole is delivered: %s. The alarm says what to do."
    ) % _queues(one)
    return CauseText(
        _("A queue is corrupt"), text, "bad", Link(_("Alarms"), page_url("alarms"))
    )


def _paused(one: Cause, group: str, manages: bool) -> CauseText:
    lag = int(one.words["lag"] or 0)
    text = ngettext(
        "%s message waits until it is resumed.",
        "%s messages wait until it is resumed.",
        lag,
    )
    return CauseText(
        _("The group is paused"),
        text % format_count(lag),
        link=_settings(group, _("Resume"), "group-start", manages),
    )


def _topics_paused(one: Cause, group: str, manages: bool) -> CauseText:
    link = (
        Link(_("Resume"), page_url("subscription-settings", group, one.about[0]))
        if manages
        else None
    )
    return CauseText(
        _("Reading is paused"),
        _("Paused topics with unread messages: %s.") % _names(one),
        link=link,
    )


def _queues_paused(one: Cause, _group: str, _manages: bool) -> CauseText:
    return CauseText(
        _("Queues are paused"), _("Paused queues with unread messages: %s.") % _queues(one)
    )


def _no_members(one: Cause, group: str, _manages: bool) -> CauseText:
    lag = int(one.words["lag"] or 0)
    text = ngettext(
        "No consumer is in the group, and %s message waits. Start one:",
        "No consumer is in the group, and %s messages wait. Start one:",
        lag,
    )
    command = f"catmq consume --group {group} TOPIC"
    return CauseText(
        _("The group has no members"), text % format_count(lag), "bad", command=command
    )


def _standing_by(one: Cause, group: str, manages: bool) -> CauseText:
    members = int(one.words["members"] or 0)
    text = ngettext(
        "%d member is connected, but the limits of the group let none read.",
        "%d members are connected, but the limits of the group let none read.",
        members,
    )
    link = _settings(group, _("Settings"), "group-settings", manages)
    return CauseText(_("All members stand by"), text % members, "bad", link)


def _no_owner(one: Cause, group: str, manages: bool) -> CauseText:
    text = _("Unread messages lie in queues that no member owns: %s.") % _queues(one)
    link = _settings(group, _("Rebalance"), "group-rebalance", manages)
    return CauseText(_("Queues have no owner"), text, "bad", link)


def _silent_member(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "It holds queues and sends no heartbeats: %s. After the session timeout, others get them. "
        "Look at its process."
    )
    return CauseText(_("A member is silent"), text % _names(one), "bad")


def _unfinished_leases(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "Members do not finish what they have. New messages are not leased in queues: %s"
    )
    return CauseText(_("Too many unfinished leases"), text % _queues(one), "bad")


def _no_pulls(_one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "They send heartbeats, but have pulled nothing for minutes. Their handlers hang, "
        "or their circuit "
        "breaker is open. Look at their logs."
    )
    return CauseText(_("Members ask for no messages"), text, "bad")


def _blocked_in_order(_one: Cause, group: str, manages: bool) -> CauseText:
    text = _(
        "The subscription is ordered, so a message that fails blocks its queue until it "
        "succeeds or its "
        "retries are used up. Look at the logs of the members."
    )
    link = _settings(group, _("Retries and dead letters"), "failures", manages)
    return CauseText(_("A failing message blocks its queue"), text, "bad", link)


def _nothing_finished(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "Members pull %s messages/s and finish none: the handler hangs, takes very long, "
        "or the process is "
        "restarted again and again."
    )
    return CauseText(
        _("Nothing is handled"), text % format_rate(_float(one.words["pulled"])), "bad"
    )


def _long_handler(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "A handler of %(member)s is at work on %(queue)s, offset %(offset)s, for %(time)s. "
        "Look at that "
        "message, and at what the handler waits for."
    )
    words = {
        "member": one.words["member"],
        "queue": _queues(one),
        "offset": format_count(one.words["offset"]),
        "time": format_duration(round(_float(one.words["running_ms"]) or 0)),
    }
    return CauseText(_("A handler runs for very long"), text % words)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _hot_key(one: Cause, _group: str, _manages: bool) -> CauseText:
    queue, key = cells.queue_name(int(one.about[0])), one.about[1]
    text = _(
        "%(share)s of the unread messages are in %(queue)s, and %(of_keys)s of those that "
        "wait first "
        "have the key %(key)s. One key is read by one member, so more members do not help: "
        "give the messages "
        "finer keys."
    )
    words = {
        "share": _percent(one.words["share"]),
        "of_keys": _percent(one.words["of_keys"]),
        "queue": queue,
        "key": key,
    }
    return CauseText(_("One key has most messages"), text % words)


def _hot_queue(one: Cause, _group: str, _manages: bool) -> CauseText:
    text = _(
        "%(share)s of the unread messages are in %(queue)s, which %(owner)s reads. Look at "
        "that member, "
        "and at the keys of the messages."
    )
    words = {
        "share": _percent(one.words["share"]),
        "queue": _queues(one),
        "owner": one.words["owner"] or _("nobody"),
    }
    return CauseText(_("One queue has most messages"), text % words)


def _failing(one: Cause, group: str, manages: bool) -> CauseText:
    text = _(
        "Dead letters of the last hour: %(dead)s. Retries that wait to be read: %(retries)s."
    )
    words = {name: format_count(one.words[name]) for name in ("dead", "retries")}
    link = _settings(group, _("Retries and dead letters"), "failures", manages)
    return CauseText(_("Many messages fail"), text % words, link=link)


def _rebalancing(one: Cause, group: str, _manages: bool) -> CauseText:
    text = _(
        "%s rebalances in ten minutes. Queues stand still during each. Look at why members "
        "come and go."
    )
    link = Link(_("Rebalances"), f"{page_url('rebalances')}?q={group}&of=group")
    return CauseText(
        _("Members come and go"), text % format_count(one.words["rebalances"]), link=link
    )


def _reset(one: Cause, group: str, _manages: bool) -> CauseText:
    text = _(
        "%s moved the offsets back in the last ten minutes, so messages are read again."
    ) % _names(one)
    return CauseText(
        _("Offsets were reset"),
        text,
        "",
        Link(_("Offset resets"), page_url("moves", group)),
    )


def _slow_handler(one: Cause, group: str, manages: bool) -> CauseText:
    words = {name: format_rate(_float(one.words[name])) for name in ("handled", "sent")}
    parts = [
        _("%(sent)s messages/s are sent, and the members handle %(handled)s/s.") % words
    ]
    if one.words["message_ms"]:
        parts.append(
            _("A message takes a thread about %s.")
            % format_duration(round(float(one.words["message_ms"])))
        )
    if one.words["has_room"]:
        parts.append(
            _("Start more members, give them more threads, or make the handler faster.")
        )
    else:
        parts.append(
            _(
                "Every queue has a member: give the members more threads, make the handler "
                "faster, or expand "
                "the topic."
            )
        )
    return CauseText(_("The handler is too slow"), " ".join(map(str, parts)))


def _more_was_sent(one: Cause, _group: str, _manages: bool) -> CauseText:
    words = {name: format_rate(_float(one.words[name])) for name in ("handled", "sent")}
    text = (
        _(
            "The members handle %(handled)s messages/s and %(sent)s/s are sent, so the lag shrinks."
        )
        % words
    )
    return CauseText(_("More was sent than handled, but it catches up"), text, "ok")


_WORDS: Mapping[str, Callable[[Cause, str, bool], CauseText]] = {
    "away": _away,
    "corrupt": _corrupt,
    "paused": _paused,
    "topics_paused": _topics_paused,
    "queues_paused": _queues_paused,
    "no_members": _no_members,
    "standing_by": _standing_by,
    "no_owner": _no_owner,
    "silent_member": _silent_member,
    "unfinished_leases": _unfinished_leases,
    "no_pulls": _no_pulls,
    "blocked_in_order": _blocked_in_order,
    "nothing_finished": _nothing_finished,
    "long_handler": _long_handler,
    "hot_key": _hot_key,
    "hot_queue": _hot_queue,
    "failing": _failing,
    "rebalancing": _rebalancing,
    "reset": _reset,
    "slow_handler": _slow_handler,
    "more_was_sent": _more_was_sent,
}
