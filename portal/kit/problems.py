"""Problems on the first page, each with a link, worst first.

A problem is: an unacknowledged alarm; a node that does not answer, is offline, quarantined
or nearly full; a group whose unread messages have no consumer, are paused or late; dead
letters not marked as seen; failed jobs of the last day. An alarm replaces the line with the
same content, even after it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from messagestore.nodes import registry
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.access import may
from metadata.listing.overview_lists import LAG_ALARMS, Overview
from metadata.rules.alarm_rules import DISK_KINDS, AlarmKind, parse_subject
from metadata.rules.disks import DiskState
from metadata.rules.rights import Right
from portal.kit import cells, outages
from portal.kit.pages import page_url
from portal.kit.tables import Text
from portal.templatetags.formats import format_count, format_time

# A group whose oldest unread message is older than this is a problem.
LATE_MS = 15 * 60_000
# Kinds of alarms that replace a line about a node, its disk space, or dead letters.
NODE_ALARMS = (AlarmKind.NODE_AWAY,)
DEAD_LETTER_ALARMS = (AlarmKind.DEAD_GROWING,)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem for a person to look at. `tone` is bad or warn, `since_ms` is the begin of
    an alarm.

    `further` are problems of the same `group`, none of them worse.
    """

    tone: str
    text: Text
    href: str = ""
    since_ms: int | None = None
    group: str = ""
    further: tuple[Problem, ...] = ()


def list_problems(overview: Overview, actor: Actor) -> list[Problem]:
    """Return all problems, worst first, grouped by consumer group."""
    is_admin = may(actor, Right.ADMIN, "*")
    candidates = [
        *_alarm_problems(overview, is_admin),
        *_node_problems(overview, page_url("nodes") if is_admin else ""),
        *_group_problems(overview),
        *_dead_letter_problems(overview, actor),
    ]
    if failed := overview.failed_job_count:
        text = ngettext(
            "%d run of a job failed in the last day.",
            "%d runs of jobs failed in the last day.",
            failed,
        )
        candidates.append(Problem("warn", text % failed, page_url("jobs") + "?q=failed"))
    # Groups that read from a silent node would all be late. Only the node is a problem
    # then.
    cut_off_groups = _groups_cut_off()
    visible = [problem for problem in candidates if problem.group not in cut_off_groups]
    # Sorted by tone, "bad" comes before "warn".
    first_by_key: dict[object, Problem] = {}
    for number, problem in enumerate(sorted(visible, key=lambda problem: problem.tone)):
        key = problem.group or number
        first = first_by_key.get(key)
        first_by_key[key] = (
            problem if first is None else replace(first, further=(*first.further, problem))
        )
    return list(first_by_key.values())


def _groups_cut_off() -> set[str]:
    """Return the names of groups that read a topic with queues on a node that does not
    answer.
    """
    cluster, silent = snapshot.current(), set(outages.silent_nodes())
    if not silent:
        return set()
    topics = {
        queue.topic_id
        for queue in cluster.queues.values()
        if cluster.nodes[queue.node_id].name in silent
    }
    readers = {
        subscription.group_id
        for subscription in cluster.subscriptions.values()
        if subscription.topic_id in topics
    }
    return {
        cluster.groups[group_id].name for group_id in readers if group_id in cluster.groups
    }


def _alarm_problems(overview: Overview, is_admin: bool) -> Iterator[Problem]:
    for alarm in overview.alarms:
        values = {
            "kind": cells.alarm_kind(alarm.kind),
            "name": alarm.name,
            "detail": cells.alarm_detail(alarm),
        }
        text = (
            _("Alarm: %(kind)s, %(name)s: %(detail)s")
            if alarm.name
            else _("Alarm: %(kind)s: %(detail)s")
        )
        href = cells.alarm_url(alarm.kind, alarm.name, administrator=is_admin) or page_url(
            "alarms"
        )
        group = (
            parse_subject(alarm.kind, alarm.name).group
            if alarm.kind in (*LAG_ALARMS, *DEAD_LETTER_ALARMS)
            else ""
        )
        yield Problem("bad", text % values, href, alarm.since_ms, group=group)
    omitted = overview.alarm_count - len(overview.alarms)
    if omitted > 0:
        summary = ngettext("%s more alarm", "%s more alarms", omitted)
        yield Problem("bad", summary % format_count(omitted), page_url("alarms"))


def _alarmed_names(overview: Overview, kinds: Collection[str]) -> set[str]:
    """Return the nodes or groups with an alarm of these kinds, acknowledged or not."""
    objects = [
        parse_subject(kind, name) for kind, name in overview.lasting_alarms if kind in kinds
    ]
    return {alarm_object.node or alarm_object.group for alarm_object in objects}


def _node_problems(overview: Overview, href: str) -> Iterator[Problem]:
    # An alarm about the node has the same content with more detail.
    alarmed = _alarmed_names(overview, NODE_ALARMS)
    for name in outages.silent_nodes():
        if name not in alarmed:
            yield Problem("bad", _("Node %s does not answer.") % name, href)
    for name in outages.offline_nodes():
        text = _("Node %s is offline. Its queues accept no sends and no reads.") % name
        yield Problem("warn", text, href)
    for name, reason in registry.quarantined().items():
        if name not in alarmed:
            text = _("Node %(name)s is quarantined: %(why)s") % {
                "name": name,
                "why": reason,
            }
            yield Problem("bad", text, href)
    alarmed = _alarmed_names(overview, DISK_KINDS)
    for node in snapshot.current().nodes.values():
        if node.disk != DiskState.OK and node.name not in alarmed:
            text = _("Node %s is running out of disk space.") % node.name
            yield Problem("bad" if node.disk == DiskState.FULL else "warn", text, href)


def _group_problems(overview: Overview) -> Iterator[Problem]:
    """Yield groups without an alarm that lag, each with its first reason only."""
    # Small lags are normal.
    lagging_groups = [
        group for group in overview.behind if (group.lag or 0) >= config.alarm_min_unread
    ]
    late = [group.name for group in lagging_groups if (group.lag_ms or 0) > LATE_MS]
    lines = (
        (overview.unread, _("Group %s has unread messages in queues without a consumer.")),
        (overview.stopped_behind, _("Group %s is paused and has unread messages.")),
        (
            overview.stalled,
            _(
                "Group %s has members and unread messages, but has handled none for minutes."
            ),
        ),
        (late, _("Group %s lags. Its oldest unread message is more than 15 minutes old.")),
    )
    alarmed = _alarmed_names(overview, LAG_ALARMS)
    for names, text in lines:
        for name in names:
            if name not in alarmed:
                yield Problem("warn", text % name, page_url("group", name), group=name)
        # A group is listed for its first reason only.
        alarmed.update(names)


def _dead_letter_problems(overview: Overview, actor: Actor) -> Iterator[Problem]:
    alarmed = _alarmed_names(overview, DEAD_LETTER_ALARMS)
    for dead in overview.dead.unseen:
        if dead.group in alarmed:
            continue
        text = ngettext(
            "Group %(group)s has %(count)s dead letter, the newest of %(when)s.",
            "Group %(group)s has %(count)s dead letters, the newest of %(when)s.",
            dead.messages,
        )
        values = {
            "group": dead.group,
            "count": format_count(dead.messages),
            "when": format_time(dead.newest_at_ms),
        }
        page = "failures" if may(actor, Right.MANAGE, dead.group, what="group") else "group"
        yield Problem("warn", text % values, page_url(page, dead.group), group=dead.group)
