"""Limits on sending: refused with a time to wait, obeyed by the client, order kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import HttpTransport, Producer
from catmq_client.admin.api import Admin
from catmq_client.errors import DeliveryTimeout, Unavailable
from metadata.brokers import send_rate_limit, snapshot_acks
from metadata.cache import snapshot
from metadata.rules.rates import RESERVE
from tests.support.broker import Broker, problem
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def full_buckets() -> Iterator[None]:
    send_rate_limit.evict()
    yield
    send_rate_limit.evict()


def limit(broker: Broker, path: str, **settings: object) -> Any:
    """Changes limits; from then on they hold in this process."""
    changed = broker.ok("PATCH", path, settings)
    snapshot.refresh()
    return changed


def test_a_topic_takes_no_more_than_its_limit_and_says_when_it_does(
    broker: Broker, queue: int
) -> None:
    changed = limit(broker, "/topics/single", max_messages_per_s=5)
    assert changed["max_messages_per_s"] == 5
    send = {"messages": [{"body": "x"}] * 5}
    broker.ok("POST", "/topics/single/messages", send)
    refused = problem(
        broker.call("POST", "/topics/single/messages", send), 429, "rate_limited"
    )
    assert refused["retriable"] is True
    assert 0 < refused["retry_after_ms"] <= 1001
    assert "topic single takes 5 messages a second" in refused["detail"]
    assert broker.ok("GET", "/topics/single")["queues"][0]["head"] == 5


def test_a_limit_of_bytes_counts_bodies(broker: Broker, queue: int) -> None:
    limit(broker, "/topics/single", max_bytes_per_s=1000)
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "x" * 1000}]})
    answer = broker.call(
        "POST", "/topics/single/messages", {"messages": [{"body": "x" * 100}]}
    )
    assert "1000 bytes a second" in problem(answer, 429, "rate_limited")["detail"]


def test_a_key_may_send_no_more_than_its_limit_over_all_topics(
    broker: Broker, topic: str, queue: int
) -> None:
    made = broker.ok(
        "POST",
        "/keys",
        {"name": "slow", "rights": {"produce": ["*"]}, "max_messages_per_s": 2},
    )
    assert made["max_messages_per_s"] == 2
    slow = Broker(broker.url, made["api_key"])
    for name in ("single", "orders"):
        slow.ok("POST", f"/topics/{name}/messages", {"messages": [{"body": "x"}]})
    refused = problem(
        slow.call("POST", "/topics/orders/messages", {"messages": [{"body": "x"}]}),
        429,
        "rate_limited",
    )
    assert "key slow takes 2 messages" in refused["detail"]
    broker.ok("POST", "/topics/orders/messages", {"messages": [{"body": "of another key"}]})
    assert (
        limit(broker, "/keys/slow", max_messages_per_s=None)["max_messages_per_s"] is None
    )
    for _ in range(5):
        slow.ok("POST", "/topics/orders/messages", {"messages": [{"body": "x"}]})


def test_what_one_limit_refuses_is_not_taken_from_the_other(
    broker: Broker, queue: int
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=10, max_bytes_per_s=10)
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "x" * 10}]})
    for _ in range(20):
        problem(
            broker.call(
                "POST", "/topics/single/messages", {"messages": [{"body": "x" * 10}]}
            ),
            429,
            "rate_limited",
        )
    limit(broker, "/topics/single", max_bytes_per_s=None)
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "x"}] * 9})


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "5"])
def test_a_limit_that_is_no_whole_number_is_refused(
    broker: Broker, queue: int, wrong: object
) -> None:
    answer = broker.call("PATCH", "/topics/single", {"max_messages_per_s": wrong})
    problem(answer, 400, "invalid", field="max_messages_per_s")


def test_a_producer_that_sends_too_much_waits_and_keeps_the_order(
    broker: Broker, queue: int
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=200)
    begun = time.monotonic()
    with Producer(
        broker.url, api_key=broker.api_key, linger_ms=1, batch_messages=50
    ) as producer:
        futures = [producer.send_async("single", str(n), key="k") for n in range(600)]
        assert [future.result(60).offset for future in futures] == [*range(600)]
    # 200 at once, 400 at 200 a second, the last batch on credit
    assert time.monotonic() - begun > 1.5
    admin = Admin(HttpTransport(broker.url, api_key=broker.api_key))
    stored = admin.messages("single", queue=queue, offset=0, limit=1000)
    assert [message["body_bytes"] for message in stored] == [
        str(n).encode() for n in range(600)
    ]


def test_a_producer_gives_up_when_there_is_no_room_within_its_time(
    broker: Broker, queue: int
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=1)
    with Producer(broker.url, api_key=broker.api_key, delivery_timeout_ms=400) as producer:
        producer.send("single", "first")
        with pytest.raises(DeliveryTimeout, match="takes 1 messages a second") as caught:
            producer.send("single", "second")
        assert (
            isinstance(caught.value.__cause__, Unavailable) and caught.value.status == 429
        )


def send(broker: Broker, count: int) -> Any:
    return broker.call(
        "POST", "/topics/single/messages", {"messages": [{"body": "x"}] * count}
    )


def pass_of(monkeypatch: pytest.MonkeyPatch, others: list[str]) -> None:
    """One pass among workers that said this of their demand."""
    said = {f"other{n}": text for n, text in enumerate(others)}
    monkeypatch.setattr(snapshot_acks, "read_demands", lambda: {**said, "me": ""})
    monkeypatch.setattr(snapshot_acks, "report_demand", lambda **_: None)
    send_rate_limit._buckets.divided_at = float("-inf")
    assert send_rate_limit.share_limits(name="me") == 1 + len(others)


def test_who_serves_is_asked_seldom_while_nothing_is_limited_and_at_the_next_pass_after(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_of(monkeypatch, [""])
    monkeypatch.setattr(
        snapshot_acks, "read_demands", lambda: dict.fromkeys(("me", "a", "b", "c"), "")
    )
    assert send_rate_limit.share_limits(name="me") == 2, "nobody was asked"
    limit(broker, "/topics/single", max_messages_per_s=10)
    assert send_rate_limit.share_limits(name="me") == 4


def test_the_limit_is_shared_evenly_by_processes_that_nobody_asks_for_anything(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=10)
    pass_of(monkeypatch, [""] * 4)
    assert send(broker, 2).status_code == 200
    problem(send(broker, 1), 429, "rate_limited")


def test_a_process_that_alone_is_asked_for_sends_has_nearly_the_whole_limit_a_pass_later(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=1_000)
    for _ in range(2):
        pass_of(monkeypatch, [""] * 3)
        # is taken while the bucket is full, and owed or refused after that
        send(broker, 1_000)
    pass_of(monkeypatch, [""] * 3)
    waits = problem(send(broker, 1_000), 429, "rate_limited")["retry_after_ms"]
    mine = send_rate_limit._buckets.share(
        ("topic", topic_id("single"), "messages"), time.monotonic()
    )
    assert mine == pytest.approx(0.925)
    assert waits < 2_500, "a quarter of the limit would need four seconds"


def test_a_process_leaves_a_limit_at_once_to_those_who_are_asked(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=10)
    key = f"topic:{topic_id('single')}:messages"
    pass_of(monkeypatch, [f'{{"{key}": 500.0}}', "", "no JSON"])
    share = send_rate_limit._buckets.share(
        ("topic", topic_id("single"), "messages"), time.monotonic()
    )
    assert share == pytest.approx(RESERVE / 4)


def test_shares_that_metadata_has_not_renewed_for_long_are_even(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("topic", topic_id("single"), "messages")
    pass_of(monkeypatch, [f'{{"{":".join(map(str, key))}": 500.0}}'])
    assert send_rate_limit._buckets.share(key, time.monotonic()) < 0.1
    assert (
        send_rate_limit._buckets.share(key, time.monotonic() + send_rate_limit.STALE_S)
        == 0.5
    )


def test_workers_tell_each_other_what_they_are_asked_for(
    broker: Broker, queue: int
) -> None:
    limit(broker, "/topics/single", max_messages_per_s=10)
    send(broker, 10)
    until(
        lambda: any(f"topic:{topic_id('single')}:messages" in said for said in all_said())
    )


def all_said() -> list[str]:
    return list(snapshot_acks.read_demands().values())


def topic_id(name: str) -> int:
    return snapshot.find_topic(name).id


def test_a_broker_counts_its_processes(broker: Broker) -> None:
    until(lambda: snapshot_acks.count_workers() == 1)
