"""Owners of queues by their reader rows on the nodes: what counts while metadata cannot be asked.

Nobody can read a queue past that row, whatever metadata says, so a member that it names may go on, or begin.
For that the row of a new owner is written as soon as metadata has granted the queue, and not only when the
owner has heard of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from messagestore.pool import node_pools
from messagestore.tables import reader_sql, shapes
from messagestore.tables.shapes import ReaderKey
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import NodeUnavailable
from metadata.grouping import grouped
from metadata.membership import grants
from metadata.membership.assignment_cache import OwnedQueue
from metadata.membership.grants import Grant
from metadata.models import ConsumerGroup

log = logging.getLogger(__name__)

WITHIN_S = 0.5  # that one node may take
SERVE_S = 0.25  # longest pass of the loop that waits for grants
BELIEVED_S = 0.5  # how long the rows of a group are remembered: all its members ask at once
MOST_GROUPS = 1_000

_Owned = Mapping[str, Sequence[tuple[int, int]]]  # consumer id → (queue, epoch)
_known: dict[int, tuple[float, _Owned]] = {}  # by group, with the time.monotonic() of the look


def claim_granted() -> None:
    """Write the reader rows of owners that were just named: a pass of a loop. Failures are left to them."""
    queues = snapshot.current().queues
    known = [grant for grant in grants.take(SERVE_S) if grant.queue in queues]
    for node_id, granted in grouped((queues[grant.queue].node_id, grant) for grant in known).items():
        try:
            _claim(node_id, granted)
        except NodeUnavailable as error:
            log.info("New queue owners could not be written to node %d: %s", node_id, error.detail)


def _claim(node_id: int, granted: Iterable[Grant]) -> None:
    with node_pools.node(node_id).reading(within_s=WITHIN_S) as session:
        for one in granted:
            # Who only gets another epoch is the node's owner already, and still commits under the last one.
            before = reader_sql.read_positions(
                session, group_id=one.group_id, queues=[one.queue], instance=""
            )
            if one.queue in before and before[one.queue].owner != one.owner:
                reader = ReaderKey(one.group_id, one.queue, "")
                reader_sql.acquire_reader(session, reader=reader, epoch=one.epoch, owner=one.owner)


def positions(*, consumer: ConsumerId, claims: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Queue → committed offset of those of some (queue, epoch)s that the nodes say the consumer has."""
    asked = dict(claims)
    found: dict[int, int] = {}
    for node_id, queues in _by_node(asked).items():
        for row in _rows(node_id, consumer.group_id, queues, consumer.instance):
            if (row.epoch, row.owner) == (asked[row.queue], consumer.text) and row.committed is not None:
                found[row.queue] = row.committed
    return found


def held(*, consumer: ConsumerId, queues: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Queue → (epoch, committed offset) of those of some queues that the nodes say the consumer has.

    Raises NodeUnavailable: that a node says nothing does not mean that another consumer has them.
    """
    return {
        row.queue: (row.epoch, row.committed)
        for node_id, mine in _by_node(queues).items()
        for row in _read_rows(node_id, consumer.group_id, mine, consumer.instance)
        if row.owner == consumer.text and row.epoch is not None and row.committed is not None
    }


def owned(consumer: ConsumerId) -> list[OwnedQueue]:
    """The queues that the nodes say the consumer has; nodes that do not answer are left out.

    None in a broadcasting group, where they never move.
    """
    known = snapshot.current()
    group = known.groups.get(consumer.group_id)
    if group is None or group.mode == ConsumerGroup.Mode.BROADCASTING:
        return []
    found = []
    for queue, epoch in _owned(consumer.group_id).get(consumer.text, ()):
        info = known.queues[queue]
        topic = known.topics[info.topic_id]
        origin = known.topics.get(topic.failure_of) if topic.failure_of is not None else None
        stopped = known.stopped(group.id, info)
        found.append(OwnedQueue(topic.name, queue, epoch, stopped, origin.name if origin else None))
    return found


def _owned(group_id: int) -> _Owned:
    now = monotonic()
    at, rows = _known.get(group_id, (float("-inf"), {}))
    if now - at < BELIEVED_S:
        return rows
    if len(_known) >= MOST_GROUPS:
        _known.clear()
    read = _read(group_id)
    _known[group_id] = (now, read)
    return read


def _read(group_id: int) -> _Owned:
    nodes = _by_node(_queues_of(group_id))
    rows = [row for node_id, queues in nodes.items() for row in _rows(node_id, group_id, queues, "")]
    return grouped((row.owner, (row.queue, row.epoch)) for row in rows if row.owner and row.epoch is not None)


def _queues_of(group_id: int) -> list[int]:
    """The queues that a group reads, those of its failed messages included."""
    known = snapshot.current()
    topics = [known.topics.get(one.topic_id) for one in known.subscriptions_of(group_id)]
    failed = [known.failure_topics.get((group_id, one.topic_id)) for one in known.subscriptions_of(group_id)]
    return [queue for topic in (*topics, *failed) if topic is not None for queue in topic.queues]


def _by_node(queues: Iterable[int]) -> dict[int, list[int]]:
    known = snapshot.current().queues
    return grouped((known[queue].node_id, queue) for queue in queues if queue in known)


def _rows(node_id: int, group_id: int, queues: Sequence[int], instance: str) -> Iterable[shapes.Position]:
    try:
        return _read_rows(node_id, group_id, queues, instance)
    except NodeUnavailable as error:
        log.debug("Queue owners could not be read from node %d: %s", node_id, error.detail)
        return ()


def _read_rows(
    node_id: int, group_id: int, queues: Sequence[int], instance: str
) -> Iterable[shapes.Position]:
    with node_pools.node(node_id).reading(within_s=WITHIN_S) as session:
        read = reader_sql.read_positions(session, group_id=group_id, queues=queues, instance=instance)
    return read.values()
