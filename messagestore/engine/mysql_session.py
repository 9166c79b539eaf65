"""Sessions: the protocol of a connection to a node, and its form on MySQL and MariaDB.

A session sends several statements as a single string and reads the result of each. With several
statements in a string, `query()` returns although a later statement failed; the error comes
only when that result is read. Nor is the end of the results a proof: if the connection
breaks between two results, the driver reports the end. So results are counted against
statements.

`clean` is True only while no transaction is open and no result is unread. The pool closes a
session that is not clean and never uses it again.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from messagestore.engine import db_errors, transaction_strings
from messagestore.engine.transaction_strings import Rendered, Result
from metadata.errors import CatmqError
from metadata.rules import engines, tls
from metadata.rules.cluster_members import Member
from metadata.rules.nodes import Engine
from metadata.rules.tls import Tls, TlsMode

log = logging.getLogger(__name__)
PLAIN = Tls(TlsMode.OFF)
CONNECT_TIMEOUT_S = 2
READ_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 10
MALFORMED = 2027  # CR_MALFORMED_PACKET
LOG_EVERY_S = 60.0  # between log lines for the same node and reason
_SESSION_SETTINGS = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00',"
    " innodb_lock_wait_timeout=3, lock_wait_timeout=3, autocommit=1, {frozen},"
    " @catmq_session := {mark};"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SELECT CONNECTION_ID();"
    # SHOW VARIABLES leaves out a variable that the server lacks; SELECT @@x would fail.
    "SHOW VARIABLES WHERE Variable_name IN"
    " ('max_allowed_packet', 'log_bin', 'sync_binlog', 'binlog_storage_engine', "
    "'performance_schema', 'wsrep_on', 'group_replication_group_name')"
)
# The server has to release the locks of a broker that is frozen inside a transaction. MariaDB
# can end the transaction alone, MySQL only the session. And MySQL caches table sizes in
# information_schema for a day unless the expiry is 0.
_FROZEN_CLIENT_SETTINGS = {
    "mariadb": "idle_write_transaction_timeout=5",
    "mysql": "wait_timeout=30, information_schema_stats_expiry=0",
}

# The begin of each further string of a transaction. On another connection than that of the
# first string it fails (1690, out of range), so the rest of the string is not run: a proxy has
# changed the server in between. Both conditions count, since ids of two servers may be equal,
# and a proxy may set variables again.
_SAME_CONNECTION = (
    b"SET @catmq_same = ~0 + IF(CONNECTION_ID() = %d AND @catmq_session <=> %d, 0, 1)"
)
# Galera repeats a statement that was rolled back for another member, a compound statement as a
# whole. Then the columns of its results are missing in the answer, which cannot be read.
_GALERA_SETTINGS = b"SET SESSION wsrep_retry_autocommit = 0"

_WRONG_GREETING = (
    "it greets as {0}, and does not know a setting of that: is there a proxy in between? "
    "Give the address of "
    "the server itself. {1}"
)
Rows = Sequence[tuple[Any, ...]]
# Returns how many of the rows fetched next still fit into the caller's limit.
CountFitting = Callable[[Rows], int]
FETCH_SIZE = 16  # rows fetched at once from a result that may exceed the limit


class Runnable(Protocol):
    """A section of SQL (see `tables/statements.py`); `count`: its number of statements."""

    @property
    def count(self) -> int: ...
    def render(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> bytes: ...
    def render_each(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> list[Rendered]: ...
    def single(self, parameters: Mapping[str, object]) -> list[str]: ...


def escaped(raw: bytes) -> bytes:
    """Return bytes escaped for use inside a quoted SQL string.

    >>> escaped(b"it's")
    b"it''s"
    """
    # Two replacements are enough and much faster than the driver's loop over every byte: in
    # utf8mb4, which all sessions use, no character has a quote or a backslash after its
    # first byte, and our sql_mode keeps the backslash an escape character.
    return raw.replace(b"\\", b"\\\\").replace(b"'", b"''")


def quoted(raw: bytes) -> bytes:
    """Return bytes as an SQL string literal."""
    return b"'" + escaped(raw) + b"'"


class Step(NamedTuple):
    statement: Runnable
    parameters: Mapping[str, object]


def count_statements(steps: Sequence[Step]) -> int:
    return sum(step.statement.count for step in steps)


class Session(Protocol):
    """A connection to a node, used by one thread at a time.

    `shows_durable_only`: commits of other sessions become visible only when they are on
    disk.
    """

    engine: Engine
    shows_durable_only: bool
    clean: bool
    idle_limit_s: float
    # time.monotonic() of the start of the statement in flight; None if there is none
    busy_since: float | None
    answered_at: float  # time.monotonic() of the last answer
    # An answer has to begin within this time, or `SlowNode` is raised. None: no limit.
    patience_s: float | None

    def run(self, *steps: Step, count_fitting: CountFitting | None = None) -> list[Result]:
        """Run sections in order, each statement in its own transaction.

        Returns a result per statement. With `count_fitting`, rows of the last statement
        are fetched only while they fit; the others never enter this process's memory.
        Raises `db_errors.*`.
        """

    def transact(self, *steps: Step) -> list[Result]:
        """Run sections in a transaction and return a result per statement.

        Raises `db_errors.*`. Nothing is stored then, unless the error is Ambiguous.
        """

    def cut(self) -> None:
        """End another thread's wait for an answer, as if the connection had broken."""

    def catch_up(self) -> bool:
        """Return True if a late answer has come, or cannot come any more.

        The session is `clean` again if the answer was read.
        """

    def is_over(self) -> bool:
        """Return True if the node has closed the idle connection.

        A string that was not sent yet is then certainly not stored.
        """

    def close(self) -> None: ...


