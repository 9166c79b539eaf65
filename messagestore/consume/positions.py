"""Acquire queues and commit offsets, fenced by the reader rows on the nodes.

Metadata decides who owns a queue. The reader row on the node enforces it. `acquire` is the
first call of a new owner. From the moment it commits, no earlier owner can pull or commit
through any broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple, TypeVar

from msgspec import Struct

from messagestore.consume import behind, broadcast_positions, node_owners
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import count_messages
from messagestore.nodes.replica_inspection import JUMP
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.tables import queue_sql, reader_sql
from messagestore.tables.shapes import Position, ReaderKey
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import (
    Code,
    Conflict,
    MetadataUnavailable,
    NodeUnavailable,
    NotFound,
    Unavailable,
)
from metadata.grouping import grouped
from metadata.groups import ownership
from metadata.membership import rebalance_history

log = logging.getLogger(__name__)


class Acquired(Struct, frozen=True):
    """`state` is ok, fenced or unavailable; `offset` is the committed offset."""

    queue: int
    state: str
    offset: int | None = None


class Committed(NamedTuple):
    """Result of commit() for a queue: `ok`, `fenced`, `out_of_range` (the offset is above the
    head) or `unavailable`.

    `handled` is the number of messages that the committed offset moved past. Offsets of a
    declared gap, and messages that retention deleted unread, do not count.
    """

    queue: int
    state: str
    handled: int = 0


class Claim(NamedTuple):
    """A queue that a member acquires, with the epoch under which metadata granted it."""

    queue: int
    epoch: int


class CommitOffset(NamedTuple):
    """An offset to commit: the next offset that the owner will read."""

    queue: int
    epoch: int
    offset: int


# Longest time that a node may take to answer if the call needs other nodes, too. Longer than
# that of a pull, because a commit waits for the node's disk.
SLOW_S = 0.5

Row = TypeVar("Row", Claim, CommitOffset)


def generation(*, consumer: ConsumerId) -> int:
    """Return the generation of the consumer's group, 0 if the group is not in the snapshot.

    Reads no database.
    """
    group = snapshot.current().groups.get(consumer.group_id)
    return group.generation if group is not None else 0


def check_owns(consumer: ConsumerId) -> None:
    """Raise Conflict (group_settings_differ) for a member of a share group, which owns no
    queues.
    """
    group = snapshot.current().groups.get(consumer.group_id)
    if group is not None and group.is_share:
        raise Conflict(
            f"Group {group.name} is a share group: its members lease messages (share), and "
            "own no queues.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )


def acquire(*, consumer: ConsumerId, queues: Sequence[Claim]) -> list[Acquired]:
    """Claim queues that metadata granted. Return a result for each queue, in order.

    While metadata is unavailable, queues whose reader row names the member and the epoch
    already are `ok` with that row's offset. Raises MetadataUnavailable if no node confirms
    any of them either, Gone if the member expired or was replaced.
    """
    try:
        granted = ownership.check_owned(
            consumer=consumer, queues=[claim.queue for claim in queues]
        )
    except MetadataUnavailable:
        # No new owner can be written to the node now: only metadata grants queues. But an owner
        # that the row names already (node_owners.claim_granted) needs no grant.
        offsets = node_owners.positions(consumer=consumer, claims=queues)
        if not offsets:
            raise
        return [
            Acquired(queue, "ok", offsets[queue])
            if queue in offsets
            else Acquired(queue, "unavailable")
            for queue, _ in queues
        ]
    # A claim that metadata does not confirm never reaches the node.
    results = {claim.queue: Acquired(claim.queue, "fenced") for claim in queues}
    nodes = _by_node([claim for claim in queues if granted.get(claim.queue) == claim.epoch])
    for node_id, claims in nodes.items():
        results |= {claim.queue: Acquired(claim.queue, "unavailable") for claim in claims}
        node = _NodeCall(node_id, SLOW_S if len(nodes) > 1 else None)
        try:
            _acquire_on_node(node, consumer, claims, results)
        except (NodeUnavailable, MetadataUnavailable) as error:
            log.warning("Queues on node %d cannot be acquired: %s", node_id, error.detail)
    acquired_queues = [
        (claim.queue, claim.epoch) for claim in queues if results[claim.queue].state == "ok"
    ]
    if acquired_queues:
        rebalance_history.record_acquired(consumer=consumer, queues=acquired_queues)
    return [results[claim.queue] for claim in queues]


class _NodeCall(NamedTuple):
    """A node to call, and the longest time in seconds until it begins to answer, None for the
    usual limit.
    """

    node_id: int
    within_s: float | None

    def session(self) -> AbstractContextManager[Session]:
        """Borrow a session for statements that may be repeated."""
        # writing() would report a lost answer as an unknown outcome. Repeating an acquire or a
        # commit is harmless, so reading() is enough for both.
        return self.node.reading(within_s=self.within_s)

    @property
    def node(self) -> Node:
        return node_pools.node(self.node_id)


def _acquire_on_node(
    node: _NodeCall,
    consumer: ConsumerId,
    claims: Sequence[Claim],
    results: dict[int, Acquired],
) -> None:
    """Acquire the queues of a node and put the outcomes into `results`.

    Raises NodeUnavailable at the first queue without an answer, MetadataUnavailable, Gone.
    """
    missing, outdated = _claim_on_node(node, consumer, claims, results)
    if missing and consumer.instance_id:
        # A broadcasting instance has reader rows of its own. It lacks a row if it joined while
        # the subscription was created, or while the node was unavailable. The row is inserted
        # now, and the claim is repeated.
        broadcast_positions.place(
            consumer=consumer, queues=[claim.queue for claim in missing]
        )
        missing, more_outdated = _claim_on_node(node, consumer, missing, results)
        outdated += more_outdated
    for claim in missing:
        log.error(
            "Group %d lacks a reader row for queue %d: run manage.py verify",
            consumer.group_id,
            claim.queue,
        )
    # A refused claim: the row on the node contradicts it, so it is fenced. Metadata shows which
    # side is outdated. NotFound: the subscription ended meanwhile, so the claim stays fenced.
    for claim, epoch in outdated:
        with suppress(NotFound):
            # The usual case: the claim is outdated. This member has just lost the queue, so
            # metadata does not confirm the claim either, and there is nothing to repair.
            granted = ownership.check_owned(consumer=consumer, queues=[claim.queue])
            if granted.get(claim.queue) != claim.epoch:
                continue
            # The rare case: metadata confirms the claim, but the node refuses it. A reset failed
            # between its change of the node and its change of metadata, or metadata lost its
            # latest changes, for example in a restore. The claim stays fenced now. The epoch in
            # metadata is raised above that of the node, so that the member gets the queue
            # under an epoch that the node accepts.
            log.warning(
                "group %d queue %d: the node has epoch %d, metadata had %d",
                consumer.group_id,
                claim.queue,
                epoch,
                claim.epoch,
            )
            ownership.adopt_node_epoch(
                group_id=consumer.group_id,
                queue=claim.queue,
                epoch=epoch,
                instance_id=consumer.instance_id,
            )


def _claim_on_node(
    node: _NodeCall,
    consumer: ConsumerId,
    claims: Sequence[Claim],
    results: dict[int, Acquired],
) -> tuple[list[Claim], list[tuple[Claim, int]]]:
    """Write the claims into the reader rows of a node, and put the outcomes into `results`.

    Return the claims without a reader row, and the refused claims with the epoch of their row.
    """
    missing, outdated = [], []
    with node.session() as session:
        for claim in claims:
            reader = ReaderKey(consumer.group_id, claim.queue, consumer.instance)
            row = reader_sql.acquire_reader(
                session, reader=reader, epoch=claim.epoch, owner=consumer.text
            )
            if row is None:
                missing.append(claim)
                continue
            # The row as read after the guarded UPDATE decides. Owner and epoch must both be those
            # of the claim, because the row may name another owner under the same epoch.
            epoch, owner, committed = row
            if epoch == claim.epoch and owner == consumer.text:
                results[claim.queue] = Acquired(claim.queue, "ok", committed)
            else:
                results[claim.queue] = Acquired(claim.queue, "fenced")
                outdated.append((claim, epoch))
    return missing, outdated


def commit(
    *,
    consumer: ConsumerId,
    offsets: Sequence[CommitOffset],
    queues_to_pull: Sequence[int] = (),
) -> list[Committed]:
    """Commit offsets. Return a result for each, in order.

    `queues_to_pull` are the queues that the same request reads afterwards: a slow node does
    not hold up those of other nodes. Needs no metadata for queues of this broker's
    snapshot. Raises Unavailable if no node answers.
    """
    known_queues, certain = snapshot.find_queues([offset.queue for offset in offsets])
    unknown_state = "fenced" if certain else "unavailable"
    results = {offset.queue: Committed(offset.queue, unknown_state) for offset in offsets}
    failure: Unavailable = MetadataUnavailable(
        "None of these queues is known yet.", retry_after_ms=1000
    )
    nodes = _by_node([offset for offset in offsets if offset.queue in known_queues])
    queue_infos = snapshot.current().queues
    needed_nodes = nodes.keys() | {
        queue_infos[queue].node_id for queue in queues_to_pull if queue in queue_infos
    }
    for node_id, node_offsets in nodes.items():
        node = _NodeCall(node_id, SLOW_S if len(needed_nodes) > 1 else None)
        try:
            # In rising order of queues, so that two commits of a group lock reader rows in
            # the same order.
            results |= _commit_on_node(node, consumer, sorted(node_offsets))
        except NodeUnavailable as error:
            failure = error
            results |= {
                offset.queue: Committed(offset.queue, "unavailable")
                for offset in node_offsets
            }
    if results and {result.state for result in results.values()} == {"unavailable"}:
        raise failure
    return [results[offset.queue] for offset in offsets]


def commit_before_pull(
    *, consumer: ConsumerId, offsets: Sequence[CommitOffset], queues: Sequence[int]
) -> list[Committed]:
    """Commit the offsets that came with a pull of `queues`. Return a result for each, in
    order.

    A node that cannot store its offsets is no error here, because the queues of the other
    nodes are still read: its results are `unavailable`.
    """
    if not offsets:
        return []
    try:
        return commit(consumer=consumer, offsets=offsets, queues_to_pull=queues)
    except (Unavailable, db_errors.Final) as error:
        # Some may be stored. A repeat of those is harmless.
        log.warning("Offsets that came with a pull are not committed: %s", error.detail)
        return [Committed(offset.queue, "unavailable") for offset in offsets]


def _by_node(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Group claims or offsets by the node of their queue."""
    return grouped((snapshot.find_queue(row.queue).node_id, row) for row in rows)


