"""A node whose disk is nearly full, as clients meet it: refused in time, others go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catmq_client import Producer
from messagestore.nodes import disks
from metadata.cache import snapshot
from metadata.models import Alarm
from tests.support.broker import Broker, problem
from tests.support.waiting import until


def is_full(node: str) -> bool:
    return snapshot.find_node(node).disk == "full"


def fill(broker: Broker, monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    """Gives a node a capacity that its files exceed, and measures it as the loop does."""
    monkeypatch.setattr(disks, "GB", 1000)
    monkeypatch.setattr(disks, "PAUSE_FACTOR", 0)
    broker.ok("PATCH", f"/nodes/{node}", {"capacity_gb": 1})
    until(lambda: snapshot.find_node(node).capacity_gb == 1)
    disks.DiskWatch().run_once()
    until(lambda: is_full(node))


def test_a_full_node_answers_503_and_stores_nothing_and_reading_goes_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broker.ok("POST", "/topics", {"name": "orders", "queues": 1})
    queue = made["queues"][0]["queue"]
    broker.ok("POST", "/topics/orders/messages", {"messages": [{"body": "before"}]})
    fill(broker, monkeypatch, "main")
    answer = broker.call(
        "POST", "/topics/orders/messages", {"messages": [{"body": "after"}]}
    )
    told = problem(answer, 503, "node_full")
    assert (told["retriable"], told["retry_after_ms"] > 0) == (True, True)
    read = broker.ok("GET", f"/topics/orders/messages?queue={queue}&offset=0&limit=9")
    assert [one["body"] for one in read["messages"]] == ["before"]
    assert broker.ok("GET", "/nodes/main")["disk"] == "full"
    assert Alarm.objects.filter(kind="node_full", name="main", ended_at=None).exists()


def test_a_producer_goes_on_to_the_queues_of_another_node(
    broker: Broker, make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("second")
    made = broker.ok("POST", "/topics", {"name": "orders", "queues": 2})
    on_second = {one["queue"] for one in made["queues"] if one["node"] == "second"}
    with Producer(broker.url, api_key=broker.api_key) as producer:
        assert {producer.send("orders", b"m").queue for _ in range(20)} > on_second
        fill(broker, monkeypatch, "main")
        assert {producer.send("orders", b"m").queue for _ in range(20)} == on_second
