"""The sessions of a node in one process, at most `pool_size`.

There are no pings. A session is closed instead of reused if its last use ended in doubt, if
the node closed it, after five minutes, or if it was idle for nearly as long as the server
allows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S, Session
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.pool import node_guard, writers
from messagestore.pool.circuit import SILENT_S
from messagestore.pool.slow_nodes import SlowAnswers
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.errors import Code, NodeUnavailable
from metadata.limits.concurrency import limiter
from metadata.rules.nodes import Engine

CHECKOUT_TIMEOUT_S = 2.0
MAX_AGE_S = 300.0
_CHECK_EVERY_S = 0.2  # checks of the circuit while waiting for a place
# Calls, in pool sizes, that may be inside the pool of a node that has answered none of them
# for STALLED_S. A busy node answers all the time, so this limits only stalled ones.
MAX_STALLED = 4
STALLED_S = 0.3


def connect(info: NodeInfo, *, read_timeout_s: int = READ_TIMEOUT_S) -> Session:
    """Return a new session on a node, unchecked and outside any pool.

    Of several servers it is that which accepts writes. Raises NodeUnavailable.
    """
    if info.engine == Engine.SQLITE:
        return SqliteSession(name=info.name, path=sqlite_path(info.database))
    return writers.connect(info, read_timeout_s=read_timeout_s)


@contextmanager
def direct(info: NodeInfo, *, any_schema: bool = False, **limits: int) -> Iterator[Session]:
    """Return a session outside the pool, which is closed at the end. Raises
    NodeUnavailable.

    It works for a node that is offline, too. `any_schema` also accepts tables that this
    release cannot use. `limits` are arguments of `connect`.
    """
    with lent(connect(info, **limits)) as session:
        if not any_schema:
            node_guard.check_release(info, session)
        yield session


@contextmanager
def lent(session: Session) -> Iterator[Session]:
    """Return a session outside of a pool, and close it at the end.

    Raises NodeUnavailable instead of Ambiguous: what is done with it may be repeated.
    """
    try:
        yield session
    except db_errors.Ambiguous as fault:
        raise NodeUnavailable(fault.detail) from fault
    finally:
        session.close()


def sqlite_path(database: str) -> Path:
    """Return the file of an embedded node. A relative path is in the data directory."""
    return Path(config.data_dir, database).resolve()


class PooledSession:
    """A session, the times of its creation and last return, and its term.

    A term ends when all sessions of the pool are discarded.
    """

    def __init__(self, session: Session, term: int) -> None:
        self.session = session
        self.term = term
        self.created_at = self.returned_at = time.monotonic()

    def is_usable(self, term: int) -> bool:
        """Return True if it may be checked out again in the pool's current `term`."""
        now = time.monotonic()
        is_recent = (
            now - self.created_at < MAX_AGE_S
            and now - self.returned_at < self.session.idle_limit_s
        )
        return self.session.clean and self.term == term and is_recent


