"""Subscriptions that start at a time, on whichever engine is under test."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from messagestore.consume import group_lag
from messagestore.engine.messages import NewMessage
from messagestore.heads import reader_starts, time_lookup
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import node_sql
from messagestore.topology import imports, membership, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.definitions import exports
from metadata.errors import Invalid, NodeUnavailable, NotFound
from metadata.groups import groups, subscription_rows
from metadata.nodes import node_rows
from tests.support import tampering

ME = command("test")
HOUR_S = 3_600


@pytest.fixture
def queues(node: str) -> list[int]:
    """Topic `orders` with two queues of ten messages: 4 and 9 are two hours old; group
    `billing`.
    """
    state = topics.create(name="orders", queues=2, actor=ME)
    found = [one.queue.queue for one in state.queues]
    groups.create(name="billing", actor=ME)
    snapshot.refresh()
    for queue, old in zip(found, (4, 9), strict=True):
        messages = [NewMessage(body=b"m", queue=queue) for _ in range(10)]
        publish(topic="orders", messages=messages, batch_id=None, actor=ME)
        tampering.age(queue, 0, old, seconds=2 * HOUR_S)
    return found


def an_hour_ago(queues: list[int]) -> int:
    """An hour ago, by the clock of the node."""
    with node_pools.node_of(queues[0]).reading() as session:
        return node_sql.now_ms(session) - HOUR_S * 1000


def subscribe(group: str = "billing", **start: Any) -> subscription_rows.SubscriptionView:
    made = subscriptions.create(group=group, topic="orders", actor=ME, **start)
    snapshot.refresh()
    return made


def stands(group: str = "billing") -> list[int | None]:
    return [one.committed for one in group_lag.group_offsets(group=group, actor=ME)]


def test_a_group_starts_at_the_first_message_stored_at_a_time_or_later(
    queues: list[int],
) -> None:
    at_ms = an_hour_ago(queues)
    made = subscribe(start_at_ms=at_ms)
    assert (made.state, made.start, made.start_at_ms) == ("ready", "earliest", at_ms)
    assert stands() == [4, 9]


def test_how_long_ago_is_counted_back_from_now(queues: list[int]) -> None:
    made = subscribe(start_ago_ms=HOUR_S * 1000)
    assert abs((made.start_at_ms or 0) - an_hour_ago(queues)) < 60_000
    assert stands() == [4, 9]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"start_at_ms": 0}, [2, 0]),
        ({"start_ago_ms": 10**12 * 100}, [2, 0]),
        ({"start_at_ms": 1 << 45}, [10, 10]),
        ({"start": "earliest"}, [2, 0]),
        ({"start": "latest"}, [10, 10]),
    ],
)
def test_a_time_before_the_first_message_is_the_earliest_and_one_to_come_is_the_latest(
    queues: list[int], start: dict[str, Any], expected: list[int]
) -> None:
    tampering.raise_low(queues[0], 2)
    subscribe(**start)
    assert stands() == expected


def test_what_retention_takes_between_the_look_and_the_row_is_not_where_a_reader_starts(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(session: Any, *, queue: int, **asked: Any) -> int:
        found = time_lookup.first_at(session, queue=queue, **asked)
        tampering.raise_low(queue, 7)
        return found

    monkeypatch.setattr(reader_starts, "first_at", overtaken)
    subscribe(start_at_ms=an_hour_ago(queues))
    assert stands() == [7, 9]


def test_an_instance_that_comes_later_starts_at_the_time_too_and_keeps_its_place(
    queues: list[int],
) -> None:
    groups.create(name="news", mode="broadcasting", actor=ME)

    def join(name: str) -> None:
        membership.join(
            group="news", name=name, instance_id=name, incarnation=str(uuid4()), actor=ME
        )

    join("one")
    subscribe("news", start_at_ms=an_hour_ago(queues))
    assert stands("news") == [4, 9]
    join("two")
    assert stands("news") == [4, 4, 9, 9]
    tampering.age(queues[0], 0, 10, seconds=2 * HOUR_S)
    join("two")
    join("three")
    assert stands("news") == [4, 10, 4, 9, 9, 9]


def test_a_share_group_leases_from_the_time_on(queues: list[int]) -> None:
    groups.create(name="mails", mode="share", actor=ME)
    subscribe("mails", start_at_ms=an_hour_ago(queues))
    assert [
        (one.committed, one.lag) for one in group_lag.group_offsets(group="mails", actor=ME)
    ] == [
        (4, 6),
        (9, 1),
    ]


@pytest.mark.parametrize(
    ("start", "field"),
    [
        ({"start_at_ms": -1}, "start_at_ms"),
        ({"start_at_ms": 1 << 60}, "start_at_ms"),
        ({"start_ago_ms": -1}, "start_ago_ms"),
        ({"start_at_ms": 1, "start_ago_ms": 1}, "start_ago_ms"),
        ({"start": "latest", "start_at_ms": 1}, "start"),
        ({"start": "latest", "start_ago_ms": 1}, "start"),
        ({"start": "time"}, "start"),
    ],
)
def test_a_wrong_start_is_named_and_nothing_is_made(
    queues: list[int], start: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        subscribe(**start)
    assert [one.field for one in caught.value.errors] == [field]
    with pytest.raises(NotFound):
        subscription_rows.find_subscription(group="billing", topic="orders", actor=ME)


def test_a_node_that_is_away_leaves_no_subscription_behind(queues: list[int]) -> None:
    at_ms = an_hour_ago(queues)
    node_rows.update(name="main", settings={"state": "offline"}, actor=ME)
    snapshot.refresh()
    with pytest.raises(NodeUnavailable, match="main"):
        subscribe(start_at_ms=at_ms)
    node_rows.update(name="main", settings={"state": "read_write"}, actor=ME)
    snapshot.refresh()
    subscriptions.sweep(older_than_s=0)
    subscribe(start_at_ms=at_ms)
    assert stands() == [4, 9]


def test_definitions_carry_the_time(queues: list[int]) -> None:
    at_ms = an_hour_ago(queues)
    subscribe(start_at_ms=at_ms)
    document = exports.export(actor=ME)
    (written,) = document["subscriptions"]
    assert (written["start"], written["start_at_ms"]) == ("earliest", at_ms)
    document["groups"].append({"name": "copy"})
    document["subscriptions"] = [{"group": "copy", "topic": "orders", "start_at_ms": at_ms}]
    imports.import_definitions(document=document, actor=ME)
    assert stands("copy") == [4, 9]
    wrong = {"group": "other", "topic": "orders", "start": "latest", "start_at_ms": at_ms}
    document["groups"].append({"name": "other"})
    with pytest.raises(Invalid, match=r"subscriptions\[0\].start"):
        imports.import_definitions(
            document={**document, "subscriptions": [wrong]}, actor=ME
        )