class UnsupportedServer(Exception):
    """A server answers but cannot be used: it is too old, or not what its greeting claims."""


_logged_at: dict[tuple[str, str], float] = {}


def syncs_before_it_shows(variables: Mapping[str, str]) -> bool:
    """Return True if a server syncs a commit to disk before other sessions see it.

    See heads/durability.py, which has to wait for the sync otherwise.
    """
    # A synced binary log is written before the commit becomes visible. InnoDB's redo log is
    # synced after that, and MariaDB 12.3 can keep the binary log inside InnoDB.
    has_own_binlog = variables["log_bin"] == "ON" and not variables.get(
        "binlog_storage_engine"
    )
    return has_own_binlog and variables["sync_binlog"] == "1"


def unreachable(name: str, address: str, error: Exception) -> db_errors.Unreachable:
    """Log a failed connect, and return the error for clients.

    Clients do not see the address and the server's answer; both are only in the log.
    """
    reason, now = f"{address}: {error.args[-1]}", time.monotonic()
    if now - _logged_at.get((name, reason), -LOG_EVERY_S) >= LOG_EVERY_S:
        _logged_at[name, reason] = now
        log.warning("Node %s cannot be reached at %s", name, reason)
    return db_errors.Unreachable(f"Node {name} cannot be reached.")


