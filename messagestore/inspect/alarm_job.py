"""The look at everything that may be wrong, which a job takes every minute: alarms begin
and end by it.

Whatever a node that is away would tell stays as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.nodes import disks, registry
from messagestore.pool import node_pools
from messagestore.produce import delayed_store
from messagestore.tables import dead_letter_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.errors import CatmqError
from metadata.monitoring import alarms, dead_letter_counts, health_checks, lag_alarms
from metadata.monitoring.alarms import AlarmFindings
from metadata.monitoring.dead_letter_counts import Count
from metadata.nodes import size_rows
from metadata.rules import alarm_rules
from metadata.rules.alarm_texts import alarm_text, error_text
from metadata.rules.growth import days_left

log = logging.getLogger(__name__)
AWAY_S = 45.0  # so long must a node be away: two looks
HOUR_S = 3600


def update_alarms(*, every_minutes: Mapping[str, int]) -> int:
    """One look at everything; how many alarms began or ended. `every_minutes`: how often
    each job comes.

    Raises MetadataUnavailable.
    """
    known = snapshot.current()
    away = find_nodes_away()
    turned = alarms.reconcile(kind="node_away", found=away.found, begins_after_s=AWAY_S)
    turned += _keep("node_filling", lambda: find_nodes_filling(away.found))
    turned += _keep("dead_growing", find_dying_groups)
    cut_off = {
        known.topics[queue.topic_id].name
        for queue in known.queues.values()
        if queue.topic_id in known.topics and known.nodes[queue.node_id].name in away.found
    }
    turned += _keep(
        "lag",
        lambda: lag_alarms.hold_cut_off_topics(
            lag_alarms.find_lagging_subscriptions(), topics=cut_off
        ),
    )
    turned += _keep(
        "no_consumer",
        lambda: lag_alarms.hold_cut_off_topics(
            lag_alarms.find_subscriptions_without_consumer(), topics=cut_off
        ),
        begins_after_s=config.alarm_idle_s,
    )
    turned += _keep(
        "job_failed", lambda: health_checks.find_failed_jobs(dict(every_minutes))
    )
    names = [name for one in known.queues if (name := known.queue_name(one)) is not None]
    turned += health_checks.end_alarms_of_removed(
        nodes=[one.name for one in known.nodes.values()], queues=names
    )
    return turned + alarms.end_quiet_alarms()


def _keep(
    kind: str, seen: Callable[[], AlarmFindings], *, begins_after_s: float = 0.0
) -> int:
    found = seen()
    return alarms.reconcile(
        kind=kind, found=found.found, unclear=found.unclear, begins_after_s=begins_after_s
    )


def find_nodes_away() -> AlarmFindings:
    """Nodes that ought to answer, and do not, or that refuse every write."""
    seen = AlarmFindings()
    for node_id, info in sweeping.online_nodes().items():
        try:
            registry.ping(node_id)
            if fault := registry.wrong_epoch(node_id):
                seen.add(info.name, error_text(fault))
        except CatmqError as error:
            seen.add(info.name, error_text(error.detail))
    return seen


def find_nodes_filling(away: Mapping[str, str]) -> AlarmFindings:
    """Nodes that will store nothing more within the days that settings name, if they grow
    as they did.
    """
    seen = AlarmFindings()
    growing = size_rows.read_growth()
    for node_id, info in snapshot.current().nodes.items():
        growth = growing.get(node_id)
        if info.name in away or info.state == "offline":
            seen.unclear.add(info.name)
        elif growth and growth.per_day and growth.per_day > 0:
            _look_at_room(seen, node_id, info, growth.per_day)
    return seen


def _look_at_room(
    seen: AlarmFindings, node_id: int, info: NodeInfo, per_day: float
) -> None:
    try:
        with node_pools.node(node_id).reading() as session:
            space = disks.measure(session, info)
    except (CatmqError, OSError) as error:
        log.warning("Disk usage of node %s is not known: %s", info.name, error)
        seen.unclear.add(info.name)
        return
    days = days_left(space.usable, per_day) if space else None
    if days is not None:
        near = alarm_rules.is_passed(config.alarm_full_days, max(days, 0.001))
        seen.add(info.name, alarm_text("filling", days=f"{days:,.1f}"), is_so=near)


def find_dying_groups() -> AlarmFindings:
    """Groups of which many messages died in the last hour; counts the dead of all groups."""
    counts = count_dead()
    known = snapshot.current().groups
    seen = AlarmFindings()
    if counts is None:
        seen.unclear.update(info.name for info in known.values())
        return seen
    dead_letter_counts.record(
        {group: count for group, count in counts.items() if group in known}
    )
    for group, count in sorted(counts.items(), key=lambda one: -one[1].last_hour):
        if group in known:
            detail = alarm_text("dead", new=count.last_hour, total=count.messages)
            is_so = alarm_rules.is_passed(count.last_hour, config.alarm_dead_per_hour)
            seen.add(known[group].name, detail, is_so=is_so)
    return seen


def count_dead() -> dict[int, Count] | None:
    """{group id: its dead} on all retry nodes; None while one does not answer."""
    counts: dict[int, Count] = {}

    def read(session: Session, _: NodeInfo) -> None:
        for group, messages, last_hour, newest_ms in dead_letter_sql.count_dead_by_group(
            session, within_s=HOUR_S
        ):
            count = Count(messages, last_hour, newest_ms)
            counts[group] = counts[group].plus(count) if group in counts else count

    asked = sweeping.retry_nodes()
    skipped = sweeping.query_nodes(
        asked, read, subject="Number of dead letters", prepare=delayed_store.prepare
    )
    return None if skipped else counts
