"""Positions: who reads a queue, and how far; fenced by the reader rows on the nodes.

Metadata decides who owns a queue; the reader row enforces it. `acquire` is a new owner's first
call, and from the moment it commits no earlier owner can pull or commit through any broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from messagestore import connections, tables
from messagestore.connections import Node
from messagestore.tables import Position, ReaderKey
from metadata import consumers, snapshot
from metadata.consumer_ids import ConsumerId
from metadata.errors import NodeUnavailable, NotFound

log = logging.getLogger(__name__)


class Acquired(NamedTuple):
    """A queue after `acquire`: `ok` with the offset to go on from, `fenced`, or `unavailable`."""

    queue: int
    state: str
    offset: int | None = None


class Committed(NamedTuple):
    """A queue after `commit`: `ok`, `fenced`, `out_of_range` (above the head) or `unavailable`."""

    queue: int
    state: str


class Claim(NamedTuple):
    """A queue and the epoch its owner got it with."""

    queue: int
    epoch: int


class CommitOffset(NamedTuple):
    """The next offset the owner will read."""

    queue: int
    epoch: int
    offset: int


def acquire(*, consumer: ConsumerId, queues: Sequence[Claim]) -> list[Acquired]:
    """Claims queues that metadata granted; for each, in order, what came of it.

    Raises MetadataUnavailable when the grants cannot be looked up, Gone when the member is.
    """
    granted = consumers.check_owned(consumer=consumer, queues=[claim.queue for claim in queues])
    return [
        _acquire(consumer, claim)
        if granted.get(claim.queue) == claim.epoch
        else Acquired(claim.queue, "fenced")
        for claim in queues
    ]


def _acquire(consumer: ConsumerId, claim: Claim) -> Acquired:
    reader = ReaderKey(consumer.group_id, claim.queue)
    try:
        with connections.node_of(claim.queue).writing() as session:
            standing = tables.acquire_reader(session, reader=reader, epoch=claim.epoch, owner=consumer.text)
    except NodeUnavailable as error:
        log.warning("Queue %d cannot be acquired: %s", claim.queue, error.detail)
        return Acquired(claim.queue, "unavailable")
    if standing is None:
        log.error("Group %d has no reader row for queue %d", consumer.group_id, claim.queue)
        return Acquired(claim.queue, "unavailable")
    epoch, owner, committed = standing
    if epoch == claim.epoch and owner == consumer.text:
        return Acquired(claim.queue, "ok", committed)
    if consumers.check_owned(consumer=consumer, queues=[claim.queue]).get(claim.queue) == claim.epoch:
        # Metadata still says so, but the node has seen a later epoch: a reset died half way, or metadata
        # lost its tail.
        consumers.adopt_node_epoch(group_id=consumer.group_id, queue=claim.queue, epoch=epoch)
    return Acquired(claim.queue, "fenced")


def commit(*, consumer: ConsumerId, offsets: Sequence[CommitOffset]) -> list[Committed]:
    """Records positions; for each, in order, what came of it. Raises NodeUnavailable when no node answers."""
    states: dict[int, str] = {}
    failure: NodeUnavailable | None = None
    for node, mine in by_node(offsets, states):
        try:
            states |= _commit(node, consumer, sorted(mine))
        except NodeUnavailable as error:
            failure = error
            states |= dict.fromkeys((offset.queue for offset in mine), "unavailable")
    if failure is not None and set(states.values()) == {"unavailable"}:
        raise failure
    return [Committed(offset.queue, states[offset.queue]) for offset in offsets]


def by_node(offsets: Iterable[CommitOffset], states: dict[int, str]) -> list[tuple[Node, list[CommitOffset]]]:
    """The offsets of each node; a queue that exists nowhere is `fenced`."""
    nodes: dict[int, list[CommitOffset]] = {}
    for offset in offsets:
        try:
            nodes.setdefault(snapshot.find_queue(offset.queue).node_id, []).append(offset)
        except NotFound:
            states[offset.queue] = "fenced"
    return [(connections.node(node_id), mine) for node_id, mine in nodes.items()]


def _commit(node: Node, consumer: ConsumerId, offsets: list[CommitOffset]) -> dict[int, str]:
    with node.reading() as session:  # a commit may be repeated, so a lost answer leaves nothing in doubt
        allowed = tables.update_committed(
            session, group_id=consumer.group_id, owner=consumer.text, offsets=offsets
        )
        refused = [offset for offset, done in zip(offsets, allowed, strict=True) if not done]
        positions = (
            tables.read_positions(session, group_id=consumer.group_id, queues=[o.queue for o in refused])
            if refused
            else {}
        )
    states = {offset.queue: "ok" for offset in offsets}
    return states | {o.queue: _why_refused(o, positions.get(o.queue), consumer) for o in refused}


def _why_refused(offset: CommitOffset, position: Position | None, consumer: ConsumerId) -> str:
    owned = position is not None and (position.epoch, position.owner) == (offset.epoch, consumer.text)
    return "out_of_range" if owned else "fenced"
