"""Delivery of due delayed messages to their queues.

A delayed message is a row in a table of its node. A loop per node, in a single broker at a
time, brings due rows to their queues:

* It *moves* a row to a queue of the same node. Due rows are read without locks, then moved by
  `delivery_sql.move_delayed`: a transaction for many queues inserts exactly the rows that it
  deletes. If two brokers move at once, or a broker dies at any point, each message is either
  still delayed or moved, never both. A moved message is recorded in `sent_batch` like a sent
  message, under an id that is derived from its own. So `verify` finds a record for it, and a
  recall finds out that it is too late.
* It *hands over* a row whose queue is on another node: the message is stored there as a
  delayed message that is due at once, under a derived batch id, and then deleted here.
* Before a row is handed over to another queue than it names, it is *retargeted*: the new queue
  is written into the row, so that a repeat by another broker goes to the same queue.

The queue is chosen when the message is due. A message that was routed by its key goes to the
queue that its key belongs to at that time, any other message to the queue that its row names.
If that queue is closed, the rules of a send apply: the message goes to another open queue of
the topic, except for a key of a `strict` topic, which waits.

Pacing: the loop must deliver a message soon after it is due, and must not keep the node busy
with queries. A query returns when the next row is due, and is then followed by a pause. Rows that
are stored during the pause may be due earlier. This broker's workers count the rows that they
store (`board.shared.delayed_at`), but the loop does not see rows that other brokers store. So
two times are set after each query:

* `_not_before`: no query before it, whatever happens. It is the time when the next known row is
  due, at most IDLE_S away. If queries are slow, it is at least PACE times their duration away.
* `_nothing_due_before`: no query before it either, unless the count of stored rows has changed.
  It is the time when the next known row is due, at most IDLE_S away, or ALONE_S if no other
  broker is alive.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import msgspec

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage, digest
from messagestore.heads import corruption, partitions
from messagestore.heads.heads import board
from messagestore.pool import known_heads
from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.tables import delayed_sql, delivery_sql
from messagestore.tables.shapes import DelayedRow, DueRow, Leaving, NewBatch, NewDelayed
from metadata.cache import snapshot
from metadata.cache.snapshot_types import QueueInfo, Snapshot
from metadata.db import leases
from metadata.errors import CatmqError, Code, Conflict, MetadataUnavailable
from metadata.rules.nodes import NodeState
from metadata.rules.topics import routing_rules
from metadata.rules.topics.states import Keyed, QueueState, TopicState

log = logging.getLogger(__name__)

# Pacing: see the module docstring, and DelayedDelivery._plan_next_query.
EVERY_S = 0.05  # pause between two passes of the loop that calls run_once
# Longest time between two queries. A message that is stored meanwhile and due at once is late
# by at most this.
IDLE_S = 0.2
# The same while no other broker is alive and no worker of this broker stores rows. Only a
# background job stores rows uncounted: they may be late by this much.
ALONE_S = 1.0
# Longest wait inside of run_once(). With the pause after the pass it makes IDLE_S.
WAIT_S = IDLE_S - EVERY_S
# Pause after a query, as a multiple of its duration: queries use at most a tenth of the time. The
# quickest of the last LOOKS queries counts, because a busy machine makes single queries slow.
PACE = 10
LOOKS = 8

MOST = 500  # due rows that a query reads, and that a transaction moves
MOST_BYTES = 1 << 20  # bodies and headers in a transaction; a larger message goes alone
PASS_S = 1.0  # longest time that a backlog is moved before the pass ends
RETRY_S = 1.0  # pause of a queue after a failure
LEASE_S = 3.0  # lifetime of the node's lease
LEASE_EVERY_S = 1.0  # pause between two attempts to acquire or renew it
ID_HEADER = "catmq-delayed-id"
Targets = dict[int, list[int]]  # queue → ids of the rows to move into it


def nodes() -> list[int]:
    """Return the ids of the nodes that need a delivery loop: all that are not offline."""
    return list(sweeping.online_nodes())


def moved_id(node_id: int, row_id: int) -> bytes:
    """Return the batch id under which `sent_batch` records that a delayed message left its
    table.

    The id is a UUIDv7 with the row id in place of the time, so that the ids of a node are
    adjacent in the primary key. The rest is a hash of the message's id.
    """
    message_id = delayed_store.delayed_id(node_id, row_id)
    return routing_rules.as_uuid7(row_id, hashlib.sha256(message_id.encode()).digest())


class DelayedDelivery:
    """Moves the due messages of a node while it holds the node's lease. Used by a single
    thread.

    The lease only saves double work. While metadata is unavailable no broker can acquire
    it, so all brokers move.
    """

    def __init__(
        self, node_id: int, *, holder: str, is_alone: Callable[[], bool] = lambda: False
    ) -> None:
        self._node_id = node_id
        self._is_alone = is_alone
        self._lease = leases.LeaseHolder(f"delays-{node_id}", holder, ttl_s=LEASE_S)
        self._holds_lease = False
        self._lease_asked_at = float("-inf")
        # The two times of the pacing (module docstring), of time.monotonic(). No query is made
        # before this time, even if rows are stored.
        self._not_before = float("-inf")
        # No query is made before this time, unless a worker of this broker stores a row. Until
        # then no other row is expected to be due.
        self._nothing_due_before = float("-inf")
        # Number of rows of the node that this broker's workers had stored at the last query.
        self._counter_at_query = 0
        # Durations of the last queries in seconds.
        self._query_durations_s: deque[float] = deque(maxlen=LOOKS)
        # By queue: until when no row is read for it or moved into it, after a failure.
        self._paused_until: dict[int, float] = {}

    def run_once(self) -> int:
        """Move, hand over or retarget due rows for up to PASS_S. Return the number of rows.

        If nothing can be due yet, waits up to WAIT_S first. Raises NodeUnavailable.
        """
        moved = 0
        started_at = time.monotonic()
        time.sleep(min(WAIT_S, max(0.0, self._next_at() - started_at)))
        while self._may_move() and (count := self.move()):
            moved += count
            if time.monotonic() - started_at > PASS_S:
                break
        return moved

    def finish(self) -> None:
        """Release the lease, so that another process can take over at once."""
        if self._holds_lease:
            self._lease.release()

    def _may_move(self) -> bool:
        """Acquire or renew the lease when needed. Return True if it is held and rows may be
        due.
        """
        now = time.monotonic()
        if now - self._lease_asked_at >= LEASE_EVERY_S:
            try:
                self._holds_lease = self._lease.acquire()
            except MetadataUnavailable:
                # Moving without the lease is safe: the transaction in the store moves each
                # row once. Waiting for metadata would delay messages that need nothing from
                # it.
                self._holds_lease = True
            self._lease_asked_at = time.monotonic()
        return self._holds_lease and now >= self._next_at()

    def _next_at(self) -> float:
        """Return the time (monotonic) before which no query is needed, or without the lease no
        attempt to acquire it.
        """
        if not self._holds_lease:
            return self._lease_asked_at + LEASE_EVERY_S
        # A row that was stored after the last query may be due before any row that the
        # query returned.
        has_new_rows = board.shared.delayed_at(self._node_id) != self._counter_at_query
        return (
            self._not_before
            if has_new_rows
            else max(self._not_before, self._nothing_due_before)
        )

    def move(self) -> int:
        """Move, hand over or retarget a bounded number of due rows. Return the number of rows.
        Raises NodeUnavailable.
        """
        node = delayed_store.prepared(self._node_id)
        local, for_other_nodes = self._read_due(node)
        count = self._move_rows(node, local) if local else 0
        for row_id, queue in for_other_nodes:
            try:
                count += hand_over(node, row_id)
            except CatmqError as error:
                self._pause_after(queue, error)
        return count

    def _read_due(self, node: Node) -> tuple[Targets, list[tuple[int, int]]]:
        """Read due rows. Return the row ids for this node's queues, and (row id, queue) of
        the rows for other nodes.

        Also plans the next query.
        """
        with node.reading() as session:
            started_at = time.monotonic()
            # The counter is read before the query. So a row that is stored during the query, and
            # that the query may have missed, changes the counter after this and ends the pause.
            self._counter_at_query = board.shared.delayed_at(self._node_id)
            due_in_ms = delayed_sql.read_delayed_queues(session)
            now = time.monotonic()
            self._query_durations_s.append(now - started_at)
            self._plan_next_query(started_at, due_in_ms)
            # The queue whose message has been due for longest comes first.
            overdue = sorted(
                (wait_ms, queue) for queue, wait_ms in due_in_ms.items() if wait_ms <= 0
            )
            due_queues = [
                queue for _, queue in overdue if self._paused_until.get(queue, now) <= now
            ]
            # Every due queue gets an equal share of the rows, so that none starves the
            # others.
            rows = {}
            for queue in due_queues[:MOST]:
                rows[queue] = delayed_sql.list_due(
                    session, queue=queue, most=max(1, MOST // len(due_queues))
                )
        return self._split_by_node(rows)

    def _plan_next_query(self, started_at: float, due_in_ms: Mapping[int, int]) -> None:
        """Set both times of the pacing (module docstring), after a query that began at
        `started_at` and returned {queue: ms until its first message is due}.
        """
        # Without a row the value is as long as the longest pause.
        next_due_s = min(due_in_ms.values(), default=1000 * ALONE_S) / 1000
        # `_not_before`: until the next message is due, but not so long that a row stored
        # meanwhile is late. If queries are slow, it is longer, so that they use a tenth of the
        # time.
        pause_s = max(PACE * min(self._query_durations_s), min(next_due_s, IDLE_S))
        # The pause between two passes is EVERY_S anyway.
        self._not_before = started_at + (pause_s if pause_s > EVERY_S else 0.0)
        # `_nothing_due_before`: rows that another broker stores are not in this broker's counter.
        # So even if nothing is due for long, the query is repeated soon if there are others.
        self._nothing_due_before = started_at + min(
            next_due_s, ALONE_S if self._is_alone() else IDLE_S
        )

    def _split_by_node(
        self, due_rows: Mapping[int, Sequence[DueRow]]
    ) -> tuple[Targets, list[tuple[int, int]]]:
        """Split due rows, {queue: rows}, by the node of the queue that they go to.

        Return the row ids for queues of this node, and (row id, queue) of the other rows.
        Stops at MOST_BYTES.
        """
        current = snapshot.current()
        local: Targets = {}
        for_other_nodes: list[tuple[int, int]] = []
        size = 0
        for queue, rows in due_rows.items():
            for row in rows:
                target = current.queues.get(queue)
                # A row that names a queue of this node gets its queue chosen now. A row that
                # names a queue of another node was retargeted by an earlier pass. It keeps this
                # queue, because an earlier hand_over may have copied it there. Only hand_over,
                # which finds that copy by its id, may change it. (A queue that is not in the
                # snapshot is for _choose_queue to judge: it returns None.)
                if target is None or target.node_id == self._node_id:
                    target = _choose_queue(current, queue, row, row_node_id=self._node_id)
                # The row must wait: there is no open queue for it, or a move into that queue
                # has just failed. The later rows of its queue wait as well: they are read again
                # after the pause.
                if (
                    target is None
                    or self._paused_until.get(target.id, 0.0) > time.monotonic()
                ):
                    self._pause(queue)
                    break
                size += row.size
                if size > MOST_BYTES and (local or for_other_nodes):
                    return local, for_other_nodes
                if target.node_id == self._node_id:
                    local.setdefault(target.id, []).append(row.id)
                else:
                    for_other_nodes.append((row.id, queue))
        return local, for_other_nodes

    def _pause(self, queue: int) -> None:
        """Read no rows for a queue, and move none into it, for RETRY_S."""
        self._paused_until[queue] = time.monotonic() + RETRY_S

    def _move_rows(self, node: Node, targets: Targets) -> int:
        """Move the rows of all queues in a single transaction. If it fails, use a
        transaction for each queue.
        """
        try:
            return self._move_together(node, targets)
        except (db_errors.RolledBack, db_errors.Final):
            count = 0
        # Each queue alone, so that a closed or damaged queue does not hold up the others.
        for queue, row_ids in targets.items():
            try:
                count += self._move_together(node, {queue: row_ids})
            except db_errors.NoPartition:
                # The rows stay due. After the partitions are added, the next pass moves them.
                try:
                    partitions.extend(queue)
                except CatmqError as error:
                    self._pause_after(queue, error)
            except db_errors.RolledBack as fault:
                self._pause_after(queue, fault)
            except db_errors.Final as fault:
                corruption.report(queue, offset=None, why=fault.detail)
                self._pause_after(queue, fault)
        return count

    def _pause_after(self, queue: int, error: CatmqError) -> None:
        log.warning(
            "Delayed messages of queue %d not delivered, will retry: %s",
            queue,
            error.detail,
        )
        self._pause(queue)

    def _move_together(self, node: Node, targets: Targets) -> int:
        """Move rows in a single transaction, and note the new heads. Raises `db_errors.*`."""
        with node.writing() as session:
            heads = delivery_sql.move_delayed(
                session,
                targets=targets,
                node_epoch=node.info.epoch,
                to_batch=lambda row: as_batch(self._node_id, row),
            )
        # The COMMIT was acknowledged, so these heads are durable. Readers that wait for
        # them are woken.
        for queue, head in heads.items():
            known_heads.note_stored(queue, head)
            board.note(queue, head)
        return sum(len(targets[queue]) for queue in heads)


def _choose_queue(
    current: Snapshot, queue: int, row: DueRow, *, row_node_id: int
) -> QueueInfo | None:
    """Return the queue that a due message goes to, or None if the message must wait.

    If another queue must be chosen, queues on the node of the row are preferred.
    """
    info = current.queues.get(queue)
    topic = current.topics.get(info.topic_id) if info is not None else None
    # A queue that is not in the snapshot belongs to a deleted topic. Its rows are deleted
    # with its table.
    if info is None or topic is None or topic.state != TopicState.READY:
        return None
    # The first choice: the queue of the key, or the queue that the row names.
    home: QueueInfo | None = info
    is_routed_by_key = False
    if row.by_key and row.key is not None and topic.layout:
        home = current.queues.get(topic.queue_for(row.key))
        is_routed_by_key = True
    if home is not None and _is_open(current, home):
        return home
    # A strict key never goes to another queue: it waits until its queue is open.
    if is_routed_by_key and topic.keyed == Keyed.STRICT:
        return None
    queues = [
        current.queues[queue_id] for queue_id in topic.queues if queue_id in current.queues
    ]
    open_queues = [candidate for candidate in queues if _is_open(current, candidate)]
    # On the node of the row, a move in a single transaction is enough.
    candidates = [
        info for info in open_queues if info.node_id == row_node_id
    ] or open_queues
    if not candidates:
        return None
    # The choice depends only on the row and the open queues, so that two brokers that move the
    # same row choose the same queue.
    order = routing_rules.order_queues(
        UUID(bytes=moved_id(row_node_id, row.id)),
        tuple(candidate.id for candidate in candidates),
    )
    return current.queues[order[0]]


def _is_open(current: Snapshot, queue: QueueInfo) -> bool:
    """Return True if the queue and its node accept messages."""
    node = current.nodes.get(queue.node_id)
    return (
        queue.state == QueueState.READ_WRITE
        and node is not None
        and node.state == NodeState.READ_WRITE
    )


def as_batch(node_id: int, row: DelayedRow) -> NewBatch:
    """Return the batch, of a single message, that a delayed row is moved as."""
    message = as_message(node_id, row)
    return NewBatch(moved_id(node_id, row.id), digest([message]), [message], row.producer)


def as_message(node_id: int, row: DelayedRow) -> NewMessage:
    """Return the message of a delayed row. The header ID_HEADER has the id that the sender
    received for it.
    """
    message = delayed_store.copied(row)
    # A row with an origin is a copy of a failed message. No sender has an id of it.
    if row.origin is not None:
        return message
    # A row that was handed over is a new row with a new id. Its column `known_as` has the id of
    # the first row, which the sender received. In a first row it is NULL.
    sender_id = row.known_as or delayed_store.delayed_id(node_id, row.id)
    return msgspec.structs.replace(
        message, headers={**(message.headers or {}), ID_HEADER: sender_id}
    )


def hand_over(node: Node, row_id: int) -> bool:
    """Copy a due row to the node of its queue, then delete it here. Return True if the row was
    deleted or retargeted.

    A row that names a closed queue, or still names a queue of this node, is only retargeted.
    The next call copies it. Raises CatmqError if the copy cannot be stored or the row cannot
    be deleted.
    """
    # The copy's batch id is derived from the row, and its queue is read from the row. So a
    # repeat, also by another broker, finds the copy. Another queue is chosen only after
    # Conflict with QUEUE_NOT_WRITABLE, which proves that the copy is not stored there.
    node_id = node.info.id
    with node.reading() as session:
        rows = delayed_sql.read_delayed(session, rows=[row_id])
    if not rows:
        return False
    row = rows[0]
    home = snapshot.find_queue(row.queue)
    if home.node_id == node_id:
        return _retarget(node, row)
    # The copy comes before the delete: a crash between the two only repeats the copy.
    try:
        _store_copy(node_id, row)
    except Conflict as refusal:
        if refusal.code != Code.QUEUE_NOT_WRITABLE:
            raise
        return _retarget(node, row)
    leaving = Leaving(row.id, row.queue, moved_id(node_id, row.id))
    with node.writing() as session:
        return delayed_sql.leave_delayed(
            session, leaving=leaving, message_count=1, also_due=True
        )


def _retarget(node: Node, row: DelayedRow) -> bool:
    """Write into a row the queue that its message goes to now. Return True if the row
    changed.

    The next pass moves or hands over the row to that queue.
    """
    # The size is not used for the choice.
    due_row = DueRow(row.id, row.by_key, row.key, 0)
    target = _choose_queue(snapshot.current(), row.queue, due_row, row_node_id=node.info.id)
    if target is not None and target.id != row.queue:
        with node.writing() as session:
            return delayed_sql.retarget_delayed(
                session, row=row.id, queue=row.queue, target=target.id
            )
    return False


def _store_copy(node_id: int, row: DelayedRow) -> None:
    """Store a due row as a delayed message on the node of its queue, due at the same time."""
    # The copy has the sender's id in `known_as`, as in as_message(): that of this row if it is
    # the first. A copy of a failed message has none.
    message = delayed_store.copied(row, deliver_at_ms=row.due_at_ms)
    sender_id = row.known_as or (
        delayed_store.delayed_id(node_id, row.id) if row.origin is None else None
    )
    copy = NewDelayed(message, bool(row.by_key), row.attempt, row.origin, sender_id)
    delayed_store.store(
        queue=row.queue,
        messages=[copy],
        batch_id=moved_id(node_id, row.id),
        producer=row.producer,
    )
