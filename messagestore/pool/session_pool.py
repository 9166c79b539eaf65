"""Sessions of one node in one process: at most `pool_size`, each checked out for one
string.

Nothing here pings. A session is closed instead of reused when its last string ended in
doubt, when the node has closed it, after five minutes, or when it sat idle near the
server's limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S, MySqlSession, Session
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.pool import node_guard
from messagestore.pool.circuit import SILENT_S
from messagestore.pool.slow_nodes import SlowAnswers
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.errors import Code, NodeUnavailable
from metadata.limits.concurrency import limiter
from metadata.rules.tls import Tls

CHECKOUT_TIMEOUT_S = 2.0
MAX_AGE_S = 300.0
_LOOK_EVERY_S = 0.2  # while waiting for a place: whether the node is still there
# Calls, in pool sizes, that may wait for a node that has answered none of them for
# STALLED_S. A busy node
# answers all the time, so only a stalled one is held to this.
MOST_STALLED = 4
STALLED_S = 0.3


def connect(info: NodeInfo, *, read_timeout_s: int = READ_TIMEOUT_S) -> Session:
    if info.engine == "sqlite":
        return SqliteSession(name=info.name, path=sqlite_path(info.database))
    return MySqlSession(
        name=info.name,
        host=info.host,
        port=info.port or 3306,
        database=info.database,
        username=info.username,
        password=info.password,
        encryption=Tls(info.tls, info.tls_ca),
        read_timeout_s=read_timeout_s,
    )


@contextmanager
def direct(info: NodeInfo, *, any_schema: bool = False, **limits: int) -> Iterator[Session]:
    """A session beside the pool, which lends none of a node that is offline; closed, not
    used again.

    `any_schema`: also to tables that this release cannot use. `limits` are those of
    `connect`. Raises
    NodeUnavailable.
    """
    session = connect(info, **limits)
    try:
        if not any_schema:
            node_guard.check_release(info, session)
        yield session
    except db_errors.Ambiguous as fault:
        raise NodeUnavailable(fault.detail) from fault
    finally:
        session.close()


def sqlite_path(database: str) -> Path:
    """The file of an embedded node; a relative one lies in the data directory."""
    return Path(config.data_dir, database).resolve()


class Pooled:
    """A session with its birth, last return and the pool's term it was made in."""

    def __init__(self, session: Session, term: int) -> None:
        self.session = session
        self.term = term
        self.born = self.returned = time.monotonic()

    def usable(self, term: int) -> bool:
        """Return True if it may be checked out again."""
        now = time.monotonic()
        fresh = (
            now - self.born < MAX_AGE_S and now - self.returned < self.session.idle_limit_s
        )
        return self.session.clean and self.term == term and fresh


