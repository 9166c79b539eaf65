"""Sends as bytes: what is in a message comes back as it was, in one string of SQL or in
several; and a head row that refuses lets nothing through, also on a session that stored
something before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage, StoredMessage, digest
from messagestore.engine.mysql_session import MySqlSession
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import message_sql
from messagestore.tables.shapes import NewBatch
from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import TooLarge
from tests.support.mariadb import MariaDB

ACTOR = command("test")
# What ends, begins or escapes something for the server or for us, and pieces of characters
# of several bytes.
SPECIAL = b"'\"\\\0\n\r\t\x1a\b`%_;:{}-#/*?()," + b"\x80\xbf\xc3\xe2\xf0\xf4\xff"
BODIES = [bytes([byte]) for byte in range(256)]
BODIES += [
    bytes(pair)
    for byte in SPECIAL
    for other in range(256)
    for pair in ((byte, other), (other, byte))
]
WORDS = [
    b"", b"', 1), (", b"\\'", b"\\\\'", b"''", b"\\", b"'", b":queue", b"{table}{rows}",
    b"%b%d%s", b"; DROP",
    b"--", b"/*", b"\\Z\\0\\n",
]  # fmt: skip
CHARACTERS = "'\"\\\0\n\r\t\x1a\b`%_;:{}é€\u2028\ufeff\uffff\U0001f600\U0010ffff "


class Bench:
    """A topic of two queues on one node, and ways into its tables beside the product."""

    def __init__(self, server: MariaDB, queues: list[int]) -> None:
        self.server = server
        self.queue, self.other = queues
        self.info = node_pools.node_of(self.queue).info
        self.schema = self.info.database

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(
            statement.format(s=self.schema, q=self.queue, o=self.other)
        )

    def session(self) -> MySqlSession:
        """A session that nobody else uses."""
        session = session_pool.connect(self.info)
        assert isinstance(session, MySqlSession)
        return session

    def send(
        self,
        session: MySqlSession,
        messages: Sequence[Sequence[NewMessage]],
        *,
        queue: int = 0,
        epoch: int = 0,
    ) -> int:
        """Stores batches in one transaction of a session; the first offset."""
        batches = [
            NewBatch(batch_ids.new().bytes, digest(one), one, "it's \\me")
            for one in messages
        ]
        return message_sql.insert_messages(
            session,
            queue=queue or self.queue,
            node_epoch=epoch or self.info.epoch,
            batches=batches,
        )

    def stored(self, first: int = 0, *, queue: int = 0) -> list[StoredMessage]:
        """All messages from an offset on."""
        queue = queue or self.queue
        with node_pools.node_of(queue).reading() as session:
            return message_sql.select_messages(
                session, queue=queue, first=first, end=10**6, most_bytes=1 << 30
            )

    def everything(self) -> list[Any]:
        """All that sends write, in both queues."""
        tables = ("message_{q}", "message_{o}", "sent_batch", "queue_head")
        return [
            sorted(map(str, self.execute(f"SELECT * FROM {{s}}.{table}")))
            for table in tables
        ]


@pytest.fixture
def bench(mariadb: MariaDB, node: str) -> Bench:
    state = topics.create(name="orders", queues=2, actor=ACTOR)
    return Bench(mariadb, [one.queue.queue for one in state.queues])


@pytest.fixture
def session(bench: Bench) -> Iterator[MySqlSession]:
    with closing(bench.session()) as made:
        yield made


def publish_all(bench: Bench, messages: Sequence[NewMessage]) -> list[StoredMessage]:
    """What is read of messages that were sent, up to 1,000 at once."""
    named = [
        NewMessage(
            **{f: getattr(one, f) for f in one.__struct_fields__} | {"queue": bench.queue}
        )
        for one in messages
    ]
    first = len(bench.stored())
    for start in range(0, len(named), 1000):
        publish(
            topic="orders", messages=named[start : start + 1000], batch_id=None, actor=ACTOR
        )
    return bench.stored(first)


def content(message: NewMessage | StoredMessage) -> tuple[Any, ...]:
    return message.body, message.key, message.tag, message.headers or None, message.trace_id


def test_bodies_of_any_bytes_come_back(bench: Bench) -> None:
    bodies = [
        *BODIES,
        *WORDS,
        *(first + second for first, second in product(WORDS, WORDS)),
        bytes(range(256)) * 9,
    ]
    with_key = [NewMessage(body=body, key="k") for body in bodies]
    without = [NewMessage(body=body) for body in bodies]
    assert [one.body for one in publish_all(bench, with_key)] == bodies
    assert [one.body for one in publish_all(bench, without)] == bodies


def test_texts_of_any_characters_come_back(bench: Bench) -> None:
    texts = [
        *CHARACTERS,
        *map("".join, product(CHARACTERS, CHARACTERS)),
        "', 1), (",
        ":queue",
        "{table}",
        "\\'",
    ]
    messages = [NewMessage(body=b"", key=text) for text in texts]
    messages += [
        NewMessage(body=b"'", key=text, tag=text, trace_id=text, headers={text: text})
        for text in texts
    ]
    assert [*map(content, publish_all(bench, messages))] == [*map(content, messages)]


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
message = st.builds(
    NewMessage,
    body=st.binary(max_size=40)
    | st.lists(st.sampled_from([*WORDS, *BODIES[:256]])).map(b"".join),
    key=st.none() | text,
    tag=st.none() | text,
    headers=st.none() | st.dictionaries(text, text, max_size=3),
    trace_id=st.none() | text,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=60,
)
@given(messages=st.lists(message, min_size=1, max_size=12))
def test_messages_of_any_kind_come_back(bench: Bench, messages: list[NewMessage]) -> None:
    assert [*map(content, publish_all(bench, messages))] == [*map(content, messages)]


def test_who_sent_it_is_written_as_it_is_named(bench: Bench, session: MySqlSession) -> None:
    bench.send(session, [[NewMessage(body=b"1", key="k"), NewMessage(body=b"2", tag="t")]])
    assert bench.execute("SELECT DISTINCT producer FROM {s}.message_{q}") == [
        ("it's \\me",)
    ]


SMALL = [NewMessage(body=b"%d" % index, key="k") for index in range(3)]
REFUSING = {
    "read-only": "UPDATE {s}.queue_head SET state = 'ro' WHERE queue_id = {q}",
    "missing": "DELETE FROM {s}.queue_head WHERE queue_id = {q}",
    "of another epoch": "UPDATE {s}.queue_head SET node_epoch = node_epoch + 1 WHERE "
    "queue_id = {q}",
}
# about 60 kB of SQL
LARGE = [NewMessage(body=b"%d'\\" % index * 400, key="k") for index in range(40)]
# batches, and the packet they are sent in
SHAPES: dict[str, tuple[list[list[NewMessage]], int]] = {
    "one batch": ([SMALL], 1 << 20),
    "several batches": ([SMALL, SMALL[:1], SMALL], 1 << 20),
    "several strings": ([SMALL, LARGE], 12_500),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("head", REFUSING)
def test_a_head_that_refuses_lets_nothing_through_behind_a_send_that_was_stored(
    bench: Bench, session: MySqlSession, head: str, shape: str
) -> None:
    assert bench.send(session, [SMALL]) == 0
    assert bench.send(session, [SMALL], queue=bench.other) == 0
    bench.execute(REFUSING[head])
    before = bench.everything()
    batches, packet = SHAPES[shape]
    for _ in range(2):
        session.max_packet = packet
        with pytest.raises(db_errors.Refused):
            bench.send(session, batches)
        assert bench.everything() == before
        assert session.clean
    session.max_packet = 1 << 20
    assert bench.send(session, [SMALL], queue=bench.other) == 3
    assert [one.offset for one in bench.stored(queue=bench.other)] == [*range(6)]


def test_a_send_of_another_epoch_is_refused_behind_one_that_was_stored(
    bench: Bench, session: MySqlSession
) -> None:
    assert bench.send(session, [SMALL]) == 0
    before = bench.everything()
    with pytest.raises(db_errors.Refused):
        bench.send(session, [SMALL], epoch=bench.info.epoch + 1)
    assert bench.everything() == before
    assert bench.send(session, [SMALL]) == 3


@pytest.mark.parametrize("packet", [12_500, 20_000, 40_000, 1 << 20])
def test_a_send_in_several_strings_is_stored_as_in_one(
    bench: Bench, session: MySqlSession, packet: int
) -> None:
    bench.send(session, [SMALL])
    session.max_packet = packet
    strings = strings_of(session)
    assert bench.send(session, [LARGE[:7], LARGE[7:8], LARGE[8:]]) == 3
    assert (len(strings) > 1) == (packet < 1 << 16)
    assert all(len(string) <= packet for string in strings)
    assert session.clean
    stored = bench.stored(3)
    assert [*map(content, stored)] == [*map(content, LARGE)]
    assert [one.offset for one in stored] == [*range(3, 43)]
    assert len({one.stored_at_ms for one in stored}) == 1
    remembered = (
        "SELECT first_offset, message_count FROM {s}.sent_batch ORDER BY first_offset"
    )
    assert bench.execute(remembered) == [(0, 3), (3, 7), (10, 1), (11, 32)]
    assert bench.send(session, [SMALL]) == 43


def test_many_small_batches_may_not_fit_the_string_of_their_rows(
    bench: Bench, session: MySqlSession
) -> None:
    batches = [[NewMessage(body=b"%d" % index, key="k")] for index in range(300)]
    # the rows do, and what is remembered of their batches, but not both
    session.max_packet = 30_000
    strings = strings_of(session)
    assert bench.send(session, batches) == 0
    assert len(strings) == 2
    assert [one.body for one in bench.stored()] == [b"%d" % index for index in range(300)]


def test_an_error_in_a_later_string_leaves_nothing(
    bench: Bench, session: MySqlSession
) -> None:
    bench.send(session, [SMALL])
    columns = "(msg_offset, body, producer, stored_at)"
    bench.execute(f"INSERT INTO {{s}}.message_{{q}} {columns} VALUES (40, '', 'x', NOW())")
    before = bench.everything()
    session.max_packet = 12_500
    with pytest.raises(db_errors.Duplicate):
        bench.send(session, [LARGE])
    assert bench.everything() == before
    assert session.clean
    bench.execute("DELETE FROM {s}.message_{q} WHERE msg_offset = 40")
    assert bench.send(session, [LARGE]) == 3


def test_a_row_that_fits_no_string_is_refused_before_anything_is_sent(
    bench: Bench, session: MySqlSession
) -> None:
    session.max_packet = 11_000
    strings = strings_of(session)
    with pytest.raises(TooLarge):
        bench.send(session, [LARGE])
    assert strings == []
    assert session.clean


def strings_of(session: MySqlSession) -> list[bytes]:
    """What the session sends from now on."""
    strings: list[bytes] = []
    send = session.send

    def noted(text: bytes, **more: Any) -> Any:
        strings.append(text)
        return send(text, **more)

    session.send = noted  # type: ignore[method-assign]
    return strings
