"""Checks everything that raises alarms. A job runs it every minute; it begins and ends
alarms.

Where a node does not answer, alarms that depend on it stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from messagestore import sweeping
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.nodes import cluster_checks, disks, registry
from messagestore.pool import node_pools, writers
from messagestore.produce import delayed_store
from messagestore.tables import dead_letter_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.errors import CatmqError
from metadata.monitoring import alarms, dead_letter_counts, health_checks, lag_checks
from metadata.monitoring.alarms import AlarmFindings
from metadata.monitoring.dead_letter_counts import Count
from metadata.nodes import size_rows
from metadata.rules import alarm_rules
from metadata.rules.addresses import parse_addresses
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text, error_text
from metadata.rules.growth import days_left
from metadata.rules.nodes import Engine, NodeState

log = logging.getLogger(__name__)
AWAY_S = 45.0  # a node must be away in two checks
HOUR_S = 3600


def update_alarms(*, every_minutes: Mapping[str, int]) -> int:
    """Check everything, and begin or end alarms. Return how many began or ended.

    `every_minutes` is the interval of each job. Raises MetadataUnavailable.
    """
    current = snapshot.current()
    away = find_nodes_away()
    changed = alarms.reconcile(
        kind=AlarmKind.NODE_AWAY, active=away.active, begins_after_s=AWAY_S
    )
    changed += _reconcile_alarms(
        AlarmKind.NODE_COPIES, lambda: find_nodes_with_few_copies(away.active)
    )
    changed += _reconcile_alarms(
        AlarmKind.NODE_FILLING, lambda: find_nodes_filling(away.active)
    )
    changed += _reconcile_alarms(AlarmKind.DEAD_GROWING, find_dying_groups)
    # The lag of a topic with a queue on such a node is not known, so its alarms stay.
    cut_off = {
        current.topics[queue.topic_id].name
        for queue in current.queues.values()
        if queue.topic_id in current.topics
        and current.nodes[queue.node_id].name in away.active
    }
    changed += _reconcile_alarms(
        AlarmKind.LAG,
        lambda: lag_checks.hold_cut_off_topics(
            lag_checks.find_lagging_subscriptions(), topics=cut_off
        ),
    )
    changed += _reconcile_alarms(
        AlarmKind.NO_CONSUMER,
        lambda: lag_checks.hold_cut_off_topics(
            lag_checks.find_subscriptions_without_consumer(), topics=cut_off
        ),
        begins_after_s=config.alarm_idle_s,
    )
    changed += _reconcile_alarms(
        AlarmKind.JOB_FAILED, lambda: health_checks.find_failed_jobs(dict(every_minutes))
    )
    changed += health_checks.end_alarms_of_removed(
        nodes=[node.name for node in current.nodes.values()],
        queues=[
            name for q in current.queues if (name := current.queue_name(q)) is not None
        ],
    )
    return changed + alarms.end_quiet_alarms()


def _reconcile_alarms(
    kind: str, find: Callable[[], AlarmFindings], *, begins_after_s: float = 0.0
) -> int:
    findings = find()
    return alarms.reconcile(
        kind=kind,
        active=findings.active,
        unclear=findings.unclear,
        begins_after_s=begins_after_s,
    )


def find_nodes_away() -> AlarmFindings:
    """Return nodes that should answer but do not, or that refuse every write."""
    findings = AlarmFindings()
    for node_id, info in sweeping.online_nodes().items():
        try:
            registry.ping(node_id)
            if fault := registry.wrong_epoch(node_id):
                findings.add(info.name, error_text(fault))
        except CatmqError as error:
            findings.add(info.name, error_text(writers.why_none(info) or error.detail))
    return findings


def find_nodes_with_few_copies(away: Mapping[str, str]) -> AlarmFindings:
    """Return nodes whose next messages would be on fewer servers than they are set up for."""
    findings = AlarmFindings()
    for node_id, info in sweeping.online_nodes().items():
        if info.engine != Engine.MYSQL or info.name in away:
            findings.unclear.add(info.name)
            continue
        try:
            with node_pools.node(node_id).reading() as session:
                if detail := _describe_few_copies(info, session):
                    findings.add(info.name, detail)
        except CatmqError as error:
            log.warning("Copies of node %s are not known: %s", info.name, error.detail)
            findings.unclear.add(info.name)
    return findings


def _describe_few_copies(info: NodeInfo, session: Session) -> str:
    """Return why messages are on too few servers, '' if they are not. Raises `db_errors.*`."""
    if not isinstance(session, MySqlSession):
        return ""
    if session.is_clustered:
        places = parse_addresses(info.host, info.port)
        member = writers.read_member(session, places[0])
        listed = max(member.size, len(places))
        if member.reachable < listed:
            return alarm_text("few_members", reachable=member.reachable, listed=listed)
    texts = [text_key for _, _, text_key, _ in cluster_checks.read_semi_sync(session)]
    return alarm_text("semi_fallback") if "semi_fallback" in texts else ""


def find_nodes_filling(away: Mapping[str, str]) -> AlarmFindings:
    """Return nodes that will be full within the configured days if they keep growing as
    before.
    """
    findings = AlarmFindings()
    growing = size_rows.read_growth()
    for node_id, info in snapshot.current().nodes.items():
        growth = growing.get(node_id)
        if info.name in away or info.state == NodeState.OFFLINE:
            findings.unclear.add(info.name)
            continue
        if not growth or not growth.per_day or growth.per_day <= 0:
            continue
        try:
            with node_pools.node(node_id).reading() as session:
                space = disks.measure(session, info)
        except (CatmqError, OSError) as error:
            log.warning("Disk usage of node %s is not known: %s", info.name, error)
            findings.unclear.add(info.name)
            continue
        days = days_left(space.usable, growth.per_day) if space else None
        if days is not None:
            near = alarm_rules.is_passed(config.alarm_full_days, max(days, 0.001))
            findings.add(info.name, alarm_text("filling", days=f"{days:,.1f}"), is_so=near)
    return findings


def find_dying_groups() -> AlarmFindings:
    """Return groups with many new dead letters in the last hour.

    Also records the number of dead letters of all groups.
    """
    counts = count_dead()
    groups = snapshot.current().groups
    findings = AlarmFindings()
    if counts is None:
        findings.unclear.update(info.name for info in groups.values())
        return findings
    dead_letter_counts.record(
        {group: count for group, count in counts.items() if group in groups}
    )
    for group, count in sorted(counts.items(), key=lambda entry: -entry[1].last_hour):
        if group in groups:
            detail = alarm_text("dead", new=count.last_hour, total=count.messages)
            is_so = alarm_rules.is_passed(count.last_hour, config.alarm_dead_per_hour)
            findings.add(groups[group].name, detail, is_so=is_so)
    return findings


def count_dead() -> dict[int, Count] | None:
    """Return {group id: dead letters on all retry nodes}, None if a node does not answer."""
    counts: dict[int, Count] = {}

    def read(session: Session, _: NodeInfo) -> None:
        for group, messages, last_hour, newest_ms in dead_letter_sql.count_dead_by_group(
            session, within_s=HOUR_S
        ):
            count = Count(messages, last_hour, newest_ms)
            counts[group] = counts[group].plus(count) if group in counts else count

    # A sum without the counts of one retry node would end alarms that still hold.
    skipped = sweeping.query_nodes(
        sweeping.retry_nodes(),
        read,
        subject="Number of dead letters",
        prepare=delayed_store.prepare,
    )
    return None if skipped else counts
