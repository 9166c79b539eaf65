"""Due messages come into their queues: a loop for each node, made by one broker at a time.

What is due is read without locks, then moved as `delivery_sql.move_delayed` says: one transaction for many
queues inserts exactly the rows it deletes. Two movers at once, or one that dies at any point, leave each
message either waiting or moved. A moved message is recorded in `sent_batch` like one that was sent, under an
id that follows from its own, so `verify` finds it claimed and a recall learns that it is too late.

Where a message goes is decided when it is due: one that was routed by its key to the queue that its key
belongs to then, any other to the queue it was stored for. If that takes no messages the rules are those of a
send: another open queue of the topic, except for a key of a `strict` topic, which waits. A message whose
queue is on another node is handed over: stored there as one that is due at once, under the same kind of id,
and deleted here when that is done. Its new queue is written into its row first, so whoever repeats this goes
there, too.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import msgspec

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
from metadata.cache.snapshot_types import QueueInfo, Snapshot, TopicInfo
from metadata.db import leases
from metadata.errors import CatmqError, Code, Conflict, MetadataUnavailable
from metadata.rules.topics import routing_rules

log = logging.getLogger(__name__)
EVERY_S = 0.05
IDLE_S = 0.2  # between two looks while nothing is due; one that is stored meanwhile is late by that at most
# The same where no other broker lives, and no worker of this one stored a message since the last look: only
ALONE_S = 1.0  # one that a job stored itself, to be due at once, is late by that
WAIT_S = IDLE_S - EVERY_S  # longest part of a pass that is spent waiting
MOST = 500  # rows in one transaction
MOST_BYTES = 1 << 20  # of bodies and headers in one transaction; a larger message goes alone
PASS_S = 1.0  # a backlog is moved for so long before the lease is looked at again
PACE = 10  # a look at what waits may take a tenth of the time, …
LOOKS = 8  # … counted by the quickest of the last ones: a busy machine makes some of them long
RETRY_S = 1.0  # after a failure, for a queue
LEASE_S = 3.0
LEASE_EVERY_S = 1.0
ID_HEADER = "catmq-delayed-id"
Targets = dict[int, list[int]]  # queue → rows


def nodes() -> list[int]:
    """The nodes whose due messages are to be moved."""
    return [one.id for one in snapshot.current().nodes.values() if one.state != "offline"]


def moved_id(node_id: int, row: int) -> bytes:
    """Under which id it is remembered that a delayed message left its table: the row's number in the place of
    the time, so that those of a node lie side by side; version 7, the rest a hash."""
    known_as = delayed_store.delayed_id(node_id, row)
    return routing_rules.as_uuid7(row, hashlib.sha256(known_as.encode()).digest())


class DelayedDelivery:
    """Moves the due messages of one node, while it holds the lease; used by one thread.

    The lease saves double work only. While metadata is away nobody can ask for it, so everybody moves.
    """

    def __init__(self, node_id: int, *, holder: str, is_alone: Callable[[], bool] = lambda: False) -> None:
        self._node_id = node_id
        self._is_alone = is_alone
        self._lease = leases.LeaseHolder(f"delays-{node_id}", holder, ttl_s=LEASE_S)
        self._leads = False
        self._asked_at = float("-inf")
        self._not_before = float("-inf")
        self._nothing_due_before = float("-inf")  # but what workers of this broker stored meanwhile
        self._seen = 0
        self._took: deque[float] = deque(maxlen=LOOKS)  # s
        self._resting: dict[int, float] = {}  # queue → when it is tried again (time.monotonic)

    def run_once(self) -> int:
        """Move what is due, for PASS_S at most; how many messages. If nothing can be due yet, wait a moment
        first. Raises NodeUnavailable."""
        moved = 0
        begun = time.monotonic()
        time.sleep(min(WAIT_S, max(0.0, self._next_at() - begun)))
        while self._may_move() and (count := self.move()):
            moved += count
            if time.monotonic() - begun > PASS_S:
                break
        return moved

    def finish(self) -> None:
        """Let another process go on at once."""
        if self._leads:
            self._lease.release()

    def _may_move(self) -> bool:
        now = time.monotonic()
        if now - self._asked_at >= LEASE_EVERY_S:
            try:
                self._leads = self._lease.acquire()
            except MetadataUnavailable:
                self._leads = True
            self._asked_at = time.monotonic()
        return self._leads and now >= self._next_at()

    def _next_at(self) -> float:
        """Return when there may be something to do, as a time.monotonic()."""
        if not self._leads:
            return self._asked_at + LEASE_EVERY_S
        is_news = board.shared.delayed_at(self._node_id) != self._seen
        return self._not_before if is_news else max(self._not_before, self._nothing_due_before)

    def move(self) -> int:
        """One bounded step; how many messages left the table. Raises NodeUnavailable."""
        node = delayed_store.prepared(self._node_id)
        local, away = self._due(node)
        moved = self._move(node, local) if local else 0
        return moved + sum(self._hand_over(node, row, target) for row, target in away)

    def _due(self, node: Node) -> tuple[Targets, list[tuple[int, int]]]:
        """Read due rows: those for queues of this node, and (row, queue it waits for) of those for others."""
        with node.reading() as session:
            begun, self._seen = time.monotonic(), board.shared.delayed_at(self._node_id)
            waiting = delayed_sql.delayed_queues(session)
            now = time.monotonic()
            self._took.append(now - begun)
            next_s = min(waiting.values(), default=1000 * ALONE_S) / 1000
            pause_s = max(PACE * min(self._took), min(next_s, IDLE_S))
            self._not_before = begun + (pause_s if pause_s > EVERY_S else 0.0)
            self._nothing_due_before = begun + min(next_s, ALONE_S if self._is_alone() else IDLE_S)
            late = sorted((due, queue) for queue, due in waiting.items() if due <= 0)
            due = [queue for _, queue in late if self._resting.get(queue, now) <= now]
            rows = {}
            for queue in due[:MOST]:
                rows[queue] = delayed_sql.list_due(session, queue=queue, most=max(1, MOST // len(due)))
        return self._sorted(rows)

    def _sorted(self, due: Mapping[int, Sequence[DueRow]]) -> tuple[Targets, list[tuple[int, int]]]:
        known = snapshot.current()
        local: Targets = {}
        away: list[tuple[int, int]] = []
        size = 0
        for queue, rows in due.items():
            for row in rows:
                target = self._target(known, queue, row)
                if target is None:
                    self._rest(queue)
                    break
                size += row.size
                if size > MOST_BYTES and (local or away):
                    return local, away
                if target.node_id == self._node_id:
                    local.setdefault(target.id, []).append(row.id)
                else:
                    away.append((row.id, queue))
        return local, away

    def _target(self, known: Snapshot, queue: int, row: DueRow) -> QueueInfo | None:
        """Return a row's queue; one that names a queue of another node may have been handed over already."""
        info = known.queues.get(queue)
        if info is not None and info.node_id != self._node_id:
            return info
        return _target_of(known, queue, row, near=self._node_id)

    def _rest(self, queue: int) -> None:
        self._resting[queue] = time.monotonic() + RETRY_S

    def _move(self, node: Node, targets: Targets) -> int:
        """Move all together; what fails, queue by queue."""
        try:
            return self._moved(node, targets)
        except (db_errors.RolledBack, db_errors.Final):
            return sum(self._alone(node, queue, rows) for queue, rows in targets.items())

    def _alone(self, node: Node, queue: int, rows: list[int]) -> int:
        try:
            return self._moved(node, {queue: rows})
        except db_errors.NoPartition:
            self._extend(queue)
        except db_errors.RolledBack as fault:
            self._rest_because(queue, fault)
        except db_errors.Final as fault:
            corruption.report(queue, offset=None, why=fault.detail)
            self._rest_because(queue, fault)
        return 0

    def _extend(self, queue: int) -> None:
        try:
            partitions.extend(queue)
        except CatmqError as error:
            self._rest_because(queue, error)

    def _rest_because(self, queue: int, error: CatmqError) -> None:
        log.warning("Delayed messages of queue %d not delivered, will retry: %s", queue, error.detail)
        self._rest(queue)

    def _moved(self, node: Node, targets: Targets) -> int:
        with node.writing() as session:
            heads = delivery_sql.move_delayed(
                session,
                targets=targets,
                node_epoch=node.info.epoch,
                ready=lambda row: as_batch(self._node_id, row),
            )
        for queue, head in heads.items():
            known_heads.stored(queue, head)
            board.note(queue, head)
        return sum(len(targets[queue]) for queue in heads)

    def _hand_over(self, node: Node, row: int, queue: int) -> int:
        """Give a due row to the node of its queue; how many left (0 or 1)."""
        try:
            return int(hand_over(node, row))
        except CatmqError as error:
            self._rest_because(queue, error)
            return 0


