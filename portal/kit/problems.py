"""Problems on the first page, a line with its link each, the worse ones first.

They are: alarms that nobody acknowledged; nodes that are silent, offline, quarantined or
nearly full; groups with unread messages that nobody reads, were paused, or are late; dead
letters that nobody has marked as seen; failed jobs of the last day. What an alarm says is
not said twice, and not at all once it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from messagestore.nodes import registry
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.access import may
from metadata.listing.overview_lists import LAG_ALARMS, Overview
from metadata.rules.alarm_rules import parse_subject
from portal.kit import outages, rows
from portal.kit.pages import to
from portal.kit.tables import Text
from portal.templatetags.shapes import at, count

LATE_MS = 15 * 60_000  # an unread message older than that makes a group worth a look
# Kinds of alarms that say what a line below would say.
OF_AWAY = ("node_away",)
OF_SPACE = ("node_low", "node_full", "node_filling")
OF_DEAD = ("dead_growing",)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should look at; `tone` is bad or warn; `since_ms` is that of
    an alarm.

    `more`: further problems of the same `group`, none of them worse.
    """

    tone: str
    text: Text
    href: str = ""
    since_ms: int | None = None
    group: str = ""
    more: tuple[Problem, ...] = ()


def problems(known: Overview, who: Actor) -> list[Problem]:
    """Return all problems, the worse ones first, those of a group together.

    Of groups that read from a node that does not answer, only the node is a problem.
    """
    admin = may(who, "admin", "*")
    found = [
        *_alarms(known, admin),
        *_nodes(known, to("nodes") if admin else ""),
        *_groups(known),
        *_dead(known, who),
        *_jobs(known),
    ]
    held = _cut_off()
    shown = [one for one in found if one.group not in held]
    return _by_group(sorted(shown, key=lambda one: one.tone))  # bad before warn


def _by_group(found: Iterable[Problem]) -> list[Problem]:
    """Return one problem for each consumer group, which contains the other problems of that
    group.
    """
    firsts: dict[object, Problem] = {}
    for number, problem in enumerate(found):
        about = problem.group or number
        first = firsts.get(about)
        firsts[about] = (
            problem if first is None else replace(first, more=(*first.more, problem))
        )
    return list(firsts.values())


def _cut_off() -> set[str]:
    """Return the groups that read a topic with queues on a node that does not answer."""
    known, silent = snapshot.current(), set(outages.silent())
    if not silent:
        return set()
    topics = {
        queue.topic_id
        for queue in known.queues.values()
        if known.nodes[queue.node_id].name in silent
    }
    readers = {
        one.group_id for one in known.subscriptions.values() if one.topic_id in topics
    }
    return {known.groups[group_id].name for group_id in readers if group_id in known.groups}


def _alarms(known: Overview, admin: bool) -> Iterator[Problem]:
    for one in known.alarms:
        words = {
            "kind": rows.alarm_kind(one.kind),
            "name": one.name,
            "detail": rows.alarm_detail(one),
        }
        text = (
            _("Alarm: %(kind)s, %(name)s: %(detail)s")
            if one.name
            else _("Alarm: %(kind)s: %(detail)s")
        )
        href = rows.alarm_href(one.kind, one.name, administrator=admin) or to("alarms")
        about = (
            parse_subject(one.kind, one.name).group
            if one.kind in (*LAG_ALARMS, *OF_DEAD)
            else ""
        )
        yield Problem("bad", text % words, href, one.since_ms, group=about)
    more = known.alarm_count - len(known.alarms)
    if more > 0:
        left = ngettext("%s more alarm", "%s more alarms", more)
        yield Problem("bad", left % count(more), to("alarms"))


def _said(known: Overview, kinds: Collection[str]) -> set[str]:
    """The nodes or groups of which an alarm of these kinds tells, acknowledged or not."""
    about = [
        parse_subject(kind, name) for kind, name in known.lasting_alarms if kind in kinds
    ]
    return {one.node or one.group for one in about}


def _nodes(known: Overview, href: str) -> Iterator[Problem]:
    said = _said(known, OF_AWAY)
    for name in outages.silent():
        if name not in said:
            yield Problem("bad", _("Node %s does not answer.") % name, href)
    for name in outages.offline():
        text = _("Node %s is offline. Its queues accept no sends and no reads.") % name
        yield Problem("warn", text, href)
    for name, why in registry.quarantined().items():
        if name not in said:
            what = _("Node %(name)s is quarantined: %(why)s") % {"name": name, "why": why}
            yield Problem("bad", what, href)
    yield from _stores(known, href)


def _stores(known: Overview, href: str) -> Iterator[Problem]:
    said = _said(known, OF_SPACE)
    for info in snapshot.current().nodes.values():
        if info.disk != "ok" and info.name not in said:
            tone = "bad" if info.disk == "full" else "warn"
            yield Problem(
                tone, _("Node %s is running out of disk space.") % info.name, href
            )


def _groups(known: Overview) -> Iterator[Problem]:
    """Yield groups that no alarm names, each once."""
    behind = [one for one in known.behind if (one.lag or 0) >= config.alarm_min_unread]
    late = [one.name for one in behind if (one.lag_ms or 0) > LATE_MS]
    lines = (
        (known.unread, _("Group %s has unread messages in queues without a consumer.")),
        (known.stopped_behind, _("Group %s is paused and has unread messages.")),
        (
            known.stalled,
            _(
                "Group %s has members and unread messages, but has handled none for minutes."
            ),
        ),
        (late, _("Group %s lags. Its oldest unread message is more than 15 minutes old.")),
    )
    said = _said(known, LAG_ALARMS)
    for names, text in lines:
        for name in names:
            if name not in said:
                yield Problem("warn", text % name, to("group", name), group=name)
        said.update(names)


def _dead(known: Overview, who: Actor) -> Iterator[Problem]:
    said = _said(known, OF_DEAD)
    for one in known.dead.unseen:
        if one.group in said:
            continue
        text = ngettext(
            "Group %(group)s has %(count)s dead letter, the newest of %(when)s.",
            "Group %(group)s has %(count)s dead letters, the newest of %(when)s.",
            one.messages,
        )
        words = {
            "group": one.group,
            "count": count(one.messages),
            "when": at(one.newest_at_ms),
        }
        page = "failures" if may(who, "manage", one.group, what="group") else "group"
        yield Problem("warn", text % words, to(page, one.group), group=one.group)


def _jobs(known: Overview) -> Iterator[Problem]:
    failed = known.failed_job_count
    if failed:
        text = ngettext(
            "%d run of a job failed in the last day.",
            "%d runs of jobs failed in the last day.",
            failed,
        )
        yield Problem("warn", text % failed, to("jobs") + "?q=failed")
