"""Owners of queues by their reader rows on the nodes, used while metadata is unavailable.

The reader row fences every pull and commit, so a member that the row names may continue or
begin to read without metadata. A new owner must be named there before metadata can fail. So
the broker that granted a queue writes the row at once (claim_granted()), and does not wait
for the owner to acquire it.
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
from metadata.membership import granted_queues
from metadata.membership.assignment_cache import OwnedQueue
from metadata.rules.groups.states import GroupMode

log = logging.getLogger(__name__)

WITHIN_S = 0.5  # longest time that a node may take to answer
SERVE_S = 0.25  # longest wait for grants in a pass of the loop
# Lifetime of the cached rows of a group. When metadata fails, all its members ask at once.
BELIEVED_S = 0.5
MOST_GROUPS = 1_000  # groups that are remembered before all are forgotten

_Owned = Mapping[str, Sequence[tuple[int, int]]]  # consumer id → (queue, epoch)
# Group id → (time.monotonic() of the read, owners).
_remembered: dict[int, tuple[float, _Owned]] = {}


def claim_granted() -> None:
    """Write the owners of queues that were just granted into their reader rows. Called again
    and again by a loop; waits up to SERVE_S for grants.

    A node that fails is logged only: the owner's own acquire writes the row, too.
    """
    queues = snapshot.current().queues
    # A grant of a queue that this snapshot does not have yet is left to its owner's
    # acquire.
    known_grants = [
        grant for grant in granted_queues.take(SERVE_S) if grant.queue in queues
    ]
    for node_id, node_grants in grouped(
        (queues[grant.queue].node_id, grant) for grant in known_grants
    ).items():
        try:
            with node_pools.node(node_id).reading(within_s=WITHIN_S) as session:
                for grant in node_grants:
                    # Only a row with another owner is claimed. If the owner is the same, a grant
                    # means a new epoch for a queue that it keeps. It still commits under the
                    # earlier epoch, and raising the epoch here would fence these commits. So
                    # that is left to its own acquire.
                    # Instance "": the row that all members of the group share.
                    positions = reader_sql.read_positions(
                        session, group_id=grant.group_id, queues=[grant.queue], instance=""
                    )
                    position = positions.get(grant.queue)
                    if position is not None and position.owner != grant.owner:
                        reader_sql.acquire_reader(
                            session,
                            reader=ReaderKey(grant.group_id, grant.queue, ""),
                            epoch=grant.epoch,
                            owner=grant.owner,
                        )
        except NodeUnavailable as error:
            log.info(
                "New queue owners could not be written to node %d: %s",
                node_id,
                error.detail,
            )


def positions(*, consumer: ConsumerId, claims: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the committed offset of each claimed queue, by queue id, if its reader row
    confirms the claim.

    `claims` are (queue, epoch). The row must name the consumer and this epoch. Queues of
    unavailable nodes are left out.
    """
    claimed_epochs = dict(claims)
    offsets: dict[int, int] = {}
    for node_id, queues in _by_node(claimed_epochs).items():
        for row in _rows_if_available(
            node_id, consumer.group_id, queues, consumer.instance
        ):
            is_confirmed = (
                row.owner == consumer.text and row.epoch == claimed_epochs[row.queue]
            )
            if is_confirmed and row.committed is not None:
                offsets[row.queue] = row.committed
    return offsets


def held(*, consumer: ConsumerId, queues: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return (epoch, committed offset) of those of the queues whose reader row names the
    consumer, by queue id. Unlike positions(), it accepts any epoch and needs every node.

    Raises NodeUnavailable if any node does not answer: a missing answer does not prove
    another owner.
    """
    return {
        row.queue: (row.epoch, row.committed)
        for node_id, node_queues in _by_node(queues).items()
        for row in _read_rows(node_id, consumer.group_id, node_queues, consumer.instance)
        if row.owner == consumer.text
        and row.epoch is not None
        and row.committed is not None
    }


def owned(consumer: ConsumerId) -> list[OwnedQueue]:
    """Return all queues of the consumer's group whose reader row names the consumer, as a
    heartbeat would list them. The rows may be BELIEVED_S old.

    Queues of unavailable nodes are left out. Empty for a broadcasting group, where queues
    never move between members.
    """
    current = snapshot.current()
    group = current.groups.get(consumer.group_id)
    if group is None or group.mode == GroupMode.BROADCASTING:
        return []
    owned_queues = []
    for queue, epoch in _read_owners(consumer.group_id).get(consumer.text, ()):
        info = current.queues.get(queue)
        if info is None:  # deleted since the nodes were asked
            continue
        topic = current.topics[info.topic_id]
        origin = (
            current.topics.get(topic.failure_of) if topic.failure_of is not None else None
        )
        stopped = current.is_stopped(group.id, info)
        owned_queues.append(
            OwnedQueue(topic.name, queue, epoch, stopped, origin.name if origin else None)
        )
    return owned_queues


def _read_owners(group_id: int) -> _Owned:
    """Return the owners of a group's queues on the nodes, at most BELIEVED_S old."""
    now = monotonic()
    read_at, remembered_owners = _remembered.get(group_id, (float("-inf"), {}))
    if now - read_at < BELIEVED_S:
        return remembered_owners
    if len(_remembered) >= MOST_GROUPS:
        _remembered.clear()
    current = snapshot.current()
    topic_ids = [s.topic_id for s in current.subscriptions_of(group_id)]
    topics = [current.topics.get(topic_id) for topic_id in topic_ids]
    # Members also own the queues of the group's retry topics.
    topics += [current.failure_topics.get((group_id, topic_id)) for topic_id in topic_ids]
    queues = [queue for topic in topics if topic is not None for queue in topic.queues]
    owners = grouped(
        (row.owner, (row.queue, row.epoch))
        for node_id, node_queues in _by_node(queues).items()
        # Instance "": the reader rows that all members of a group share.
        for row in _rows_if_available(node_id, group_id, node_queues, "")
        if row.owner and row.epoch is not None
    )
    _remembered[group_id] = (now, owners)
    return owners


def _by_node(queues: Iterable[int]) -> dict[int, list[int]]:
    """Group queue ids by node id. Queues that the snapshot does not have are left out."""
    known_queues = snapshot.current().queues
    return grouped(
        (known_queues[queue].node_id, queue) for queue in queues if queue in known_queues
    )


def _rows_if_available(
    node_id: int, group_id: int, queues: Sequence[int], instance: str
) -> Iterable[shapes.Position]:
    """Return the reader rows of queues on a node, or () if the node is unavailable."""
    try:
        return _read_rows(node_id, group_id, queues, instance)
    except NodeUnavailable as error:
        log.debug("Queue owners could not be read from node %d: %s", node_id, error.detail)
        return ()


def _read_rows(
    node_id: int, group_id: int, queues: Sequence[int], instance: str
) -> Iterable[shapes.Position]:
    """Return the reader rows of queues on a node. Raises NodeUnavailable."""
    with node_pools.node(node_id).reading(within_s=WITHIN_S) as session:
        positions = reader_sql.read_positions(
            session, group_id=group_id, queues=queues, instance=instance
        )
    return positions.values()
