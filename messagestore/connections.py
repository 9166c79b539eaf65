"""The store's own connections: a small pool per node and process, borrowed for one string.

Nothing here pings. A session is closed instead of reused when its last string ended in doubt, after
five minutes, or when it sat idle near the server's limit; when one is lost its siblings are thrown
away with it. A changed node (new epoch, address or password) gets a new pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from messagestore import faults
from messagestore.sessions import READ_TIMEOUT_S, MySqlSession, Session, SqliteSession
from metadata import snapshot
from metadata.config import config
from metadata.errors import Code, NodeUnavailable
from metadata.snapshot import NodeInfo
from metadata.turnstile import turnstile

MAX_AGE_S = 300.0
BORROW_TIMEOUT_S = 2.0
MAINTENANCE_TIMEOUT_S = 120  # the longest that changing a table may take


def connect(info: NodeInfo, *, read_timeout_s: int = READ_TIMEOUT_S) -> Session:
    """A new session on a node. Raises NodeUnavailable."""
    if info.engine == "sqlite":
        return SqliteSession(name=info.name, path=sqlite_path(info.database))
    return MySqlSession(
        name=info.name,
        host=info.host,
        port=info.port or 3306,
        database=info.database,
        username=info.username,
        password=info.password,
        read_timeout_s=read_timeout_s,
    )


def sqlite_path(database: str) -> Path:
    """The file of an embedded node; a relative one lies in the data directory."""
    return Path(config.data_dir, database).resolve()


class _Pooled:
    """A session with its birth, last return and the pool's term it was made in."""

    def __init__(self, session: Session, term: int) -> None:
        self.session = session
        self.term = term
        self.born = self.returned = time.monotonic()

    def usable(self, term: int) -> bool:
        now = time.monotonic()
        fresh = now - self.born < MAX_AGE_S and now - self.returned < self.session.idle_limit_s
        return self.session.clean and self.term == term and fresh


class Node:
    """A registered node as this process reaches it."""

    def __init__(self, info: NodeInfo) -> None:
        self.info = info
        self._free: list[_Pooled] = []
        self._guard = threading.Lock()
        self._places = threading.BoundedSemaphore(config.pool_size)
        self._term = 0

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session for one write. Raises NodeUnavailable when none can be had."""
        if self.info.state == "offline":
            raise NodeUnavailable(f"Node {self.info.name} is offline.")
        if not self._borrowed():
            raise NodeUnavailable(
                f"All {config.pool_size} connections of this worker to node {self.info.name} are busy.",
                code=Code.BUSY,
                retry_after_ms=200,
            )
        try:
            pooled = self._take()
            try:
                yield pooled.session
            except faults.Ambiguous:
                self.forget()
                raise
            finally:
                self._give_back(pooled)
        finally:
            self._places.release()

    def _borrowed(self) -> bool:
        """Takes a place among those that use the node; whether there was one in time."""
        if self._places.acquire(blocking=False):
            return True
        with turnstile.aside():
            return self._places.acquire(timeout=BORROW_TIMEOUT_S)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The same for a read: a lost connection leaves nothing in doubt, so it is NodeUnavailable."""
        try:
            with self.writing() as session:
                yield session
        except faults.Ambiguous as fault:
            raise NodeUnavailable(fault.detail) from fault

    @contextmanager
    def maintaining(self) -> Iterator[Session]:
        """A session of its own for work that takes long; closed, not lent again. Raises NodeUnavailable."""
        if self.info.state == "offline":
            raise NodeUnavailable(f"Node {self.info.name} is offline.")
        session = connect(self.info, read_timeout_s=MAINTENANCE_TIMEOUT_S)
        try:
            yield session
        except faults.Ambiguous as fault:
            raise NodeUnavailable(fault.detail) from fault
        finally:
            session.close()

    def forget(self) -> None:
        """Throws away every session made so far; those in use are closed when they come back."""
        with self._guard:
            self._term += 1
            idle, self._free = self._free, []
        for pooled in idle:
            pooled.session.close()

    def _take(self) -> _Pooled:
        while True:
            with self._guard:
                term = self._term
                pooled = self._free.pop() if self._free else None
            if pooled is None:
                return _Pooled(connect(self.info), term)
            if pooled.usable(term):
                return pooled
            pooled.session.close()

    def _give_back(self, pooled: _Pooled) -> None:
        pooled.returned = time.monotonic()
        with self._guard:
            keep = pooled.usable(self._term)
            if keep:
                self._free.append(pooled)
        if not keep:
            pooled.session.close()


_nodes: dict[int, Node] = {}
_nodes_guard = threading.Lock()


def node(node_id: int) -> Node:
    """The node as the snapshot describes it now. Raises NotFound (node_not_found)."""
    info = snapshot.node_by_id(node_id)
    known = _nodes.get(node_id)
    if known is not None and known.info == info:
        return known
    with _nodes_guard:
        replaced = _nodes.get(node_id)
        if replaced is None or replaced.info != info:
            _nodes[node_id] = Node(info)
            if replaced is not None:
                replaced.forget()
        return _nodes[node_id]


def node_of(queue: int) -> Node:
    """The node that holds a queue. Raises NotFound (queue_not_found)."""
    return node(snapshot.find_queue(queue).node_id)


def by_node(queues: Iterable[int]) -> list[tuple[Node, list[int]]]:
    """The nodes that hold some queues, each with its own. Raises NotFound (queue_not_found)."""
    nodes: dict[int, list[int]] = {}
    for queue in queues:
        nodes.setdefault(snapshot.find_queue(queue).node_id, []).append(queue)
    return [(node(node_id), mine) for node_id, mine in nodes.items()]


def forget_all() -> None:
    """Closes every idle connection of this process, when it stops."""
    for known in list(_nodes.values()):
        known.forget()