def _target_of(known: Snapshot, queue: int, row: DueRow, *, near: int) -> QueueInfo | None:
    """The queue that a due message goes to, on node `near` if that can be chosen; None while it must wait.

    A queue that the snapshot does not know belongs to a deleted topic: its rows go with its table.
    """
    info = known.queues.get(queue)
    topic = known.topics.get(info.topic_id) if info is not None else None
    if info is None or topic is None or topic.state != "ready":
        return None
    routed = row.by_key and row.key is not None and bool(topic.layout)
    home = known.queues.get(topic.queue_for(row.key)) if routed and row.key is not None else info
    if home is not None and _takes(known, home):
        return home
    return None if routed and topic.keyed == "strict" else _another(known, topic, row.id, near)


def _another(known: Snapshot, topic: TopicInfo, row: int, near: int) -> QueueInfo | None:
    found = [known.queues[one] for one in topic.queues if one in known.queues]
    taking = [one for one in found if _takes(known, one)]
    close = [one for one in taking if one.node_id == near] or taking
    if not close:
        return None
    order = routing_rules.candidates(UUID(bytes=moved_id(near, row)), [one.id for one in close])
    return known.queues[order[0]]


def _takes(known: Snapshot, queue: QueueInfo) -> bool:
    node = known.nodes.get(queue.node_id)
    return queue.state == "read_write" and node is not None and node.state == "read_write"


