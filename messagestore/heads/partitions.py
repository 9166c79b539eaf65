"""Partitions ahead of the head: made before they are needed, each with a share of what retention keeps.

Message tables on MySQL and MariaDB are partitioned by offset, so that retention drops whole parts. There is
no partition without an end, because one could never be dropped; so `Ahead`, a loop of one broker, makes new
ones in time. If it does not run, a send meets error 1526, which is an acknowledged rollback, calls `extend`
and is repeated.

Changing a table takes its lock for a moment, and whoever wants the table meanwhile waits behind. So `alter`
first looks for transactions that would keep it waiting, waits a second at most, and gives up after three
tries.
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
from messagestore.pool.node import Node
from messagestore.tables import message_sql, node_sql, partition_sql, queue_sql, running
from messagestore.tables.shapes import Partition
from metadata.cache import snapshot
from metadata.errors import CatmqError, NodeUnavailable
from metadata.rules.topics import partitions

log = logging.getLogger(__name__)
AHEAD = 3  # partitions that end above the head
TRIES = 3
LONG_S = 3  # a transaction that has been open for so long may stay open
PAUSE_S = 0.3  # before the second try, doubled for the third
RETRY_S = 30.0  # after a failure, for one queue
APART_S = 0.5  # between two tables: whoever sends feels each change
PASS_S = 4.0  # of such pauses for the tables of a node in one pass
MOST_EACH = 200  # queues looked at in one pass
DAY_MS = 86_400_000
LEAST_SPAN_S = 3600.0  # a rate is not measured over less
NEVER = sys.maxsize

_turn = threading.Lock()


def alter(session: Session, *, table: str, change: Callable[[], object], urgent: bool = False) -> None:
    """Change a table; whoever writes to it waits no longer than a second, at most three times.

    `urgent`: without regard to long transactions, because nobody can write anyway. Raises NodeUnavailable.
    """
    partition_sql.limit_lock_wait(session)
    why = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
        open_ones = [] if urgent else partition_sql.long_transactions(session, seconds=LONG_S)
        if open_ones:
            oldest = open_ones[0]
            who = f"connection {oldest.connection} of {oldest.user}"
            why = f"{who} has a transaction open for {oldest.seconds} s"
            continue
        try:
            change()
            return
        except db_errors.RolledBack as fault:
            why = fault.detail
    raise NodeUnavailable(f"Table {table} cannot be changed now: {why}.")


def take_turn(session: Session, *, queue: int) -> None:
    """Let no other session change the queue's table until this one closes. Raises NodeUnavailable."""
    table = running.message_table(queue)
    if not partition_sql.take_table_lock(session, table=table, seconds=2):
        raise NodeUnavailable(f"Table {table} is locked by another session.")


def extend(queue: int, *, urgent: bool = True) -> int:
    """Make partitions until three end above the head; the head from which on that must be done again.

    Raises NodeUnavailable, and `db_errors.Altered` for a table that is missing or was altered.
    """
    node = node_pools.node_of(queue)
    with _turn:  # the first of many senders that met the end does it for all
        due = _due(node, queue)
        if due is not None:
            return due
        with node.maintaining() as session:
            take_turn(session, queue=queue)
            head, known = _look(session, queue)
            ends = _wanted(session, queue, head, known)
            if ends:
                change = partial(partition_sql.add_partitions, session, queue=queue, ends=ends)
                alter(session, table=running.message_table(queue), change=change, urgent=urgent)
                log.info("Queue %d: new partitions at log end offset %d, with ends %s", queue, head, ends)
            return [*(one.end for one in known), *ends][-AHEAD]


def _due(node: Node, queue: int) -> int | None:
    """The head at which more is to be done; None if it is now."""
    with node.reading() as session:
        head, known = _look(session, queue)
    if not known:
        return NEVER
    return known[-AHEAD].end if len(known) >= AHEAD and head < known[-AHEAD].end else None


def _look(session: Session, queue: int) -> tuple[int, list[Partition]]:
    known = partition_sql.list_partitions(session, queue=queue)
    head = queue_sql.read_head(session, queue=queue)
    return (head.head if head is not None else 0), known


