"""Sessions on SQLite files: one writer at a time per file, in the order of arrival."""

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
    Fits,
    Result,
    Step,
    taken,
    unreachable,
)
from metadata.errors import CatmqError

log = logging.getLogger(__name__)


class FileLock:
    """One writer at a time for an SQLite file: in turn within the process, then `flock`
    between processes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._guard = threading.Lock()
        self._queue: deque[threading.Event] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises `db_errors.RolledBack` after LOCK_TIMEOUT_S."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        turn = self._enqueue()
        try:
            if not turn.wait(LOCK_TIMEOUT_S):
                raise db_errors.RolledBack(
                    f"{self._path.name}: locked by others for {LOCK_TIMEOUT_S} s"
                )
            with open(self._path, "ab") as handle:
                self._flock(handle.fileno(), deadline)
                yield
        finally:
            self._leave(turn)

    def _enqueue(self) -> threading.Event:
        turn = threading.Event()
        with self._guard:
            self._queue.append(turn)
            if len(self._queue) == 1:
                turn.set()
        return turn

    def _leave(self, turn: threading.Event) -> None:
        with self._guard:
            self._queue.remove(turn)
            if self._queue:
                self._queue[0].set()

    def _flock(self, descriptor: int, deadline: float) -> None:
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


def _file_lock(path: Path) -> FileLock:
    with _file_locks_guard:
        return _file_locks.setdefault(os.fspath(path), FileLock(path))


class SqliteSession:
    """A connection to an SQLite file. Raises NodeUnavailable when it cannot be opened."""

    engine = "sqlite"
    idle_limit_s = 300.0
    busy_since: float | None = None  # a file is not away
    answered_at = 0.0
    patience_s: float | None = None  # nor is it late
    # synchronous=FULL: the log is synced before readers are told of its end
    shows_durable_only = True

    def __init__(self, *, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        self._lock = _file_lock(path)
        self._held: list[IO[bytes]] = []  # locks that end with the session
        self.clean = True
        try:
            self._db = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise unreachable(name, str(path), error) from error

    def run(self, *steps: Step, fits: Fits | None = None) -> list[Result]:
        results: list[Result] = []
        try:
            for step in steps[:-1]:
                results += self._each(step)
            results += (
                self._each(steps[-1]) if fits is None else [self._some(steps[-1], fits)]
            )
        except sqlite3.Error as error:
            raise db_errors.from_sqlite(error, self._name) from error
        return results

    def transact(self, *steps: Step) -> list[Result]:
        results: list[Result] = []
        with self.transaction():
            for step in steps:
                results += self._each(step)
        return results

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; rolled back on any exception."""
        with self._lock.held():
            self.clean = False
            try:
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

    def _each(self, step: Step) -> list[Result]:
        results = []
        for text in step.statement.single(step.parameters):
            cursor = self._db.execute(text, step.parameters)
            results.append(Result(cursor.fetchall(), cursor.rowcount))
        return results

    def _some(self, step: Step, fits: Fits) -> Result:
        (text,) = step.statement.single(step.parameters)
        cursor = self._db.execute(text, step.parameters)
        rows, _ = taken(cursor.fetchmany, fits)
        cursor.close()
        return Result(rows, len(rows))

    def lock_file(self, purpose: str) -> bool:
        """Take an advisory lock beside the file until this session is closed; False if
        another holds it.
        """
        handle = open(self._path.with_name(f"{self._path.name}.{purpose}"), "ab")  # noqa: SIM115
        try:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return False
        self._held.append(handle)
        return True

    def cut(self) -> None:
        """See Session; nobody waits for a file."""

    def catch_up(self) -> bool:
        return True

    def is_over(self) -> bool:
        """See Session: there is no other side."""
        return False

    def close(self) -> None:
        self._db.close()
        for handle in self._held:
            handle.close()
