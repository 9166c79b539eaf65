"""Producers of a topic over the API: those of the library, of plain HTTP and Java clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerapi.java import endpoint
from catmq_client import Producer
from catmq_client.admin.api import Admin
from catmq_client.http.transport import HttpTransport
from catmq_client.version import SDK
from metadata.rules.membership import addresses
from metadata.topics import producers
from tests.support.broker import Broker
from tests.support.java_client import CONSUMER, Wire


@pytest.fixture(autouse=True)
def nothing_counted(metadata_db: None) -> Iterator[None]:
    producers._counts.take()
    yield
    producers._counts.take()


def test_each_sender_is_listed_with_its_key_address_and_client(
    broker: Broker, queue: int
) -> None:
    path = "/topics/single/messages"
    broker.ok(
        "POST",
        path,
        {"messages": [{"body": "a"}, {"body": "b"}]},
        headers={"User-Agent": "curl/8"},
    )
    refused = broker.call("POST", path, {"messages": [{"body": "a", "queue": 10**9}]})
    transport = HttpTransport(broker.url, api_key=broker.api_key)
    with Producer(transport=transport) as producer:
        producer.send("single", b"x")
    producers.flush()

    found = broker.ok("GET", "/topics/single/producers")["producers"]

    assert refused.status_code == 404
    told = {one["sdk"]: (one["address"], one["messages_last_hour"]) for one in found}
    assert told == {"curl/8": ("127.0.0.1", 2), SDK: ("127.0.0.1", 1)}
    assert len({one["name"] for one in found}) == 1
    assert Admin(transport).producers("single") == found


def test_java_clients_are_listed_by_the_address_and_version_that_they_give(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_networks", addresses.parse_networks(["127.0.0.0/8"]))
    wire = Wire(broker.url)
    for more in (
        {"clientIp": "10.0.0.5", "sdkVersion": "5.5.1"},
        {"clientIp": "10.0.0.6", "sdkVersion": "${project.version}"},
        {"clientIp": "<b>no address</b>", "sdkVersion": ""},
    ):
        body = {"topicName": "single", "msgs": [{"id": 0, "body": str(more)}], **more}
        assert wire.call(CONSUMER + "publish", body)["suc"] is True
    wire.close()
    producers.flush()

    found = broker.ok("GET", "/topics/single/producers")["producers"]

    assert {(one["name"], one["address"], one["sdk"]) for one in found} == {
        ("java", "10.0.0.5", "pmq-java/5.5.1"),
        ("java", "10.0.0.6", "catmq-java"),
        ("java", "127.0.0.1", "okhttp/3.9.1"),
    }
