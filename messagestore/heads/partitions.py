"""Add partitions to message tables before the head reaches the last partition.

Message tables on MySQL and MariaDB are partitioned by offset, so that retention drops whole
partitions. Each holds a share of the messages that retention keeps. There is no MAXVALUE partition,
because it could never be dropped. So `Ahead`, a loop of one broker, adds partitions in
time. If it does not run, a send fails with error 1526 (no partition for the value). That is
an acknowledged rollback: the send calls extend() and is repeated.

ALTER TABLE takes the metadata lock of the table for a moment. While it waits for that lock,
all later statements on the table wait as well. So alter() first checks for long
transactions that would block it, waits for the lock at most a second, and gives up after
three tries.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.pool import node_pools
from messagestore.tables import message_sql, node_sql, partition_sql, queue_sql, sql_steps
from messagestore.tables.shapes import Partition
from metadata.cache import snapshot
from metadata.errors import CatmqError, NodeUnavailable
from metadata.rules.nodes import Engine, NodeState
from metadata.rules.topics import partitions

log = logging.getLogger(__name__)
AHEAD = 3  # partitions that must end above the head
TRIES = 3  # attempts to alter a table
LONG_S = 3  # a transaction that is open for this time may block an ALTER for long
PAUSE_S = 0.3  # unit of the random pause before another try, which doubles with each
RETRY_S = 30.0  # pause after a failure, for the same queue
APART_S = 0.5  # pause between two tables, because senders notice each change
PASS_S = 4.0  # longest sum of these pauses for the tables of a node in a pass
MOST_EACH = 200  # queues of a node that a pass extends
DAY_MS = 86_400_000
LEAST_SPAN_S = 3600.0  # shortest time over which a rate is measured
NEVER = sys.maxsize  # head at which an unpartitioned table needs more partitions

_turn = threading.Lock()


class TableLocked(NodeUnavailable):
    """Another session alters the table, or is about to."""


def alter(
    session: Session, *, table: str, change: Callable[[], object], urgent: bool = False
) -> None:
    """Alter a table. Its writers wait at most three times, each time at most a second.

    `urgent`: do not check for long transactions, because nothing can be written anyway.
    Raises NodeUnavailable if the table cannot be altered now.
    """
    partition_sql.limit_lock_wait(session)
    reason = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
        open_transactions = (
            [] if urgent else partition_sql.list_long_transactions(session, seconds=LONG_S)
        )
        if open_transactions:
            oldest = open_transactions[0]
            holder = f"connection {oldest.connection} of {oldest.user}"
            reason = f"{holder} has a transaction open for {oldest.seconds} s"
            continue
        try:
            change()
            return
        except db_errors.RolledBack as fault:
            reason = fault.detail
    raise NodeUnavailable(f"Table {table} cannot be changed now: {reason}.")


def take_turn(session: Session, *, queue: int) -> None:
    """Lock the queue's table against ALTERs by other sessions, until this session closes.

    Raises TableLocked if another session has the lock.
    """
    table = sql_steps.message_table(queue)
    if not partition_sql.take_table_lock(session, table=table, seconds=2):
        raise TableLocked(f"Table {table} is locked by another session.")


def extend(queue: int, *, urgent: bool = True, ahead: int = AHEAD) -> int:
    """Add partitions until `ahead` of them end above the head.

    Return the head at which more are needed. Raises NodeUnavailable, and
    `db_errors.Altered` if the table is missing or was altered.
    """
    node = node_pools.node_of(queue)
    # Many senders may meet the end at once. The first adds the partitions for all of them.
    with _turn:
        with node.reading() as session:
            head, existing = _read_partitions(session, queue)
        if not existing:
            return NEVER
        if len(existing) >= ahead and head < existing[-ahead].end:
            return existing[-ahead].end
        with node.maintaining() as session:
            take_turn(session, queue=queue)
            # Read again: another broker may have added partitions meanwhile.
            head, existing = _read_partitions(session, queue)
            ends = _missing_ends(session, queue, head, existing, ahead=ahead)
            if ends:
                change = partial(
                    partition_sql.add_partitions, session, queue=queue, ends=ends
                )
                alter(
                    session,
                    table=sql_steps.message_table(queue),
                    change=change,
                    urgent=urgent,
                )
                log.info(
                    "Queue %d: new partitions at log end offset %d, with ends %s",
                    queue,
                    head,
                    ends,
                )
            return [*(partition.end for partition in existing), *ends][-ahead]


def _read_partitions(session: Session, queue: int) -> tuple[int, list[Partition]]:
    """Return the head of a queue, and the partitions of its table in rising order."""
    existing = partition_sql.list_partitions(session, queue=queue)
    head = queue_sql.read_head(session, queue=queue)
    return (head.head if head is not None else 0), existing


def _missing_ends(
    session: Session,
    queue: int,
    head: int,
    existing: Sequence[Partition],
    *,
    ahead: int,
) -> list[int]:
    """Return the ends of the partitions to add."""
    missing_count = ahead - sum(partition.end > head for partition in existing)
    if missing_count <= 0 or not existing:
        return []
    if len(existing) + missing_count > partitions.MAX_PARTITIONS:
        log.warning(
            "Queue %d has %d partitions: shorten its retention", queue, len(existing)
        )
    topic = snapshot.current().topics[snapshot.find_queue(queue).topic_id]
    last_size = existing[-1].end - existing[-1].first
    per_s, now_per_s = _measure_rates(session, queue, newest=last_size)
    # Messages that fit into the queue's share of the topic's byte limit, at their present size.
    rows = sum(min(p.end, head) - p.first for p in existing if p.first < head)
    size_bytes = sum(p.bytes for p in existing if p.first < head)
    fitting = None
    if topic.retention_bytes is not None and rows and size_bytes:
        fitting = int(topic.retention_bytes / len(topic.queues) / (size_bytes / rows))
    ends: list[int] = []
    for number in range(missing_count):
        size = partitions.partition_size(
            per_s=per_s,
            retention_s=topic.retention_days * 86_400,
            # The same for all new partitions, so that a burst lets their size grow only
            # once.
            last=last_size,
            count=len(existing) + number,
            fitting=fitting,
            now_per_s=now_per_s,
        )
        ends.append((ends[-1] if ends else existing[-1].end) + size)
    return ends


def _measure_rates(session: Session, queue: int, *, newest: int) -> tuple[float, float]:
    """Return two rates in messages a second: of the last day, and of the newest messages.

    The first is measured from the oldest message that is kept, if that is younger than a
    day.
    """
    head = queue_sql.read_head(session, queue=queue)
    if head is None or head.low == head.head:
        return 0.0, 0.0
    now = node_sql.now_ms(session)
    day_first = first_at(
        session, queue=queue, bounds=(head.low, head.head), at_ms=now - DAY_MS
    )
    first_stored_at = message_sql.read_stored_at_ms(session, queue=queue, offset=day_first)
    span_s = (
        (now - first_stored_at) / 1000
        if day_first == head.low and first_stored_at is not None
        else DAY_MS / 1000
    )
    recent_first = max(head.low, head.head - newest)
    recent_stored_at = message_sql.read_stored_at_ms(
        session, queue=queue, offset=recent_first
    )
    recent_s = (
        0.0 if recent_stored_at is None else max((now - recent_stored_at) / 1000, 1.0)
    )
    now_per_s = (head.head - recent_first) / recent_s if recent_s else 0.0
    return (head.head - day_first) / max(span_s, LEAST_SPAN_S), now_per_s


class Ahead:
    """Loop of a single broker that adds partitions for the queues of all nodes.

    `_due` remembers at which head a queue needs more, so that a pass costs a query per node.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def run_once(self) -> int:
        """Make a bounded pass. Return the number of queues that were due."""
        current = snapshot.current()
        checked = 0
        for node_id, info in current.nodes.items():
            if info.engine != Engine.MYSQL or info.state == NodeState.OFFLINE:
                continue
            try:
                with node_pools.node(node_id).reading() as session:
                    heads = queue_sql.read_heads(session, queues=None)
            except CatmqError as error:
                log.warning(
                    "Partitions on node %s not added, will retry: %s",
                    info.name,
                    error.detail,
                )
                continue
            now = time.monotonic()
            due_queues = [
                q
                for q, head in heads.items()
                if q in current.queues
                and head >= self._due.get(q, -1)
                and now >= self._not_before.get(q, 0.0)
            ]
            for queue in due_queues[:MOST_EACH]:
                checked += 1
                before = self._due.get(queue)
                try:
                    self._due[queue] = extend(queue, urgent=False)
                    self._not_before.pop(queue, None)
                except CatmqError as error:
                    self._not_before[queue] = time.monotonic() + RETRY_S
                    log.warning(
                        "Partitions for queue %d not added, will retry: %s",
                        queue,
                        error.detail,
                    )
                    continue
                # The first check of a queue rarely alters its table, so it needs no pause.
                if before is not None and before != self._due[queue]:
                    time.sleep(min(APART_S, PASS_S / len(due_queues)))
        self._due = {
            queue: due_head
            for queue, due_head in self._due.items()
            if queue in current.queues
        }
        return checked