def _refusal(offset: CommitOffset, position: Position | None, consumer: ConsumerId) -> str:
    """Return the result of an offset that was not committed, from the reader row.

    Raises NodeUnavailable if the row allows it by now, or on another server.
    """
    owner = None if position is None else (position.epoch, position.owner)
    if position is None or owner != (offset.epoch, consumer.text):
        return "fenced"
    if position.head < offset.offset:
        return "out_of_range"
    raise NodeUnavailable("The node has more messages now. Repeat the commit.")


def _commit_on_node(
    node: _NodeCall, consumer: ConsumerId, offsets: list[CommitOffset]
) -> dict[int, Committed]:
    """Commit offsets on a node in a single transaction. Return the results by queue id.

    `offsets` must rise by queue. Raises NodeUnavailable; some may be committed then, and a
    repeat of those is harmless.
    """
    group_id, instance = consumer.group_id, consumer.instance
    with node.session() as session:
        # The number of offsets that each position moved, None if the commit was refused.
        distances = reader_sql.update_committed(
            session,
            group_id=group_id,
            instance=instance,
            owner=consumer.text,
            offsets=offsets,
        )
        results = {}
        refused = []
        for offset, distance in zip(offsets, distances, strict=True):
            if distance is None:
                refused.append(offset)
                continue
            # `handled`: the messages that the commit moves past, without the offsets of declared
            # gaps, which hold no message. A gap is declared when a promoted replica lacks messages
            # of its node, and has at least JUMP (10 million) offsets. So the gaps are read only
            # for a commit over as many.
            handled = distance
            if distance >= JUMP:
                before = offset.offset - distance
                gaps = queue_sql.read_gaps(session, queue=offset.queue, position=before)
                handled = count_messages(before, offset.offset, gaps=gaps)
            results[offset.queue] = Committed(offset.queue, "ok", handled)
        positions = {}
        if refused:
            positions = reader_sql.read_positions(
                session,
                group_id=group_id,
                instance=instance,
                queues=[offset.queue for offset in refused],
            )
    # The guarded UPDATE does not say which of its conditions failed. The rows do.
    low = [
        offset.queue
        for offset in refused
        if behind.is_low(
            positions.get(offset.queue), epoch=offset.epoch, offset=offset.offset
        )
    ]
    if low and node.node.is_movable:
        positions |= behind.ask_writer(node.node, consumer=consumer, queues=low)
    for offset in refused:
        reason = _refusal(offset, positions.get(offset.queue), consumer)
        results[offset.queue] = Committed(offset.queue, reason)
    return results