def _wanted(session: Session, queue: int, head: int, known: Sequence[Partition]) -> list[int]:
    missing = AHEAD - sum(one.end > head for one in known)
    if missing <= 0 or not known:
        return []
    if len(known) + missing > partitions.MOST:
        log.warning("Queue %d has %d partitions: shorten its retention", queue, len(known))
    info = snapshot.find_queue(queue)
    topic = snapshot.current().topics[info.topic_id]
    last = known[-1].end - known[-1].first
    per_s, now_per_s = _rates(session, queue, newest=last)
    ends: list[int] = []
    for number in range(missing):
        size = partitions.size(
            per_s=per_s,
            retention_s=topic.retention_days * 86_400,
            last=last,  # of those that were there: a burst lets them grow once, not with each
            count=len(known) + number,
            fitting=_fitting(known, head, topic.retention_bytes, len(topic.queues)),
            now_per_s=now_per_s,
        )
        ends.append((ends[-1] if ends else known[-1].end) + size)
    return ends


def _rates(session: Session, queue: int, *, newest: int) -> tuple[float, float]:
    """Messages a second: over the last day, or since the oldest that is kept; over so many of the newest."""
    head = queue_sql.read_head(session, queue=queue)
    if head is None or head.low == head.head:
        return 0.0, 0.0
    now = node_sql.now_ms(session)
    first = first_at(session, queue=queue, bounds=(head.low, head.head), at_ms=now - DAY_MS)
    since = message_sql.stored_at_ms(session, queue=queue, offset=first)
    span_s = (now - since) / 1000 if first == head.low and since is not None else DAY_MS / 1000
    lately = max(head.low, head.head - newest)
    begun = message_sql.stored_at_ms(session, queue=queue, offset=lately)
    lately_s = 0.0 if begun is None else max((now - begun) / 1000, 1.0)
    now_per_s = (head.head - lately) / lately_s if lately_s else 0.0
    return (head.head - first) / max(span_s, LEAST_SPAN_S), now_per_s


def _fitting(known: Sequence[Partition], head: int, most_bytes: int | None, queues: int) -> int | None:
    """Number of messages that the queue's share of the topic's bytes allows; None without a limit."""
    rows = sum(min(one.end, head) - one.first for one in known if one.first < head)
    size = sum(one.bytes for one in known if one.first < head)
    if most_bytes is None or not rows or not size:
        return None
    return int(most_bytes / queues / (size / rows))


class Ahead:
    """Keeps every queue of every node supplied; a loop of one broker, with what it learned in memory."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    def run_once(self) -> int:
        """One bounded pass; how many queues were looked at."""
        known = snapshot.current()
        looked = 0
        for node_id, info in known.nodes.items():
            if info.engine != "mysql" or info.state == "offline":
                continue
            try:
                with node_pools.node(node_id).reading() as session:
                    heads = queue_sql.read_heads(session, queues=None)
            except CatmqError as error:
                log.warning("Partitions on node %s not added, will retry: %s", info.name, error.detail)
                continue
            now = time.monotonic()
            due = [one for one, head in heads.items() if one in known.queues and self._is_due(one, head, now)]
            for queue in due[:MOST_EACH]:
                if self._extend(queue):
                    time.sleep(min(APART_S, PASS_S / len(due)))
                looked += 1
        self._due = {queue: due for queue, due in self._due.items() if queue in known.queues}
        return looked

    def _is_due(self, queue: int, head: int, now: float) -> bool:
        return head >= self._due.get(queue, -1) and now >= self._not_before.get(queue, 0.0)

    def _extend(self, queue: int) -> bool:
        """Return True if the table was changed; the first look does not tell."""
        before = self._due.get(queue)
        try:
            self._due[queue] = extend(queue, urgent=False)
            self._not_before.pop(queue, None)
        except CatmqError as error:
            self._not_before[queue] = time.monotonic() + RETRY_S
            log.warning("Partitions for queue %d not added, will retry: %s", queue, error.detail)
            return False
        return before is not None and before != self._due[queue]
