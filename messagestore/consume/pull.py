"""Pull messages from the offsets that a consumer names, fenced by the reader rows of the
nodes.

The *head* of a queue is its log end offset: the offset that the next message gets. A `Position`
in this module is not an offset. It is the state of a queue and of the group's reader row in it
(head, low, owner, epoch, committed offset), as a node returns it.

Every queue of the answer has a `state`:

    ok            messages, or none yet
    fenced        another owner or epoch holds the queue
    stopped       an operator stopped the group, the subscription or the queue in it
    cleaned       the offset is below `low`: retention deleted the messages there
    out_of_range  the offset is above the head
    lost_tail     the offset is in a declared gap (`gap`); `next_offset` is its end
    corrupt       an offset is missing without a declared gap: nothing is delivered, an operator
                  must act
    unavailable   neither the queue's node nor a replica of it answers

If a pull needs several nodes, it does not wait for a slow node: the queues of that node are
`ok`, without messages and without a head.

For a group with a filter on tags or headers, a pull passes over messages that do not match,
up to `scan_limit` of them. So an answer without messages may have a
higher `next_offset`.

Only durable messages are delivered, and the `head` of an answer is the durable head. If a queue
has messages, but the broker knows none of them to be durable, a *barrier* confirms them: a
small commit to the node, after which all that was visible before it is durable (durability.py).

Consumer ids are signed and everything else is on the node. So metadata is read only for a
queue that the snapshot does not have yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from messagestore.consume import behind, delivery_delay, replicas
from messagestore.consume.budget import OVERSHOOT, Budget
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine import db_errors
from messagestore.engine.messages import ROW_OFFSET, StoredRow
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption, durability
from messagestore.heads.gap_check import dense_length, explain_missing
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.tables import message_sql, queue_sql, reader_sql
from messagestore.tables.shapes import Position, ReaderKey
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import MetadataUnavailable, NodeUnavailable, Unavailable
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.groups.filters import EVERYTHING, MessageFilter

SLOW_S = 0.1  # longest time that a node may take if the pull needs other nodes, too
_FILTERED_AT_ONCE = 1_000  # offsets that one statement scans for a group with a filter
_HOLE = "hole"  # internal state: the first message is missing although the head is above it

_turn = itertools.count()


def pull(
    *, consumer: ConsumerId, queues: Sequence[PullQueue], max_messages: int, max_bytes: int
) -> list[PulledQueue]:
    """Return an answer for each queue, in the order of `queues`.

    The answers have at most `max_messages` and about `max_bytes` together; a larger message
    comes alone. Raises NodeUnavailable if no node answers, MetadataUnavailable if no queue
    is in the snapshot and metadata cannot be read.
    """
    failure: Unavailable = MetadataUnavailable(
        "None of these queues is known yet.", retry_after_ms=1000
    )
    budget = Budget(max_messages, max_bytes)
    nodes, pulled = _group_by_node(queues, consumer)
    for node_id, node_queues in nodes.items():
        node_pull = _NodePull(
            node_id,
            node_queues,
            consumer,
            budget=budget,
            within_s=SLOW_S if len(nodes) > 1 else None,
        )
        try:
            for answer in itertools.chain(
                node_pull.read_first(), node_pull.answer_empty(), node_pull.read_rest()
            ):
                pulled[answer.queue] = answer
        except (db_errors.Final, NodeUnavailable) as error:
            # The three kinds of errors:
            # - SlowNode (a NodeUnavailable): the queues are `ok` without messages, and the next
            #   pull reads the node again.
            # - another NodeUnavailable: the replica is read instead of the node.
            # - Final: a table of the node is missing or was altered. Its queues are `corrupt`,
            #   and the other nodes are still read.
            unanswered = [
                pull_queue for pull_queue in node_queues if pull_queue.queue not in pulled
            ]
            state = "ok" if isinstance(error, db_errors.SlowNode) else "unavailable"
            if isinstance(error, db_errors.Final):
                state = "corrupt"
                for pull_queue in unanswered:
                    corruption.report(
                        pull_queue.queue, offset=pull_queue.offset, why=error.detail
                    )
            for pull_queue in unanswered:
                pulled[pull_queue.queue] = PulledQueue(
                    pull_queue.queue, state, [], pull_queue.offset
                )
            # Queues that the replica cannot serve keep the state `unavailable`.
            if isinstance(error, NodeUnavailable) and not isinstance(
                error, db_errors.SlowNode
            ):
                failure = error
                pulled |= replicas.pull(
                    node_id=node_id, queues=unanswered, consumer=consumer, budget=budget
                )
    if pulled and all(answer.state == "unavailable" for answer in pulled.values()):
        raise failure
    return [pulled[pull_queue.queue] for pull_queue in queues]


def _group_by_node(
    queues: Sequence[PullQueue], consumer: ConsumerId
) -> tuple[dict[int, list[PullQueue]], dict[int, PulledQueue]]:
    """Return the queues to read by node id, and the answers that need no node.

    No node is needed for queues that are unknown or stopped.
    """
    known_queues, certain = snapshot.find_queues(
        [pull_queue.queue for pull_queue in queues]
    )
    current = snapshot.current()
    unknown_state = "fenced" if certain else "unavailable"
    # Each pull starts at another queue. Otherwise the first queues could use up the budget of
    # every pull, and the last queues would never be read.
    start = next(_turn) % len(queues) if queues else 0
    nodes: dict[int, list[PullQueue]] = {}
    answers: dict[int, PulledQueue] = {}
    for pull_queue in (*queues[start:], *queues[:start]):
        info = known_queues.get(pull_queue.queue)
        if info is None:
            answers[pull_queue.queue] = PulledQueue(
                pull_queue.queue, unknown_state, [], pull_queue.offset
            )
        elif current.is_stopped(consumer.group_id, info):
            answers[pull_queue.queue] = PulledQueue(
                pull_queue.queue, "stopped", [], pull_queue.offset
            )
        else:
            nodes.setdefault(info.node_id, []).append(pull_queue)
    return nodes, answers


class _NodePull:
    """Pull from a node in three steps: read_first(), answer_empty() and read_rest(). Each step
    answers some of the queues that remain in `_left`, and the last step answers all of them.
    For a group without a filter, one round trip is enough if only the first queue has messages.

    `within_s` is the longest time in seconds until the node begins to answer, None for the
    usual limit.
    """

    def __init__(
        self,
        node_id: int,
        queues: Sequence[PullQueue],
        consumer: ConsumerId,
        *,
        budget: Budget,
        within_s: float | None,
    ) -> None:
        self._node_id, self._within_s = node_id, within_s
        self._consumer, self._budget = consumer, budget
        self._queues, self._left = queues, list(queues)
        self._positions: dict[int, Position] = {}
        self._asked: dict[int, Position | None] = {}  # what the writer said

    def read_first(self) -> Iterator[PulledQueue]:
        """Read the first queue, if it has messages that are known to be durable.

        For a group without a filter, the same round trip reads the positions of all other
        queues of the node.
        """
        pull_queue = self._left[0]
        if (
            board.durable_head(pull_queue.queue) > pull_queue.offset
            and not self._budget.spent()
        ):
            del self._left[0]
            with self._session() as session:
                if only := self._message_filter(pull_queue.queue):
                    answer = self._read_filtered(session, pull_queue, only)
                else:
                    answer, self._positions = self._read(
                        session,
                        pull_queue,
                        other_queues=[other.queue for other in self._left],
                    )
            yield answer

    def answer_empty(self) -> Iterator[PulledQueue]:
        """Answer the queues whose position shows that there is nothing to read: they are
        fenced, cleaned or out of range, or the offset is at the head.
        """
        candidates, self._left = self._left, []
        if candidates and not self._positions:
            queues = [pull_queue.queue for pull_queue in candidates]
            with self._session() as session:
                self._positions = reader_sql.read_positions(
                    session,
                    group_id=self._consumer.group_id,
                    queues=queues,
                    instance=self._consumer.instance,
                )
        for pull_queue in candidates:
            answer = self._without_rows(pull_queue, self._positions.get(pull_queue.queue))
            if answer is None:
                self._left.append(pull_queue)
            else:
                yield answer

    def read_rest(self) -> Iterator[PulledQueue]:
        """Read the remaining queues while the answer has room. Answer the others without
        messages.
        """
        # Queues in which no message at the offset or above is known to be durable: a barrier
        # confirms their heads. The other queues have durable messages to read, and their newer
        # messages come with the next pull, so they need no barrier.
        unconfirmed = [
            pull_queue.queue
            for pull_queue in self._left
            if board.durable_head(pull_queue.queue) <= pull_queue.offset
        ]
        durability.confirm(
            node_id=self._node_id,
            heads={queue: self._positions[queue].head for queue in unconfirmed},
        )
        if self._left and not self._budget.spent():
            with self._session() as session:
                while self._left and not self._budget.spent():
                    pull_queue = self._left.pop(0)
                    if only := self._message_filter(pull_queue.queue):
                        yield self._read_filtered(session, pull_queue, only)
                    else:
                        yield self._read(session, pull_queue)[0]
        for pull_queue in self._left:
            head = min(
                self._positions[pull_queue.queue].head, board.durable_head(pull_queue.queue)
            )
            yield PulledQueue(pull_queue.queue, "ok", [], pull_queue.offset, head)

    def _without_rows(
        self, pull_queue: PullQueue, position: Position | None
    ) -> PulledQueue | None:
        """Return the answer if the position decides it, None if there are messages to read.

        If the server may be behind, its writer decides. Then there are no rows: those of the
        writer come with the next pull. Raises NodeUnavailable.
        """
        queue = pull_queue.queue
        if _is_low(pull_queue, position):
            node = node_pools.node(self._node_id)
            if node.is_movable:
                if queue not in self._asked:
                    # All at once: the other queues of this server are behind as well.
                    low = [
                        other.queue
                        for other in self._queues
                        if _is_low(other, self._positions.get(other.queue))
                    ]
                    self._asked = dict.fromkeys([queue, *low]) | behind.ask_writer(
                        node, consumer=self._consumer, queues=[queue, *low]
                    )
                answer = _without_rows(pull_queue, self._asked[queue], self._consumer)
                return answer or PulledQueue(queue, "ok", [], pull_queue.offset)
        return _without_rows(pull_queue, position, self._consumer)

    def _session(self) -> AbstractContextManager[Session]:
        return node_pools.node(self._node_id).reading(within_s=self._within_s)

    def _message_filter(self, queue: int) -> MessageFilter:
        return snapshot.current().message_filter(self._consumer.group_id, queue)

    def _read(
        self, session: Session, pull_queue: PullQueue, *, other_queues: Sequence[int] = ()
    ) -> tuple[PulledQueue, dict[int, Position]]:
        """Read a queue that has durable messages, for a group without a filter.

        Return its answer and the positions of `other_queues`.
        """
        # All durable messages, one range: without a filter, a single statement reads them up to
        # the budget.
        end = board.durable_head(pull_queue.queue)
        # With a delivery delay, messages that were stored after this time are not due yet. None
        # without a delay.
        youngest_ms = delivery_delay.youngest_ms(
            session, group_id=self._consumer.group_id, queue=pull_queue.queue
        )
        answer, other_positions = self._read_range(
            session,
            pull_queue,
            end,
            only=EVERYTHING,
            other_queues=other_queues,
            youngest_ms=youngest_ms,
        )
        # Retention may have raised `low` between the reads of position and rows. So `low` is
        # read again before a hole is called corrupt.
        if answer.state == _HOLE:
            answer = _explain_hole(session, pull_queue, answer.head)
        return answer, other_positions

    def _read_filtered(
        self, session: Session, pull_queue: PullQueue, only: MessageFilter
    ) -> PulledQueue:
        """Read a queue that has durable messages, for a group with a filter.

        Range after range is read, until the answer is full or `scan_limit` offsets were
        scanned.
        """
        end = min(
            board.durable_head(pull_queue.queue), pull_queue.offset + config.scan_limit
        )
        youngest_ms = delivery_delay.youngest_ms(
            session, group_id=self._consumer.group_id, queue=pull_queue.queue
        )
        rows: list[StoredRow] = []
        while True:
            answer, _ = self._read_range(
                session,
                pull_queue,
                end,
                only=only,
                other_queues=(),
                youngest_ms=youngest_ms,
            )
            # As in _read: `low` is read again before a hole is called corrupt.
            if answer.state == _HOLE:
                answer = _explain_hole(session, pull_queue, answer.head)
            rows += answer.rows
            has_advanced = answer.state == "ok" and answer.next_offset > pull_queue.offset
            if not has_advanced or answer.next_offset >= end or self._budget.spent():
                break
            pull_queue = pull_queue._replace(offset=answer.next_offset)
        # The rows of earlier ranges were checked, and are delivered. A state that ended the loop
        # at a later range (fenced, cleaned, corrupt) is not returned together with rows: the next
        # pull begins at the offset of that range and returns the state.
        if answer.state == "ok" or not rows:
            return answer._replace(rows=rows)
        return PulledQueue(pull_queue.queue, "ok", rows, pull_queue.offset, answer.head)

    def _read_range(
        self,
        session: Session,
        pull_queue: PullQueue,
        end: int,
        *,
        only: MessageFilter,
        other_queues: Sequence[int],
        youngest_ms: int | None,
    ) -> tuple[PulledQueue, dict[int, Position]]:
        """Read messages below `end` that match the filter, with a single statement.

        Return the answer, whose state is _HOLE if the first message is missing, and the
        positions of `other_queues`.
        """
        consumer, budget = self._consumer, self._budget
        # Before the rows are read: what is durable now is visible to the statement.
        durable_head = board.durable_head(pull_queue.queue)
        available = end - pull_queue.offset
        # How many rows fit is estimated. A filter leaves out most rows, so it scans more offsets
        # than that.
        most_rows = budget.rows(pull_queue.queue, available)
        scan_length = min(available, _FILTERED_AT_ONCE) if only else most_rows
        try:
            positions, rows, origins = message_sql.read_positions_and_rows(
                session,
                reader=ReaderKey(consumer.group_id, pull_queue.queue, consumer.instance),
                first=pull_queue.offset,
                end=pull_queue.offset + scan_length,
                # The rows after this many bytes are cut off, so that a single read cannot take
                # too much memory. That costs the connection, so the bound is above the budget:
                # `most_rows` is an estimate (budget.OVERSHOOT).
                most_bytes=OVERSHOOT * budget.size,
                only=only,
                most=most_rows,
                other_queues=other_queues,
                # The messages of a retry topic are copies. Their origins go to the client.
                with_origins=snapshot.current().holds_failures(pull_queue.queue),
            )
        except db_errors.Final as fault:
            # The table of this queue is missing or was altered. Other queues of the node
            # are still read.
            corruption.report(pull_queue.queue, offset=pull_queue.offset, why=fault.detail)
            return PulledQueue(pull_queue.queue, "corrupt", [], pull_queue.offset), {}
        position = positions.pop(pull_queue.queue, None)
        # Rows of a fenced consumer, or of an offset outside of the log, are dropped.
        answer = self._without_rows(pull_queue, position)
        if position is None or answer is not None:
            return answer or _fenced(pull_queue), positions
        # Rows past a hole are dropped. The next pull begins at the hole and must explain
        # it.
        rows = rows[: dense_length(pull_queue.offset, [row[ROW_OFFSET] for row in rows])]
        if not rows:
            return PulledQueue(
                pull_queue.queue, _HOLE, [], pull_queue.offset, position.head
            ), positions
        # Rows that are not due yet are held back by the subscription's delay.
        count, due_in_ms = delivery_delay.due(rows, youngest_ms=youngest_ms)
        fitting_rows, passed_offsets = budget.choose(
            pull_queue.queue, rows[:count], filtered=bool(only)
        )
        next_offset = pull_queue.offset + passed_offsets
        corruption.delivered(pull_queue.queue, next_offset=next_offset)
        return PulledQueue(
            pull_queue.queue,
            "ok",
            fitting_rows,
            next_offset,
            min(position.head, durable_head),
            origins=origins[: len(fitting_rows)],
            due_in_ms=None if fitting_rows else due_in_ms,
        ), positions


def _is_low(pull_queue: PullQueue, position: Position | None) -> bool:
    return behind.is_low(position, epoch=pull_queue.epoch, offset=pull_queue.offset)


def _fenced(pull_queue: PullQueue) -> PulledQueue:
    return PulledQueue(pull_queue.queue, "fenced", [], pull_queue.offset)


def _without_rows(
    pull_queue: PullQueue, position: Position | None, consumer: ConsumerId
) -> PulledQueue | None:
    """Return the answer if the position alone decides it, None if there are messages to read.

    `position` is None if the group has no reader row for the queue.
    """
    # The fence: a former owner, or an owner of an earlier epoch, gets nothing, however old
    # its broker's snapshot is.
    if (
        position is None
        or position.epoch != pull_queue.epoch
        or position.owner != consumer.text
    ):
        return _fenced(pull_queue)
    if pull_queue.offset < position.low:
        head = min(position.head, max(position.low, board.durable_head(pull_queue.queue)))
        return PulledQueue(
            pull_queue.queue, "cleaned", [], pull_queue.offset, head, low=position.low
        )
    if pull_queue.offset > position.head:
        return PulledQueue(
            pull_queue.queue,
            "out_of_range",
            [],
            pull_queue.offset,
            position.head,
            low=position.low,
        )
    if pull_queue.offset == position.head:
        return PulledQueue(pull_queue.queue, "ok", [], pull_queue.offset, position.head)
    return None


def _explain_hole(session: Session, pull_queue: PullQueue, head: int | None) -> PulledQueue:
    """Return the answer for an offset that is missing although the head is above it.

    It is `cleaned`, `lost_tail`, or `corrupt` if neither `low` nor a declared gap explains
    it.
    """
    # Both are read after the rows. Read before them, they could lack a cleaning or a gap that
    # removed a row in between.
    fresh_head = queue_sql.read_head(session, queue=pull_queue.queue)
    gaps = queue_sql.read_gaps(session, queue=pull_queue.queue, position=pull_queue.offset)
    low = fresh_head.low if fresh_head else None
    verdict = explain_missing(pull_queue.offset, low=low or 0, gaps=gaps)
    if verdict.state == "corrupt":
        corruption.report(
            pull_queue.queue,
            offset=pull_queue.offset,
            why=alarm_text("missing", end=str(head)),
        )
    return PulledQueue(
        pull_queue.queue,
        verdict.state,
        [],
        verdict.next_offset,
        head,
        low=low,
        gap=verdict.gap,
    )
