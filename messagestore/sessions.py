"""One connection to a node, for either engine.

A session runs whole strings and reads every result: with several statements in a string, `query()`
returns although a later statement failed, and the error comes only when its result is asked for.
`clean` is true only while nothing is open and nothing is unread; a session that is not clean is
closed by the pool, never used again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from messagestore import faults
from metadata.errors import CatmqError, NodeUnavailable

log = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 2
READ_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 10
COMPLAIN_EVERY_S = 60.0  # about the same node for the same reason
_SESSION_SETTINGS = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00',"
    " innodb_lock_wait_timeout=3, lock_wait_timeout=3, autocommit=1, {frozen};"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SELECT @@max_allowed_packet, @@log_bin, @@sync_binlog"
)
# A broker frozen inside a transaction must give its locks back: MariaDB can end just that, MySQL the session.
_FROZEN = {"mariadb": "idle_write_transaction_timeout=5", "mysql": "wait_timeout=30"}


Rows = Sequence[tuple[Any, ...]]
Fits = Callable[[Rows], int]  # how many of the rows that were fetched next are still wanted
FETCHED_AT_ONCE = 16  # rows, of a result that may be too large


class Result(NamedTuple):
    """What one statement gave: its rows, or how many rows it matched."""

    rows: Sequence[tuple[Any, ...]]
    matched: int


class Runnable(Protocol):
    """A statement as `messagestore.statements` makes them."""

    def render(self, parameters: Mapping[str, object], literal: Callable[[object], bytes]) -> bytes: ...
    def single(self, parameters: Mapping[str, object]) -> list[str]: ...


class Step(NamedTuple):
    """A statement with its values."""

    statement: Runnable
    parameters: Mapping[str, object]


class Session(Protocol):
    """One connection; used by one thread at a time.

    `shows_durable_only`: whether what others committed is seen only when it is on disk.
    """

    engine: str
    shows_durable_only: bool
    clean: bool
    idle_limit_s: float

    def run(self, *steps: Step, fits: Fits | None = None) -> list[Result]:
        """Runs sections in order, each statement by itself; one result per statement. Raises `faults.*`.

        Rows of the last statement are taken while they fit; the others stay out of this process's memory.
        """

    def transact(self, *steps: Step) -> list[Result]:
        """Runs sections as one transaction; one result per statement.

        Raises `faults.*`; then nothing is stored, unless the fault is Ambiguous.
        """

    def close(self) -> None: ...


_complained: dict[tuple[str, str], float] = {}


def _unreachable(name: str, where: str, error: Exception) -> NodeUnavailable:
    """What clients are told of a failed connect; where the node is and what it said is for the log."""
    said, now = f"{where}: {error.args[-1]}", time.monotonic()
    if now - _complained.get((name, said), -COMPLAIN_EVERY_S) >= COMPLAIN_EVERY_S:
        _complained[name, said] = now
        log.warning("Node %s cannot be reached at %s", name, said)
    return NodeUnavailable(f"Node {name} cannot be reached.")


class MySqlSession:
    """A connection to MySQL or MariaDB. Raises NodeUnavailable when none can be made."""

    engine = "mysql"

    def __init__(
        self, *, name: str, host: str, port: int, database: str, username: str, password: str
    ) -> None:
        import MySQLdb  # compiled, so optional: an embedded deployment has no such driver
        from MySQLdb.constants import CLIENT

        self._error: type[Exception] = MySQLdb.Error
        self._name = name
        self.clean = True
        try:
            self._db = MySQLdb.connect(
                host=host, port=port, db=database, user=username, passwd=password,
                charset="utf8mb4", use_unicode=True, autocommit=True,
                client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
                connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, write_timeout=READ_TIMEOUT_S,
            )  # fmt: skip
        except MySQLdb.Error as error:
            raise _unreachable(name, f"{host}:{port}", error) from error
        self.flavour = "mariadb" if "mariadb" in self._db.get_server_info().lower() else "mysql"
        self.idle_limit_s = 300.0 if self.flavour == "mariadb" else 25.0  # below wait_timeout
        results = self.send(_SESSION_SETTINGS.format(frozen=_FROZEN[self.flavour]).encode())
        self.max_packet, binlog, sync = map(int, results[-1].rows[0])
        # The binary log is synced before InnoDB shows a commit; its redo log is not (durability.py).
        self.shows_durable_only = bool(binlog) and sync == 1
        self.quote: Callable[[bytes], bytes] = self._db.string_literal

    def literal(self, given: object) -> bytes:
        """A value as SQL, escaped for this connection."""
        if isinstance(given, str):
            return self.quote(given.encode())
        if isinstance(given, bytes):
            return b"_binary" + self.quote(given)
        return b"NULL" if given is None else str(int(given)).encode()  # type: ignore[call-overload]

    def run(self, *steps: Step, fits: Fits | None = None) -> list[Result]:
        """See Session: one string, one round trip."""
        text = b";".join(self.render(step) for step in steps)
        return self.send(text) if fits is None else self._stream(text, len(steps), fits)

    def transact(self, *steps: Step) -> list[Result]:
        """See Session: one string, one round trip."""
        texts = [self.render(step) for step in steps]
        return self.send(b";".join([b"START TRANSACTION", *texts, b"COMMIT"]))[1:-1]

    def render(self, step: Step) -> bytes:
        """A step as the bytes to send."""
        return step.statement.render(step.parameters, self.literal)

    def send(self, text: bytes, *, ends: bool = True) -> list[Result]:
        """Runs a string of statements and reads every result; `ends` is False while a transaction stays open.

        After an error that left nothing stored the transaction is rolled back, and the session stays
        usable only if the server acknowledged that; after any other it is not clean.
        """
        self.clean = False
        results = []
        try:
            self._db.query(text)
            while True:
                rows = self._db.store_result()
                matched = self._db.affected_rows()
                results.append(Result(rows.fetch_row(0) if rows else (), matched))
                if self._db.next_result() == -1:
                    break
        except self._error as error:
            raise self._fault(error) from error
        self.clean = ends
        return results

    def _stream(self, text: bytes, statements: int, fits: Fits) -> list[Result]:
        """Sections of one statement each; a result that does not fit leaves the session to be closed."""
        self.clean = False
        results: list[Result] = []
        try:
            self._db.query(text)
            while True:
                last = len(results) == statements - 1
                rows, whole = _taken(self._db.use_result(), fits if last else len)
                results.append(Result(rows, len(rows)))
                if not whole:
                    return results
                if self._db.next_result() == -1:
                    break
        except self._error as error:
            raise self._fault(error) from error
        self.clean = True
        return results

    def _fault(self, error: Exception) -> faults.RolledBack | faults.Ambiguous | faults.Final:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[-1]) if error.args else str(error)
        fault = faults.of_mysql(number, text, self._name)
        if isinstance(fault, faults.RolledBack) or number in faults.UNFIT:
            try:
                self._db.query(b"ROLLBACK")
            except self._error:
                return faults.Ambiguous(f"{fault.detail}; and the ROLLBACK was not acknowledged")
            self.clean = True
        return fault

    def close(self) -> None:
        """Closes the connection; the server rolls back what was open."""
        try:
            self._db.close()
        except self._error:
            self.clean = False  # already gone: there is nothing left to close


def _taken(result: Any, fits: Fits) -> tuple[list[tuple[Any, ...]], bool]:
    """The first rows of a result that fit, and whether those were all."""
    rows: list[tuple[Any, ...]] = []
    while fetched := result.fetch_row(FETCHED_AT_ONCE):
        count = fits(fetched)
        rows.extend(fetched[:count])
        if count < len(fetched):
            return rows, False
    return rows, True


class FileLock:
    """One writer at a time for an SQLite file: in turn within the process, then `flock` between processes."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._guard = threading.Lock()
        self._queue: deque[threading.Event] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock. Raises `faults.RolledBack` after LOCK_TIMEOUT_S."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        turn = self._enqueue()
        try:
            if not turn.wait(LOCK_TIMEOUT_S):
                raise faults.RolledBack(f"{self._path.name}: no turn to write within {LOCK_TIMEOUT_S} s")
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
                    raise faults.RolledBack(f"{self._path.name}: another process is writing") from None
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
    shows_durable_only = True  # synchronous=FULL: the log is synced before readers are told of its end

    def __init__(self, *, name: str, path: Path) -> None:
        self._name = name
        self._lock = _file_lock(path)
        self.clean = True
        try:
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as error:
            raise _unreachable(name, str(path), error) from error

    def run(self, *steps: Step, fits: Fits | None = None) -> list[Result]:
        """See Session."""
        try:
            before = [result for step in steps[:-1] for result in self._each(step)]
            return [*before, *(self._each(steps[-1]) if fits is None else [self._some(steps[-1], fits)])]
        except sqlite3.Error as error:
            raise faults.of_sqlite(error, self._name) from error

    def transact(self, *steps: Step) -> list[Result]:
        """See Session."""
        with self.transaction():
            return [result for step in steps for result in self._each(step)]

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
                raise self._roll_back(faults.of_sqlite(error, self._name)) from error
            except BaseException:
                self._roll_back(faults.RolledBack("abandoned"))
                raise
            self.clean = True

    def _roll_back(self, fault: CatmqError) -> CatmqError:
        if self._db.in_transaction:
            self._db.rollback()
        self.clean = not isinstance(fault, faults.Ambiguous)
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
        rows: list[tuple[Any, ...]] = []
        while fetched := cursor.fetchmany(FETCHED_AT_ONCE):
            count = fits(fetched)
            rows.extend(fetched[:count])
            if count < len(fetched):
                break
        cursor.close()
        return Result(rows, len(rows))

    def close(self) -> None:
        """Closes the file."""
        self._db.close()
