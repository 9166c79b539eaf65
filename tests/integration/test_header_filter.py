"""Pulls of groups that take only messages with some headers, on whichever engine is under
test.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from messagestore.consume import pull, replicas
from messagestore.consume.budget import Budget
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.inspect.tag_preview import TagMatches, tag_matches
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import message_sql, reader_sql
from messagestore.topology import topics
from metadata.config import Config
from metadata.errors import Invalid
from metadata.groups import subscription_rows
from metadata.models import AuditLog, ConsumerGroupTopic, Topic
from tests.support import failing, moving
from tests.support.failing import ME, change
from tests.support.instances import Instance

EU, US, ASIA = ({"region": region} for region in ("eu", "us", "asia"))
WANTED = {"region": ["eu", "us"]}


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`, which group `billing` reads for two regions."""
    return failing.billing(headers=WANTED)


@pytest.fixture
def member(queue: int) -> Instance:
    """The group's only member; it has acquired the queue."""
    return failing.member()


def send(
    *headers: dict[str, str] | None, tag: str | None = None, body: bytes = b"m"
) -> None:
    messages = [NewMessage(body=body, headers=one, tag=tag) for one in headers]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)


def ask(who: Instance, queue: int, offset: int = 0, **limits: int) -> PulledQueue:
    asked = [PullQueue(queue, who.owned[queue], offset)]
    given = {"max_messages": 100, "max_bytes": 1 << 20, **limits}
    return pull.pull(consumer=who.id, queues=asked, **given)[0]


def read(answer: PulledQueue) -> tuple[list[int], int]:
    """The offsets that came, and where to go on."""
    return [message.offset for message in answer.messages], answer.next_offset


def test_only_messages_with_one_of_the_values_come_and_the_position_passes_the_others(
    queue: int, member: Instance
) -> None:
    send(
        ASIA,
        {"more": "x", **EU},
        None,
        US,
        {"region": "EU"},
        {"region": "eu2"},
        {"area": "eu"},
    )
    answer = ask(member, queue)
    assert (answer.state, *read(answer)) == ("ok", [1, 3], 7)
    assert [(m.body, m.headers) for m in answer.messages] == [
        (b"m", {"more": "x", **EU}),
        (b"m", US),
    ]
    assert member.commit(queue, 7) == "ok"


def test_a_message_needs_every_named_header_and_one_of_the_tags(
    queue: int, member: Instance
) -> None:
    change(headers={"region": ["eu", "ü'\"\\"], "kind": ["order"]}, tags="new || paid")
    order = {"kind": "order"}
    for tag in ("new", "old"):
        send(
            EU,
            order,
            {**EU, **order},
            {"region": "ü'\"\\", **order},
            {**EU, "kind": "x"},
            tag=tag,
        )
    assert read(ask(member, queue)) == ([2, 3], 10)
    change(headers={})
    assert read(ask(member, queue)) == ([0, 1, 2, 3, 4], 10)


@pytest.mark.one_engine
def test_another_filter_holds_from_the_next_pull_on(queue: int, member: Instance) -> None:
    send(EU, ASIA, None)
    change(headers={"region": ["asia"]})
    assert read(ask(member, queue)) == ([1], 3)
    change(headers={})
    assert read(ask(member, queue)) == ([0, 1, 2], 3)


@pytest.mark.one_engine
def test_a_pull_passes_no_more_than_the_scan_limit(
    queue: int, member: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "config", Config(scan_limit=50))
    send(*[ASIA] * 60, EU)
    assert read(ask(member, queue)) == ([], 50)
    assert read(ask(member, queue, 50)) == ([60], 61)


