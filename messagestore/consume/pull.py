"""Pulls: messages from the positions a consumer names, fenced by the reader rows of the nodes.

Every queue of the answer has a `state`:

    ok            messages, or none yet
    fenced        another owner or epoch holds the queue
    stopped       an operator stopped the group, the subscription or the queue in it
    cleaned       the position is below `low`: retention took what was there
    out_of_range  the position is above the head
    lost_tail     the position is in a declared gap (`gap`); `next_offset` is behind it
    corrupt       a hole that nobody declared: nothing is delivered, a person must look
    unavailable   the queue's node does not answer now, nor a replica of it

A node that is slow to answer while other nodes are asked, too, is not waited for: its queues are `ok`,
without messages and without a head.

A group that takes only some tags passes the other messages on the way: the position moves behind up to
`scan_limit` of them, and an answer without messages may have a higher `next_offset`.

Only durable messages are delivered (durability.py), and the `head` of an answer is the durable one.
Consumer ids are signed and everything else is on the node, so metadata is asked only about a queue that
the snapshot does not know yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from messagestore import tables
from messagestore.consume import replicas
from messagestore.consume.budget import Budget
from messagestore.consume.delivery_delay import ripe
from messagestore.engine import db_errors
from messagestore.engine.messages import ROW_OFFSET, StoredMessage, StoredRow, stored_message
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption, durability
from messagestore.heads.gap_check import dense, explain
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.tables import Position, ReaderKey
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import MetadataUnavailable, NodeUnavailable, Unavailable

LATE_S = 0.1  # how long a node may take to answer where others are asked, too

# A SELECT may read so many times what is wanted before it is cut off, at the price of its connection: by so
# much the guess of how many rows to ask for may be wrong.
_OVERSHOOT = 2

# Rows of a queue with a tag filter that are looked at with one statement.
_TAGGED_AT_ONCE = 1_000

_turn = itertools.count()


class PullQueue(NamedTuple):
    """A queue as the consumer asks for it; `offset` is the next one it wants."""

    queue: int
    epoch: int
    offset: int


class PulledQueue(NamedTuple):
    """A queue of the answer; `head` is None where its node gave none in time, `stale` if a replica did.

    `ripe_in_ms`: the next message is too young for the subscription's delay, and for how long.
    """

    queue: int
    state: str
    rows: list[StoredRow]
    next_offset: int
    head: int | None = None
    low: int | None = None
    gap: tuple[int, int] | None = None
    stale: bool = False
    origins: Sequence[str | None] = ()  # of a failure topic's messages: where they came from (origins.Origin)
    ripe_in_ms: int | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """The rows as messages; answers to clients are made from the rows."""
        return [stored_message(self.queue, row) for row in self.rows]


def pull(
    *, consumer: ConsumerId, queues: Sequence[PullQueue], max_messages: int, max_bytes: int
) -> list[PulledQueue]:
    """Messages of the named queues, in the order the queues were named; served in a rotating order.

    At most `max_messages` and about `max_bytes` in all (a larger message comes alone).
    Raises NodeUnavailable when none of the nodes answers.
    """
    pulled: dict[int, PulledQueue] = {}
    failure: Unavailable = MetadataUnavailable("None of these queues is known yet.", retry_after_ms=1000)
    budget = Budget(max_messages, max_bytes)
    nodes = _by_node(queues, pulled, consumer)
    for node_id, asked in nodes.items():
        reading = _Reading(node_id, consumer, budget, LATE_S if len(nodes) > 1 else None)
        failure = _try_node(reading, asked, pulled) or failure
    if pulled and all(answer.state == "unavailable" for answer in pulled.values()):
        raise failure
    return [pulled[ask.queue] for ask in queues]


def _by_node(
    queues: Sequence[PullQueue], pulled: dict[int, PulledQueue], consumer: ConsumerId
) -> dict[int, list[PullQueue]]:
    """The queues to ask nodes for, in rotating order; those the snapshot answers are answered."""
    found, certain = snapshot.find_queues([ask.queue for ask in queues])
    known = snapshot.current()
    missing = "fenced" if certain else "unavailable"
    start = next(_turn) % len(queues) if queues else 0
    nodes: dict[int, list[PullQueue]] = {}
    for ask in (*queues[start:], *queues[:start]):
        info = found.get(ask.queue)
        if info is None:
            pulled[ask.queue] = PulledQueue(ask.queue, missing, [], ask.offset)
        elif known.stopped(consumer.group_id, info):
            pulled[ask.queue] = PulledQueue(ask.queue, "stopped", [], ask.offset)
        else:
            nodes.setdefault(info.node_id, []).append(ask)
    return nodes


class _Beside(NamedTuple):
    """Other queues whose positions are read in the same round trip, and where those are put."""

    queues: Sequence[int]
    positions: dict[int, Position]


class _Wanted(NamedTuple):
    """Messages that one statement reads: so many, until their bodies have reached `most_bytes`."""

    messages: int
    most_bytes: int
    tags: tuple[str, ...] = ()
    beside: _Beside | None = None


class _Reading(NamedTuple):
    """Parameters of the read from one node."""

    node_id: int
    consumer: ConsumerId
    budget: Budget
    within_s: float | None

    def session(self) -> AbstractContextManager[Session]:
        return node_pools.node(self.node_id).reading(within_s=self.within_s)


def _try_node(
    reading: _Reading, asked: list[PullQueue], pulled: dict[int, PulledQueue]
) -> NodeUnavailable | None:
    """Answers the queues of one node, whatever it says; why it does not serve them if it is away."""
    failure = None
    try:
        _from_node(reading, asked, pulled)
        return None
    except db_errors.Late:
        state = "ok"
    except db_errors.Final as fault:  # a table of the node is missing or was altered; other nodes go on
        state = "corrupt"
        for ask in asked:
            corruption.report(ask.queue, offset=ask.offset, why=fault.detail)
    except NodeUnavailable as error:
        state, failure = "unavailable", error
        left = [ask for ask in asked if ask.queue not in pulled]
        found = replicas.pull(
            node_id=reading.node_id, asked=left, consumer=reading.consumer, budget=reading.budget
        )
        pulled |= {queue: PulledQueue(queue, *served, stale=True) for queue, served in found.items()}
    for ask in asked:
        pulled.setdefault(ask.queue, PulledQueue(ask.queue, state, [], ask.offset))
    return failure


def _from_node(reading: _Reading, asked: list[PullQueue], pulled: dict[int, PulledQueue]) -> None:
    consumer, budget = reading.consumer, reading.budget
    positions: dict[int, Position] = {}
    if board.known(asked[0].queue) > asked[0].offset and not budget.spent():
        first, *asked = asked
        with reading.session() as session:  # one round trip: the rows come with the positions of all
            beside = _Beside([ask.queue for ask in asked], positions)
            pulled[first.queue] = _with_rows(session, first, consumer, budget, beside=beside)
    if asked:
        _from_rest(reading, asked, positions or _positions(reading, asked), pulled)


def _positions(reading: _Reading, asked: Sequence[PullQueue]) -> dict[int, Position]:
    consumer, queues = reading.consumer, [ask.queue for ask in asked]
    with reading.session() as session:
        return tables.read_positions(
            session, group_id=consumer.group_id, queues=queues, instance=consumer.instance
        )


def _from_rest(
    reading: _Reading,
    asked: Sequence[PullQueue],
    positions: Mapping[int, Position],
    pulled: dict[int, PulledQueue],
) -> None:
    """Answers queues whose positions were just read."""
    ready = []
    for ask in asked:
        answer = _without_rows(ask, positions.get(ask.queue), reading.consumer)
        if answer is None:
            ready.append(ask)
        else:
            pulled[ask.queue] = answer
    if ready:
        _from_ready(reading, ready, positions, pulled)


def _from_ready(
    reading: _Reading,
    ready: Sequence[PullQueue],
    positions: Mapping[int, Position],
    pulled: dict[int, PulledQueue],
) -> None:
    """Answers queues that have messages behind the positions that were asked for."""
    consumer, budget = reading.consumer, reading.budget
    # A queue of which something durable is known waits for no barrier: the rest comes with the next pull.
    risen = {ask.queue: positions[ask.queue].head for ask in ready if board.known(ask.queue) <= ask.offset}
    durability.confirm(node_id=reading.node_id, heads=risen)
    if not budget.spent():
        with reading.session() as session:
            for ask in ready:
                if not budget.spent():
                    pulled[ask.queue] = _with_rows(session, ask, consumer, budget)
    for ask in ready:
        if ask.queue not in pulled:
            head = min(positions[ask.queue].head, board.known(ask.queue))
            pulled[ask.queue] = PulledQueue(ask.queue, "ok", [], ask.offset, head)


def _without_rows(ask: PullQueue, position: Position | None, consumer: ConsumerId) -> PulledQueue | None:
    """The answer that needs no message, or None when there are messages to read."""
    if position is None or position.epoch != ask.epoch or position.owner != consumer.text:
        return PulledQueue(ask.queue, "fenced", [], ask.offset)
    if ask.offset < position.low:
        head = min(position.head, max(position.low, board.known(ask.queue)))
        return PulledQueue(ask.queue, "cleaned", [], ask.offset, head, low=position.low)
    if ask.offset > position.head:
        return PulledQueue(ask.queue, "out_of_range", [], ask.offset, position.head, low=position.low)
    if ask.offset == position.head:
        return PulledQueue(ask.queue, "ok", [], ask.offset, position.head)
    return None


def _with_rows(
    session: Session, ask: PullQueue, consumer: ConsumerId, budget: Budget, *, beside: _Beside | None = None
) -> PulledQueue:
    durable = board.known(ask.queue)  # above the offset
    tags = snapshot.current().tags(consumer.group_id, ask.queue)
    if tags:
        return _with_tagged_rows(session, ask, consumer, budget, tags=tags)
    wanted = _Wanted(budget.rows(ask.queue, durable - ask.offset), _OVERSHOOT * budget.size, beside=beside)
    return _rows(session, ask, consumer, budget, wanted=wanted)


def _with_tagged_rows(
    session: Session, ask: PullQueue, consumer: ConsumerId, budget: Budget, *, tags: tuple[str, ...]
) -> PulledQueue:
    """The messages that carry one of the tags; the position moves behind the others in between."""
    end = min(board.known(ask.queue), ask.offset + config.scan_limit)
    rows: list[StoredRow] = []
    while True:
        wanted = _Wanted(min(end - ask.offset, _TAGGED_AT_ONCE), _OVERSHOOT * budget.size, tags)
        part = _rows(session, ask, consumer, budget, wanted=wanted)
        rows += part.rows
        moved = part.state == "ok" and part.next_offset > ask.offset
        if not moved or part.next_offset >= end or budget.spent():
            # What ended it early is told by the next pull, which begins there.
            if part.state == "ok" or not rows:
                return part._replace(rows=rows)
            return PulledQueue(ask.queue, "ok", rows, ask.offset, part.head)
        ask = ask._replace(offset=part.next_offset)


def _select(
    session: Session, ask: PullQueue, consumer: ConsumerId, wanted: _Wanted
) -> tuple[Position | None, list[StoredRow], Sequence[str | None]]:
    """The position, what is there of the messages, and where those of a failure topic came from."""
    reader = ReaderKey(consumer.group_id, ask.queue, consumer.instance)
    messages, most_bytes, tags, beside = wanted
    first, end = ask.offset, ask.offset + messages
    if snapshot.current().holds_failures(ask.queue):
        return tables.select_owned_copies(session, reader=reader, first=first, end=end, most_bytes=most_bytes)
    others = beside.queues if beside else ()
    positions, rows = tables.select_owned(
        session, reader=reader, first=first, end=end, most_bytes=most_bytes, tags=tags, beside=others
    )
    position = positions.pop(ask.queue, None)
    if beside:
        beside.positions.update(positions)
    return position, rows, ()


def _rows(
    session: Session, ask: PullQueue, consumer: ConsumerId, budget: Budget, *, wanted: _Wanted
) -> PulledQueue:
    """Return the wanted messages that are there, without those that carry none of the tags."""
    durable = board.known(ask.queue)
    try:
        position, rows, origins = _select(session, ask, consumer, wanted)
    except db_errors.Final as fault:  # this queue's table is missing or was altered; the others go on
        corruption.report(ask.queue, offset=ask.offset, why=fault.detail)
        return PulledQueue(ask.queue, "corrupt", [], ask.offset)
    answer = _without_rows(ask, position, consumer)
    if answer is not None or position is None:
        return answer or PulledQueue(ask.queue, "fenced", [], ask.offset)
    count = dense(ask.offset, [row[ROW_OFFSET] for row in rows])
    if count == 0:
        return _explained(session, ask, position.head)
    rows = rows[:count]
    count, ripe_in_ms = ripe(session, group_id=consumer.group_id, queue=ask.queue, rows=rows)
    if wanted.tags:
        taken, passed = budget.choose(ask.queue, rows[:count])
    else:
        taken = budget.take(ask.queue, rows[:count])
        passed = len(taken)
    following, head = ask.offset + passed, min(position.head, durable)
    corruption.delivered(ask.queue, next_offset=following)
    later = None if taken else ripe_in_ms
    origins = origins[: len(taken)]
    return PulledQueue(ask.queue, "ok", taken, following, head, origins=origins, ripe_in_ms=later)


def _explained(session: Session, ask: PullQueue, head: int) -> PulledQueue:
    """The answer where the first message is missing although the head is above it."""
    fresh = tables.read_head(session, queue=ask.queue)
    gaps = tables.read_gaps(session, queue=ask.queue, position=ask.offset)
    verdict = explain(ask.offset, low=fresh.low if fresh else 0, gaps=gaps)
    if verdict.state == "corrupt":
        why = f"no message although the head is {head}"
        corruption.report(ask.queue, offset=ask.offset, why=why)
    low = fresh.low if fresh else None
    return PulledQueue(ask.queue, verdict.state, [], verdict.next_offset, head, low=low, gap=verdict.gap)