class SessionPool:
    """The sessions of a node. Thread-safe. `make` returns a new session, or raises.

    A call is *inside* from `take` to `give_back`. It first gets one of `pool_size` places,
    then a session.
    """

    def __init__(self, name: str, make: Callable[[], Session]) -> None:
        self.slow: SlowAnswers[PooledSession] = SlowAnswers(self.give_back)
        self._name, self._make = name, make
        self._free: list[PooledSession] = []
        self._out: dict[PooledSession, bool] = {}  # checked out; True if it only reads
        self._guard = threading.Lock()
        self._places = threading.BoundedSemaphore(config.pool_size)
        self._term = 0
        self._first_term = 0  # of sessions on the present server
        self._inside = 0
        # When a call entered the empty pool, and when the node last answered.
        self._busy_since = self._answered_at = time.monotonic()

    @property
    def busy(self) -> bool:
        return bool(self._out)

    def take(
        self, *, reads: bool, within_s: float | None, check: Callable[[], None]
    ) -> PooledSession:
        """Return a session together with a place in the pool; `give_back` takes both.

        While the call waits for a place, `check` is called from time to time and may raise.
        Raises NodeUnavailable if too many calls wait or no place became free in time, and
        `db_errors.SlowNode` if the node is slow.
        """
        with self._guard:
            if not self._inside:
                self._busy_since = time.monotonic()
            elif self._inside >= MAX_STALLED * config.pool_size and self._is_stalled():
                raise self._busy_error("wait for an answer")
            self._inside += 1
        has_place = False
        try:
            has_place = self._places.acquire(blocking=False)
            if not has_place:
                # A request that waits must not count against the limit of running requests.
                with limiter.aside():
                    self._wait_for_place(check, within_s)
                has_place = True
            pooled = self._take_session(reads)
            if isinstance(within_s, float):
                within_s = self.slow.patience_s(within_s)
            pooled.session.patience_s = within_s
        except BaseException:
            if has_place:
                self._places.release()
            with self._guard:
                self._inside -= 1
            raise
        return pooled

    def give_back(self, pooled: PooledSession) -> None:
        """Take a session back, and keep it or close it."""
        pooled.returned_at = time.monotonic()
        with self._guard:
            self._inside -= 1
            self._out.pop(pooled, None)
            if pooled.session.clean:
                self._answered_at = pooled.returned_at
                self.slow.note_answer()
            keep = pooled.is_usable(self._term)
            if keep:
                self._free.append(pooled)
        # Closing may block, so it happens outside the lock.
        if not keep:
            pooled.session.close()
        self._places.release()

    def discard(self) -> None:
        """Close every session made so far; those in use are closed when they come back."""
        with self._guard:
            self._term += 1
            idle, self._free = self._free, []
        for pooled in idle:
            pooled.session.close()

    def check_patience(self) -> None:
        """Raise `db_errors.SlowNode` while the node is in doubt."""
        if self.slow.doubts(answered_at=self._answered_at):
            raise self._slow_error()

    def is_silent(self) -> bool:
        """Return True if statements are in flight and none was answered for SILENT_S."""
        # A cheap first look without the lock; most calls end here.
        if not self._out or time.monotonic() - self._answered_at < SILENT_S:
            return False
        checked_out = self._list_checked_out()
        waiting_since = [
            pooled.session.busy_since
            for pooled, _ in checked_out
            if pooled.session.busy_since is not None
        ]
        if not waiting_since:
            return False
        answered_at = max(
            self._answered_at, *(pooled.session.answered_at for pooled, _ in checked_out)
        )
        return time.monotonic() - max(min(waiting_since), answered_at) > SILENT_S

    def leave_server(self) -> None:
        """Discard all sessions, because another server is written to now."""
        self.discard()
        self._first_term = self._term

    def has_waited(self, seconds: float) -> bool:
        """Return True if a statement has waited for its answer for this long."""
        deadline = time.monotonic() - seconds
        return any(
            (pooled.session.busy_since or deadline) < deadline
            for pooled, _is_read in self._list_checked_out()
        )

    def cut_silent(self, *, reads: bool) -> None:
        """End calls that have waited for SILENT_S on a server that was left, and all such
        reads if `reads`.

        A write has an unknown outcome then, as after its timeout, and the same batch is
        repeated on the new server. Without the cut it would wait for the whole timeout.
        """
        deadline = time.monotonic() - SILENT_S
        for pooled, is_read in self._list_checked_out():
            is_left = pooled.term < self._first_term
            if (pooled.session.busy_since or deadline) < deadline and (
                is_left or (reads and is_read)
            ):
                pooled.session.cut()

    def _list_checked_out(self) -> list[tuple[PooledSession, bool]]:
        with self._guard:
            return list(self._out.items())

    def _is_stalled(self) -> bool:
        return time.monotonic() - max(self._answered_at, self._busy_since) > STALLED_S

    def _wait_for_place(self, check: Callable[[], None], within_s: float | None) -> None:
        """Wait for a free place, up to CHECKOUT_TIMEOUT_S or until `check` raises."""
        deadline = time.monotonic() + CHECKOUT_TIMEOUT_S
        while not self._places.acquire(
            timeout=_CHECK_EVERY_S if within_s is None else within_s
        ):
            if within_s is not None and self._is_stalled():
                raise self._slow_error()
            check()
            if time.monotonic() > deadline:
                raise self._busy_error(
                    f"of this worker share {config.pool_size} connections (CATMQ_POOL_SIZE)"
                )

    def _busy_error(self, reason: str) -> NodeUnavailable:
        text = f"Node {self._name} is busy: {self._inside} calls {reason}."
        return NodeUnavailable(text, code=Code.BUSY, retry_after_ms=200)

    def _slow_error(self) -> db_errors.SlowNode:
        return db_errors.SlowNode(f"Node {self._name} takes its time.")

    def _take_session(self, reads: bool) -> PooledSession:
        """Return a usable idle session, or a new session."""
        while True:
            with self._guard:
                term = self._term
                pooled = self._free.pop() if self._free else None
                # Checked before a string is sent: if the connection turns out dead after
                # that, it is unknown if the node stored the messages.
                if (
                    pooled is not None
                    and pooled.is_usable(term)
                    and not pooled.session.is_over()
                ):
                    self._out[pooled] = reads
                    return pooled
            if pooled is None:
                pooled = PooledSession(self._make(), term)
                with self._guard:
                    self._out[pooled] = reads
                return pooled
            pooled.session.close()
