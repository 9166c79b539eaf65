"""Positions: who reads a queue, and how far; fenced by the reader rows on the nodes.

Metadata decides who owns a queue; the reader row enforces it. `acquire` is a new owner's first
call, and from the moment it commits no earlier owner can pull or commit through any broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from messagestore.consume import instances, node_owners
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import left
from messagestore.nodes.replica_inspection import JUMP
from messagestore.pool import node_pools
from messagestore.tables import queue_sql, reader_sql
from messagestore.tables.shapes import Position, ReaderKey
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Code, Conflict, MetadataUnavailable, NodeUnavailable, Unavailable
from metadata.grouping import grouped
from metadata.groups import ownership
from metadata.membership import history

log = logging.getLogger(__name__)


class Acquired(NamedTuple):
    """A queue after `acquire`: `ok` with the offset to go on from, `fenced`, or `unavailable`."""

    queue: int
    state: str
    offset: int | None = None


class Committed(NamedTuple):
    """A queue after `commit`: `ok`, `fenced`, `out_of_range` (above the head) or `unavailable`.

    `handled`: the messages that the position moved past by it; none of a declared gap, or dropped unread.
    """

    queue: int
    state: str
    handled: int = 0


class Claim(NamedTuple):
    queue: int
    epoch: int


class CommitOffset(NamedTuple):
    """The next offset the owner will read."""

    queue: int
    epoch: int
    offset: int


SLOW_S = 0.5  # how long a node may take to answer where others are asked, too; a commit waits for its disk

Row = TypeVar("Row", Claim, CommitOffset)


def generation(*, consumer: ConsumerId) -> int:
    """The generation of the consumer's group as this broker knows it, 0 if it does not; asks no database."""
    group = snapshot.current().groups.get(consumer.group_id)
    return group.generation if group is not None else 0


