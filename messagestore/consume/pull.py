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

A group with a filter on tags or headers passes the other messages on the way: the position moves behind up
to `scan_limit` of them, and an answer without messages may have a higher `next_offset`.

Only durable messages are delivered (durability.py), and the `head` of an answer is the durable one.
Consumer ids are signed and everything else is on the node, so metadata is asked only about a queue that
the snapshot does not know yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from messagestore.consume import delivery_delay, replicas
from messagestore.consume.budget import OVERSHOOT, Budget
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine import db_errors
from messagestore.engine.messages import ROW_OFFSET, StoredRow
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption, durability
from messagestore.heads.gap_check import dense, explain
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.tables import message_sql, queue_sql, reader_sql
from messagestore.tables.shapes import Position, ReaderKey
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import MetadataUnavailable, NodeUnavailable, Unavailable
from metadata.rules.alarm_texts import say
from metadata.rules.groups.filters import MessageFilter

SLOW_S = 0.1  # how long a node may take to answer where others are asked, too
_FILTERED_AT_ONCE = 1_000  # rows of a queue with a filter that are looked at with one statement
_HOLE = "hole"  # the first message is missing although the head is above it

_turn = itertools.count()


def pull(
    *, consumer: ConsumerId, queues: Sequence[PullQueue], max_messages: int, max_bytes: int
) -> list[PulledQueue]:
    """Messages of the named queues, in the order the queues were named; served in a rotating order.

    At most `max_messages` and about `max_bytes` in all (a larger message comes alone).
    Raises NodeUnavailable when none of the nodes answers.
    """
    failure: Unavailable = MetadataUnavailable("None of these queues is known yet.", retry_after_ms=1000)
    budget = Budget(max_messages, max_bytes)
    nodes, pulled = _by_node(queues, consumer)
    for node_id, asked in nodes.items():
        reading = _NodePull(
            node_id, asked, consumer, budget=budget, within_s=SLOW_S if len(nodes) > 1 else None
        )
        try:
            for answer in itertools.chain(reading.first(), reading.empty(), reading.others()):
                pulled[answer.queue] = answer
        except (db_errors.Final, NodeUnavailable) as error:
            left = [ask for ask in asked if ask.queue not in pulled]
            pulled |= _not_served(left, error)
            if isinstance(error, NodeUnavailable) and not isinstance(error, db_errors.SlowNode):
                failure = error
                pulled |= replicas.pull(node_id=node_id, asked=left, consumer=consumer, budget=budget)
    if pulled and all(answer.state == "unavailable" for answer in pulled.values()):
        raise failure
    return [pulled[ask.queue] for ask in queues]


def _by_node(
    queues: Sequence[PullQueue], consumer: ConsumerId
) -> tuple[dict[int, list[PullQueue]], dict[int, PulledQueue]]:
    """The queues to ask nodes for, in rotating order, and the answers that the snapshot gives."""
    found, certain = snapshot.find_queues([ask.queue for ask in queues])
    known = snapshot.current()
    missing = "fenced" if certain else "unavailable"
    start = next(_turn) % len(queues) if queues else 0
    nodes: dict[int, list[PullQueue]] = {}
    answers: dict[int, PulledQueue] = {}
    for ask in (*queues[start:], *queues[:start]):
        info = found.get(ask.queue)
        if info is None:
            answers[ask.queue] = PulledQueue(ask.queue, missing, [], ask.offset)
        elif known.stopped(consumer.group_id, info):
            answers[ask.queue] = PulledQueue(ask.queue, "stopped", [], ask.offset)
        else:
            nodes.setdefault(info.node_id, []).append(ask)
    return nodes, answers


def _not_served(
    left: Sequence[PullQueue], error: db_errors.Final | NodeUnavailable
) -> dict[int, PulledQueue]:
    """The answers for queues of a node that gave none."""
    state = "ok" if isinstance(error, db_errors.SlowNode) else "unavailable"
    if isinstance(error, db_errors.Final):  # a table of the node is missing or was altered; other nodes go on
        state = "corrupt"
        for ask in left:
            corruption.report(ask.queue, offset=ask.offset, why=error.detail)
    return {ask.queue: PulledQueue(ask.queue, state, [], ask.offset) for ask in left}


