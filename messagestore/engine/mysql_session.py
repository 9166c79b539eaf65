"""One connection to a node: what it can do, and how it does it on MySQL / MariaDB.

A session runs whole strings and reads every result: with several statements in a string,
`query()`
returns although a later statement failed, and the error comes only when its result is asked
for. The end of the results proves nothing either: a connection that breaks between two of
them looks to the driver's callers like their end, so results are count_statements against
statements. `clean` is true only while nothing is open and nothing is unread; a session that
is not clean is closed by the pool, never used again.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from messagestore.engine import db_errors
from metadata.errors import CatmqError
from metadata.rules import engines, tls
from metadata.rules.tls import Tls

log = logging.getLogger(__name__)
PLAIN = Tls("off")
CONNECT_TIMEOUT_S = 2
READ_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 10
MALFORMED = 2027  # what the driver calls an answer that is none
COMPLAIN_EVERY_S = 60.0  # about the same node for the same reason
_SESSION_SETTINGS = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00',"
    " innodb_lock_wait_timeout=3, lock_wait_timeout=3, autocommit=1, {frozen};"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SHOW VARIABLES WHERE Variable_name IN"  # a server that lacks one of them leaves it out
    " ('max_allowed_packet', 'log_bin', 'sync_binlog', 'binlog_storage_engine', "
    "'performance_schema')"
)
# A broker frozen inside a transaction must give its locks back: MariaDB can end just that,
# MySQL the session.
# And MySQL would answer with sizes of tables that are a day old.
_FROZEN = {
    "mariadb": "idle_write_transaction_timeout=5",
    "mysql": "wait_timeout=30, information_schema_stats_expiry=0",
}

_POSES = (
    "it greets as {0}, and does not know a setting of that: is there a proxy in between? "
    "Give the address of "
    "the server itself. {1}"
)
Rows = Sequence[tuple[Any, ...]]
Fits = Callable[[Rows], int]  # how many of the rows that were fetched next are still wanted
FETCHED_AT_ONCE = 16  # rows, of a result that may be too large


class Result(NamedTuple):
    """Result of one statement: its rows, or how many rows it matched; `number`: its
    LAST_INSERT_ID(…).
    """

    rows: Sequence[tuple[Any, ...]]
    matched: int
    number: int = 0


class Runnable(Protocol):
    """A section as `messagestore.engine.statements` makes them; `count`: how many
    statements it holds.
    """

    @property
    def count(self) -> int: ...
    def render(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> bytes: ...
    def single(self, parameters: Mapping[str, object]) -> list[str]: ...


def escaped(raw: bytes) -> bytes:
    """The inside of a string in SQL. The server needs no more than these two; the driver
    looks at every byte.

    No character of utf8mb4, which our connections speak, has a quote or a backslash behind
    its first byte, and their sql_mode keeps the backslash special.

    >>> escaped(b"it's")
    b"it''s"
    """
    return raw.replace(b"\\", b"\\\\").replace(b"'", b"''")


def quoted(raw: bytes) -> bytes:
    """Bytes as a string in SQL."""
    return b"'" + escaped(raw) + b"'"


class Step(NamedTuple):
    statement: Runnable
    parameters: Mapping[str, object]


def count_statements(steps: Sequence[Step]) -> int:
    return sum(step.statement.count for step in steps)


class Session(Protocol):
    """One connection; used by one thread at a time.

    `shows_durable_only`: whether what others committed is seen only when it is on disk.
    """

    engine: str
    shows_durable_only: bool
    clean: bool
    idle_limit_s: float
    # monotonic; of the statement that waits for its answer now, where that is known
    busy_since: float | None
    answered_at: float  # monotonic; of the last answer
    # within which an answer must begin, or `SlowNode` is raised; None: no limit
    patience_s: float | None

    def run(self, *steps: Step, fits: Fits | None = None) -> list[Result]:
        """Run sections in order, each statement by itself; one result per statement. Raises
        `db_errors.*`.

        Rows of the last statement are taken while they fit; the others stay out of this
        process's memory.
        """

    def transact(self, *steps: Step) -> list[Result]:
        """Run sections as one transaction; one result per statement.

        Raises `db_errors.*`; then nothing is stored, unless the fault is Ambiguous.
        """

    def cut(self) -> None:
        """End the wait of another thread for an answer, as if the connection had broken."""

    def catch_up(self) -> bool:
        """Return True if a late answer has come, or will not come; `clean` again if it was
        read.
        """

    def is_over(self) -> bool:
        """Return True if the node closed the idle connection: what is not sent yet is not
        stored.
        """

    def close(self) -> None: ...


class Unfit(Exception):
    """A server answers, and cannot be used: it is too old, or not of the kind that its
    greeting says.
    """


_complained: dict[tuple[str, str], float] = {}


def syncs_before_it_shows(variables: Mapping[str, str]) -> bool:
    """Return True if a server syncs a commit to disk before it shows it to others
    (durability.py).

    It does with a binary log of its own that is synced. InnoDB's redo log is synced
    afterwards, and MariaDB
    12.3 can keep the binary log in there.
    """
    own = variables["log_bin"] == "ON" and not variables.get("binlog_storage_engine")
    return own and variables["sync_binlog"] == "1"


def unreachable(name: str, where: str, error: Exception) -> db_errors.Unreachable:
    """Return the error for clients of a failed connect; where the node is and what it said
    is for the log.
    """
    said, now = f"{where}: {error.args[-1]}", time.monotonic()
    if now - _complained.get((name, said), -COMPLAIN_EVERY_S) >= COMPLAIN_EVERY_S:
        _complained[name, said] = now
        log.warning("Node %s cannot be reached at %s", name, said)
    return db_errors.Unreachable(f"Node {name} cannot be reached.")


class MySqlSession:
    """A connection to MySQL or MariaDB. Raises NodeUnavailable when none can be made."""

    engine = "mysql"

    def __init__(
        self,
        *,
        name: str,
        host: str,
        port: int,
        database: str,
        username: str,
        password: str,
        encryption: Tls = PLAIN,
        read_timeout_s: int = READ_TIMEOUT_S,
    ) -> None:
        import MySQLdb  # compiled, so optional: an embedded deployment has no such driver
        from MySQLdb.constants import CLIENT

        self._error: type[Exception] = MySQLdb.Error
        self._name = name
        self.clean = True
        self.busy_since: float | None = None
        self.answered_at = time.monotonic()
        self.patience_s: float | None = None
        self._statements = 0  # of the string that was sent last
        try:
            tls.check_driver(encryption.mode, host, MySQLdb.get_client_info(), os.environ)
            self._db = MySQLdb.connect(
                host=host, port=port, db=database, user=username, passwd=password,
                charset="utf8mb4", use_unicode=True, autocommit=True, local_infile=0,
                client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
                connect_timeout=CONNECT_TIMEOUT_S, read_timeout=read_timeout_s,
                write_timeout=READ_TIMEOUT_S,
                **tls.arguments(*encryption),
            )  # fmt: skip
            if tls.is_plain(encryption.mode, self._db.server_capabilities):
                self._db.close()
                raise tls.PlainText
        except (MySQLdb.Error, tls.Refused) as error:
            raise unreachable(name, f"{host}:{port}", error) from error
        # A second descriptor: the driver may close its own at any time, and the number may
        # be given again.
        self._socket = socket.socket(fileno=os.dup(self._db.fileno()))
        self._closing = threading.Lock()
        self.greeting = self._db.get_server_info(), self._db.thread_id()
        self.flavour = (
            "mariadb" if "mariadb" in self._db.get_server_info().lower() else "mysql"
        )
        # below wait_timeout
        self.idle_limit_s = 300.0 if self.flavour == "mariadb" else 25.0
        told = dict(self._settings(name, f"{host}:{port}")[-1].rows)
        self.max_packet = int(told["max_allowed_packet"])
        self.shows_durable_only = syncs_before_it_shows(told)
        # MySQL is to lose the one in information_schema; where performance_schema is off,
        # its own is empty.
        here = self.flavour == "mysql" and told["performance_schema"] == "ON"
        self.processlist = f"{'performance' if here else 'information'}_schema.processlist"

    def _settings(self, name: str, where: str) -> list[Result]:
        try:
            text = _SESSION_SETTINGS.format(frozen=_FROZEN[self.flavour])
            return self.send(text.encode(), statements=text.count(";") + 1)
        except db_errors.Ambiguous as fault:
            self.close()
            raise unreachable(name, where, fault) from fault
        except db_errors.Final as fault:  # it lacks what a server of its kind has
            self.close()
            version = self.greeting[0]
            fits = engines.is_supported(version)
            said = Unfit(
                _POSES.format(version, fault.detail) if fits else engines.too_old(version)
            )
            raise unreachable(name, where, said) from said

    def literal(self, given: object) -> bytes:
        """A value as SQL, escaped for this connection."""
        if isinstance(given, str):
            return quoted(given.encode())
        if isinstance(given, bytes):
            return b"_binary" + quoted(given)
        return b"NULL" if given is None else str(int(given)).encode()  # type: ignore[call-overload]

    def run(self, *steps: Step, fits: Fits | None = None) -> list[Result]:
        """See Session: one string, one round trip."""
        return self.send(
            b";".join(map(self.render, steps)),
            statements=count_statements(steps),
            fits=fits,
        )

    def transact(self, *steps: Step) -> list[Result]:
        """See Session: one string, one round trip."""
        whole = b";".join([b"START TRANSACTION", *map(self.render, steps), b"COMMIT"])
        return self.send(whole, statements=count_statements(steps) + 2)[1:-1]

    def render(self, step: Step) -> bytes:
        return step.statement.render(step.parameters, self.literal)

    def send(
        self, text: bytes, *, statements: int, ends: bool = True, fits: Fits | None = None
    ) -> list[Result]:
        """Run a string of so many statements and read the result of each; `ends` is False
        while a transaction stays open. Raises `db_errors.*`, SlowNode after `patience_s`.

        After an error that left nothing stored the transaction is rolled back, and the
        session stays usable only if the server acknowledged that; after any other it is not
        clean. Nor is it when rows of the last result did not fit.
        """
        self.clean = False
        self._statements = statements
        self.busy_since = time.monotonic()
        try:
            if self.patience_s is None:
                self._db.query(text)
            else:
                self._db.send_query(text)
                self._await_answer(self.patience_s)
            results, whole = (
                (self._read(), True) if fits is None else self._read_while(fits)
            )
        except self._error as error:
            fault, is_open = self._fault(error)
            if is_open:
                with suppress(self._error):
                    self._db.query(b"ROLLBACK")
                    self.clean = True
                if not self.clean:
                    fault = db_errors.Ambiguous(
                        f"{fault.detail}; and the ROLLBACK was not acknowledged"
                    )
            raise fault from error
        self.clean = ends and whole
        if whole:
            self._answered()
        self.busy_since = None
        return results

    def _await_answer(self, seconds: float) -> None:
        if not self._answers_within(seconds):
            raise db_errors.SlowNode(f"Node {self._name} is slow.")
        self._db.read_query_result()

    def _answers_within(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def _read(self) -> list[Result]:
        """Every result of a string whose answer has begun."""
        results = []
        while True:
            rows = self._db.store_result()
            matched = self._db.affected_rows()
            if rows is None:
                results.append(Result((), matched, self._db.insert_id()))
            else:
                results.append(Result(rows.fetch_row(0), matched))
            if self._db.next_result() == -1:
                self._must_be_all(len(results))
                return results

    def _must_be_all(self, results: int) -> None:
        """Raise the driver's error unless every statement was answered when no more results
        come.

        -1 is the end for the driver, and also what it says when the connection broke
        between two results.
        """
        if number := self._db.errno():
            raise self._error(number, self._db.error())
        if results != self._statements:
            raise self._error(
                MALFORMED, f"{results} results came back for {self._statements} statements"
            )

    def _answered(self) -> None:
        self.busy_since = None
        self.answered_at = time.monotonic()

    def catch_up(self) -> bool:
        if not self._answers_within(0):
            return False
        try:
            self._db.read_query_result()
            self._read()
        except self._error as error:
            self._fault(error)
        else:
            self.clean = True
            self._answered()
        return True

    def _read_while(self, fits: Fits) -> tuple[list[Result], bool]:
        """Every result, of the last one what fits, and whether that was all of it."""
        results: list[Result] = []
        while True:
            last = len(results) == self._statements - 1
            rows, whole = taken(self._db.use_result().fetch_row, fits if last else len)
            results.append(Result(rows, len(rows)))
            if not whole:
                return results, False
            if self._db.next_result() == -1:
                self._must_be_all(len(results))
                return results, True

    def _fault(self, error: Exception) -> tuple[CatmqError, bool]:
        """Return the fault, and whether a transaction may be open that a ROLLBACK ends."""
        self.busy_since = None
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[-1]) if error.args else str(error)
        fault = db_errors.from_mysql(number, text, self._name)
        if not (isinstance(fault, db_errors.Ambiguous) and fault.lost):
            self.answered_at = time.monotonic()
        return fault, isinstance(fault, db_errors.RolledBack) or number in db_errors.UNFIT

    def cut(self) -> None:
        with self._closing, suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_over(self) -> bool:
        """See Session. A server that is asked nothing says nothing, but when it ends the
        connection.
        """
        return self._answers_within(0)

    def close(self) -> None:
        """Close the connection; the server rolls back what was open."""
        with self._closing:
            self._socket.close()
        try:
            self._db.close()
        except self._error:
            self.clean = False  # already gone: there is nothing left to close


def taken(fetch: Callable[[int], Rows], fits: Fits) -> tuple[list[tuple[Any, ...]], bool]:
    """The first rows of a result that fit, and whether those were all."""
    rows: list[tuple[Any, ...]] = []
    while fetched := fetch(FETCHED_AT_ONCE):
        count = fits(fetched)
        rows.extend(fetched[:count])
        if count < len(fetched):
            return rows, False
    return rows, True
