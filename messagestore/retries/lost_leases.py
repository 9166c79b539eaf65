"""Messages of share groups that were leased too often: each lease ended without a result, so they are dead.

A pass also ends runs of messages that are gone, and commits what no process has: the one that finished it
may have ended.
"""

from __future__ import annotations

import logging

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.retries import failures
from messagestore.retries.failures import Failure
from messagestore.shares import known_queues, taking, upkeep
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo, QueueInfo
from metadata.rules.groups import sharing

log = logging.getLogger(__name__)
EVERY_S = 2.0
MOST_DEAD = 100  # of a queue in a pass


def sweep() -> int:
    """Make messages dead that were leased too often, and commit what no process has; return how many died.

    A pass over all share groups, for one process of all brokers.
    """
    groups = [one for one in snapshot.current().groups.values() if one.is_share]
    return sum(
        _swept(group, node_id, queues) for group in groups for node_id, queues in upkeep.places(group).items()
    )


def _swept(group: GroupInfo, node_id: int, queues: list[QueueInfo]) -> int:
    died = 0
    with sweeping.later(f"Upkeep of share group {group.name} on node {node_id}"):
        known = known_queues.known(
            group_id=group.id, node=node_pools.node(node_id), queues=[info.id for info in queues]
        )
        for queue, one in known.items():
            if one.view.runs:
                upkeep.drop_missing(node_id=node_id, group_id=group.id, one=one)
                died += _buried(group, node_id, queue, one.view.epoch)
        behind = [queue for queue, one in known.items() if one.view.committed < (one.view.next_offset or 0)]
        upkeep.commit(node_id, [(group.id, queue) for queue in behind])
    return died


def _buried(group: GroupInfo, node_id: int, queue: int, epoch: int) -> int:
    """Store messages of a queue that were leased too often as dead letters, and end their runs."""
    limit = taking.limit_of(group, queue)
    if not limit:
        return 0
    with node_pools.node(node_id).reading() as session:
        exhausted = run_sql.select_due(
            session, group_id=group.id, queue=queue, epoch=epoch, most=MOST_DEAD, limit=limit, exhausted=True
        )
    if not exhausted:
        return 0
    lost = [_failure(run) for run in exhausted]
    report = failures.store(group_id=group.id, owner="", failures=lost)
    kept = {(one.queue, one.offset) for one in report.refused if one.state != "missing"}
    over = [run for run in exhausted if (run.queue, run.first) not in kept]
    with node_pools.node(node_id).reading() as session:
        run_sql.finish(session, group_id=group.id, grants=[(run.queue, run.grant) for run in over])
    known_queues.touch(group.id, [queue])
    log.warning(
        "Share group %s: %d messages of queue %d are dead, no lease ended well", group.name, len(over), queue
    )
    return len(over)


def _failure(run: Run) -> Failure:
    error = sharing.lease_lost(run.deliveries)
    return Failure(run.queue, run.epoch, run.first, error, None, last=True, grant=run.grant)
