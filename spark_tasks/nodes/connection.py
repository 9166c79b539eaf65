"""A read-only connection to a node. Statements are short, and each reads its own snapshot.

No transaction stays open between two chunks, so that a job never delays dropping a
partition. A result is fetched in pieces, and each piece is converted before the next is
fetched, which measured faster than a single large fetch. If a result exceeds the size limit
of a chunk, the connection is closed and the caller asks for fewer rows. Results of MySQL
are parsed from the protocol's packets. mysqlclient parses them where the connection is
encrypted, and where a row may have any size.
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
from spark_tasks.nodes.packets import BrokenResult, PacketTooLarge, ResultSet, ServerError
from spark_tasks.nodes.plans import Address, Span

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
FETCH_ROWS = 1_000
FIRST_FETCH_ROWS = 20  # of rows with bodies, before their size is known
PIECE_BYTES = 4 << 20  # of bodies in a fetch, about
MAX_CHUNK_BYTES = 32 << 20  # of bodies (by packets: of all values) in a chunk

Rows = Sequence[tuple[Any, ...]]
T = TypeVar("T")
# called with the values of each column and the number of rows
Converter = Callable[[Sequence[Values], int], T]


class ConnectionLost(Exception):
    """The connection broke. The caller may repeat the statement on a new connection."""


class Node(ABC):
    """A connection to a node.

    The SQL expressions `now` and `stored_at` give the node's time and a message's, in µs
    since 1970.
    """

    now: str
    stored_at: str

    def read_pieces(
        self,
        select: str,
        convert: Converter[T],
        *,
        column_count: int,
        body_column: int | None,
        bounded: bool,
    ) -> tuple[list[T], bool]:
        """Read a SELECT of `column_count` columns, converting it piece by piece.

        Return the converted pieces, and True if they are the whole result. False is
        possible only if `bounded`: the result exceeds the size limit, and then only `close`
        may be called. `body_column` is the index of the column with bodies, None if there
        is none. Raises ConnectionLost, NodeError.
        """
        return self._fetch(
            select,
            lambda rows: convert(self._transpose(rows), len(rows)),
            body_column if bounded else None,
        )

    def read_rows(self, select: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT. Raises ConnectionLost, NodeError."""
        return [row for piece in self._fetch(select, list, None)[0] for row in piece]

    def read_row(self, select: str) -> tuple[Any, ...]:
        """Return the first row of a SELECT, (None,) without rows. Raises ConnectionLost,
        NodeError.
        """
        return next(iter(self.read_rows(select)), (None,))

    @abstractmethod
    def literal(self, text: str) -> str:
        """Return a text as an SQL literal."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Works for a broken connection, too."""

    @abstractmethod
    def _transpose(self, rows: Rows) -> list[Values]:
        """Return the values of each column of rows."""

    @abstractmethod
    def _fetch(
        self, select: str, convert: Callable[[Rows], T], body_column: int | None
    ) -> tuple[list[T], bool]: ...


