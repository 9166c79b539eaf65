"""Two brokers with one metadata database and two nodes on MariaDB: stored once, fenced
everywhere.

The second broker's picture of the metadata is held back on purpose: it is renewed only when
something is looked up that it does not know.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.fernet import Fernet

from catmq_client import NewMessage, Producer
from messagestore.engine import batch_ids
from tests.support.broker import Broker
from tests.support.mariadb import MariaDB
from tests.support.members import Member
from tests.support.proxy import CuttingProxy
from tests.support.server import Server
from tests.support.waiting import until

_names = (f"once-{number}" for number in count())


@dataclass
class Pair:
    """Two brokers of one installation; answers of the first can be cut off."""

    proxy: CuttingProxy
    first: Broker
    second: Broker
    mariadb: MariaDB
    schemas: tuple[str, str]

    def topic(self, queues: int = 4) -> str:
        """A new topic whose queues lie on both nodes, known to both brokers."""
        name = next(_names)
        made = self.first.ok("POST", "/topics", {"name": name, "queues": queues})
        assert {queue["node"] for queue in made["queues"]} == {"n1", "n2"}
        self.second.ok("GET", f"/topics/{name}")
        return name

    def stored(self, topic: str) -> list[bytes]:
        """Every body in the topic's tables, read from the database itself."""
        bodies: list[bytes] = []
        for queue in self.first.ok("GET", f"/topics/{topic}")["queues"]:
            schema = self.schemas[queue["node"] == "n2"]
            rows = self.mariadb.execute(
                f"SELECT msg_offset, body FROM {schema}.message_{queue['queue']} ORDER BY "
                "msg_offset"
            )
            assert [row[0] for row in rows] == list(range(len(rows)))
            bodies += [row[1] for row in rows]
        return bodies


