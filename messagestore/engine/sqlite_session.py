"""Sessions on SQLite files: one writer per file at a time, in order of arrival."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import (
    LOCK_TIMEOUT_S,
    CountFitting,
    Step,
    fetch_fitting,
    unreachable,
)
from messagestore.engine.transaction_strings import Result
from metadata.errors import CatmqError
from metadata.rules.nodes import Engine

log = logging.getLogger(__name__)


class FileLock:
    """The write lock of an SQLite file: a queue inside the process, `flock` between
    processes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._guard = threading.Lock()
        # The first event is set: its thread holds the lock.
        self._queue: deque[threading.Event] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises `db_errors.RolledBack` after LOCK_TIMEOUT_S."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        turn = threading.Event()
        with self._guard:
            self._queue.append(turn)
            if len(self._queue) == 1:
                turn.set()
        try:
            if not turn.wait(LOCK_TIMEOUT_S):
                raise db_errors.RolledBack(
                    f"{self._path.name}: locked by others for {LOCK_TIMEOUT_S} s"
                )
            with open(self._path, "ab") as lock_file:
                self._flock(lock_file.fileno(), deadline)
                yield
        finally:
            # A waiter that timed out leaves the queue, too; the first one gets the lock.
            with self._guard:
                self._queue.remove(turn)
                if self._queue:
                    self._queue[0].set()

    def _flock(self, descriptor: int, deadline: float) -> None:
        # Polling instead of a blocking flock, which could not time out.
        pause = 0.0002
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise db_errors.RolledBack(
                        f"{self._path.name}: another process is writing"
                    ) from None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.005)


_file_locks: dict[str, FileLock] = {}
_file_locks_guard = threading.Lock()


class SqliteSession:
    """A connection to an SQLite file. Raises NodeUnavailable if it cannot be opened."""

    engine = Engine.SQLITE
    idle_limit_s = 300.0
    busy_since: float | None = None  # a file is never unreachable
    answered_at = 0.0
    patience_s: float | None = None  # nor slow
    # synchronous=FULL: the WAL is synced before readers see its new end.
    shows_durable_only = True

    def __init__(self, *, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        with _file_locks_guard:
            self._lock = _file_locks.setdefault(os.fspath(path), FileLock(path))
        # Open as long as the session: closing a file releases its lock.
        self._lock_files: list[IO[bytes]] = []
        self.clean = True
        try:
            self._db = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise unreachable(name, str(path), error) from error

    def run(self, *steps: Step, count_fitting: CountFitting | None = None) -> list[Result]:
        results: list[Result] = []
        try:
            for step in steps if count_fitting is None else steps[:-1]:
                results += self._run_section(step)
            if count_fitting is not None:
                last = steps[-1]
                (text,) = last.statement.single(last.parameters)
                cursor = self._db.execute(text, last.parameters)
                rows, _ = fetch_fitting(cursor.fetchmany, count_fitting)
                # An open cursor would hold a read lock of the file.
                cursor.close()
                results.append(Result(rows, len(rows)))
        except sqlite3.Error as error:
            raise db_errors.from_sqlite(error, self._name) from error
        return results

    def transact(self, *steps: Step) -> list[Result]:
        results: list[Result] = []
        with self.transaction():
            for step in steps:
                results += self._run_section(step)
        return results

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one write transaction; it is rolled back on any exception."""
        with self._lock.held():
            self.clean = False
            try:
                # IMMEDIATE takes the write lock now; a deferred transaction could fail at
                # its first write.
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._roll_back(db_errors.from_sqlite(error, self._name)) from error
            except BaseException:
                self._roll_back(db_errors.RolledBack("abandoned"))
                raise
            self.clean = True

    def _roll_back(self, fault: CatmqError) -> CatmqError:
        if self._db.in_transaction:
            self._db.rollback()
        self.clean = not isinstance(fault, db_errors.Ambiguous)
        return fault

    def _run_section(self, step: Step) -> list[Result]:
        results = []
        for text in step.statement.single(step.parameters):
            cursor = self._db.execute(text, step.parameters)
            results.append(Result(cursor.fetchall(), cursor.rowcount))
        return results

    def lock_file(self, purpose: str) -> bool:
        """Take an advisory lock on `<file>.<purpose>` until this session is closed.

        Returns False if another session holds it.
        """
        handle = open(self._path.with_name(f"{self._path.name}.{purpose}"), "ab")  # noqa: SIM115
        try:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return False
        self._lock_files.append(handle)
        return True

    def cut(self) -> None:
        """See Session.cut: no thread waits for a file."""

    def catch_up(self) -> bool:
        return True

    def is_over(self) -> bool:
        """See Session.is_over: a file has no server that could close the connection."""
        return False

    def close(self) -> None:
        self._db.close()
        for handle in self._lock_files:
            handle.close()