class MySqlNode(Node):
    now = "CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(3)) * 1000000 AS SIGNED)"
    stored_at = "CAST(UNIX_TIMESTAMP(stored_at) * 1000000 AS SIGNED)"

    def __init__(self, address: Address) -> None:
        import MySQLdb

        self._error = MySQLdb.Error
        # Client errors of a lost connection; 1317: interrupted, 1927: killed,
        # 4031: disconnected by the server after inactivity.
        self._lost_codes = (2002, 2003, 2006, 2013, 2014, 2026, 2055, 1317, 1927, 4031)
        self._name = address.name
        if problem := tls.find_driver_problem(
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
                local_infile=0,  # otherwise a server may request any file of this process
                **tls.connect_arguments(address.tls, address.tls_ca),
            )  # fmt: skip
            # Some client libraries connect without TLS if the server does not offer it.
            if tls.is_plain(address.tls, self._db.server_capabilities):
                self._db.close()
                raise NodeError(
                    f"node {address.name} has tls={address.tls}, and its server does not "
                    "offer TLS: give it "
                    "a certificate, or set tls to off"
                )
            self._db.query("SET SESSION time_zone='+00:00', sql_mode='STRICT_ALL_TABLES'")
            cipher = self.read_row("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[1]
            self._encrypted = address.tls != "off" or bool(cipher)
        except MySQLdb.Error as error:
            where = f"{address.host}:{address.port}/{address.database}"
            raise NodeError(
                f"node {address.name} cannot be read at {where}: {error.args[-1]}"
            ) from None

    def read_pieces(
        self,
        select: str,
        convert: Converter[T],
        *,
        column_count: int,
        body_column: int | None,
        bounded: bool,
    ) -> tuple[list[T], bool]:
        # The packets of an encrypted connection can be read only through the driver's library.
        if self._encrypted or not bounded:
            return super().read_pieces(
                select,
                convert,
                column_count=column_count,
                body_column=body_column,
                bounded=bounded,
            )
        pieces: list[T] = []
        try:
            self._db.send_query(select.encode())
            result = ResultSet(
                self._db.fileno(), columns=column_count, timeout_s=READ_TIMEOUT_S
            )
            for values in result.pieces():
                pieces.append(convert(values, len(values[0])))
                if result.received > MAX_CHUNK_BYTES:
                    return pieces, False
        except PacketTooLarge:
            return pieces, False
        except BrokenResult as fault:
            raise ConnectionLost(str(fault)) from None
        except (ServerError, self._error) as error:
            raise self._translate_error(error) from None
        return pieces, True

    def _transpose(self, rows: Rows) -> list[Values]:
        return [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]

    def _fetch(
        self, select: str, convert: Callable[[Rows], T], body_column: int | None
    ) -> tuple[list[T], bool]:
        try:
            self._db.query(select)
            return _fetch_pieces(self._db.use_result().fetch_row, convert, body_column)
        except self._error as error:
            raise self._translate_error(error) from None

    def literal(self, text: str) -> str:
        return str(self._db.string_literal(text.encode()).decode())

    def close(self) -> None:
        with suppress(self._error):
            self._db.close()

    def _translate_error(self, error: Exception) -> Exception:
        if error.args and error.args[0] in self._lost_codes:
            return ConnectionLost(str(error.args[-1]))
        return NodeError(f"node {self._name} cannot be read: {error.args[-1]}")


class SqliteNode(Node):
    """A read-only connection to the file of an embedded node."""

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

    def _transpose(self, rows: Rows) -> list[Values]:
        return list(zip(*rows, strict=True))

    def _fetch(
        self, select: str, convert: Callable[[Rows], T], body_column: int | None
    ) -> tuple[list[T], bool]:
        try:
            with closing(self._db.execute(select)) as cursor:
                return _fetch_pieces(cursor.fetchmany, convert, body_column)
        except sqlite3.Error as error:
            raise NodeError(f"node {self._name} cannot be read: {error}") from None

    def literal(self, text: str) -> str:
        # SQLite ends a statement at a NUL, so such a text is written in hex.
        if "\0" in text:
            return f"CAST(x'{text.encode().hex()}' AS TEXT)"
        return "'" + text.replace("'", "''") + "'"

    def close(self) -> None:
        self._db.close()


def _fetch_pieces(
    fetch: Callable[[int], Rows], convert: Callable[[Rows], T], body_column: int | None
) -> tuple[list[T], bool]:
    """Fetch and convert a result piece by piece.

    Return the pieces, and False if it stopped because bodies exceed MAX_CHUNK_BYTES.
    """
    size = FETCH_ROWS if body_column is None else FIRST_FETCH_ROWS
    pieces: list[T] = []
    count = body_bytes = 0
    while rows := fetch(size):
        count += len(rows)
        pieces.append(convert(rows))
        if body_column is not None:
            body_bytes += sum(len(row[body_column]) for row in rows)
            if body_bytes > MAX_CHUNK_BYTES:
                return pieces, False
            # The next fetch has as many rows as fill PIECE_BYTES at the mean size so far.
            size = max(1, min(FETCH_ROWS, PIECE_BYTES * count // (body_bytes + 1)))
    return pieces, True


def connect(address: Address) -> Node:
    """Connect to a node. Raises NodeError."""
    return SqliteNode(address) if address.engine == "sqlite" else MySqlNode(address)


@contextmanager
def connected_node(address: Address) -> Iterator[Node]:
    """Connect for a few statements. Raises NodeError, also if the connection breaks."""
    node = connect(address)
    try:
        yield node
    except ConnectionLost as fault:
        raise NodeError(f"node {address.name} was lost: {fault}") from None
    finally:
        node.close()


def read_now_us(node: Node) -> int:
    """Return the node's time in µs since 1970 UTC."""
    return int(node.read_row(f"SELECT {node.now}")[0])


def read_low(node: Node, queue: int) -> int:
    """Return the log start offset."""
    select = f"SELECT low FROM queue_head WHERE queue_id = {queue}"  # noqa: S608
    return int(node.read_row(select)[0] or 0)


def read_gaps(node: Node, queue: int) -> list[Span]:
    rows = node.read_rows(
        f"SELECT from_offset, to_offset FROM queue_gap WHERE queue_id = {queue} "  # noqa: S608
        "ORDER BY from_offset"
    )
    return [Span(int(first), int(end)) for first, end in rows]


def read_stored_at(node: Node, table: str, offset: int) -> int | None:
    """Return the store time of the first message at or above an offset, in µs since 1970.

    None if there is no such message.
    """
    select = (
        f"SELECT {node.stored_at} FROM {table} WHERE msg_offset >= {offset} "  # noqa: S608
        "ORDER BY msg_offset LIMIT 1"
    )
    stored_at_us = node.read_row(select)[0]
    return None if stored_at_us is None else int(stored_at_us)


def find_first_at(node: Node, table: str, bounds: Span, at_us: int) -> int:
    """Return the first offset within bounds stored at or after a time (µs since 1970).

    Return the end of the bounds if all were stored before.
    """
    # Store times never decrease within a queue, so a binary search finds the offset.
    low, high = bounds
    while low < high:
        middle = (low + high) // 2
        stored_at_us = read_stored_at(node, table, middle)
        if stored_at_us is not None and stored_at_us < at_us:
            low = middle + 1
        else:
            high = middle
    return low
