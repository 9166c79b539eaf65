"""The real client against the real views: what one writes the other understands, in every
format.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from catmq_client import Consumer, HttpTransport, Message, Producer, errors
from catmq_client.admin.api import Admin
from catmq_client.errors import CatmqError, NotFound
from catmq_client.http import wire
from catmq_client.http.transport import Transport
from metadata.rules.topics.slots import slot_of
from tests.support.broker import Broker
from tests.support.waiting import until

FORMATS: dict[str, dict[str, Any]] = {
    "json": {"codec": wire.JsonCodec()},
    "msgpack": {"codec": wire.MsgpackCodec()},
    "json, gzipped": {"codec": wire.JsonCodec(), "compression": "gzip"},
    "msgpack, gzipped": {"codec": wire.MsgpackCodec(), "compression": "gzip"},
}


@pytest.fixture(params=FORMATS)
def transport(request: pytest.FixtureRequest, broker: Broker) -> Iterator[HttpTransport]:
    """The client's way to the broker, in each format."""
    made = HttpTransport(broker.url, api_key=broker.api_key, **FORMATS[request.param])
    yield made
    made.close()


@pytest.fixture
def plain(broker: Broker) -> Iterator[HttpTransport]:
    """The client's way to the broker, in the format it prefers."""
    made = HttpTransport(broker.url, api_key=broker.api_key)
    yield made
    made.close()


def consumed(transport: Transport, *, most: int, **options: Any) -> list[Message]:
    """The next messages of group `billing`, at most as many as said."""
    taken: list[Message] = []
    with Consumer(
        group="billing", topics=["orders"], transport=transport, **options
    ) as consumer:
        until(lambda: taken.extend(consumer.poll(timeout_s=0.5)) or len(taken) >= most)
        consumer.commit()
    return taken


def test_what_is_sent_comes_back_as_it_was_sent(
    transport: HttpTransport, topic: str
) -> None:
    sent: list[tuple[Any, dict[str, Any]]] = [
        (
            b"\x00\xff",
            {"key": "ördérs", "tag": "t", "headers": {"h": "ä"}, "trace_id": "x"},
        ),
        ("täxt", {"key": "Orders"}),
        (b"", {}),
        (b"x" * 100_000, {}),
    ]
    with Producer(transport=transport) as producer:
        receipts = [producer.send(topic, body, **more) for body, more in sent]
    found = {message.message_id: message for message in consumed(transport, most=len(sent))}
    for (body, more), receipt in zip(sent, receipts, strict=True):
        message = found[receipt.message_id]
        assert message.body == (body.encode() if isinstance(body, str) else body)
        assert (message.topic, message.queue, message.offset) == (
            topic,
            receipt.queue,
            receipt.offset,
        )
        assert (message.key, message.tag) == (more.get("key"), more.get("tag"))
        assert (dict(message.headers or {}), message.trace_id) == (
            more.get("headers", {}),
            more.get("trace_id"),
        )


def test_batches_keep_the_order_of_each_key(transport: HttpTransport, topic: str) -> None:
    with Producer(transport=transport) as producer:
        futures = [producer.send_async(topic, str(n), key=str(n % 7)) for n in range(300)]
        assert len({future.result(20).message_id for future in futures}) == 300
    by_key: dict[str | None, list[int]] = {}
    for message in consumed(transport, most=300):
        by_key.setdefault(message.key, []).append(int(message.text))
    assert by_key == {str(key): list(range(key, 300, 7)) for key in range(7)}


def test_the_client_chooses_the_queue_that_the_broker_would(
    broker: Broker, plain: HttpTransport, topic: str
) -> None:
    slots = broker.ok("GET", f"/topics/{topic}")["layout"]["slots"]
    with Producer(transport=plain) as producer:
        for key in ("a", "ördérs", "Orders", "orders "):
            assert producer.send(topic, "", key=key).queue == slots[slot_of(key)]


def test_a_group_goes_on_where_it_committed(plain: HttpTransport, topic: str) -> None:
    with Producer(transport=plain) as producer:
        producer.send_batch(topic, [str(n) for n in range(20)])
        first = consumed(plain, most=20)
        producer.send(topic, "new")
    second = consumed(plain, most=1)
    assert [message.text for message in second] == ["new"]
    assert len({message.message_id for message in first}) == 20


def test_two_consumers_share_and_one_alone_gets_all(
    plain: HttpTransport, topic: str
) -> None:
    with (
        Consumer(group="billing", topics=[topic], transport=plain, name="a") as first,
        Consumer(group="billing", topics=[topic], transport=plain, name="b") as second,
    ):

        def shared() -> bool:
            first.poll(timeout_s=0.05)
            second.poll(timeout_s=0.05)
            return len(first.assignment()) == len(second.assignment()) == 1

        until(shared)
        second.close()
        until(lambda: first.poll(timeout_s=0.05) or len(first.assignment()) == 2)


def test_a_retried_send_is_stored_once(
    broker: Broker, plain: HttpTransport, topic: str
) -> None:
    body = {
        "messages": [{"body_bytes": b"a"}, {"body_bytes": b"b", "key": "k"}],
        "batch_id": uuid7(),
    }
    path = f"/api/v1/topics/{topic}/messages"
    first = plain.request("POST", path, body=body)
    in_json = HttpTransport(broker.url, api_key=broker.api_key, codec=wire.JsonCodec())
    assert in_json.request("POST", path, body=body) == first
    in_json.close()
    assert (
        sum(queue["head"] for queue in broker.ok("GET", f"/topics/{topic}")["queues"]) == 2
    )
    other = {**body, "messages": [{"body_bytes": b"c"}, {"body_bytes": b"d", "key": "k"}]}
    with pytest.raises(CatmqError) as caught:
        plain.request("POST", path, body=other)
    assert caught.value.code == "batch_conflict"