class _NodePull:
    """Pull from one node in three steps, each of which answers some of the queues that are left."""

    def __init__(
        self,
        node_id: int,
        asked: Sequence[PullQueue],
        consumer: ConsumerId,
        *,
        budget: Budget,
        within_s: float | None,
    ) -> None:
        self._node_id, self._consumer, self._budget, self._within_s = node_id, consumer, budget, within_s
        self._left = list(asked)
        self._positions: dict[int, Position] = {}

    def first(self) -> Iterator[PulledQueue]:
        """Read the first queue if it has messages: one round trip, that brings the positions of all."""
        ask = self._left[0]
        if board.known(ask.queue) > ask.offset and not self._budget.spent():
            del self._left[0]
            with self._session() as session:
                answer, self._positions = self._read(session, ask, beside=[one.queue for one in self._left])
            yield answer

    def empty(self) -> Iterator[PulledQueue]:
        """Answer the queues of which the position tells that there is nothing to read."""
        asked, self._left = self._left, []
        if asked and not self._positions:
            queues = [ask.queue for ask in asked]
            with self._session() as session:
                self._positions = reader_sql.read_positions(
                    session, group_id=self._consumer.group_id, queues=queues, instance=self._consumer.instance
                )
        for ask in asked:
            answer = _without_rows(ask, self._positions.get(ask.queue), self._consumer)
            if answer is None:
                self._left.append(ask)
            else:
                yield answer

    def others(self) -> Iterator[PulledQueue]:
        """Read the queues that are left, as long as there is room in the answer."""
        # A queue of which something durable is known waits for no barrier: the rest comes with the next pull.
        risen = [ask.queue for ask in self._left if board.known(ask.queue) <= ask.offset]
        durability.confirm(
            node_id=self._node_id, heads={queue: self._positions[queue].head for queue in risen}
        )
        if self._left and not self._budget.spent():
            with self._session() as session:
                while self._left and not self._budget.spent():
                    yield self._read(session, self._left.pop(0))[0]
        for ask in self._left:
            head = min(self._positions[ask.queue].head, board.known(ask.queue))
            yield PulledQueue(ask.queue, "ok", [], ask.offset, head)

    def _session(self) -> AbstractContextManager[Session]:
        return node_pools.node(self._node_id).reading(within_s=self._within_s)

    def _read(
        self, session: Session, ask: PullQueue, *, beside: Sequence[int] = ()
    ) -> tuple[PulledQueue, dict[int, Position]]:
        """Return the messages of a queue that has durable ones, and the positions of the queues beside it.

        With a filter those that it takes; the position moves behind the others in between.
        """
        durable, group_id = board.known(ask.queue), self._consumer.group_id
        only = snapshot.current().only(group_id, ask.queue)
        youngest_ms = delivery_delay.youngest_ms(session, group_id=group_id, queue=ask.queue)
        end = min(durable, ask.offset + config.scan_limit) if only else durable
        rows: list[StoredRow] = []
        while True:
            part, others = self._part(
                session, ask, end, only=only, beside=beside if not only else (), youngest_ms=youngest_ms
            )
            if part.state == _HOLE:
                part = _explained(session, ask, part.head)
            if not only:
                return part, others
            rows += part.rows
            moved = part.state == "ok" and part.next_offset > ask.offset
            if not moved or part.next_offset >= end or self._budget.spent():
                break
            ask = ask._replace(offset=part.next_offset)
        # What ended it early is told by the next pull, which begins there.
        if part.state == "ok" or not rows:
            return part._replace(rows=rows), others
        return PulledQueue(ask.queue, "ok", rows, ask.offset, part.head), others

    def _part(
        self,
        session: Session,
        ask: PullQueue,
        end: int,
        *,
        only: MessageFilter,
        beside: Sequence[int],
        youngest_ms: int | None,
    ) -> tuple[PulledQueue, dict[int, Position]]:
        """Return what one statement reads: messages below `end`, of those that the filter takes."""
        consumer, budget, durable = self._consumer, self._budget, board.known(ask.queue)
        available = end - ask.offset
        wanted = min(available, _FILTERED_AT_ONCE) if only else budget.rows(ask.queue, available)
        try:
            positions, rows, origins = message_sql.select_owned(
                session,
                reader=ReaderKey(consumer.group_id, ask.queue, consumer.instance),
                first=ask.offset,
                end=ask.offset + wanted,
                most_bytes=OVERSHOOT * budget.size,
                only=only,
                most=budget.rows(ask.queue, available),
                beside=beside,
                copies=snapshot.current().holds_failures(ask.queue),
            )
        except db_errors.Final as fault:  # this queue's table is missing or was altered; the others go on
            corruption.report(ask.queue, offset=ask.offset, why=fault.detail)
            return PulledQueue(ask.queue, "corrupt", [], ask.offset), {}
        position = positions.pop(ask.queue, None)
        answer = _without_rows(ask, position, consumer)
        if answer is not None or position is None:
            return answer or PulledQueue(ask.queue, "fenced", [], ask.offset), positions
        rows = rows[: dense(ask.offset, [row[ROW_OFFSET] for row in rows])]
        if not rows:
            return PulledQueue(ask.queue, _HOLE, [], ask.offset, position.head), positions
        count, due_in_ms = delivery_delay.due(rows, youngest_ms=youngest_ms)
        taken, passed = budget.choose(ask.queue, rows[:count], filtered=bool(only))
        following = ask.offset + passed
        corruption.delivered(ask.queue, next_offset=following)
        return PulledQueue(
            ask.queue,
            "ok",
            taken,
            following,
            min(position.head, durable),
            origins=origins[: len(taken)],
            due_in_ms=None if taken else due_in_ms,
        ), positions


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


def _explained(session: Session, ask: PullQueue, head: int | None) -> PulledQueue:
    """The answer where the first message is missing although the head is above it."""
    fresh = queue_sql.read_head(session, queue=ask.queue)
    gaps = queue_sql.read_gaps(session, queue=ask.queue, position=ask.offset)
    low = fresh.low if fresh else None
    verdict = explain(ask.offset, low=low or 0, gaps=gaps)
    if verdict.state == "corrupt":
        corruption.report(ask.queue, offset=ask.offset, why=say("missing", end=str(head)))
    return PulledQueue(ask.queue, verdict.state, [], verdict.next_offset, head, low=low, gap=verdict.gap)
