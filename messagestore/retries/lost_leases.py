"""Upkeep of share groups: messages that were leased too often become dead letters.

A message is leased again when its lease ends without a result, up to the group's
`max_deliveries`.

A pass also removes deleted messages from their runs, and raises committed offsets. The
process that finished the messages normally raises them, but it may have ended before it
did.
"""

from __future__ import annotations

import logging

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.retries import failures
from messagestore.retries.failures import Failure
from messagestore.shares import known_queues, run_leases, upkeep
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.rules.groups import sharing

log = logging.getLogger(__name__)
EVERY_S = 2.0
MOST_DEAD = 100  # messages of a queue in a pass


def sweep() -> int:
    """Run a pass over all share groups. Return the number of messages that became dead
    letters.

    Runs in a single process of all brokers. The error of a node is logged, and the next
    pass tries again.
    """
    died = 0
    for group in [g for g in snapshot.current().groups.values() if g.is_share]:
        for node_id, queues in upkeep.queues_by_node(group).items():
            with sweeping.log_failure(
                f"Upkeep of share group {group.name} on node {node_id}"
            ):
                entries = known_queues.read_entries(
                    group_id=group.id,
                    node=node_pools.node(node_id),
                    queues=[info.id for info in queues],
                )
                for queue, entry in entries.items():
                    if entry.view.runs:
                        upkeep.drop_missing(node_id=node_id, group_id=group.id, entry=entry)
                        died += _bury_exhausted(group, node_id, queue, entry.view.epoch)
                uncommitted = [
                    (group.id, queue)
                    for queue, entry in entries.items()
                    if entry.view.committed < (entry.view.next_offset or 0)
                ]
                upkeep.commit(node_id, uncommitted)
    return died


def _bury_exhausted(group: GroupInfo, node_id: int, queue: int, epoch: int) -> int:
    """Store messages that were leased too often as dead letters, and end their runs.

    Returns the number of ended runs, each of which holds a single message.
    """
    # Without a retry topic there is no place for dead letters, and the messages are leased
    # again.
    limit = run_leases.find_delivery_limit(group, queue)
    if not limit:
        return 0
    with node_pools.node(node_id).reading() as session:
        exhausted = run_sql.select_due(
            session,
            group_id=group.id,
            queue=queue,
            epoch=epoch,
            most=MOST_DEAD,
            limit=limit,
            exhausted=True,
        )
    if not exhausted:
        return 0
    lost_messages = [
        Failure(
            run.queue,
            run.epoch,
            run.first,
            sharing.lease_lost_error(run.deliveries),
            None,
            last=True,
            grant=run.grant,
        )
        for run in exhausted
    ]
    # No member reports these failures, so there is no owner: the grants of the runs prove
    # that no member has leased them again meanwhile.
    report = failures.store(group_id=group.id, owner="", failures=lost_messages)
    # A run ends only after its dead letter is stored: a crash in between stores it again,
    # under the same id. A missing message has nothing to store, so its run ends, too.
    not_stored = {(r.queue, r.offset) for r in report.refused if r.state != "missing"}
    ended_runs = [run for run in exhausted if (run.queue, run.first) not in not_stored]
    with node_pools.node(node_id).reading() as session:
        run_sql.finish_runs(
            session,
            group_id=group.id,
            grants=[(run.queue, run.grant) for run in ended_runs],
        )
    # A touched queue has its committed offset raised by the next pass of
    # upkeep.commit_touched.
    known_queues.touch(group.id, [queue])
    log.warning(
        "Share group %s: %d messages of queue %d are dead, no lease ended well",
        group.name,
        len(ended_runs),
        queue,
    )
    return len(ended_runs)
