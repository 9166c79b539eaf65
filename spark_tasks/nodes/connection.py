"""One connection to a node, for reading only: short statements, each its own snapshot.

Nothing stays open between two chunks, so that no read of a job delays the dropping of a
partition. A result is fetched in pieces, each made into what is wanted before the next
comes, which was measured to be the quicker way; it is given up when it is larger than a
chunk may be, and the next is then smaller. What MySQL answers is read from its packets;
mysqlclient reads it where the connection is encrypted, and where rows may have any size.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import pyarrow as pa

from spark_tasks.errors import NodeError
from spark_tasks.nodes import tls
from spark_tasks.nodes.columns import Values
from spark_tasks.nodes.packets import Answer, Broken, Refused, TooLarge
from spark_tasks.nodes.plans import Address, Span

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
FETCHED_AT_ONCE = 1_000  # rows
FETCHED_FIRST = 20  # with bodies, before it is known how large they are
PIECE_BYTES = 4 << 20  # bodies fetched at once, about
MOST_BYTES = 32 << 20  # bodies, or all that is sent, in one chunk

Rows = Sequence[tuple[Any, ...]]
T = TypeVar("T")
# of the values of each column, and how many rows these are
Made = Callable[[Sequence[Values], int], T]


class Lost(Exception):
    """The connection broke; what was asked for may be asked for again."""


class Node(ABC):
    """A connection to a node. In SQL, µs since 1970: `now` is its time, `stored_at` that of
    a message.
    """

    now: str
    stored_at: str

    def pieces(
        self, select: str, made: Made[T], *, columns: int, body: int | None, bounded: bool
    ) -> tuple[list[T], bool]:
        """Read a SELECT of so many columns piece by piece; return the pieces, and True if
        that is all.

        After False, which `bounded` allows, only `close` may be called. `body`: which
        column holds bodies, if one does. Raises Lost, NodeError.
        """

        def of_rows(rows: Rows) -> T:
            return made(self._columns(rows), len(rows))

        return self._fetched(select, of_rows, body if bounded else None)

    def rows(self, select: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT. Raises Lost, NodeError."""
        return [row for piece in self._fetched(select, list, None)[0] for row in piece]

    def one(self, select: str) -> tuple[Any, ...]:
        """The only row of a SELECT. Raises Lost, NodeError."""
        return next(iter(self.rows(select)), (None,))

    @abstractmethod
    def literal(self, text: str) -> str:
        """A text as SQL."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, also one that is broken."""

    @abstractmethod
    def _columns(self, rows: Rows) -> list[Values]:
        """The values of each column of some rows."""

    @abstractmethod
    def _fetched(
        self, select: str, made: Callable[[Rows], T], body: int | None
    ) -> tuple[list[T], bool]: ...


