"""A registered node as a process reaches it: a session pool, a circuit and perhaps a
replica.

When a session is lost, all sessions of the pool are discarded. Only few calls wait for a
node that is unreachable: see `circuit`, and `SessionPool.take` for the limit on waiting
calls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.pool import node_guard, session_pool, writers
from messagestore.pool.circuit import MAX_PAUSE_OF_LISTS_S, MAX_PAUSE_S, Circuit, Permit
from messagestore.pool.session_pool import PooledSession, SessionPool
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError, Code, NodeUnavailable
from metadata.rules.addresses import is_list
from metadata.rules.cluster_members import Member, NoWriter, Parted
from metadata.rules.nodes import Engine, NodeState

log = logging.getLogger(__name__)
# A statement that waits longer than this may wait on a member that takes no writes any more.
REVIEW_AFTER_S = 1.0
WATCHED_S = 15.0  # requests send no probes for this long after a call of `watch`
MAINTENANCE_TIMEOUT_S = 120  # the longest time for changing a table


class Checkout(AbstractContextManager[Session]):
    """The use of a pooled session, as a context manager."""

    # A class, because every request checks out sessions and a generator costs more.
    __slots__ = ("_node", "_permit", "_pooled", "_reads", "_within_s")

    def __init__(self, node: Node, *, reads: bool, within_s: float | None = None) -> None:
        self._node, self._reads, self._within_s = node, reads, within_s
        self._permit: Permit
        self._pooled: PooledSession

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
    """A registered node, or the replica of one, which is only read."""

    def __init__(self, info: NodeInfo, *, is_replica: bool = False) -> None:
        self.info = info
        self.circuit = Circuit(
            info.name,
            max_pause_s=MAX_PAUSE_OF_LISTS_S if is_list(info.host) else MAX_PAUSE_S,
        )
        self.pool = SessionPool(info.name, self._connect_checked)
        self.replica: Node | None = None
        if info.replica_host and not is_replica:
            self.replica = Node(
                replace(
                    info,
                    name=f"{info.name} (replica)",
                    host=info.replica_host,
                    port=info.replica_port or 3306,
                ),
                is_replica=True,
            )
        self._is_replica = is_replica
        self._asking_writer = threading.Lock()
        self._last_watch = self._reviewed_at = float("-inf")
        self.member: Member | None = None  # the server that sessions reach, if it was asked

    def writing(self) -> Checkout:
        """Return a checkout of a session for a write.

        Entering it raises NodeUnavailable if there is none: at once while the circuit is
        open, or if MAX_STALLED times the pool's size are waiting for a node that answers
        none of them.
        """
        return Checkout(self, reads=False)

    def reading(self, *, within_s: float | None = None) -> Checkout:
        """Return a checkout of a session for statements that may be repeated.

        A lost connection raises NodeUnavailable, because a repeat leaves nothing in doubt,
        and a silent node ends the wait.

        With `within_s`, for requests that query other nodes as well (slow_nodes.py), raises
        `db_errors.SlowNode` if the answer does not begin in time, and at once while the
        node is in doubt.
        """
        return Checkout(self, reads=True, within_s=within_s)

    @property
    def is_movable(self) -> bool:
        """Return True if another server may become the one that is written to."""
        return is_list(self.info.host) or self.member is not None

    @contextmanager
    def at_writer(self) -> Iterator[Session]:
        """Return a new session on the server that is written to, which has caught up.

        It is for a read that must not come from a former writer. If pooled sessions are on
        one, they are discarded. Raises NodeUnavailable. One such session at a time: it is
        outside of the pool, so nothing else limits them.
        """
        if not self._asking_writer.acquire(timeout=session_pool.CHECKOUT_TIMEOUT_S):
            raise NodeUnavailable(
                f"Node {self.info.name} is busy: its writer is asked already.",
                code=Code.BUSY,
                retry_after_ms=200,
            )
        try:
            with session_pool.lent(self._connect_checked()) as session:
                yield session
        finally:
            self._asking_writer.release()

    def check_out(
        self, *, reads: bool, within_s: float | None
    ) -> tuple[Permit, PooledSession]:
        """Return a permit and a session for `check_in`. Raises NodeUnavailable, SlowNode.

        What is known to fail raises before the node is queried.
        """
        self._check_online()
        node_guard.check(self.info)
        self.pool.slow.collect()
        self._open_if_silent()
        if within_s is not None:
            self.pool.check_patience()
        # A watched node is probed by the loop, so no request has to wait for a probe.
        is_watched = time.monotonic() - self._last_watch < WATCHED_S
        permit = self.circuit.enter(may_probe=self.circuit.is_open and not is_watched)
        try:
            # A probe runs while the circuit is open, so its wait for a session must not end
            # for that.
            check = (lambda: None) if permit.probe else self._check_answering
            pooled = self.pool.take(reads=reads, within_s=within_s, check=check)
        except BaseException as error:
            self._end_call(permit, error, reads)
            raise
        permit.reached = True
        return permit, pooled

    def check_in(
        self,
        permit: Permit,
        pooled: PooledSession,
        error: BaseException | None,
        *,
        reads: bool,
    ) -> None:
        """End the use of a session, which may have raised `error`.

        Raises NodeUnavailable if a read lost its connection.
        """
        if isinstance(error, db_errors.SlowNode):
            # The late answer is still in the stream; the session returns once it was read.
            self.pool.slow.add(pooled, began_at=permit.began_at)
        else:
            if isinstance(error, db_errors.ReadOnly):
                # The server was the writer, and is not any more.
                writers.forget(self.info)
                self.pool.discard()
            if isinstance(error, db_errors.Ambiguous):
                # The server or its connections are gone: the idle sessions would fail, too.
                self.pool.discard()
            self.pool.give_back(pooled)
        self._end_call(permit, error, reads)

    def maintaining(
        self, *, timeout_s: int = MAINTENANCE_TIMEOUT_S
    ) -> AbstractContextManager[Session]:
        """Return a session outside the pool for work that takes long, each statement at most
        `timeout_s`. Raises NodeUnavailable.
        """
        self._check_online()
        return session_pool.direct(self.info, read_timeout_s=timeout_s)

    def in_chunks(
        self, act: Callable[[Session], int], *, chunk: int, most: int = 1 << 30
    ) -> int:
        """Repeat a write of at most `chunk` rows until it changes fewer, at most `most`
        times.

        Returns the number of rows. Each chunk is a transaction of its own.
        """
        total = 0
        for _ in range(most):
            with self.writing() as session:
                rows = act(session)
            total += rows
            if rows < chunk:
                break
        return total

    def watch(self) -> None:
        """Open the circuit of a silent node, end calls that wait for nothing, and send due
        probes.
        """
        self._last_watch = time.monotonic()
        self.pool.slow.collect()
        self._open_if_silent()
        self._review_if_waited_for()
        self.pool.cut_silent(reads=self.circuit.is_open)
        if self.circuit.is_due():
            self._probe()
        if self.replica is not None:
            self.replica.watch()

    def _probe(self) -> None:
        """Connect through the open circuit, which counts the result."""
        try:
            with self.circuit.permit(may_probe=True) as permit:
                session = self._connect_checked()
                permit.reached = True
                session.close()
        except CatmqError as error:
            # Calls that still wait are on a server that accepts no writes any more.
            if isinstance(error.__cause__, NoWriter):
                self.pool.leave_server()

    def discard(self) -> None:
        """Close every session made so far, those of the replica as well."""
        self.pool.discard()
        if self.replica is not None:
            self.replica.discard()

    def _end_call(self, permit: Permit, error: BaseException | None, reads: bool) -> None:
        """Tell the circuit how the call ended.

        Raises NodeUnavailable instead of Ambiguous for a read: it may be repeated.
        """
        self.circuit.end(permit, error)
        if reads and isinstance(error, db_errors.Ambiguous):
            raise NodeUnavailable(error.detail) from error

    def _check_online(self) -> None:
        if self.info.state == NodeState.OFFLINE:
            raise NodeUnavailable(f"Node {self.info.name} is offline.")

    def _check_answering(self) -> None:
        self._open_if_silent()
        self.circuit.check()

    def _open_if_silent(self) -> None:
        """Open the circuit if the node is silent."""
        if not self.circuit.is_open and self.pool.is_silent():
            self.circuit.trip()
            self.pool.discard()

    def _connect_checked(self) -> Session:
        """Return a new session, after checking that the server holds this node's data."""
        # Taken before the heads are read, so that a concurrent send cannot make them look
        # too low.
        lowest = {} if self._is_replica else node_guard.lowest_heads(self.info)
        session = (
            writers.connect_to_read(self.info)
            if self._is_replica
            else session_pool.connect(self.info)
        )
        try:
            node_guard.check_server(
                self.info, session, lowest=lowest, primary=not self._is_replica
            )
        except BaseException:
            session.close()
            raise
        self._follow(session)
        return session

    def _follow(self, session: Session) -> None:
        """Discard the other sessions if a new session reaches another server than they do."""
        member = session.member if isinstance(session, MySqlSession) else None
        if member is None or self._is_replica:
            return
        former, self.member = self.member, member
        if former is not None and former.server_id != member.server_id:
            log.warning("Node %s: connections now reach %s", self.info.name, member.address)
            self.pool.leave_server()

    def _review_if_waited_for(self) -> None:
        """Ask all servers of a list if a call has waited for a while.

        A commit waits on a member that lost the others, while reads are answered there, so
        the node does not look silent.
        """
        if self.circuit.is_open or not self.pool.has_waited(REVIEW_AFTER_S):
            return
        if time.monotonic() - self._reviewed_at >= REVIEW_AFTER_S:
            with suppress(NodeUnavailable):
                self.follow_writer()
            self._reviewed_at = time.monotonic()

    def follow_writer(self) -> None:
        """Ask all servers of a list, and leave the sessions if another one is the writer.

        Does nothing for a single address. If there is no writer, opens the circuit, and
        raises NodeUnavailable.
        """
        if self.info.engine != Engine.MYSQL or not is_list(self.info.host):
            return
        try:
            if writers.review(self.info):
                self.pool.leave_server()
        except Parted as error:
            # Calls go on: most often it lasts for a moment.
            self.pool.discard()
            raise NodeUnavailable(str(error)) from error
        except NoWriter as error:
            # Also the calls that wait: their server accepts no writes any more.
            self.pool.leave_server()
            self.circuit.trip()
            raise NodeUnavailable(str(error)) from error
