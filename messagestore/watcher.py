"""The head watcher: hears of messages that other processes stored, and wakes who waits for them.

A loop of every worker. It looks often into the memory that the workers of a broker share, where each of
them notes what it stored, which costs no query. Only what other brokers stored must be read from the
nodes: one worker of a broker does it for all, less often, and never spends more than a 25th of its time
on one node. It asks only nodes somebody waits for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from messagestore import connections, durability, tables
from messagestore.heads import WANTED_MS, HeadBoard, board
from messagestore.shared_heads import now_ms
from metadata import snapshot
from metadata.config import config
from metadata.errors import CatmqError
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)
EVERY_S = 0.01  # between two looks into the shared memory
PACE = 25
RETRY_S = 1.0
IDLE_S = 1.0


class HeadWatcher:
    """The watcher of one process."""

    def __init__(self, board: HeadBoard) -> None:
        self._board = board
        self._due = 0.0
        self._not_before: dict[int, float] = {}
        self._failing: set[int] = set()
        self._watched: set[int] = set()
        self._seen: Snapshot | None = None
        self._queues_of: dict[int, list[int]] = {}

    def run_once(self) -> None:
        """One look; if nobody waits, a moment's wait for somebody."""
        if not self._board.somebody_within(IDLE_S):
            self._leave(self._watched)
            return
        self._board.listen()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + config.head_interval_ms / 1000
            self._look_at_nodes()

    def _look_at_nodes(self) -> None:
        """Reads, node by node, the heads that this process is to read."""
        mine = self._awaited()
        self._leave(self._watched - set(mine))
        for node_id, queues in mine.items():
            wanted = self._to_read(node_id, queues)
            begun = time.monotonic()
            if not wanted or begun < self._not_before.get(node_id, 0.0):
                continue
            try:
                took = self._read(node_id, wanted)
            except CatmqError as error:
                self._fails(node_id, error)
                continue
            self._failing.discard(node_id)
            self._not_before[node_id] = begun + PACE * took

    def _awaited(self) -> dict[int, list[int]]:
        """{node: queues} that pulls of this process wait for; the other workers hear of it."""
        known = self._known().queues
        self._board.keep(known.keys())
        until_ms = now_ms() + WANTED_MS
        mine: dict[int, list[int]] = {}
        for queue in self._board.awaited():
            if queue in known:
                self._board.shared.want(queue, until_ms)
                mine.setdefault(known[queue].node_id, []).append(queue)
        return mine

    def _known(self) -> Snapshot:
        current = snapshot.current()
        if current is not self._seen:
            self._queues_of = {}
            for queue, info in current.queues.items():
                self._queues_of.setdefault(info.node_id, []).append(queue)
            self._seen = current
        return current

    def _to_read(self, node_id: int, mine: list[int]) -> Collection[int]:
        """The queues of a node that this process is to read: for all workers, or what they cannot share."""
        shared, at_ms = self._board.shared, now_ms()
        if shared.leads(node_id, at_ms):
            self._watched.add(node_id)
            return {*mine, *(queue for queue in self._queues_of[node_id] if shared.wanted(queue, at_ms))}
        self._watched.discard(node_id)
        return [queue for queue in mine if not shared.wanted(queue, at_ms)]

    def _read(self, node_id: int, queues: Collection[int]) -> float:
        """Reads heads and waits until they are durable; the seconds that the query took."""
        most = 2 * len(queues) > len(self._queues_of[node_id])
        with connections.node(node_id).reading() as session:
            begun = time.monotonic()
            heads = tables.read_heads(session, queues=None if most else list(queues))
            took = time.monotonic() - begun
        durability.confirm(node_id=node_id, heads={queue: heads[queue] for queue in queues if queue in heads})
        return took

    def _leave(self, nodes: set[int]) -> None:
        for node_id in nodes:
            self._board.shared.leave(node_id)
        self._watched = self._watched - nodes

    def _fails(self, node_id: int, error: CatmqError) -> None:
        self._not_before[node_id] = time.monotonic() + RETRY_S
        if node_id not in self._failing:
            log.warning("Heads of node %d cannot be read: %s", node_id, error.detail)
        self._failing.add(node_id)


watcher = HeadWatcher(board)