def as_batch(node_id: int, row: DelayedRow) -> NewBatch:
    """The batch of one message that a row becomes in its queue."""
    message = as_message(node_id, row)
    return NewBatch(moved_id(node_id, row.id), digest([message]), [message], row.producer)


def as_message(node_id: int, row: DelayedRow) -> NewMessage:
    """The message of a row; it keeps the id that its sender knows, if one was told to anybody."""
    message = delayed_store.copied(row)
    if row.origin is not None:
        return message
    known_as = row.known_as or delayed_store.delayed_id(node_id, row.id)
    return msgspec.structs.replace(message, headers={**(message.headers or {}), ID_HEADER: known_as})


def hand_over(node: Node, row_id: int) -> bool:
    """Give a due row to the node of the queue it goes to now; whether it left. Raises what stopped it.

    The copy is stored under an id that follows from the row, in the queue that the row names by then, so a
    repeat finds it. Only where it is certain that it is not stored there another queue is chosen.
    """
    node_id = node.info.id
    with node.reading() as session:
        found = delayed_sql.read_delayed(session, rows=[row_id])
    if not found:
        return False
    row = found[0]
    home = snapshot.find_queue(row.queue)
    if home.node_id == node_id:
        return _point_elsewhere(node, row)
    try:
        _store_copy(node_id, row)
    except Conflict as refusal:
        if refusal.code != Code.QUEUE_NOT_WRITABLE:
            raise
        return _point_elsewhere(node, row)
    leaving = Leaving(row.id, row.queue, moved_id(node_id, row.id))
    with node.writing() as session:
        return delayed_sql.leave_delayed(session, leaving=leaving, message_count=1, also_due=True)


def _point_elsewhere(node: Node, row: DelayedRow) -> bool:
    """Name another queue in a row whose own takes no messages; the next step goes there."""
    due = DueRow(row.id, row.by_key, row.key, 0)
    target = _target_of(snapshot.current(), row.queue, due, near=node.info.id)
    if target is not None and target.id != row.queue:
        with node.writing() as session:
            return delayed_sql.retarget_delayed(session, row=row.id, queue=row.queue, target=target.id)
    return False


def _store_copy(node_id: int, row: DelayedRow) -> None:
    message = delayed_store.copied(row, deliver_at_ms=row.due_at_ms)
    known_as = row.known_as or (delayed_store.delayed_id(node_id, row.id) if row.origin is None else None)
    copy = NewDelayed(message, bool(row.by_key), row.attempt, row.origin, known_as)
    delayed_store.store(
        queue=row.queue, messages=[copy], batch_id=moved_id(node_id, row.id), producer=row.producer
    )
