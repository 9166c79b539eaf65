"""A registered node as one process reaches it: with a pool of sessions, a circuit and
perhaps a replica.

A session that is lost takes its siblings with it. A node that is away is found out by few:
see `circuit`, and
`SessionPool.take` for how many may wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_guard, session_pool
from messagestore.pool.circuit import Circuit, Permit
from messagestore.pool.session_pool import Pooled, SessionPool
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError, NodeUnavailable

WATCHED_S = 15.0  # so long after `watch` looked, probes are left to it
MAINTENANCE_TIMEOUT_S = 120  # the longest that changing a table may take


class Checkout(AbstractContextManager[Session]):
    """The use of a session, to be entered and left. No generator: every request comes by
    here.
    """

    __slots__ = ("_node", "_permit", "_pooled", "_reads", "_within_s")

    def __init__(self, node: Node, *, reads: bool, within_s: float | None = None) -> None:
        self._node, self._reads, self._within_s = node, reads, within_s
        self._permit: Permit
        self._pooled: Pooled

    def __enter__(self) -> Session:
        self._permit, self._pooled = self._node.check_out(
            reads=self._reads, within_s=self._within_s
        )
        return self._pooled.session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._node.check_in(self._permit, self._pooled, error, reads=self._reads)


class Node:
    """A registered node, or the replica of one (`behind`), which is only read."""

    def __init__(self, info: NodeInfo, *, behind: bool = False) -> None:
        self.info = info
        self.circuit = Circuit(info.name)
        self.pool = SessionPool(info.name, self._checked_session)
        self.replica = _replica_of(info) if info.replica_host and not behind else None
        self._behind = behind
        self._watched_at = float("-inf")

    def writing(self) -> Checkout:
        """A session for one write.

        Raises NodeUnavailable when none can be had: at once while the node is known to be
        away, or while MOST_STALLED times the pool's size wait for a node that answers
        nobody.
        """
        return Checkout(self, reads=False)

    def reading(self, *, within_s: float | None = None) -> Checkout:
        """The same for what may be repeated: a lost connection leaves nothing in doubt, so
        it is NodeUnavailable, and a node that is silent is not waited for.

        Raises `db_errors.SlowNode` if the answer does not begin `within_s`, and at once
        while the node is in doubt; for requests that ask other nodes, too (slow_nodes.py).
        """
        return Checkout(self, reads=True, within_s=within_s)

    def check_out(self, *, reads: bool, within_s: float | None) -> tuple[Permit, Pooled]:
        """A session, which `check_in` takes back. Raises NodeUnavailable and SlowNode."""
        permit = self._enter(within_s)
        try:
            check = _pass if permit.probe else self._check_answering
            pooled = self.pool.take(reads=reads, within_s=within_s, check=check)
        except BaseException as error:
            self._end(permit, error, reads)
            raise
        permit.asked = True
        return permit, pooled

    def check_in(
        self, permit: Permit, pooled: Pooled, error: BaseException | None, *, reads: bool
    ) -> None:
        """End a use that may have raised. Raises NodeUnavailable where a read lost its
        connection.
        """
        if isinstance(error, db_errors.SlowNode):
            self.pool.slow.add(pooled, begun=permit.begun)
        else:
            if isinstance(error, db_errors.Ambiguous):
                self.pool.discard()
            self.pool.give_back(pooled)
        self._end(permit, error, reads)

    def maintaining(self) -> AbstractContextManager[Session]:
        """A session of its own for work that takes long. Raises NodeUnavailable."""
        self._check_online()
        return session_pool.direct(self.info, read_timeout_s=MAINTENANCE_TIMEOUT_S)

    def in_chunks(
        self, act: Callable[[Session], int], *, chunk: int, most: int = 1 << 30
    ) -> int:
        """Repeat a write of at most `chunk` rows until one has fewer, at most so often;
        return the sum.
        """
        done = 0
        for _ in range(most):
            with self.writing() as session:
                rows = act(session)
            done += rows
            if rows < chunk:
                break
        return done

    def watch(self) -> None:
        """Open the circuit of a silent node, end the reads that wait for it, and send the
        probes.
        """
        self._watched_at = time.monotonic()
        self.pool.slow.collect()
        self._look()
        if self.circuit.is_open:
            self.pool.cut_silent_reads()
        if self.circuit.is_due():
            self._probe()
        if self.replica is not None:
            self.replica.watch()

    def discard(self) -> None:
        """Throw away every session made so far, those of the replica, too."""
        self.pool.discard()
        if self.replica is not None:
            self.replica.discard()

    def _end(self, permit: Permit, error: BaseException | None, reads: bool) -> None:
        self.circuit.end(permit, error)
        if reads and isinstance(error, db_errors.Ambiguous):
            raise NodeUnavailable(error.detail) from error

    def _enter(self, within_s: float | None) -> Permit:
        """Raise NodeUnavailable if it is known without asking."""
        self._check_online()
        node_guard.check(self.info)
        self.pool.slow.collect()
        self._look()
        if within_s is not None:
            self.pool.check_patience()
        # by a loop that sends probes
        is_watched = time.monotonic() - self._watched_at < WATCHED_S
        return self.circuit.enter(may_probe=self.circuit.is_open and not is_watched)

    def _check_online(self) -> None:
        if self.info.state == "offline":
            raise NodeUnavailable(f"Node {self.info.name} is offline.")

    def _check_answering(self) -> None:
        self._look()
        self.circuit.check()

    def _look(self) -> None:
        """Open the circuit of a node that is silent."""
        if not self.circuit.is_open and self.pool.is_silent():
            self.circuit.trip()
            self.pool.discard()

    def _probe(self) -> None:
        try:
            with self.circuit.permit(may_probe=True) as permit:
                session = self._checked_session()
                permit.asked = True
                session.close()
        except CatmqError:
            return  # still away: the circuit counts it

    def _checked_session(self) -> Session:
        """A new session, on a server that holds what this node must hold."""
        lowest = {} if self._behind else node_guard.lowest_heads(self.info)
        session = session_pool.connect(self.info)
        try:
            node_guard.check_server(
                self.info, session, lowest=lowest, primary=not self._behind
            )
        except BaseException:
            session.close()
            raise
        return session


def _pass() -> None:
    """A probe waits for its place, whatever the circuit says."""


def _replica_of(info: NodeInfo) -> Node:
    """Same database, same account, another address."""
    place = {"host": info.replica_host, "port": info.replica_port or 3306}
    return Node(replace(info, name=f"{info.name} (replica)", **place), behind=True)  # type: ignore[arg-type]
