"""The store's own connections: a small pool per node and process, borrowed for one string.

Nothing here pings. A session is closed instead of reused when its last string ended in doubt, when the
node has closed it, after five minutes, or when it sat idle near the server's limit; when one is lost its
siblings are thrown away with it. A changed node (new epoch, address or password) gets a new pool. A node
that is away is found out by few: see `circuit`, and `Node.writing` for how many may wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S, MySqlSession, Session
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.pool import node_guard
from messagestore.pool.checkout import Lending, Pooled
from messagestore.pool.circuit import SILENT_S, Circuit, Passage
from messagestore.pool.slow_nodes import Lateness
from metadata.cache import snapshot
from metadata.cache.snapshot import NodeInfo
from metadata.config import config
from metadata.errors import CatmqError, Code, NodeUnavailable
from metadata.limits.concurrency import limiter

BORROW_TIMEOUT_S = 2.0
_LOOK_EVERY_S = 0.2  # while waiting for a place: whether the node is still there
# Calls, in pool sizes, that may wait for a node that has answered none of them for STALLED_S. A busy node
# answers all the time, so only a stalled one is held to this.
MOST_STALLED = 4
STALLED_S = 0.3
WATCHED_S = 15.0  # so long after `watch` looked, probes are left to it
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


class Node:
    """A registered node as this process reaches it, or the replica of one (`behind`), which is only read."""

    def __init__(self, info: NodeInfo, *, behind: bool = False) -> None:
        self.info = info
        self.circuit = Circuit(info.name)
        self.replica = _replica_of(info) if info.replica_host and not behind else None
        self._behind = behind
        self._free: list[Pooled] = []
        self._lent: dict[Pooled, bool] = {}  # → whether it only reads
        self._guard = threading.Lock()
        self._places = threading.BoundedSemaphore(config.pool_size)
        self._term = 0
        self._inside = 0
        self._since = self._answered_at = time.monotonic()  # when somebody came in, when the node last spoke
        self._watched_at = float("-inf")
        self._lateness: Lateness[Pooled] = Lateness(self._give_back)

    @property
    def busy(self) -> bool:
        """Return True if a session is lent out."""
        return bool(self._lent)

    def writing(self) -> AbstractContextManager[Session]:
        """A session for one write.

        Raises NodeUnavailable when none can be had: at once while the node is known to be away, or while
        MOST_STALLED times the pool's size wait for a node that answers nobody.
        """
        return Lending(self, reads=False)

    def reading(self, *, within_s: float | None = None) -> AbstractContextManager[Session]:
        """The same for what may be repeated: a lost connection leaves nothing in doubt, so it is
        NodeUnavailable, and a node that is silent is not waited for.

        Raises `db_errors.Late` if the answer does not begin `within_s`, and at once while the node is in
        doubt; for requests that ask other nodes, too (slow_nodes.py).
        """
        return Lending(self, reads=True, within_s=within_s)

    def lend(self, *, reads: bool, within_s: float | None) -> tuple[Passage, Pooled]:
        """A session, which `take_back` takes back. Raises NodeUnavailable and Late."""
        passage = self._enter(within_s)
        try:
            return passage, self._taken(passage, reads, within_s)
        except BaseException as error:
            self._end(passage, error, reads)
            raise

    def take_back(
        self, passage: Passage, pooled: Pooled, error: BaseException | None, *, reads: bool
    ) -> None:
        """Ends a lending that may have raised. Raises NodeUnavailable where a read lost its connection."""
        if isinstance(error, db_errors.Late):
            self._lateness.add(pooled, begun=passage.begun)
        else:
            if isinstance(error, db_errors.Ambiguous):
                self.forget()
            self._give_back(pooled)
        self._end(passage, error, reads)

    def _end(self, passage: Passage, error: BaseException | None, reads: bool) -> None:
        self.circuit.end(passage, error)
        if reads and isinstance(error, db_errors.Ambiguous):
            raise NodeUnavailable(error.detail) from error

    def _enter(self, within_s: float | None) -> Passage:
        """Raises NodeUnavailable if it is known without asking."""
        if self.info.state == "offline":
            raise NodeUnavailable(f"Node {self.info.name} is offline.")
        node_guard.check(self.info)
        self._lateness.collect()
        self._look()
        if within_s is not None and self._lateness.doubts(answered_at=self._answered_at):
            raise self._late()
        return self.circuit.enter(may_probe=self.circuit.is_open and not self._is_watched())

    def _is_watched(self) -> bool:
        """Return True if this process has a loop that sends probes."""
        return time.monotonic() - self._watched_at < WATCHED_S

    def _late(self) -> db_errors.Late:
        return db_errors.Late(f"Node {self.info.name} takes its time.")

    def _taken(self, passage: Passage, reads: bool, within_s: float | None) -> Pooled:
        """A session, with a place in the pool; `_give_back` gives both back."""
        with self._guard:
            if not self._inside:
                self._since = time.monotonic()
            elif self._inside >= MOST_STALLED * config.pool_size and self._is_stalled():
                raise self._crowded("wait for its answer")
            self._inside += 1
        placed = False
        try:
            placed = self._places.acquire(blocking=False)
            if not placed:
                with limiter.aside():
                    self._await_place(passage, within_s)
                placed = True
            pooled = self._take(reads)
            if isinstance(within_s, float):
                within_s = self._lateness.patience_s(within_s)
            pooled.session.patience_s = within_s
        except BaseException:
            self._free_place(placed)
            raise
        passage.asked = True
        return pooled

    def _is_stalled(self) -> bool:
        return time.monotonic() - max(self._answered_at, self._since) > STALLED_S

    def _free_place(self, placed: bool) -> None:
        if placed:
            self._places.release()
        with self._guard:
            self._inside -= 1

    def _await_place(self, passage: Passage, within_s: float | None) -> None:
        """Takes a place when one is free; gives up after a while, or when the node turns out to be away."""
        deadline = time.monotonic() + BORROW_TIMEOUT_S
        while not self._places.acquire(timeout=_LOOK_EVERY_S if within_s is None else within_s):
            if within_s is not None and self._is_stalled():
                raise self._late()
            if not passage.probe:
                self._look()
                self.circuit.check()
            if time.monotonic() > deadline:
                raise self._crowded(f"of this worker have all {config.pool_size} connections")

    def _crowded(self, why: str) -> NodeUnavailable:
        what = f"Node {self.info.name} is busy: {self._inside} calls {why}."
        return NodeUnavailable(what, code=Code.BUSY, retry_after_ms=200)

    @contextmanager
    def maintaining(self) -> Iterator[Session]:
        """A session of its own for work that takes long; closed, not lent again. Raises NodeUnavailable."""
        if self.info.state == "offline":
            raise NodeUnavailable(f"Node {self.info.name} is offline.")
        session = connect(self.info, read_timeout_s=MAINTENANCE_TIMEOUT_S)
        try:
            yield session
        except db_errors.Ambiguous as fault:
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

    def watch(self) -> None:
        """Opens the circuit of a silent node, ends the reads that wait for it, and sends the probes."""
        self._watched_at = time.monotonic()
        self._lateness.collect()
        self._look()
        if self.circuit.is_open:
            late = time.monotonic() - SILENT_S
            for pooled, reads in self._lendings():
                if reads and (pooled.session.busy_since or late) < late:
                    pooled.session.cut()
        if self.circuit.is_due():
            self._probe()
        if self.replica is not None:
            self.replica.watch()

    def _probe(self) -> None:
        try:
            with self.circuit.passage(may_probe=True) as passage:
                session = self._vetted()
                passage.asked = True
                session.close()
        except CatmqError:
            return  # still away: the circuit counts it

    def _look(self) -> None:
        """Opens the circuit if statements wait and none was answered for SILENT_S."""
        if not self._lent or self.circuit.is_open or time.monotonic() - self._answered_at < SILENT_S:
            return
        lent = self._lendings()
        waits = [pooled.session.busy_since for pooled, _ in lent if pooled.session.busy_since is not None]
        if not waits:
            return
        answered_at = max(self._answered_at, *(pooled.session.answered_at for pooled, _ in lent))
        if time.monotonic() - max(min(waits), answered_at) > SILENT_S:
            self.circuit.trip()
            self.forget()

    def _lendings(self) -> list[tuple[Pooled, bool]]:
        with self._guard:
            return list(self._lent.items())

    def _take(self, reads: bool) -> Pooled:
        while True:
            with self._guard:
                term = self._term
                pooled = self._free.pop() if self._free else None
                # Asked before a string is sent: afterwards nobody knows whether a dead node had stored it.
                if pooled is not None and pooled.usable(term) and not pooled.session.is_over():
                    self._lent[pooled] = reads
                    return pooled
            if pooled is not None:
                pooled.session.close()
                continue
            pooled = Pooled(self._vetted(), term)
            with self._guard:
                self._lent[pooled] = reads
            return pooled

    def _vetted(self) -> Session:
        """A new session, on a server that holds what this node must hold."""
        lowest = {} if self._behind else node_guard.lowest_heads(self.info)
        session = connect(self.info)
        try:
            node_guard.vet(self.info, session, lowest=lowest)
        except BaseException:
            session.close()
            raise
        return session

    def _give_back(self, pooled: Pooled) -> None:
        pooled.returned = time.monotonic()
        with self._guard:
            self._inside -= 1
            self._lent.pop(pooled, None)
            if pooled.session.clean:
                self._answered_at = pooled.returned
                self._lateness.note_answer()
            keep = pooled.usable(self._term)
            if keep:
                self._free.append(pooled)
        if not keep:
            pooled.session.close()
        self._places.release()


def _replica_of(info: NodeInfo) -> Node:
    """Same database, same account, another address."""
    place = {"host": info.replica_host, "port": info.replica_port or 3306}
    return Node(replace(info, name=f"{info.name} (replica)", **place), behind=True)  # type: ignore[arg-type]


_nodes: dict[int, Node] = {}
_replaced: list[Node] = []  # with sessions of theirs still lent
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
                _forget([replaced])
                _replaced.append(replaced)
        return _nodes[node_id]


def node_of(queue: int) -> Node:
    """The node that holds a queue. Raises NotFound (queue_not_found)."""
    return node(snapshot.find_queue(queue).node_id)


def by_node(queues: Iterable[int]) -> list[tuple[Node, list[int]]]:
    """The nodes that hold some queues, each with its own. Raises NotFound (queue_not_found)."""
    return by_place({queue: snapshot.find_queue(queue).node_id for queue in queues})


def by_place(places: Mapping[int, int]) -> list[tuple[Node, list[int]]]:
    """The same for queues whose nodes are known: {queue: node}."""
    nodes: dict[int, list[int]] = {}
    for queue, node_id in places.items():
        nodes.setdefault(node_id, []).append(queue)
    return [(node(node_id), mine) for node_id, mine in nodes.items()]


def watch(node_id: int) -> None:
    """Looks after a node that this process uses; a loop of every worker. Requests need not probe then."""
    used = _nodes.get(node_id)
    if used is not None:
        used.watch()


def in_use() -> list[int]:
    """The ids of the nodes that this process uses."""
    return list(_nodes)


def away() -> list[str]:
    """The names of the nodes whose circuit is open in this process, in order."""
    return sorted(known.info.name for known in list(_nodes.values()) if known.circuit.is_open)


def follows() -> bool:
    """Return True if nobody in this process uses a node as an older snapshot described it. Nodes that are
    gone are forgotten on the way."""
    known = snapshot.current().nodes
    for node_id in list(_nodes):
        if node_id in known:
            node(node_id)
    with _nodes_guard:
        gone = [_nodes.pop(node_id) for node_id in list(_nodes) if node_id not in known]
        _forget(gone)
        _replaced.extend(gone)
        _replaced[:] = [one for one in _replaced if one.busy]
        return not _replaced


def forget_all() -> None:
    """Closes every idle connection of this process and forgets its nodes, when it stops."""
    with _nodes_guard:
        nodes = list(_nodes.values())
        _nodes.clear()
    _forget(nodes)


def _forget(nodes: Iterable[Node]) -> None:
    for known in nodes:
        known.forget()
        if known.replica is not None:
            known.replica.forget()
