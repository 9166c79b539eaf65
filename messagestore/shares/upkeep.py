"""Upkeep of share groups: committed offsets, and runs of members that ended.

All of it is harmless when two processes do it, and none of it is needed for messages to be delivered once
more: a lease runs out by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.shares import known_queues
from messagestore.shares.known_queues import Known, Pair
from messagestore.tables.shares import position_sql, run_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo, QueueInfo
from metadata.errors import CatmqError
from metadata.grouping import grouped
from metadata.membership import departures
from metadata.rules.groups import sharing

log = logging.getLogger(__name__)
EVERY_S = 0.5
MOST_MISSING = 1_000  # runs of a queue that one pass looks at for messages that are gone


def run_once() -> None:
    """Free the runs of members that ended, and commit what this process finished: one pass of a loop."""
    free_departed()
    commit_touched()
    known_queues.evict_unused()


def commit_touched() -> int:
    """Raise the committed offsets of queues of which this process finished messages; return how many it
    looked at. What fails is tried again by the next pass."""
    pairs = known_queues.taken_touched()
    known = snapshot.current().queues
    for node_id, mine in grouped(
        (known[pair[1]].node_id, pair) for pair in pairs if pair[1] in known
    ).items():
        try:
            commit(node_id, mine)
        except CatmqError as error:
            log.warning("Share groups on node %d commit later: %s", node_id, error.detail)
            for group_id, queue in mine:
                known_queues.touch(group_id, [queue])
    return len(pairs)


def commit(node_id: int, pairs: Iterable[Pair]) -> None:
    """Raise the committed offset of each (group, queue) on a node to its lowest unfinished offset."""
    with node_pools.node(node_id).reading() as session:
        for group_id, queue in pairs:
            found = position_sql.read_floor(session, group_id=group_id, queue=queue)
            if found is not None:
                position_sql.raise_committed(session, group_id=group_id, queue=queue, to=found)


def drop_missing(*, node_id: int, group_id: int, one: Known) -> int:
    """Let messages leave their runs that nobody can get any more; return how many.

    They are below the log start offset or in a declared gap. When a member asks for such a run it
    would find that out. Without one the lag of the group would count them until somebody comes. A
    run whose lease lasts is left alone: its member has the messages, and its report is welcome.
    """
    view = one.view
    next_offset = view.next_offset or 0
    spans = [(0, view.low), *(gap for gap in one.gaps if gap[0] < next_offset)]
    below = max(end for _, end in spans)
    if not view.runs or view.committed >= below:
        return 0
    dropped = 0
    with node_pools.node(node_id).reading() as session:
        over = run_sql.select_over(
            session,
            group_id=group_id,
            queue=view.queue,
            epoch=view.epoch,
            below=below,
            most=MOST_MISSING,
        )
        for run in over:
            bits = run.left & sharing.bits_within(spans, run=(run.first, run.end))
            # A run that somebody took meanwhile is not as it was read. It is not changed then.
            if bits and run_sql.leave(session, group_id=group_id, run=run, bits=bits) is not None:
                dropped += bits.bit_count()
    if dropped:
        known_queues.touch(group_id, [view.queue])
        log.info("%d leased messages of queue %d are gone: retention, or a gap", dropped, view.queue)
    return dropped


def free_departed() -> int:
    """End the leases of members that this process saw leave or expire; return how many runs that freed."""
    known = snapshot.current()
    return sum(
        _freed(known.groups[group_id], owner)
        for group_id, owner in departures.taken()
        if group_id in known.groups
    )


def _freed(group: GroupInfo, owner: str) -> int:
    count = 0
    for node_id, queues in places(group).items():
        with sweeping.later(f"Release of what a member of group {group.name} leased on node {node_id}"):
            with node_pools.node(node_id).reading() as session:
                runs = run_sql.free_runs_of(session, group_id=group.id, owner=owner)
            if runs:
                for info in queues:
                    known_queues.freed(group.id, info.id, runs=runs)
            count += runs
    return count


def places(group: GroupInfo) -> dict[int, list[QueueInfo]]:
    """The queues that a group reads, those of its failed messages included, by node."""
    return grouped((info.node_id, info) for info in _read(group))


def _read(group: GroupInfo) -> Iterator[QueueInfo]:
    known = snapshot.current()
    for one in known.subscriptions_of(group.id):
        topic = known.topics.get(one.topic_id)
        if topic is not None and one.state == "ready":
            there = (known.queues[queue] for queue in topic.queues if queue in known.queues)
            yield from (info for info in there if info.state in known_queues.READABLE)