def check_owns(consumer: ConsumerId) -> None:
    """Raise Conflict (group_settings_differ) for a member of a share group: none of them owns a queue."""
    group = snapshot.current().groups.get(consumer.group_id)
    if group is not None and group.is_share:
        raise Conflict(
            f"Group {group.name} is a share group: its members lease messages (share), and own no queues.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )


def acquire(*, consumer: ConsumerId, queues: Sequence[Claim]) -> list[Acquired]:
    """Claim queues that metadata granted; for each, in order, what came of it. While metadata is away those
    that their nodes know as the member's are claimed already.

    Raises MetadataUnavailable when neither can be looked up, Gone when the member is.
    """
    try:
        granted = ownership.check_owned(consumer=consumer, queues=[claim.queue for claim in queues])
    except MetadataUnavailable:
        found = node_owners.positions(consumer=consumer, claims=queues)
        if not found:
            raise
        return [
            Acquired(queue, "ok", found[queue]) if queue in found else Acquired(queue, "unavailable")
            for queue, _ in queues
        ]
    states = {claim.queue: Acquired(claim.queue, "fenced") for claim in queues}
    nodes = _by_node([claim for claim in queues if granted.get(claim.queue) == claim.epoch])
    for node_id, claims in nodes.items():
        states |= {claim.queue: Acquired(claim.queue, "unavailable") for claim in claims}
        node = _Asked(node_id, SLOW_S if len(nodes) > 1 else None)
        try:
            _acquire(node, consumer, claims, states)
        except (NodeUnavailable, MetadataUnavailable) as error:
            log.warning("Queues on node %d cannot be acquired: %s", node_id, error.detail)
    held = [(claim.queue, claim.epoch) for claim in queues if states[claim.queue].state == "ok"]
    if held:
        history.acquired(consumer=consumer, queues=held)
    return [states[claim.queue] for claim in queues]


class _Asked(NamedTuple):
    """A node, and how long it may take to answer."""

    node_id: int
    within_s: float | None

    def session(self) -> AbstractContextManager[Session]:
        """For what is harmless to repeat, so that a lost answer leaves nothing in doubt."""
        return node_pools.node(self.node_id).reading(within_s=self.within_s)


def _acquire(
    node: _Asked, consumer: ConsumerId, claims: Sequence[Claim], states: dict[int, Acquired]
) -> None:
    """Acquire the queues of one node into `states`; ends at the first that the node does not answer."""
    missing, outdated = _claim(node, consumer, claims, states)
    if missing and consumer.instance_id:
        # It joined while the subscription was being made, or while the node was away.
        instances.place(consumer=consumer, queues=[claim.queue for claim in missing])
        missing, later = _claim(node, consumer, missing, states)
        outdated += later
    for claim in missing:
        log.error(
            "Group %d lacks a reader row for queue %d: run manage.py verify", consumer.group_id, claim.queue
        )
    for claim, epoch in outdated:
        _adopt(consumer, claim, epoch)


def _claim(
    node: _Asked, consumer: ConsumerId, claims: Sequence[Claim], states: dict[int, Acquired]
) -> tuple[list[Claim], list[tuple[Claim, int]]]:
    """Claims without a reader row; and those that met a later epoch there, with it."""
    missing, outdated = [], []
    with node.session() as session:
        for claim in claims:
            reader = ReaderKey(consumer.group_id, claim.queue, consumer.instance)
            standing = reader_sql.acquire_reader(
                session, reader=reader, epoch=claim.epoch, owner=consumer.text
            )
            if standing is None:
                missing.append(claim)
                continue
            epoch, owner, committed = standing
            if epoch == claim.epoch and owner == consumer.text:
                states[claim.queue] = Acquired(claim.queue, "ok", committed)
            else:
                states[claim.queue] = Acquired(claim.queue, "fenced")
                outdated.append((claim, epoch))
    return missing, outdated


def _adopt(consumer: ConsumerId, claim: Claim, epoch: int) -> None:
    """Tell metadata of a later epoch on the node, if metadata still says that the claim is good.

    Then a reset died half way, or metadata lost its tail.
    """
    if ownership.check_owned(consumer=consumer, queues=[claim.queue]).get(claim.queue) == claim.epoch:
        log.warning(
            "group %d queue %d: the node has epoch %d, metadata had %d",
            *(consumer.group_id, claim.queue, epoch, claim.epoch),
        )
        ownership.adopt_node_epoch(
            group_id=consumer.group_id, queue=claim.queue, epoch=epoch, instance_id=consumer.instance_id
        )


def commit(*, consumer: ConsumerId, offsets: Sequence[CommitOffset]) -> list[Committed]:
    """Record positions; for each, in order, what came of it. Raises Unavailable when no node answers."""
    found, certain = snapshot.find_queues([offset.queue for offset in offsets])
    missing = "fenced" if certain else "unavailable"
    states = {offset.queue: Committed(offset.queue, missing) for offset in offsets}
    failure: Unavailable = MetadataUnavailable("None of these queues is known yet.", retry_after_ms=1000)
    nodes = _by_node([offset for offset in offsets if offset.queue in found])
    for node_id, mine in nodes.items():
        node = _Asked(node_id, SLOW_S if len(nodes) > 1 else None)
        try:
            states |= _commit(node, consumer, sorted(mine))
        except NodeUnavailable as error:
            failure = error
            states |= {offset.queue: Committed(offset.queue, "unavailable") for offset in mine}
    if states and {one.state for one in states.values()} == {"unavailable"}:
        raise failure
    return [states[offset.queue] for offset in offsets]


def _by_node(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Claims or offsets of known queues, by node id."""
    return grouped((snapshot.find_queue(row.queue).node_id, row) for row in rows)


def _commit(node: _Asked, consumer: ConsumerId, offsets: list[CommitOffset]) -> dict[int, Committed]:
    group_id, instance = consumer.group_id, consumer.instance
    with node.session() as session:
        moved = reader_sql.update_committed(
            session, group_id=group_id, instance=instance, owner=consumer.text, offsets=offsets
        )
        refused = [offset for offset, by in zip(offsets, moved, strict=True) if by is None]
        handled = {
            offset.queue: by if by < JUMP else _without_gaps(session, offset, by)
            for offset, by in zip(offsets, moved, strict=True)
            if by is not None
        }
        queues = [offset.queue for offset in refused]
        positions = (
            reader_sql.read_positions(session, group_id=group_id, instance=instance, queues=queues)
            if queues
            else {}
        )
    states = {queue: Committed(queue, "ok", count) for queue, count in handled.items()}
    return states | {
        o.queue: Committed(o.queue, _why_refused(o, positions.get(o.queue), consumer)) for o in refused
    }


def _without_gaps(session: Session, offset: CommitOffset, by: int) -> int:
    """Return how many messages lie on the way to an offset; only so long a way can cross a declared gap."""
    before = offset.offset - by
    gaps = queue_sql.read_gaps(session, queue=offset.queue, position=before)
    return left(before, offset.offset, gaps=gaps)


def _why_refused(offset: CommitOffset, position: Position | None, consumer: ConsumerId) -> str:
    owned = position is not None and (position.epoch, position.owner) == (offset.epoch, consumer.text)
    return "out_of_range" if owned else "fenced"