@pytest.fixture(scope="module")
def pair(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The two brokers, running."""
    with ExitStack() as stack:
        schemas = [stack.enter_context(mariadb.schema()) for _ in range(3)]
        common = {
            "CATMQ_DATABASE_URL": f"mysql://catmq:{mariadb.password}@127.0.0.1:{mariadb.port}/{schemas[0]}",
            "CATMQ_SECRET_KEY": secrets.token_hex(32),
            "CATMQ_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        }
        held_back = {"CATMQ_SNAPSHOT_INTERVAL_MS": "60000"}
        servers = [
            stack.enter_context(_running(tmp_path_factory.mktemp("broker"), common | more))
            for more in ({}, held_back)
        ]
        first = Broker(servers[0].url, servers[0].api_key)
        for name, schema in zip(("n1", "n2"), schemas[1:], strict=True):
            account = {
                "host": "127.0.0.1",
                "port": mariadb.port,
                "username": "catmq",
                "password": mariadb.password,
            }
            first.ok(
                "POST",
                "/nodes",
                {"name": name, "engine": "mysql", "database": schema, **account},
            )
        proxy = stack.enter_context(CuttingProxy(servers[0].port).running())
        second = Broker(servers[1].url, servers[0].api_key)
        yield Pair(proxy, first, second, mariadb, (schemas[1], schemas[2]))


class _running:
    """A server for the length of a block."""

    def __init__(self, data: Path, environ: dict[str, str]) -> None:
        self.server = Server(data, environ=environ)

    def __enter__(self) -> Server:
        return self.server.start()

    def __exit__(self, *exc: object) -> None:
        self.server.end()


def producer(pair: Pair) -> Producer:
    """One that starts with the cutting proxy and has the second broker to turn to."""
    made = Producer([pair.proxy.url, pair.second.url], api_key=pair.first.api_key)
    transport: Any = made._transport
    transport._brokers.current = pair.proxy.url  # where it starts is random otherwise
    return made


@pytest.mark.parametrize("key", ["k", None])
def test_a_send_whose_answer_was_cut_off_is_stored_once_by_the_other_broker(
    pair: Pair, key: str | None
) -> None:
    topic = pair.topic()
    with producer(pair) as sender:
        sender.send(topic, b"first", key=key)
        before = pair.proxy.cut
        pair.proxy.cut_next()
        receipt = sender.send(topic, b"second", key=key)
    assert pair.proxy.cut == before + 1
    assert sorted(pair.stored(topic)) == [b"first", b"second"]
    (found,) = pair.second.ok(
        "GET", f"/topics/{topic}/messages?message_id={receipt.message_id}"
    )["messages"]
    assert found["body"] == "second"


@pytest.mark.parametrize("keyed", [True, False])
def test_batches_whose_answers_were_cut_off_are_stored_once(
    pair: Pair, keyed: bool
) -> None:
    topic = pair.topic()
    messages = [
        NewMessage(b"%d" % number, key=str(number) if keyed else None)
        for number in range(100)
    ]
    with producer(pair) as sender:
        pair.proxy.cut_next(3)
        results = sender.send_batch(topic, messages)
    assert len({result.message_id for result in results}) == 100
    assert sorted(pair.stored(topic)) == sorted(message.body for message in messages)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_mixed_request_repeated_through_the_other_broker_gets_the_same_receipts(
    pair: Pair, keyed: bool
) -> None:
    """The request names no queue, as a client would that knows nothing of layouts."""
    topic = pair.topic()
    batch_id: UUID = batch_ids.new()
    messages = [
        {"body": str(number), **({"key": str(number)} if keyed else {})}
        for number in range(40)
    ]
    body = {"messages": messages, "batch_id": str(batch_id)}
    cutting = Broker(pair.proxy.url, pair.first.api_key)
    pair.proxy.cut_next()
    with pytest.raises(OSError):
        cutting.call("POST", f"/topics/{topic}/messages", body)
    again = pair.second.ok("POST", f"/topics/{topic}/messages", body)["results"]
    assert pair.first.ok("POST", f"/topics/{topic}/messages", body)["results"] == again
    assert sorted(pair.stored(topic)) == sorted(
        message["body"].encode() for message in messages
    )


def test_the_same_batch_in_json_and_in_messagepack_is_one_batch(pair: Pair) -> None:
    topic, batch_id = pair.topic(), str(batch_ids.new())
    text = {
        "messages": [{"body": "é", "headers": {"b": "2", "a": "1"}}],
        "batch_id": batch_id,
    }
    packed = {
        "messages": [{"body_bytes": "é".encode(), "headers": {"a": "1", "b": "2"}}],
        "batch_id": batch_id,
    }
    path = f"/topics/{topic}/messages"
    assert pair.first.ok("POST", path, text) == pair.second.packed("POST", path, packed)
    assert pair.stored(topic) == ["é".encode()]


def test_a_former_owner_is_fenced_through_every_broker(pair: Pair) -> None:
    topic = pair.topic(queues=2)
    queues = [
        queue["queue"] for queue in pair.first.ok("GET", f"/topics/{topic}")["queues"]
    ]
    for queue in queues:
        pair.first.ok(
            "POST",
            f"/topics/{topic}/messages",
            {"messages": [{"body": "m", "queue": queue}]},
        )
    old = _member(pair.first, topic, "old")
    through_second = Member(pair.second, old.path, old.generation, old.owned)
    assert _states(through_second, queues) == ["ok", "ok"], (
        "the held-back broker serves the owner"
    )
    pair.first.call("DELETE", old.path)
    new = _member(pair.first, topic, "new")
    for broker in (pair.first, pair.second):
        former = Member(broker, old.path, old.generation, old.owned)
        assert _states(former, queues) == ["fenced", "fenced"]
        assert former.commit(*(former.position(queue, 1) for queue in queues)) == [
            "fenced",
            "fenced",
        ]
    assert _states(Member(pair.second, new.path, new.generation, new.owned), queues) == [
        "ok",
        "ok",
    ]
    offsets = pair.first.ok("GET", f"/groups/readers-{topic}/offsets")["queues"]
    assert [row["committed"] for row in offsets] == [0, 0]


def _member(broker: Broker, topic: str, name: str) -> Member:
    """A member that owns and has acquired every queue of the topic."""
    member = Member.join(broker, f"readers-{topic}", name=name, topics=[topic])
    until(lambda: len(member.heartbeat()["assigned"]) == 2)
    assert {one["state"] for one in member.acquire()} == {"ok"}
    return member


def _states(member: Member, queues: list[int]) -> list[Any]:
    pulled = member.pull(*(member.position(queue, 0) for queue in queues))
    return [queue["state"] for queue in pulled["queues"]]
