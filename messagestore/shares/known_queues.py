"""Queues as share groups have them, remembered in this process for a second.

Bounds, position, number of runs and the end of the first lease: so a member that waits, or asks where there
is nothing, costs no statement of its own. What this process leases or frees it notes here at once; what
others do it sees at the next reading. Nobody is given anything by what stands here: that the node decides.
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

BELIEVED_S = 1.0
# A lease that is over, and cannot be had, is looked at again after so long.
OVERDUE_S = 0.1
KEPT_S = 600.0  # what nobody asks for any more
READABLE = ("read_write", "read_only")  # states of queues that have a position
MAX_RUNS = 2_000  # of a group in a queue, about: they are counted at each reading
Pair = tuple[int, int]  # group, queue


@dataclass(slots=True)
class Known:
    """A queue of a group, as it was read at `read_at` (time.monotonic) and noted since.

    `start`: no offset below it is to be leased. `due_at`: when the first lease ends, by the same clock.
    `ripe`: the end of what is old enough for the group; None: all is.
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
        """The end of what can be leased in one piece: durable, ripe, and below the next declared gap."""
        durable = board.known(self.view.queue)
        end = durable if self.ripe is None else min(durable, self.ripe)
        return min([end, *(first for first, _ in self.gaps if first > self.start)])

    @property
    def backlog(self) -> int:
        """Number of offsets that can be leased."""
        return 0 if self.is_exhausted else max(0, self.end - self.start)

    @property
    def is_exhausted(self) -> bool:
        return self.view.runs >= MAX_RUNS

    def is_due(self) -> bool:
        """Return True if a lease has ended."""
        return self.due_at is not None and self.due_at <= time.monotonic()

    def leased_to(self, next_offset: int, *, due_in_s: float) -> None:
        """Note where the position is now, and when the leases that moved it end."""
        self.start = _behind_gaps(max(self.start, next_offset), self.gaps)
        due_at = time.monotonic() + due_in_s
        self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)


_known: dict[Pair, Known] = {}
_missing: dict[Pair, float] = {}  # without a reader row, and when that was seen
_touched: set[Pair] = set()  # whose committed offset may rise
_guard = threading.Lock()
_turns: dict[Pair, threading.Lock] = {}  # by group and node


def known(*, group_id: int, node: Node, queues: Collection[int]) -> Mapping[int, Known]:
    """{queue: what is known} of queues on one node in which the group has a position; read anew if it is old.

    Raises NodeUnavailable, `db_errors.*`.
    """
    if _old(group_id, queues):
        with _turn_of(group_id, node.info.id):  # one thread reads for all
            if old := _old(group_id, queues):
                _read(group_id, node, old)
    return {queue: _known[group_id, queue] for queue in queues if (group_id, queue) in _known}


def prepare(node: Node) -> None:
    """Make sure that a node has the tables: one of an earlier version gets them. Raises NodeUnavailable."""
    delayed_store.prepare(node)


def forget(group_id: int, queue: int) -> None:
    """Read a queue anew at its next use: it is not as it was thought to be."""
    _known.pop((group_id, queue), None)


def freed(group_id: int, queue: int, *, runs: int) -> None:
    """Note that leases have ended, and wake members that wait for them."""
    one = _known.get((group_id, queue))
    if one is not None:
        one.due_at = time.monotonic()
    board.wake_some(group_id, queue, most=runs)


def look_for_due(session: Session, *, group_id: int, one: Known) -> None:
    """Note when the next lease of a queue ends."""
    queue = one.view.queue
    views = position_sql.read_views(session, group_id=group_id, queues=[queue])
    due_in_ms = views[queue].due_in_ms if queue in views else None
    one.due_at = None if due_in_ms is None else time.monotonic() + max(due_in_ms / 1000, OVERDUE_S)


def touch(group_id: int, queues: Collection[int]) -> None:
    """Note that messages were finished."""
    with _guard:
        _touched.update((group_id, queue) for queue in queues)


def taken_touched() -> set[Pair]:
    """The (group, queue)s whose messages were finished since the last call."""
    global _touched
    with _guard:
        found, _touched = _touched, set()
    return found


def evict_except(queues: Collection[int]) -> None:
    """Forget all queues but these."""
    for memory in (_known, _missing):
        for pair in list(memory):
            if pair[1] not in queues:
                memory.pop(pair, None)


def evict_unused() -> None:
    """Forget what was not read for long."""
    since = time.monotonic() - KEPT_S
    for pair, one in list(_known.items()):
        if one.read_at < since:
            _known.pop(pair, None)
    for pair, seen_at in list(_missing.items()):
        if seen_at < since:
            _missing.pop(pair, None)


def _old(group_id: int, queues: Collection[int]) -> list[int]:
    """Those of some queues that are to be read, rising."""
    since = time.monotonic() - BELIEVED_S
    return sorted(queue for queue in queues if _read_at((group_id, queue)) <= since)


def _read_at(pair: Pair) -> float:
    one = _known.get(pair)
    return one.read_at if one is not None else _missing.get(pair, float("-inf"))


def _turn_of(group_id: int, node_id: int) -> threading.Lock:
    with _guard:
        return _turns.setdefault((group_id, node_id), threading.Lock())


def _read(group_id: int, node: Node, queues: Sequence[int]) -> None:
    prepare(node)
    with node.reading() as session:
        views = _started(
            session, group_id, position_sql.read_views(session, group_id=group_id, queues=queues)
        )
        gaps = promotion_sql.read_all_gaps(session, queues=sorted(views)) if views else {}
        ripe = {queue: _ripe(session, group_id, view) for queue, view in views.items()}
    durability.confirm(node_id=node.info.id, heads={queue: view.head for queue, view in views.items()})
    now = time.monotonic()
    for queue in queues:
        view = views.get(queue)
        if view is None:
            _known.pop((group_id, queue), None)
            _missing[group_id, queue] = now
            continue
        mine = gaps.get(queue, ())
        start = _behind_gaps(max(view.next_offset or 0, view.low), mine)
        due_at = None if view.due_in_ms is None else now + view.due_in_ms / 1000
        _known[group_id, queue] = Known(view, mine, start, now, due_at, ripe[queue])


def _started(session: Session, group_id: int, views: dict[int, ShareView]) -> dict[int, ShareView]:
    """The views, once every position belongs to the epoch of its reader row."""
    waiting = [queue for queue, view in views.items() if not view.has_started]
    for queue in waiting:
        position_sql.start(session, group_id=group_id, queue=queue)
    return position_sql.read_views(session, group_id=group_id, queues=sorted(views)) if waiting else views


def _ripe(session: Session, group_id: int, view: ShareView) -> int | None:
    delay_s = snapshot.current().delay_s(group_id, view.queue)
    if not delay_s:
        return None
    before_ms = node_sql.now_ms(session) - 1000 * delay_s + 1
    bounds = max(view.next_offset or 0, view.low), view.head
    return time_lookup.first_at(session, queue=view.queue, bounds=bounds, at_ms=before_ms)


def _behind_gaps(offset: int, gaps: Sequence[tuple[int, int]]) -> int:
    """Return an offset, or the end of the declared gap that it lies in.

    >>> _behind_gaps(5, [(3, 9), (9, 12)]), _behind_gaps(5, [(6, 9)])
    (12, 5)
    """
    for first, end in gaps:
        if first <= offset < end:
            offset = end
    return offset