def uuid7() -> str:
    """A UUIDv7 of the year 2024."""
    return (
        "018cc251-f400-7"
        + uuid.uuid4().hex[:3]
        + "-8"
        + uuid.uuid4().hex[:3]
        + "-"
        + uuid.uuid4().hex[:12]
    )


def test_refusals_become_the_clients_errors(
    broker: Broker, plain: HttpTransport, topic: str
) -> None:
    with Producer(transport=plain) as producer:
        with pytest.raises(NotFound, match="catmq topic create nope"):
            producer.send("nope", "a")
        with pytest.raises(CatmqError) as too_large:
            producer.send(topic, b"x" * 1_048_577)
        assert too_large.value.code == "too_large"
    weak = HttpTransport(broker.url, api_key="catmq_wrong")
    with Producer(transport=weak) as producer, pytest.raises(CatmqError) as unknown:
        producer.send(topic, "a")
    assert unknown.value.code == "unauthenticated"
    weak.close()
    with (
        Producer(broker.url, api_key="") as producer,
        pytest.raises(CatmqError, match="set CATMQ_API_KEY, or pass api_key=") as missing,
    ):
        producer.send(topic, "a")
    assert missing.value.code == "unauthenticated"


def test_every_code_of_the_server_has_its_place_in_the_client() -> None:
    from metadata.errors import Code

    for code in Code:
        error = errors.from_problem(400, {"code": code.value, "detail": "d", "status": 400})
        assert error.code == code


@pytest.fixture
def admin(transport: HttpTransport) -> Admin:
    """The client's management calls."""
    return Admin(transport)


def test_the_clients_management_calls_are_understood(admin: Admin, queue: int) -> None:
    made = admin.create_topic("t1", queues=2, retention_days=3)
    assert [row["number"] for row in made["queues"]] == [0, 1]
    assert admin.topic("t1") == made
    assert [row["name"] for row in admin.topics()] == ["single", "t1"]
    assert [row["name"] for row in admin.topics(search="sin")] == ["single"]
    admin.create_group("g", session_timeout_ms=5000)
    admin.subscribe("g", "single", start="latest")
    assert admin.subscription("g", "single")["start"] == "latest"
    admin.create_group("since")
    assert admin.subscribe("since", "single", start_at_ms=7)["start_at_ms"] == 7
    admin.delete_group("since")
    assert admin.lag("g")["queues"][0]["queue"] == queue
    assert admin.change_group("g", stopped=True)["stopped"] is True
    moves = admin.reset_offsets("g", "single", to="earliest", dry_run=True)
    assert moves["dry_run"] is True and moves["reset"] is None
    assert [(move["queue"], move["from"], move["to"]) for move in moves["moves"]] == [
        (queue, 0, 0)
    ]
    assert admin.messages("single", queue=queue, offset=0, limit=10) == []
    assert [row["name"] for row in admin.nodes()] == ["main"]
    admin.unsubscribe("g", "single")
    admin.delete_group("g")
    admin.delete_topic("t1")
    assert [row["name"] for row in admin.groups()] == []


def test_a_lone_consumer_gets_its_first_message_without_a_pause(
    plain: HttpTransport, topic: str
) -> None:
    """Its queues are assigned by its first heartbeat, and what it pulls then has the
    message.
    """
    with Producer(transport=plain) as producer:
        producer.send(topic, "a")
    with (
        mock.patch.object(plain, "request", wraps=plain.request) as asked,
        Consumer(group="billing", topics=[topic], transport=plain) as consumer,
    ):
        next(iter(consumer))
        verbs = [call.args[1].rpartition("/")[2] for call in asked.call_args_list]
    acquired = verbs.index("acquire")
    assert verbs[:acquired].count("heartbeat") == 1
    assert verbs[acquired + 1 :].count("pull") <= 2, "the last one waits for more messages"


class Counting:
    """A transport that notes the commits in pulls, and counts requests for commits alone."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.carried: list[list[dict[str, int]]] = []
        self.alone = 0

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        self.alone += path.endswith("/commit")
        if path.endswith("/pull") and "commit" in more["body"]:
            self.carried.append(more["body"]["commit"])
        return self.transport.request(method, path, **more)


def test_a_consumer_that_reads_all_the_time_commits_with_its_pulls(
    transport: HttpTransport, broker: Broker, topic: str
) -> None:
    with Producer(transport=transport) as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(600)])
    counting = Counting(transport)
    options = {"auto_commit_interval_ms": 0, "max_poll_records": 20}
    got: list[Message] = []

    def read(count: int) -> None:
        with Consumer(
            group="billing", topics=[topic], transport=counting, **options
        ) as consumer:
            consumer._committer._pull_commits.learn()
            until(lambda: got.extend(consumer.poll(20, timeout_s=0.5)) or len(got) >= count)
            consumer.commit()

    read(300)
    assert counting.carried
    read(600)
    places = {(message.queue, message.offset) for message in got}
    assert len(places) == len(got) == 600, "nothing was read twice or skipped"
    offsets = broker.ok("GET", "/groups/billing/offsets")["queues"]
    assert sum(entry["committed"] for entry in offsets) == 600
    assert all(entry["lag"] == 0 for entry in offsets)
