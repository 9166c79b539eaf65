"""Cache of the queues of share groups. For each group and queue it has the range of offsets
that can be leased, the number of runs, and the time when the first lease ends.

An entry is read again after a second, so a member that waits, or finds nothing to lease, costs
no statement of its own. Changes by this process are noted in the cache at once. Changes by other
processes are seen at the next read. The cache only shows where a lease is worth trying: the
node decides every lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from messagestore.engine.mysql_session import Session
from messagestore.heads import durability, time_lookup
from messagestore.heads.heads import board
from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.tables import node_sql, promotion_sql
from messagestore.tables.shares import position_sql
from messagestore.tables.shares.position_sql import ShareView
from metadata.cache import snapshot

BELIEVED_S = 1.0  # age at which an entry is outdated
# Pause before a run is tried again whose lease is over but which could not be leased.
OVERDUE_S = 0.1
KEPT_S = 600.0  # after this time without a read an entry is forgotten
# A group with this many runs in a queue leases no new messages there until runs are finished.
# The limit is not exact, because the runs are counted once a second.
MAX_RUNS = 2_000
Pair = tuple[int, int]  # group, queue


@dataclass(slots=True)
class QueueEntry:
    """A queue of a group as its node was read at `read_at`, with the changes noted since.

    `view` and `gaps` are what was read: position and bounds, and the declared gaps. `start` is
    the lowest offset that can be leased. `due_at` is the time when the first lease ends, None
    without a lease. `ripe` is the offset below which messages are old enough for the group's
    delivery delay, None if the group has no delay. `corrupt`: a hole was found since the read.
    Times are of time.monotonic().
    """

    view: ShareView
    gaps: Sequence[tuple[int, int]]
    start: int
    read_at: float
    due_at: float | None
    ripe: int | None = None
    corrupt: bool = False

    @property
    def end(self) -> int:
        """The offset below which messages can be leased now: they are durable and old enough,
        and no declared gap lies between `start` and them.
        """
        durable = board.durable_head(self.view.queue)
        end = durable if self.ripe is None else min(durable, self.ripe)
        return min([end, *(first for first, _ in self.gaps if first > self.start)])

    @property
    def backlog(self) -> int:
        """Return the number of offsets that can be leased now."""
        return 0 if self.is_exhausted else max(0, self.end - self.start)

    @property
    def is_exhausted(self) -> bool:
        """True if the group has too many runs in the queue to lease new messages."""
        return self.view.runs >= MAX_RUNS

    def is_due(self) -> bool:
        """Return True if a lease is over, so that its run may be leased again."""
        return self.due_at is not None and self.due_at <= time.monotonic()

    def leased_to(self, next_offset: int, *, due_in_s: float) -> None:
        """Note that the messages below `next_offset` were leased, for `due_in_s` seconds."""
        self.start = _skip_gaps(max(self.start, next_offset), self.gaps)
        due_at = time.monotonic() + due_in_s
        self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)


_known: dict[Pair, QueueEntry] = {}
# queues without a reader row → time.monotonic() of the read
_missing: dict[Pair, float] = {}
# queues in which messages were finished, so `committed` may rise
_touched: set[Pair] = set()
# (group, node) → held by the thread that reads entries of this group on this node
_read_locks: dict[Pair, threading.Lock] = {}
# Guards `_touched` and `_read_locks`. `_known` and `_missing` need no lock: each change is a
# single operation on a dict.
_guard = threading.Lock()


def read_entries(
    *, group_id: int, node: Node, queues: Collection[int]
) -> Mapping[int, QueueEntry]:
    """Return the entries of queues on a node, by queue id. Outdated entries are read
    again.

    Queues without a reader row of the group are left out. Raises NodeUnavailable,
    `db_errors.*`.
    """
    if _outdated(group_id, queues):
        with _guard:
            read_lock = _read_locks.setdefault((group_id, node.info.id), threading.Lock())
        # The first thread reads for all that wait here. The others then find fresh entries, and
        # read nothing.
        with read_lock:
            if outdated := _outdated(group_id, queues):
                _refresh(group_id, node, outdated)
    return {
        queue: _known[group_id, queue] for queue in queues if (group_id, queue) in _known
    }


def find(group_id: int, queue: int) -> QueueEntry | None:
    """Return the entry of a queue, however old it is. Reads nothing."""
    return _known.get((group_id, queue))


def prepare(node: Node) -> None:
    """Create the tables of share groups on a node of an earlier version. Raises
    NodeUnavailable.
    """
    delayed_store.prepare(node)


def forget(group_id: int, queue: int) -> None:
    """Drop the entry of a queue after the node has refused what it promised. The entry is read
    again at its next use.
    """
    _known.pop((group_id, queue), None)


def note_freed(group_id: int, queue: int, *, runs: int) -> None:
    """Note that leases have ended, and wake members that wait for them."""
    entry = find(group_id, queue)
    if entry is not None:
        # So the next caller looks for free runs at once, instead of after the entry's lifetime.
        entry.due_at = time.monotonic()
    board.wake_some(group_id, queue, most=runs)


def read_next_due(session: Session, *, group_id: int, entry: QueueEntry) -> None:
    """Read when the first lease of a queue ends, and note it."""
    queue = entry.view.queue
    views = position_sql.read_views(session, group_id=group_id, queues=[queue])
    due_in_ms = views[queue].due_in_ms if queue in views else None
    # If that lease is over already, the caller has just failed to take its run. Without a pause
    # every call would try again.
    entry.due_at = (
        None if due_in_ms is None else time.monotonic() + max(due_in_ms / 1000, OVERDUE_S)
    )


def touch(group_id: int, queues: Collection[int]) -> None:
    """Note queues in which messages were finished, for the loop that raises committed
    offsets.
    """
    with _guard:
        _touched.update((group_id, queue) for queue in queues)


def take_touched() -> set[Pair]:
    """Return the (group, queue) pairs that were touched since the last call, and forget
    them.
    """
    global _touched
    with _guard:
        touched, _touched = _touched, set()
    return touched


def evict_except(queues: Collection[int]) -> None:
    """Forget all queues but these."""
    for memory in (_known, _missing):
        for pair in list(memory):
            if pair[1] not in queues:
                memory.pop(pair, None)


def evict_unused() -> None:
    """Forget entries that were not read for KEPT_S."""
    since = time.monotonic() - KEPT_S
    for pair, entry in list(_known.items()):
        if entry.read_at < since:
            _known.pop(pair, None)
    for pair, read_at in list(_missing.items()):
        if read_at < since:
            _missing.pop(pair, None)


def _outdated(group_id: int, queues: Collection[int]) -> list[int]:
    """Return the queues whose entry is missing or too old, in rising order."""
    since = time.monotonic() - BELIEVED_S
    outdated = []
    for queue in queues:
        entry = _known.get((group_id, queue))
        read_at = entry.read_at if entry else _missing.get((group_id, queue), float("-inf"))
        if read_at <= since:
            outdated.append(queue)
    return sorted(outdated)


def _refresh(group_id: int, node: Node, queues: Sequence[int]) -> None:
    """Read queues of a node into the cache."""
    prepare(node)
    with node.reading() as session:
        views = position_sql.read_views(session, group_id=group_id, queues=queues)
        # After a reset, a promotion or a new subscription, the position does not have the epoch
        # of its reader row. It then starts again at the committed offset.
        unstarted = [queue for queue, view in views.items() if not view.has_started]
        for queue in unstarted:
            position_sql.start_position(session, group_id=group_id, queue=queue)
        if unstarted:
            views = position_sql.read_views(
                session, group_id=group_id, queues=sorted(views)
            )
        gaps = promotion_sql.read_all_gaps(session, queues=sorted(views)) if views else {}
        ripe: dict[int, int | None] = {}
        for queue, view in views.items():
            delay_s = snapshot.current().delay_s(group_id, queue)
            # With a delivery delay, only messages are leased that are old enough.
            ripe[queue] = None
            if delay_s:
                ripe[queue] = time_lookup.first_at(
                    session,
                    queue=queue,
                    bounds=(max(view.next_offset or 0, view.low), view.head),
                    at_ms=node_sql.now_ms(session) - 1000 * delay_s + 1,
                )
    # Only durable messages are leased. confirm() borrows a session of its own, so it is called
    # after this session was given back.
    durability.confirm(
        node_id=node.info.id, heads={queue: view.head for queue, view in views.items()}
    )
    now = time.monotonic()
    for queue in queues:
        queue_view = views.get(queue)
        if queue_view is None:
            # Remembered as well, so that a queue without a reader row is not read at each
            # call.
            _known.pop((group_id, queue), None)
            _missing[group_id, queue] = now
            continue
        queue_gaps = gaps.get(queue, ())
        start = _skip_gaps(max(queue_view.next_offset or 0, queue_view.low), queue_gaps)
        due_at = None if queue_view.due_in_ms is None else now + queue_view.due_in_ms / 1000
        _known[group_id, queue] = QueueEntry(
            queue_view, queue_gaps, start, now, due_at, ripe[queue]
        )


def _skip_gaps(offset: int, gaps: Sequence[tuple[int, int]]) -> int:
    """Return the first offset at or above `offset` that is in no declared gap. `gaps` must
    rise.

    >>> _skip_gaps(5, [(3, 9), (9, 12)]), _skip_gaps(5, [(6, 9)])
    (12, 5)
    """
    for first, end in gaps:
        if first <= offset < end:
            offset = end
    return offset