class MySqlSession:
    """A connection to MySQL or MariaDB. Raises NodeUnavailable if it cannot be made."""

    engine = Engine.MYSQL

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
        self._statements = 0  # results that the string sent last has to have
        try:
            tls.check_driver(encryption.mode, host, MySQLdb.get_client_info(), os.environ)
            self._db = MySQLdb.connect(
                host=host, port=port, db=database, user=username, passwd=password,
                charset="utf8mb4", use_unicode=True, autocommit=True, local_infile=0,
                client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
                connect_timeout=CONNECT_TIMEOUT_S, read_timeout=read_timeout_s,
                write_timeout=READ_TIMEOUT_S,
                **tls.connect_arguments(*encryption),
            )  # fmt: skip
            if tls.is_plain(encryption.mode, self._db.server_capabilities):
                self._db.close()
                raise tls.PlainText
        except (MySQLdb.Error, tls.Refused) as error:
            raise unreachable(name, f"{host}:{port}", error) from error
        # A duplicate of the descriptor: the driver may close its own at any time, and the
        # kernel may then reuse the number for another file.
        self._socket = socket.socket(fileno=os.dup(self._db.fileno()))
        self._closing = threading.Lock()
        self.greeting = self._db.get_server_info(), self._db.thread_id()
        self.flavour = (
            "mariadb" if "mariadb" in self._db.get_server_info().lower() else "mysql"
        )
        # Shorter than the server's wait_timeout, so that the pool closes idle sessions first.
        self.idle_limit_s = 300.0 if self.flavour == "mariadb" else 25.0
        mark = secrets.randbits(62)
        *_, connection, shown = self._apply_settings(name, f"{host}:{port}", mark)
        self._same_connection = _SAME_CONNECTION % (connection.rows[0][0], mark)
        variables = dict(shown.rows)
        self.is_galera = variables.get("wsrep_on") == "ON"
        self.max_packet = int(variables["max_allowed_packet"])
        self.shows_durable_only = syncs_before_it_shows(variables)
        self.is_clustered = self.is_galera or bool(
            variables.get("group_replication_group_name")
        )
        self.member: Member | None = None  # what the server said of itself, if it was asked
        # MySQL deprecates information_schema.processlist. Its successor in performance_schema is
        # empty if that schema is off.
        has_processlist = (
            self.flavour == "mysql" and variables["performance_schema"] == "ON"
        )
        self.processlist = (
            f"{'performance' if has_processlist else 'information'}_schema.processlist"
        )

    def _apply_settings(self, name: str, address: str, mark: int) -> list[Result]:
        """Set the session's variables and return the results. Raises Unreachable."""
        try:
            text = _SESSION_SETTINGS.format(
                frozen=_FROZEN_CLIENT_SETTINGS[self.flavour], mark=mark
            )
            results = self.send(text.encode(), statements=text.count(";") + 1)
            if dict(results[-1].rows).get("wsrep_on") == "ON":
                self.send(_GALERA_SETTINGS, statements=1)
            return results
        except db_errors.Ambiguous as error:
            self.close()
            raise unreachable(name, address, error) from error
        except db_errors.Final as error:
            # The server lacks a setting that every server of its kind has.
            self.close()
            version = self.greeting[0]
            is_supported = engines.is_supported(version)
            reason = UnsupportedServer(
                _WRONG_GREETING.format(version, error.detail)
                if is_supported
                else engines.too_old_message(version)
            )
            raise unreachable(name, address, reason) from reason

    def literal(self, value: object) -> bytes:
        """Return a value as an SQL literal for this connection."""
        if isinstance(value, str):
            return quoted(value.encode())
        if isinstance(value, bytes):
            return b"_binary" + quoted(value)
        return b"NULL" if value is None else str(int(value)).encode()  # type: ignore[call-overload]

    def run(self, *steps: Step, count_fitting: CountFitting | None = None) -> list[Result]:
        """See Session.run. All sections are sent in a single round trip."""
        return self.send(
            b";".join(map(self.render, steps)),
            statements=count_statements(steps),
            count_fitting=count_fitting,
        )

    def transact(
        self, *steps: Step, begins: bool = True, ends: bool = True
    ) -> list[Result]:
        """See Session.transact. One round trip, unless the sections exceed a packet.

        With `ends` False the transaction stays open. The next call goes on with it, with
        `begins` False, or `roll_back` ends it.
        """
        # In autocommit mode a statement alone is a transaction, and has one answer, not three.
        if begins and ends and count_statements(steps) == 1:
            return self.send(self.render(steps[0]), statements=1)
        statements = [
            rendered
            for step in steps
            for rendered in step.statement.render_each(step.parameters, self.literal)
        ]
        # On Galera the strings are compound statements: see transaction_strings.py.
        compose, results_of = (
            (transaction_strings.compound, transaction_strings.compound_results)
            if self.is_galera
            else (transaction_strings.plain, transaction_strings.plain_results)
        )
        strings = transaction_strings.packed(statements, max_packet=self.max_packet)
        results: list[Result] = []
        for number, string in enumerate(strings, 1):
            is_last = ends and number == len(strings)
            goes_on = None if begins and number == 1 else self._same_connection
            text, answers = compose(string, ends=is_last, goes_on=goes_on)
            answered = self.send(text, statements=answers, ends_transaction=is_last)
            results += results_of(string, answered)
        return results

    def roll_back(self) -> None:
        """Roll back a transaction that `transact` has left open."""
        self.send(b";".join([self._same_connection, b"ROLLBACK"]), statements=2)

    def render(self, step: Step) -> bytes:
        return step.statement.render(step.parameters, self.literal)

    def send(
        self,
        text: bytes,
        *,
        statements: int,
        ends_transaction: bool = True,
        count_fitting: CountFitting | None = None,
    ) -> list[Result]:
        """Run a string of `statements` statements and read the result of each.

        `ends_transaction` is False while a transaction stays open. Raises `db_errors.*`, and
        SlowNode after `patience_s`.

        After an error that left nothing stored, the transaction is rolled back; the session
        stays usable only if the server acknowledged that. After any other error the session
        is not clean. Nor is it when rows of the last result did not fit.
        """
        self.clean = False
        self._statements = statements
        self.busy_since = time.monotonic()
        try:
            if self.patience_s is None:
                self._db.query(text)
            else:
                # Send and receive apart, so that the wait in between can end early.
                self._db.send_query(text)
                if not self._wait_readable(self.patience_s):
                    raise db_errors.SlowNode(f"Node {self._name} is slow.")
                self._db.read_query_result()
            results, is_complete = (
                (self._read_results(), True)
                if count_fitting is None
                else self._read_fitting(count_fitting)
            )
        except self._error as error:
            error_for_caller, may_be_open = self._translate(error)
            # Without an acknowledged ROLLBACK nobody knows if the locks are released and
            # the rows gone, so the outcome becomes unknown and the session is discarded.
            if may_be_open:
                with suppress(self._error):
                    self._db.query(b"ROLLBACK")
                    self.clean = True
                # A server that is not ready refuses ROLLBACK, too. It ran no COMMIT, so the
                # transaction ends unstored with the session, which is closed.
                if not self.clean and not isinstance(error_for_caller, db_errors.NotReady):
                    error_for_caller = db_errors.Ambiguous(
                        f"{error_for_caller.detail}; and the ROLLBACK was not acknowledged"
                    )
            raise error_for_caller from error
        # A partial result leaves rows in the stream, so the session cannot be reused.
        self.clean = ends_transaction and is_complete
        if is_complete:
            self._note_answer()
        self.busy_since = None
        return results

    def _wait_readable(self, seconds: float) -> bool:
        """Wait until the socket has data or is closed; return False after `seconds`."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def _read_results(self) -> list[Result]:
        """Return the result of each statement of a string whose answer has begun."""
        results = []
        while True:
            rows = self._db.store_result()
            matched = self._db.affected_rows()
            if rows is None:
                results.append(Result((), matched, self._db.insert_id()))
            else:
                results.append(Result(rows.fetch_row(0), matched))
            if self._db.next_result() == -1:
                self._require_all_results(len(results))
                return results

    def _require_all_results(self, count: int) -> None:
        """Raise the driver's error unless every statement was answered."""
        # next_result() returns -1 at the end, and also when the connection broke between
        # results.
        if number := self._db.errno():
            raise self._error(number, self._db.error())
        if count != self._statements:
            raise self._error(
                MALFORMED, f"{count} results came back for {self._statements} statements"
            )

    def _note_answer(self) -> None:
        self.busy_since = None
        self.answered_at = time.monotonic()

    def catch_up(self) -> bool:
        if not self._wait_readable(0):
            return False
        try:
            self._db.read_query_result()
            self._read_results()
        except self._error as error:
            self._translate(error)
        else:
            self.clean = True
            self._note_answer()
        return True

    def _read_fitting(self, count_fitting: CountFitting) -> tuple[list[Result], bool]:
        """Return the results, and False if rows of the last result did not fit."""
        results: list[Result] = []
        while True:
            is_last = len(results) == self._statements - 1
            rows, is_complete = fetch_fitting(
                self._db.use_result().fetch_row, count_fitting if is_last else len
            )
            results.append(Result(rows, len(rows)))
            if not is_complete:
                return results, False
            if self._db.next_result() == -1:
                self._require_all_results(len(results))
                return results, True

    def _translate(self, error: Exception) -> tuple[CatmqError, bool]:
        """Return the product error, and True if a transaction may be open."""
        self.busy_since = None
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[-1]) if error.args else str(error)
        db_error = db_errors.from_mysql(number, text, self._name)
        if not (isinstance(db_error, db_errors.Ambiguous) and db_error.lost):
            self.answered_at = time.monotonic()
        return db_error, isinstance(
            db_error, db_errors.RolledBack
        ) or number in db_errors.VALUE_TOO_LARGE

    def cut(self) -> None:
        with self._closing, suppress(OSError):  # the server may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_over(self) -> bool:
        """See Session.is_over."""
        # Between two strings a server sends nothing, except when it ends the connection.
        return self._wait_readable(0)

    def close(self) -> None:
        """Close the connection; the server rolls back an open transaction."""
        with self._closing:
            # Under the lock: `cut` must not shut down a descriptor that was closed and
            # reused.
            self._socket.close()
        try:
            self._db.close()
        except self._error:
            self.clean = False  # the connection was gone already


def fetch_fitting(
    fetch: Callable[[int], Rows], count_fitting: CountFitting
) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the first rows of a result that fit, and True if those were all rows."""
    rows: list[tuple[Any, ...]] = []
    while fetched := fetch(FETCH_SIZE):
        count = count_fitting(fetched)
        rows.extend(fetched[:count])
        if count < len(fetched):
            return rows, False
    return rows, True
