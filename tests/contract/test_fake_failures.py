"""Failures, settings and filters: one story told to FakeBroker and to a broker, and what
each answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.errors import CatmqError
from catmq_client.http.transport import Transport, api_path
from catmq_client.http.wire import JsonCodec
from catmq_client.testing import FakeBroker
from metadata.cache import snapshot
from tests.support.broker import Broker

Configure = Callable[[dict[str, Any]], object]
SEND = ("old", "new", "old", "new", "old")
REGIONS = (
    {"region": "eu"},
    {"region": "us"},
    None,
    {"region": "asia"},
    {"region": "us", "kind": "order"},
)
MESSAGES = {
    "messages": [
        {"body": t, "tag": t, "headers": h} for t, h in zip(SEND, REGIONS, strict=True)
    ]
}


class Story:
    """A lone member of group `g`, which reads the only queue of topic `orders`."""

    def __init__(self, transport: Transport, queue: int, configure: Configure) -> None:
        self._transport = transport
        self._queue = queue
        self._configure = configure
        self._epoch: Any = None
        self.told: list[Any] = []

    def tell(self) -> list[Any]:
        """All of it; what was answered."""
        name = {
            "name": "a",
            "incarnation": "00000000-0000-7000-8000-000000000001",
            "topics": ["orders"],
        }
        self._id = self._call("POST", ("groups", "g", "consumers"), name)["consumer_id"]
        self._generation = 0
        self._beat()
        self._of("acquire", {"queues": [{"queue": self._queue, "epoch": self._epoch}]})
        self._pull(0)
        self._fail({"offset": 0, "error": "ValueError: bad", "first_failed_at_ms": 1_000})
        self._fail({"offset": 0, "error": "another", "first_failed_at_ms": 2_000})
        self._fail(
            {"offset": 1, "last": True},
            {"offset": 9},
            {"offset": 2, "epoch": self._epoch + 1},
        )
        self._set({"retries": 0})
        self._fail({"offset": 3})
        self._set({"retries": 5, "ordered": True, "retry_delays_s": [1, 2], "threads": 3})
        self._fail({"offset": 4})
        self._set({"tags": "new || paid"})
        for offset in (0, 2, 4):
            self._pull(offset)
        self._set({"headers": {"region": ["eu", "us"]}})
        self._pull(0)
        self._set({"tags": "", "headers": {"region": ["eu", "us"], "kind": ["order"]}})
        self._pull(0)
        self._set({"headers": {}, "threads": None, "ordered": False})
        self._pull(3)
        return self.told

    def _set(self, settings: dict[str, Any]) -> None:
        self._configure(settings)
        self._beat()

    def _beat(self) -> None:
        owned = [{"queue": self._queue, "epoch": self._epoch}] if self._generation else []
        answer = self._of("heartbeat", {"generation": self._generation, "owned": owned})
        mine = next(one for one in answer["assigned"] if one["queue"] == self._queue)
        self._generation, self._epoch = answer["generation"], mine["epoch"]
        self.told.append(answer["subscriptions"]["orders"])

    def _pull(self, offset: int) -> None:
        asked = {"queue": self._queue, "epoch": self._epoch, "offset": offset}
        body = {
            "generation": self._generation,
            "queues": [asked],
            "wait_ms": 0,
            "max_messages": 9,
        }
        (one,) = self._of("pull", body)["queues"]
        found = [
            (message["offset"], message["tag"], message["attempt"])
            for message in one["messages"]
        ]
        self.told.append((one["state"], found, one["next_offset"]))

    def _fail(self, *messages: dict[str, Any]) -> None:
        named = [
            {"queue": self._queue, "epoch": self._epoch, **message} for message in messages
        ]
        answer = self._of("failures", {"messages": named})
        lists = {
            verdict: [
                (one["offset"], one.get("attempt"), one.get("state"))
                for one in answer[verdict]
            ]
            for verdict in ("retried", "dead", "refused")
        }
        self.told.append(lists)

    def _of(self, verb: str, body: dict[str, Any]) -> Any:
        return self._call("POST", ("consumers", self._id, verb), body)

    def _call(self, method: str, parts: tuple[str, ...], body: dict[str, Any]) -> Any:
        try:
            return self._transport.request(method, api_path(*parts), body=body)
        except CatmqError as error:
            pytest.fail(f"{parts}: {error}")


@pytest.fixture
def real(failure_node: str, broker: Broker) -> list[Any]:
    made = broker.ok("POST", "/topics", {"name": "orders", "queues": 1})
    broker.ok("POST", "/topics/orders/messages", MESSAGES)

    def configure(settings: dict[str, Any]) -> None:
        broker.ok("PATCH", "/groups/g/subscriptions/orders", settings)
        snapshot.refresh()  # as the loop of a worker would

    transport = HttpTransport(broker.url, api_key=broker.api_key, codec=JsonCodec())
    try:
        return Story(transport, made["queues"][0]["queue"], configure).tell()
    finally:
        transport.close()


@pytest.fixture
def fake() -> list[Any]:
    broker = FakeBroker()
    (queue,) = broker.create_topic("orders", queues=1).queues
    broker.request("POST", "/api/v1/topics/orders/messages", body=MESSAGES)

    def configure(settings: dict[str, Any]) -> None:
        tags = (
            {"tags": tuple(settings["tags"].split(" || ")) if settings["tags"] else ()}
            if "tags" in settings
            else {}
        )
        broker.configure("g", "orders", **settings | tags)

    return Story(broker, queue.id, configure).tell()


def test_the_fake_broker_takes_failures_and_settings_as_a_broker_does(
    real: list[Any], fake: list[Any]
) -> None:
    assert len(real) > 12
    assert fake == real