class SessionPool:
    """The pool; safe for all threads. `make` gives a new session, or raises."""

    def __init__(self, name: str, make: Callable[[], Session]) -> None:
        self.slow: SlowAnswers[Pooled] = SlowAnswers(self.give_back)
        self._name, self._make = name, make
        self._free: list[Pooled] = []
        self._out: dict[Pooled, bool] = {}  # → whether it only reads
        self._guard = threading.Lock()
        self._places = threading.BoundedSemaphore(config.pool_size)
        self._term = 0
        self._inside = 0
        # when somebody came in, when the node last spoke
        self._since = self._answered_at = time.monotonic()

    @property
    def busy(self) -> bool:
        return bool(self._out)

    def take(
        self, *, reads: bool, within_s: float | None, check: Callable[[], None]
    ) -> Pooled:
        """A session, with a place in the pool; `give_back` gives both back.

        `check` is asked while it waits for a place, and ends that by what it raises. Raises
        NodeUnavailable: too many wait, or no place was free in time; `db_errors.SlowNode`
        if the node is slow.
        """
        with self._guard:
            if not self._inside:
                self._since = time.monotonic()
            elif self._inside >= MOST_STALLED * config.pool_size and self._is_stalled():
                raise self._crowded("wait for an answer")
            self._inside += 1
        placed = False
        try:
            placed = self._places.acquire(blocking=False)
            if not placed:
                with limiter.aside():
                    self._await_place(check, within_s)
                placed = True
            pooled = self._reused_or_new(reads)
            if isinstance(within_s, float):
                within_s = self.slow.patience_s(within_s)
            pooled.session.patience_s = within_s
        except BaseException:
            if placed:
                self._places.release()
            with self._guard:
                self._inside -= 1
            raise
        return pooled

    def give_back(self, pooled: Pooled) -> None:
        """Take a session back, or close it."""
        pooled.returned = time.monotonic()
        with self._guard:
            self._inside -= 1
            self._out.pop(pooled, None)
            if pooled.session.clean:
                self._answered_at = pooled.returned
                self.slow.note_answer()
            keep = pooled.usable(self._term)
            if keep:
                self._free.append(pooled)
        if not keep:
            pooled.session.close()
        self._places.release()

    def discard(self) -> None:
        """Throw away every session made so far; those in use are closed when they come
        back.
        """
        with self._guard:
            self._term += 1
            idle, self._free = self._free, []
        for pooled in idle:
            pooled.session.close()

    def check_patience(self) -> None:
        """Raise `db_errors.SlowNode` while the node is in doubt."""
        if self.slow.doubts(answered_at=self._answered_at):
            raise self._too_slow()

    def is_silent(self) -> bool:
        """Return True if statements wait and none was answered for SILENT_S."""
        if not self._out or time.monotonic() - self._answered_at < SILENT_S:
            return False
        out = self._checked_out()
        waits = [
            pooled.session.busy_since
            for pooled, _ in out
            if pooled.session.busy_since is not None
        ]
        if not waits:
            return False
        answered_at = max(
            self._answered_at, *(pooled.session.answered_at for pooled, _ in out)
        )
        return time.monotonic() - max(min(waits), answered_at) > SILENT_S

    def cut_silent_reads(self) -> None:
        """End the reads that have waited for SILENT_S: nothing of theirs is in doubt."""
        late = time.monotonic() - SILENT_S
        for pooled, reads in self._checked_out():
            if reads and (pooled.session.busy_since or late) < late:
                pooled.session.cut()

    def _checked_out(self) -> list[tuple[Pooled, bool]]:
        with self._guard:
            return list(self._out.items())

    def _is_stalled(self) -> bool:
        return time.monotonic() - max(self._answered_at, self._since) > STALLED_S

    def _await_place(self, check: Callable[[], None], within_s: float | None) -> None:
        """Take a place when one is free; give up after a while, or when the node turns out
        to be away.
        """
        deadline = time.monotonic() + CHECKOUT_TIMEOUT_S
        while not self._places.acquire(
            timeout=_LOOK_EVERY_S if within_s is None else within_s
        ):
            if within_s is not None and self._is_stalled():
                raise self._too_slow()
            check()
            if time.monotonic() > deadline:
                raise self._crowded(
                    f"of this worker share {config.pool_size} connections (CATMQ_POOL_SIZE)"
                )

    def _crowded(self, why: str) -> NodeUnavailable:
        what = f"Node {self._name} is busy: {self._inside} calls {why}."
        return NodeUnavailable(what, code=Code.BUSY, retry_after_ms=200)

    def _too_slow(self) -> db_errors.SlowNode:
        return db_errors.SlowNode(f"Node {self._name} takes its time.")

    def _reused_or_new(self, reads: bool) -> Pooled:
        while True:
            with self._guard:
                term = self._term
                pooled = self._free.pop() if self._free else None
                # Asked before a string is sent: afterwards nobody knows whether a dead node
                # had stored it.
                if (
                    pooled is not None
                    and pooled.usable(term)
                    and not pooled.session.is_over()
                ):
                    self._out[pooled] = reads
                    return pooled
            if pooled is None:
                pooled = Pooled(self._make(), term)
                with self._guard:
                    self._out[pooled] = reads
                return pooled
            pooled.session.close()
