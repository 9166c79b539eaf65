"""Watch heads: learn of messages that other processes stored, and wake pulls that wait for
them.

Every worker runs two kinds of loops:

* listen(): other workers of the broker note their heads in shared memory and ring. That
  costs no query.
* NodeWatcher, a loop for each node, so that no node waits for another's answer. It reads the
  heads that other brokers raised. A single worker of a broker reads for all, and spends at
  most 1/PACE of its time on a node. It reads only nodes for which a pull waits.

A read usually covers heads to which a message was stored in the last seconds (RECENT_S). Of
thousands of heads few have moved, and the others would cost the node and this process more
than all the rest. Such a read misses a head if the node's clock jumped, or a commit took
longer. A read of all heads, once a second (WHOLE_S), finds these.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Set

from messagestore import sweeping
from messagestore.heads import durability
from messagestore.heads.heads import WANTED_MS, HeadBoard, board
from messagestore.heads.shared_heads import now_ms
from messagestore.pool import node_pools
from messagestore.tables import queue_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import QueueInfo
from metadata.config import config
from metadata.errors import CatmqError

log = logging.getLogger(__name__)
# shortest pause between two looks into shared memory, however often bells ring
APART_S = 0.01
LISTEN_S = 1.0  # longest wait for a ring, and so the cost of a lost ring
PACE = 25  # pause after a read, as a multiple of the time of a read
# The fastest of the last reads is what a read costs the node. The slower ones waited for
# something else.
LOOKS = 8
RECENT_S = 5  # a read covers heads to which a message was stored within this time
WHOLE_S = 1.0  # pause between two reads of all heads
# Without other brokers, only a job that writes to nodes itself can raise a head without a
# ring. So a lone broker reads less often.
ALONE_S = 0.5  # pause between two reads
ALONE_PASS_S = 0.25  # pause between two passes, which renew the lease of this watcher
FEW = 10  # if less than 1/FEW of a node's queues is wanted, the query names them
RETRY_S = 1.0  # pause after a failed read
IDLE_S = 1.0  # longest wait for a first waiter


def nodes() -> list[int]:
    """Return the ids of the nodes to watch, each in a loop of its own."""
    return list(sweeping.online_nodes())


def listen() -> None:
    """Wait until another worker raises a head. Without waiters, return after at most
    IDLE_S.
    """
    if board.has_waiter_within(IDLE_S):
        board.listen(LISTEN_S)


class NodeWatcher:
    """Watcher of a process over a node, used by a single thread.

    `is_alone` returns True if no other broker runs.
    """

    def __init__(
        self,
        node_id: int,
        board: HeadBoard = board,
        *,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._node_id = node_id
        self._board = board
        self._is_alone = is_alone
        self._read_at = self._not_before = float("-inf")
        self._durations: deque[float] = deque(maxlen=LOOKS)
        self._whole_at = float("-inf")  # time.monotonic() of the last read of all heads
        self._announced_ms = 0
        self._failing = False
        self._snapshot_queues: Mapping[int, QueueInfo] = {}
        self._queues: frozenset[int] = frozenset()

    def run_once(self) -> None:
        """Make a pass: read the heads that this process has to read, if any.

        Without waiters, return after at most IDLE_S.
        """
        awaited: Set[int] = frozenset()
        if self._board.has_waiter_within(IDLE_S):
            queues_by_id = snapshot.current().queues
            # Computed again only if the snapshot has other queues: there may be thousands.
            if queues_by_id is not self._snapshot_queues:
                self._snapshot_queues = queues_by_id
                self._queues = frozenset(
                    queue
                    for queue, info in queues_by_id.items()
                    if info.node_id == self._node_id
                )
            awaited = self._board.awaited(self._queues)
        if not awaited:
            # Another worker may have waiters, and must not wait for the end of this lease.
            self.leave()
            return
        shared, at_ms = self._board.shared, now_ms()
        # Announced again well before WANTED_MS is over, so that a wait does not seem to end in
        # between.
        if at_ms > self._announced_ms + WANTED_MS / 3:
            self._announced_ms = at_ms
            for queue in awaited:
                shared.want(queue, at_ms + WANTED_MS)
        leads = shared.leads(self._node_id, at_ms)
        if not self._wait_for_turn():
            return
        # The leader reads for all workers, the others only queues that are not shared.
        at_ms = now_ms()
        queues = (
            awaited | shared.wanted(self._queues, at_ms)
            if leads
            else awaited - shared.wanted(awaited, at_ms)
        )
        if not queues:
            time.sleep(ALONE_PASS_S if self._is_alone() else 0.0)
            return
        started_at = time.monotonic()
        try:
            duration_s = self._read(queues)
        except CatmqError as error:
            self._not_before = time.monotonic() + RETRY_S
            # Only the first failure in a row is logged.
            if not self._failing:
                log.warning(
                    "Log end offsets of node %d cannot be read: %s",
                    self._node_id,
                    error.detail,
                )
            self._failing = True
            return
        self._failing = False
        self._durations.append(duration_s)
        self._read_at, self._not_before = (
            started_at,
            started_at + PACE * min(self._durations),
        )

    def leave(self) -> None:
        """Give up the watch over the node, so that another process can take it over."""
        self._board.shared.leave(self._node_id)

    def _wait_for_turn(self) -> bool:
        """Wait until the node may be read again. Return False if that takes longer than a
        pass.
        """
        not_before, apart_s = self._not_before, config.head_interval_ms / 1000
        if self._is_alone():
            not_before, apart_s = max(not_before, self._read_at + ALONE_S), ALONE_PASS_S
        left_s = not_before - time.monotonic()
        time.sleep(max(0.0, min(left_s, apart_s)))
        return left_s <= apart_s

    def _read(self, queues: Set[int]) -> float:
        """Read heads and wait until they are durable. Return the seconds that the query
        took.
        """
        with node_pools.node(self._node_id).reading() as session:
            started_at = time.monotonic()
            if FEW * len(queues) < len(self._queues):
                heads = queue_sql.read_heads(session, queues=list(queues))
            # These reads return heads of other queues as well.
            elif started_at < self._whole_at + WHOLE_S:
                heads = queue_sql.read_recent_heads(session, seconds=RECENT_S)
            else:
                self._whole_at = started_at
                heads = queue_sql.read_heads(session, queues=None)
            # Without the barrier below: the pace counts only what the query costs the node.
            duration_s = time.monotonic() - started_at
        wanted_heads = {queue: head for queue, head in heads.items() if queue in queues}
        durability.confirm(node_id=self._node_id, heads=wanted_heads)
        return duration_s