class MySqlNode(Node):
    now = "CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(3)) * 1000000 AS SIGNED)"
    stored_at = "CAST(UNIX_TIMESTAMP(stored_at) * 1000000 AS SIGNED)"

    def __init__(self, address: Address) -> None:
        import MySQLdb

        self._error = MySQLdb.Error
        self._broken = (2002, 2003, 2006, 2013, 2014, 2026, 2055, 1317, 1927, 4031)
        self._name = address.name
        if problem := tls.driver_problem(
            address.tls, address.host, MySQLdb.get_client_info()
        ):
            raise NodeError(f"node {address.name} has tls={address.tls}: {problem}")
        try:
            self._db = MySQLdb.connect(
                host=address.host, port=address.port, db=address.database, user=address.username,
                passwd=address.password, charset="utf8mb4", use_unicode=False, conv={},
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S,
                write_timeout=READ_TIMEOUT_S,
                local_infile=0,  # or a server may ask this process for any file
                **tls.arguments(address.tls, address.tls_ca),
            )  # fmt: skip
            if tls.is_plain(address.tls, self._db.server_capabilities):
                self._db.close()
                raise NodeError(
                    f"node {address.name} has tls={address.tls}, and its server does not "
                    "offer TLS: give it "
                    "a certificate, or set tls to off"
                )
            self._db.query("SET SESSION time_zone='+00:00', sql_mode='STRICT_ALL_TABLES'")
            cipher = self.one("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[1]
            self._encrypted = address.tls != "off" or bool(cipher)
        except MySQLdb.Error as error:
            where = f"{address.host}:{address.port}/{address.database}"
            raise NodeError(
                f"node {address.name} cannot be read at {where}: {error.args[-1]}"
            ) from None

    def pieces(
        self, select: str, made: Made[T], *, columns: int, body: int | None, bounded: bool
    ) -> tuple[list[T], bool]:
        if bounded and not self._encrypted:
            return self._by_packets(select, made, columns)
        return super().pieces(select, made, columns=columns, body=body, bounded=bounded)

    def _columns(self, rows: Rows) -> list[Values]:
        return [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]

    def _fetched(
        self, select: str, made: Callable[[Rows], T], body: int | None
    ) -> tuple[list[T], bool]:
        try:
            self._db.query(select)
            return _taken(self._db.use_result().fetch_row, made, body)
        except self._error as error:
            raise self._fault(error) from None

    def _by_packets(self, select: str, made: Made[T], columns: int) -> tuple[list[T], bool]:
        found: list[T] = []
        try:
            self._db.send_query(select.encode())
            answer = Answer(self._db.fileno(), columns=columns, timeout_s=READ_TIMEOUT_S)
            for values in answer.pieces():
                found.append(made(values, len(values[0])))
                if answer.received > MOST_BYTES:
                    return found, False
        except TooLarge:
            return found, False
        except Broken as fault:
            raise Lost(str(fault)) from None
        except (Refused, self._error) as error:
            raise self._fault(error) from None
        return found, True

    def literal(self, text: str) -> str:
        return str(self._db.string_literal(text.encode()).decode())

    def close(self) -> None:
        with suppress(self._error):
            self._db.close()

    def _fault(self, error: Exception) -> Exception:
        if error.args and error.args[0] in self._broken:
            return Lost(str(error.args[-1]))
        return NodeError(f"node {self._name} cannot be read: {error.args[-1]}")


class SqliteNode(Node):
    """A connection to the file of an embedded node, which this can never change."""

    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    stored_at = "stored_at * 1000"

    def __init__(self, address: Address) -> None:
        self._name = address.name
        try:
            self._db = sqlite3.connect(
                f"file:{address.database}?mode=ro", uri=True, timeout=10.0
            )
        except sqlite3.Error as error:
            raise NodeError(
                f"node {address.name} cannot be read at {address.database}: {error}"
            ) from None

    def _columns(self, rows: Rows) -> list[Values]:
        return list(zip(*rows, strict=True))

    def _fetched(
        self, select: str, made: Callable[[Rows], T], body: int | None
    ) -> tuple[list[T], bool]:
        try:
            with closing(self._db.execute(select)) as cursor:
                return _taken(cursor.fetchmany, made, body)
        except sqlite3.Error as error:
            raise NodeError(f"node {self._name} cannot be read: {error}") from None

    def literal(self, text: str) -> str:
        # Written in hex where SQLite would end the statement at a NUL.
        return f"CAST(x'{text.encode().hex()}' AS TEXT)" if "\0" in text else _quoted(text)

    def close(self) -> None:
        self._db.close()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _taken(
    fetch: Callable[[int], Rows], made: Callable[[Rows], T], body: int | None
) -> tuple[list[T], bool]:
    """Convert a result piece by piece; return the pieces, and False if it stops at
    MOST_BYTES of bodies.
    """
    size = FETCHED_AT_ONCE if body is None else FETCHED_FIRST
    found: list[T] = []
    count = weight = 0
    while fetched := fetch(size):
        count += len(fetched)
        found.append(made(fetched))
        if body is not None:
            weight += sum(len(row[body]) for row in fetched)
            if weight > MOST_BYTES:
                return found, False
            size = max(1, min(FETCHED_AT_ONCE, PIECE_BYTES * count // (weight + 1)))
    return found, True


def connect(address: Address) -> Node:
    """A connection to a node. Raises NodeError."""
    return SqliteNode(address) if address.engine == "sqlite" else MySqlNode(address)


@contextmanager
def connection(address: Address) -> Iterator[Node]:
    """A connection for a few questions. Raises NodeError, also for a connection that
    breaks.
    """
    node = connect(address)
    try:
        yield node
    except Lost as fault:
        raise NodeError(f"node {address.name} was lost: {fault}") from None
    finally:
        node.close()


def now_us(node: Node) -> int:
    """The node's time, µs since 1970 UTC."""
    return int(node.one(f"SELECT {node.now}")[0])


def low_of(node: Node, queue: int) -> int:
    """The first offset that is still kept."""
    return int(node.one(f"SELECT low FROM queue_head WHERE queue_id = {queue}")[0] or 0)  # noqa: S608


def gaps_of(node: Node, queue: int) -> list[Span]:
    rows = node.rows(
        f"SELECT from_offset, to_offset FROM queue_gap WHERE queue_id = {queue} "  # noqa: S608
        "ORDER BY from_offset"
    )
    return [Span(int(first), int(end)) for first, end in rows]


def stored_at(node: Node, table: str, offset: int) -> int | None:
    """The time at which the first message at or above an offset was stored, µs since 1970;
    None above all.
    """
    select = (
        f"SELECT {node.stored_at} FROM {table} WHERE msg_offset >= {offset} "  # noqa: S608
        "ORDER BY msg_offset LIMIT 1"
    )
    found = node.one(select)[0]
    return None if found is None else int(found)


def first_at(node: Node, table: str, bounds: Span, at_us: int) -> int:
    """The first offset in bounds stored at or after a time (µs since 1970), or the end of
    the bounds.

    Times never fall within a queue, so halving finds it.
    """
    low, high = bounds
    while low < high:
        middle = (low + high) // 2
        found = stored_at(node, table, middle)
        if found is not None and found < at_us:
            low = middle + 1
        else:
            high = middle
    return low
