"""The watch over heads: hears of messages that other processes stored, and wakes who waits for them.

Two kinds of loops of every worker. One is woken by the other workers of the broker, each of which notes what
it stored in memory that they share, which costs no query. Only what other brokers stored must be read
from the nodes: there is a loop for each node, so that none waits for another's answer. One worker of a
broker reads for all, less often, and never spends more than a 25th of its time on a node. It asks only
nodes somebody waits for.

A look asks for what was stored to within the last seconds: of thousands of heads few have moved, and the
others would cost the node and this process more than all the rest of the look. What such a look cannot see,
because the node's clock jumped or a commit took longer than that, a look at everything finds a second later.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Set

from messagestore.engine.mysql_session import Session
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
APART_S = 0.01  # between two looks into the shared memory, however often a worker is woken
LISTEN_S = 1.0  # a wake that was lost costs so much
PACE = 25
# The quickest of the last ones tells what a look costs the node; the others waited for something else.
LOOKS = 8
RECENT_S = 5  # a look asks for what was stored to within this time,
WHOLE_S = 1.0  # and so often for everything
# Where no other broker lives only a job that writes to nodes itself can have stored anything unheard: between
ALONE_S = 0.5  # two looks, and
ALONE_PASS_S = 0.25  # between two passes, which show the other workers that this one goes on
FEW = 10  # where less than such a part of a node's queues is wanted, these are named instead
RETRY_S = 1.0
IDLE_S = 1.0


def nodes() -> list[int]:
    """The nodes that are to be watched, each in a loop of its own."""
    return [node.id for node in snapshot.current().nodes.values() if node.state != "offline"]


def listen() -> None:
    """Wait until another worker raised a head; if nobody waits for one, a moment's wait for somebody."""
    if board.somebody_within(IDLE_S):
        board.listen(LISTEN_S)


class NodeWatcher:
    """The watch of one process over one node; used by one thread."""

    def __init__(
        self, node_id: int, board: HeadBoard = board, *, is_alone: Callable[[], bool] = lambda: False
    ) -> None:
        self._node_id = node_id
        self._board = board
        self._is_alone = is_alone
        self._read_at = self._not_before = float("-inf")
        self._took: deque[float] = deque(maxlen=LOOKS)
        self._whole_at = float("-inf")  # the last look at everything
        self._told_ms = 0
        self._failing = False
        self._seen: Mapping[int, QueueInfo] = {}
        self._queues: frozenset[int] = frozenset()

    def run_once(self) -> None:
        """Read the heads that this process is to read; if nobody waits, a moment's wait for somebody."""
        waited = self._board.somebody_within(IDLE_S)
        mine = self._board.awaited(self._known()) if waited else frozenset()
        if not mine:
            self.leave()
            return
        leads = self._tell(mine)
        if not self._may_ask():
            return
        wanted = self._to_read(mine, leads=leads)
        if not wanted:
            time.sleep(ALONE_PASS_S if self._is_alone() else 0.0)
            return
        begun = time.monotonic()
        try:
            took = self._read(wanted)
        except CatmqError as error:
            self._fails(error)
            return
        self._failing = False
        self._took.append(took)
        self._read_at, self._not_before = begun, begun + PACE * min(self._took)

    def leave(self) -> None:
        """Let another process watch the node for all."""
        self._board.shared.leave(self._node_id)

    def _known(self) -> frozenset[int]:
        queues = snapshot.current().queues
        if queues is not self._seen:
            mine = (queue for queue, info in queues.items() if info.node_id == self._node_id)
            self._seen, self._queues = queues, frozenset(mine)
        return self._queues

    def _tell(self, mine: Set[int]) -> bool:
        """Tell the other workers what this process waits for, and whether it reads for all of them."""
        shared, at_ms = self._board.shared, now_ms()
        if at_ms > self._told_ms + WANTED_MS / 3:
            self._told_ms = at_ms
            for queue in mine:
                shared.want(queue, at_ms + WANTED_MS)
        return shared.leads(self._node_id, at_ms)

    def _to_read(self, mine: Set[int], *, leads: bool) -> Set[int]:
        """The queues that this process is to read: for all workers, or what they cannot share."""
        shared, at_ms = self._board.shared, now_ms()
        if leads:
            return mine | shared.wanted(self._queues, at_ms)
        return mine - shared.wanted(mine, at_ms)

    def _may_ask(self) -> bool:
        """Wait until the node may be asked again, but no longer than between two passes; whether it may."""
        not_before, apart_s = self._not_before, config.head_interval_ms / 1000
        if self._is_alone():
            not_before, apart_s = max(not_before, self._read_at + ALONE_S), ALONE_PASS_S
        left_s = not_before - time.monotonic()
        time.sleep(max(0.0, min(left_s, apart_s)))
        return left_s <= apart_s

    def _read(self, queues: Set[int]) -> float:
        """Read heads and wait until they are durable; the seconds that the query took."""
        with node_pools.node(self._node_id).reading() as session:
            begun = time.monotonic()
            heads = self._heads(session, queues)
            took = time.monotonic() - begun
        found = {queue: head for queue, head in heads.items() if queue in queues}
        durability.confirm(node_id=self._node_id, heads=found)
        return took

    def _heads(self, session: Session, queues: Set[int]) -> dict[int, int]:
        """Those of the queues that may have moved, and others."""
        if FEW * len(queues) < len(self._queues):
            return queue_sql.read_heads(session, queues=list(queues))
        now = time.monotonic()
        if now < self._whole_at + WHOLE_S:
            return queue_sql.read_recent_heads(session, seconds=RECENT_S)
        self._whole_at = now
        return queue_sql.read_heads(session, queues=None)

    def _fails(self, error: CatmqError) -> None:
        self._not_before = time.monotonic() + RETRY_S
        if not self._failing:
            log.warning("Log end offsets of node %d cannot be read: %s", self._node_id, error.detail)
        self._failing = True
