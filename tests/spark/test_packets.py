"""Answers of MySQL, read packet by packet: whatever is in them, and however they end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_tasks.errors import NodeError
from spark_tasks.nodes import connection, packets
from spark_tasks.nodes.packets import BrokenResult, PacketTooLarge, ResultSet, ServerError
from spark_tasks.nodes.plans import Address
from tests.support.mariadb import MariaDB

Row = Sequence[bytes | None]
EOF = b"\xfe\x00\x00\x02\x00"
OK_AT_THE_END = b"\xfe\x00\x00\x02\x00\x00\x00"
DENIED = b"\xff\x76\x04#42000SELECT command denied"
TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.sampled_from([b"\xfe" * 250, b"\xff" * 251, b"x" * 65_535, b"y" * 65_536, b"\xfb"]),
)


def packed(*contents: bytes) -> bytes:
    """Packets; their numbers begin again after 255."""
    return b"".join(
        len(content).to_bytes(3, "little") + bytes([number % 256]) + content
        for number, content in enumerate(contents, start=1)
    )


def text(value: bytes | None) -> bytes:
    """A value of a row."""
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    width, kind = (2, b"\xfc") if size < 1 << 16 else (3, b"\xfd")
    return kind + size.to_bytes(width, "little") + value


def answer(
    rows: Sequence[Row], *, columns: int, names_end: bool = True, end: bytes = EOF
) -> bytes:
    """What a server sends."""
    names = [b"\x03def\x00\x01t\x01t\x01c\x01c" for _ in range(columns)]
    found = [b"".join(map(text, row)) for row in rows]
    return packed(bytes([columns]), *names, *([EOF] if names_end else []), *found, end)


@contextmanager
def sent(content: bytes, *, columns: int, timeout_s: float = 10) -> Iterator[ResultSet]:
    """An answer that arrives while it is read; then the server hangs up."""
    here, there = socket.socketpair()

    def send() -> None:
        with there:
            there.sendall(content)

    sender = threading.Thread(target=send)
    with here:
        sender.start()
        yield ResultSet(here.fileno(), columns=columns, timeout_s=timeout_s)
        here.shutdown(socket.SHUT_RD)
    sender.join()


def read(content: bytes, *, columns: int) -> list[tuple[bytes | None, ...]]:
    """The rows of an answer."""
    with sent(content, columns=columns) as found:
        return [
            row
            for piece in found.pieces()
            for row in zip(*(one.to_pylist() for one in piece), strict=True)
        ]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=30),
    size=st.sampled_from([8, 100, 70_000]),
    names_end=st.booleans(),
)
def test_rows_come_as_they_were_sent(rows: list[Row], size: int, names_end: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packets, "READ_BYTES", size)
        end = EOF if names_end else OK_AT_THE_END
        assert (
            read(answer(rows, columns=3, names_end=names_end, end=end), columns=3) == rows
        )


def test_an_error_of_the_server_is_told_wherever_it_comes() -> None:
    for content in (packed(DENIED), answer([[b"1"]], columns=1, end=DENIED)):
        with pytest.raises(ServerError) as told:
            read(content, columns=1)
        assert told.value.args == (1142, "SELECT command denied")


def test_an_answer_that_stops_is_broken() -> None:
    whole = answer([[b"one", b"two"]], columns=2)
    for length in range(len(whole)):
        with pytest.raises(BrokenResult):
            read(whole[:length], columns=2)


def test_an_answer_of_other_columns_is_broken() -> None:
    for row in ([b"one"], [b"one", b"two", b"three"]):
        with pytest.raises(BrokenResult):
            read(answer([row], columns=2), columns=2)


def test_a_server_that_says_nothing_is_broken() -> None:
    here, there = socket.socketpair()
    with here, there, pytest.raises(BrokenResult, match="no answer within"):
        list(ResultSet(here.fileno(), columns=1, timeout_s=0.01).pieces())


def test_a_row_of_16_mb_is_too_large() -> None:
    first = (
        (packets.MAX_PACKET_BYTES).to_bytes(3, "little")
        + b"\x00"
        + b"\xfd\xff\xff\xff"
        + b"x" * (16 << 20)
    )
    with (
        pytest.raises(PacketTooLarge),
        sent(answer([], columns=1)[:-9] + first, columns=1) as found,
    ):
        list(found.pieces())


@pytest.fixture
def address(mariadb: MariaDB) -> Iterator[Address]:
    """A schema with a table of two rows."""
    with mariadb.schema() as schema:
        mariadb.execute(f"CREATE TABLE {schema}.some (id INT PRIMARY KEY, body MEDIUMBLOB)")
        mariadb.execute(
            f"INSERT INTO {schema}.some VALUES (1, REPEAT('ü', 40000)), (2, NULL)"
        )
        yield Address(
            name="maria", engine="mysql", identity="", host="127.0.0.1", port=mariadb.port,
            database=schema, username="catmq", password=mariadb.password,
        )  # fmt: skip


def test_packets_and_mysqlclient_give_the_same(address: Address) -> None:
    def made(values: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        assert rows == 2
        return list(values)

    found = []
    with closing(connection.MySqlNode(address)) as node:
        for encrypted in (False, True):
            node._encrypted = encrypted
            select = "SELECT id, body FROM some ORDER BY id"
            found.append(
                node.read_pieces(
                    select, made, column_count=2, body_column=None, bounded=True
                )
            )
    assert found[0] == found[1]
    assert found[0][1] is True


def test_a_refused_select_is_told_and_the_connection_stays(address: Address) -> None:
    with closing(connection.MySqlNode(address)) as node:
        with pytest.raises(
            NodeError, match=r"node maria cannot be read: .*nothing.* doesn't exist"
        ):
            node.read_pieces(
                "SELECT 1 FROM nothing",
                lambda *_: None,
                column_count=1,
                body_column=None,
                bounded=True,
            )
        assert node.read_row("SELECT COUNT(*) FROM some") == (b"2",)


def test_a_connection_that_was_killed_is_lost(address: Address, mariadb: MariaDB) -> None:
    with closing(connection.MySqlNode(address)) as node:
        mariadb.execute(f"KILL {int(node.read_row('SELECT CONNECTION_ID()')[0])}")
        with pytest.raises(connection.ConnectionLost):
            node.read_pieces(
                "SELECT id FROM some",
                lambda *_: None,
                column_count=1,
                body_column=None,
                bounded=True,
            )


def test_a_result_that_is_too_large_is_given_up(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_CHUNK_BYTES", 10_000)
    with closing(connection.MySqlNode(address)) as node:
        found = node.read_pieces(
            "SELECT body FROM some",
            lambda *_: None,
            column_count=1,
            body_column=0,
            bounded=True,
        )
    assert found == ([None], False)
