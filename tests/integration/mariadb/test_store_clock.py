"""The clock of a node's server jumps, ahead by days and back behind where it was, while the
queue is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from messagestore import retention, verify
from messagestore.consume import group_lag, positions, pull
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PullQueue
from messagestore.engine import batch_ids
from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.inspect import browse, search
from messagestore.inspect.search import TimeRange
from messagestore.produce import batches
from messagestore.produce.publish import publish
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.groups import groups
from metadata.membership import consumers
from tests.support.environment import free_port
from tests.support.mariadb import SMALL, start
from tests.support.skew import WallClock, wall_clock

ACTOR = command("test")
HOUR, DAY = 3_600, 86_400


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    """The clock of the test's server."""
    return wall_clock(tmp_path)


@pytest.fixture
def queue(clock: WallClock, tmp_path: Path, make_node: Callable[..., str]) -> Iterator[int]:
    """The only queue of topic `orders`, on a server of that clock; group `billing` reads
    it.
    """
    server = start(
        tmp_path / "server", port=free_port(), options=SMALL, environ=clock.environ
    )
    try:
        with server.schema() as schema:
            account = {"username": "catmq", "password": server.password}
            make_node(
                "jumpy",
                engine="mysql",
                host="127.0.0.1",
                port=server.port,
                database=schema,
                **account,
            )
            made = topics.create(
                name="orders", queues=1, settings={"retention_days": 1}, actor=ACTOR
            )
            groups.create(name="billing", actor=ACTOR)
            subscriptions.create(
                group="billing", topic="orders", start="earliest", actor=ACTOR
            )
            snapshot.refresh()
            yield made.queues[0].queue.queue
    finally:
        server.stop()


def send(text: str, batch_id: Any = None) -> int:
    (receipt,) = publish(
        topic="orders",
        messages=[NewMessage(body=text.encode())],
        batch_id=batch_id,
        actor=ACTOR,
    )
    return receipt.offset  # type: ignore[union-attr]


def member() -> tuple[ConsumerId, int]:
    """A member that owns the queue, and its epoch."""
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    consumer = consumer_ids.check(joined.consumer_id)
    (given,) = consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    (acquired,) = positions.acquire(
        consumer=consumer, queues=[Claim(given.queue, given.epoch)]
    )
    assert acquired.state == "ok"
    return consumer, given.epoch


def test_a_node_whose_clock_jumps_loses_nothing_and_stores_nothing_twice(
    queue: int, clock: WallClock
) -> None:
    consumer, epoch = member()
    early = batch_ids.new()
    assert send("now", early) == 0
    clock.set(3 * DAY)
    assert send("ahead") == 1
    assert batches.expire() == 0, (
        "what looks three days old may have been sent a moment ago"
    )
    (done,) = retention.clean(topic="orders", actor=ACTOR, rest_s=0.0)
    assert "3.0 days ahead of" in str(done.plan.blocked_by)
    assert (done.plan.keep_from, done.raised) == (0, False), (
        "nothing goes by the age of a wrong clock"
    )
    clock.set(-HOUR)
    assert send("back") == 2
    assert send("now", early) == 0, "the repeat gets its receipt"

    (pulled,) = pull.pull(
        consumer=consumer,
        queues=[PullQueue(queue, epoch, 0)],
        max_messages=10,
        max_bytes=1 << 20,
    )
    assert [message.body for message in pulled.messages] == [b"now", b"ahead", b"back"]
    times = [message.stored_at_ms for message in pulled.messages]
    assert times == sorted(times), (
        "a queue's times never fall, so that look-ups by time work"
    )
    (behind,) = group_lag.group_offsets(group="billing", actor=ACTOR)
    assert (behind.lag, behind.lag_ms) == (3, 0), "nothing is negative"
    positions.commit(consumer=consumer, offsets=[CommitOffset(queue, epoch, 3)])
    found = search.search_messages(
        topic="orders",
        wanted=MessageSearch(),
        times=TimeRange(from_ms=times[1]),
        actor=ACTOR,
    )
    assert [message.body for message in found.messages] == [b"ahead", b"back"]

    clock.set(0)
    assert send("right") == 3
    (done,) = retention.clean(topic="orders", actor=ACTOR, rest_s=0.0)
    assert "3.0 days after the node's present time" in str(done.plan.blocked_by)
    looked = browse.read_page(topic="orders", queue=queue, offset=0, limit=10, actor=ACTOR)
    assert [message.offset for message in looked.messages] == [0, 1, 2, 3]
    report = verify.verify(topics=["orders"], rows_per_s=0, actor=ACTOR)
    assert [finding for one in report.queues for finding in one.findings] == []
