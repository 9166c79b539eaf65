"""Upkeep of share groups: raise committed offsets, and free the runs of departed members.

Two processes may do it at the same time. Redelivery does not depend on it: a lease runs out
by itself, and upkeep only makes that faster. Committed offsets are what retention,
promotion and resets go by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.shares import known_queues
from messagestore.shares.known_queues import Pair, QueueEntry
from messagestore.tables.shares import position_sql, run_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo, QueueInfo
from metadata.errors import CatmqError
from metadata.grouping import grouped
from metadata.membership import ended_share_members
from metadata.rules.groups import sharing
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.topics.states import READABLE_STATES

log = logging.getLogger(__name__)
EVERY_S = 0.5
MOST_MISSING = 1_000  # runs of a queue that a pass checks for deleted messages


def run_once() -> None:
    """Free runs of departed members, and commit messages that this process finished: a pass
    of a loop.
    """
    free_departed()
    commit_touched()
    known_queues.evict_unused()


def commit_touched() -> int:
    """Raise the committed offsets of queues in which this process finished messages.

    Return the number of these queues. A queue whose node fails is tried again in the next
    pass.
    """
    pairs = known_queues.take_touched()
    queue_infos = snapshot.current().queues
    for node_id, node_pairs in grouped(
        (queue_infos[pair[1]].node_id, pair) for pair in pairs if pair[1] in queue_infos
    ).items():
        try:
            commit(node_id, node_pairs)
        except CatmqError as error:
            log.warning("Share groups on node %d commit later: %s", node_id, error.detail)
            # Put back into the set, which take_touched() has emptied.
            for group_id, queue in node_pairs:
                known_queues.touch(group_id, [queue])
    return len(pairs)


def commit(node_id: int, pairs: Iterable[Pair]) -> None:
    """Raise the committed offset of each (group, queue) of a node to its lowest unfinished
    offset.
    """
    with node_pools.node(node_id).reading() as session:
        for group_id, queue in pairs:
            floor = position_sql.read_floor(session, group_id=group_id, queue=queue)
            # Never lowers `committed`, and changes nothing if the offsets were reset since
            # the read.
            if floor is not None:
                position_sql.raise_committed(
                    session, group_id=group_id, queue=queue, to=floor
                )


def drop_missing(*, node_id: int, group_id: int, entry: QueueEntry) -> int:
    """Remove messages from runs that can no longer be delivered. Return the number of
    messages.

    They are below the log start offset or in a declared gap. A member that leases such a
    run would remove them as well, but without members the lag would count them as long
    as it is not leased. Runs whose lease lasts are left alone: their member has the messages,
    and may still report on them.
    """
    view = entry.view
    next_offset = view.next_offset or 0
    spans = [(0, view.low), *(gap for gap in entry.gaps if gap[0] < next_offset)]
    missing_end = max(end for _, end in spans)
    if not view.runs or view.committed >= missing_end:
        return 0
    dropped = 0
    with node_pools.node(node_id).reading() as session:
        expired_runs = run_sql.select_ended_below(
            session,
            group_id=group_id,
            queue=view.queue,
            epoch=view.epoch,
            below=missing_end,
            most=MOST_MISSING,
        )
        for run in expired_runs:
            bits = run.unfinished_bits & sharing.bits_within(
                spans, run=(run.first, run.end)
            )
            # A run that a member leased meanwhile is not as it was read, so it is not
            # changed.
            if (
                bits
                and run_sql.remove_offsets(session, group_id=group_id, run=run, bits=bits)
                is not None
            ):
                dropped += bits.bit_count()
    if dropped:
        known_queues.touch(group_id, [view.queue])
        log.info(
            "%d leased messages of queue %d are gone: retention, or a gap",
            dropped,
            view.queue,
        )
    return dropped


def free_departed() -> int:
    """End the leases of members that this process saw leave or expire. Return the run
    count.
    """
    current = snapshot.current()
    count = 0
    for group_id, owner in ended_share_members.take_ended():
        group = current.groups.get(group_id)
        if group is None:
            continue
        for node_id, queues in queues_by_node(group).items():
            # On a node that fails, the leases run out by themselves.
            with sweeping.log_failure(
                f"Release of what a member of group {group.name} leased on node {node_id}"
            ):
                with node_pools.node(node_id).reading() as session:
                    runs = run_sql.end_leases_of_owner(
                        session, group_id=group_id, owner=owner
                    )
                if runs:
                    for info in queues:
                        known_queues.note_freed(group_id, info.id, runs=runs)
                count += runs
    return count


def queues_by_node(group: GroupInfo) -> dict[int, list[QueueInfo]]:
    """Return the readable queues of a group, including those of its retry topics, by node
    id.
    """
    current = snapshot.current()
    queues_by_node: dict[int, list[QueueInfo]] = {}
    for subscription in current.subscriptions_of(group.id):
        topic = current.topics.get(subscription.topic_id)
        if topic is None or subscription.state != SubscriptionState.READY:
            continue
        for queue in topic.queues:
            info = current.queues.get(queue)
            if info is not None and info.state in READABLE_STATES:
                queues_by_node.setdefault(info.node_id, []).append(info)
    return queues_by_node