@pytest.mark.one_engine
def test_several_reads_of_a_long_queue_make_one_answer(
    queue: int, member: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_FILTERED_AT_ONCE", 10)
    send(*([ASIA] * 12 + [EU]) * 5, ASIA)
    assert read(ask(member, queue)) == ([12, 25, 38, 51, 64], 66)
    assert read(ask(member, queue, max_messages=2)) == ([12, 25], 30), (
        "no further than what was read"
    )


@pytest.mark.one_engine
def test_what_does_not_fit_into_the_answer_comes_with_the_next(
    queue: int, member: Instance
) -> None:
    send(ASIA, *[EU] * 9, ASIA, body=b"x" * 1000)
    offsets, following = read(ask(member, queue, max_bytes=4_000))
    assert offsets == [*range(1, following)] and 1 < following < 10
    assert read(ask(member, queue, max_messages=3)) == ([1, 2, 3], 4)


def test_bodies_are_read_of_wanted_messages_only_and_no_more_than_fit(
    queue: int, member: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(*[ASIA] * 5, body=b"x" * 100_000)
    send(*[EU] * 9)
    found: list[Any] = []
    select = message_sql.read_positions_and_rows

    def noting(*args: Any, **named: Any) -> Any:
        found.append(select(*args, **named))
        return found[-1]

    monkeypatch.setattr(message_sql, "read_positions_and_rows", noting)
    assert read(ask(member, queue, max_bytes=1_000, max_messages=2)) == ([5, 6], 7)
    bodies = [row[4] for _, rows, _ in found for row in rows]
    assert bodies == [None] * 5 + [b"m"] * len(bodies[5:]) and 2 <= len(bodies[5:]) < 9


def test_a_message_that_was_not_there_for_the_look_at_headers_is_not_passed(
    queue: int, member: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(ASIA, ASIA, EU, ASIA)
    rows_of = message_sql.fetch_rows
    monkeypatch.setattr(
        message_sql, "fetch_rows", lambda *args, **named: rows_of(*args, **named)[:2]
    )
    with node_pools.node_of(queue).reading() as session:
        positions = reader_sql.read_positions(
            session, group_id=member.id.group_id, queues=[queue]
        )
        asked = PullQueue(queue, member.owned[queue], 0)
        group = member.id.group_id
        answer = replicas._read_queue(
            session, asked, positions[queue], Budget(9, 1 << 20), group_id=group
        )
    assert answer is not None and read(answer) == ([], 2)


def test_a_replica_passes_the_others_too(queue: int, member: Instance) -> None:
    send(ASIA, US, ASIA)
    with node_pools.node_of(queue).reading() as session:
        positions = reader_sql.read_positions(
            session, group_id=member.id.group_id, queues=[queue]
        )
        asked = PullQueue(queue, member.owned[queue], 0)
        group = member.id.group_id
        answer = replicas._read_queue(
            session, asked, positions[queue], Budget(9, 1 << 20), group_id=group
        )
    assert answer is not None and read(answer) == ([1], 3)


@pytest.mark.one_engine
def test_a_pull_without_a_header_filter_runs_no_further_statement(
    queue: int, member: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(EU, ASIA, tag="new")
    monkeypatch.setattr(message_sql, "fetch_rows", None)
    change(headers={})
    assert read(ask(member, queue)) == ([0, 1], 2)
    change(tags="new")
    assert read(ask(member, queue)) == ([0, 1], 2)
    change(headers=WANTED)
    with pytest.raises(TypeError):
        ask(member, queue)


@pytest.mark.one_engine
def test_a_failed_message_comes_again_regardless_of_its_headers(
    failure_node: str, queue: int
) -> None:
    who = failing.member()
    send(EU)
    failing.fail(who, queue, 0)
    change(headers={"region": ["asia"]})
    first = failing.failure_queues()[0]
    moving.make_due(first)
    mover = moving.mover(first)
    while mover.move():
        pass
    copy = next(one for one in failing.failure_queues() if moving.stored(one))
    assert [message.headers for message in failing.pull_copies(who, copy).messages] == [EU]


def test_the_last_messages_are_counted_that_a_filter_would_take(queue: int) -> None:
    send(EU, US, ASIA, tag="new")
    send(EU, None, tag="old")

    def matches(headers: Any, tags: str = "") -> TagMatches:
        return tag_matches(topic="orders", tags=tags, headers=headers, actor=ME)

    assert matches(WANTED) == TagMatches(5, 3)
    assert matches(WANTED, "new") == TagMatches(5, 2)
    assert matches({"region": ["eu"], "kind": ["order"]}) == TagMatches(5, 0)
    assert matches({}) == matches(None) == TagMatches(5, 5)
    with pytest.raises(Invalid, match="headers: must be an object"):
        matches(["eu"])


@pytest.mark.one_engine
def test_a_change_is_written_down_and_the_same_filter_is_no_change(queue: int) -> None:
    row = AuditLog.objects.filter(verb="update", kind="subscription").latest("pk")
    assert (row.before, row.after) == ({"headers": {}}, {"headers": WANTED})
    before = AuditLog.objects.count()
    change(headers=WANTED)
    assert AuditLog.objects.count() == before
    view = subscription_rows.find_subscription(group="billing", topic="orders", actor=ME)
    assert view.delivery.headers == (("region", ("eu", "us")),)


def test_a_row_of_the_previous_release_has_no_filter(queue: int) -> None:
    """It inserts without the column, so the database fills it."""
    topics.create(name="refunds", queues=1, actor=ME)
    other = Topic.objects.get(name="refunds").pk
    skipped = ("id", "headers", "topic_id")
    columns = [
        one.column
        for one in ConsumerGroupTopic._meta.concrete_fields
        if one.column not in skipped
    ]
    names = ", ".join(map(connection.ops.quote_name, columns))
    table = ConsumerGroupTopic._meta.db_table
    with connection.cursor() as cursor:
        copied = f"INSERT INTO {table} (topic_id, {names}) SELECT {other:d}, {names} FROM {table}"
        cursor.execute(copied)
    row = ConsumerGroupTopic.objects.get(topic_id=other)
    assert (row.headers, row.delivery.headers) == ({}, ())
