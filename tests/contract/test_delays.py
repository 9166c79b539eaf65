"""Messages that are sent to come later: the real client, the real views, the FakeBroker
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from catmq_client import Consumer, HttpTransport, Producer, errors
from catmq_client.admin.api import Admin
from catmq_client.http.transport import Transport
from catmq_client.testing import FakeBroker
from tests.support.broker import Broker
from tests.support.tampering import plant
from tests.support.waiting import until

HOUR_MS = 3_600_000


@pytest.fixture
def plain(broker: Broker) -> Iterator[HttpTransport]:
    """The client's way to the broker."""
    made = HttpTransport(broker.url, api_key=broker.api_key)
    yield made
    made.close()


def bodies(transport: Transport, queue: int) -> list[bytes]:
    found = Admin(transport).messages("single", queue=queue, offset=0, limit=100)
    return [one["body_bytes"] for one in found]


def move_all(plain: HttpTransport, queue: int, engine: str) -> None:
    """What waits is due, and moved by the broker's loop."""
    past = "due_at - 90000000" if engine == "sqlite" else "due_at - INTERVAL 25 HOUR"
    plant(queue, f"UPDATE delayed_message SET due_at = {past}")
    until(lambda: Admin(plain).delayed("single")["count"] == 0)


def test_a_delayed_message_has_an_id_and_a_time_and_comes_then(
    plain: HttpTransport, queue: int, engine: str
) -> None:
    at = datetime.now(UTC) + timedelta(hours=2)
    with Producer(transport=plain) as producer:
        later = producer.send("single", b"later", key="k", delay_ms=HOUR_MS)
        exact = producer.send_async("single", b"exact", deliver_at=at).result(20)
        now = producer.send("single", b"now", delay_ms=0)
    assert (later.queue, later.offset, later.message_id[:1]) == (None, None, "d")
    assert exact.due_at_ms == int(at.timestamp() * 1000)
    assert (now.offset, now.due_at_ms) == (0, None)
    page = Admin(plain).delayed("single")
    assert [one["message_id"] for one in page["messages"]] == [
        later.message_id,
        exact.message_id,
    ]
    assert (page["count"], page["next"]) == (2, None)
    move_all(plain, queue, engine)
    assert bodies(plain, queue) == [b"now", b"later", b"exact"]
    assert Admin(plain).delayed("single")["count"] == 0


def test_a_recalled_message_never_comes_and_one_that_came_is_not_recalled(
    plain: HttpTransport, queue: int, engine: str
) -> None:
    with Producer(transport=plain) as producer:
        one, other = (
            producer.send("single", body, delay_ms=HOUR_MS) for body in (b"one", b"other")
        )
        producer.recall(one.message_id)
        producer.recall(one.message_id)
        move_all(plain, queue, engine)
        with pytest.raises(errors.Conflict) as refusal:
            producer.recall(other.message_id)
        assert refusal.value.code == "already_delivered"
        for unknown in ("d1-99999", "d99999-1"):
            with pytest.raises(errors.NotFound):
                producer.recall(unknown)
    assert bodies(plain, queue) == [b"other"]


def test_wrong_delays_are_refused_by_name_and_their_neighbours_are_sent(
    plain: HttpTransport, queue: int
) -> None:
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    with Producer(transport=plain) as producer:
        results = producer.send_batch(
            "single",
            [
                {"body": b"fine", "delay_ms": HOUR_MS},
                {"body": b"late", "deliver_at": long_ago},
                {"body": b"far", "delay_ms": 400 * 86_400_000},
                {"body": b"now"},
            ],
        )
        assert [isinstance(one, errors.InvalidRequest) for one in results] == [
            False,
            True,
            True,
            False,
        ]
        assert "deliver_at_ms" in str(results[1]) and "delay_ms" in str(results[2])
        with pytest.raises(errors.OptionError, match="either"):
            producer.send("single", b"x", delay_ms=1, deliver_at=long_ago)
        with pytest.raises(errors.OptionError, match="time zone"):
            producer.send("single", b"x", deliver_at=datetime(2031, 1, 1))
    assert bodies(plain, queue) == [b"now"]
    assert Admin(plain).delayed("single")["count"] == 1


def test_the_fake_broker_delays_and_recalls_as_a_broker_does() -> None:
    fake = FakeBroker()
    fake.create_topic("orders", queues=2)
    with Producer(transport=fake) as producer:
        kept, recalled = (
            producer.send("orders", b"k", key="k", delay_ms=HOUR_MS) for _ in range(2)
        )
        producer.send("orders", b"now", key="k")
        producer.recall(recalled.message_id)
        producer.recall(recalled.message_id)
        assert [one.message_id for one in fake.topics.delayed] == [kept.message_id]
        assert [one.body for one in fake.messages("orders")] == [b"now"]
        fake.advance(3601)
        now, moved = fake.messages("orders")
        assert (moved.body, moved.queue, moved.offset) == (b"k", now.queue, 1)
        assert moved.headers == {"catmq-delayed-id": kept.message_id}
        with pytest.raises(errors.Conflict):
            producer.recall(kept.message_id)
        with pytest.raises(errors.NotFound):
            producer.recall("d1-77")
        with pytest.raises(errors.InvalidRequest, match="a year"):
            producer.send("orders", b"x", delay_ms=400 * 86_400_000)
    with Consumer(group="billing", topics=["orders"], transport=fake) as consumer:
        with Producer(transport=fake) as producer:
            producer.send("orders", b"soon", delay_ms=50)
        taken: list[bytes] = []
        until(
            lambda: (
                taken.extend(one.body for one in consumer.poll(timeout_s=0.5))
                or len(taken) == 3
            )
        )
    assert sorted(taken) == [b"k", b"now", b"soon"]


def test_a_batch_of_delayed_messages_sent_twice_waits_once(
    broker: Broker, queue: int
) -> None:
    batch = {
        "messages": [{"body": "a", "delay_ms": HOUR_MS}, {"body": "b"}],
        "batch_id": "0190163d-8694-739b-aea5-966c26f8ad91",
    }
    first = broker.ok("POST", "/topics/single/messages", batch)
    assert broker.ok("POST", "/topics/single/messages", batch) == first
    assert list(first["results"][0]) == ["message_id", "due_at_ms"]
    assert broker.ok("GET", "/topics/single/delayed")["count"] == 1
