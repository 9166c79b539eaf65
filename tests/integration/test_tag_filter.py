"""Pulls of groups that take only some tags, on whichever engine is under test."""

from __future__ import annotations

from uuid import uuid4

import pytest

from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim, CommitOffset, Committed
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.config import Config
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.groups import groups, subscription_rows
from metadata.membership import consumers

ACTOR = command("test")


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`, which group `billing` reads with the tags new and
    it's.
    """
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    take("new || it's")
    return state.queues[0].queue.queue


@pytest.fixture
def member(queue: int) -> ConsumerId:
    """The group's only member; it has acquired the queue."""
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    consumer = consumer_ids.check(joined.consumer_id)
    assigned = consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    positions.acquire(
        consumer=consumer, queues=[Claim(one.queue, one.epoch) for one in assigned]
    )
    return consumer


def take(tags: str) -> None:
    subscription_rows.update(
        group="billing", topic="orders", settings={"tags": tags}, actor=ACTOR
    )
    snapshot.refresh()


def send(queue: int, *tags: str | None, body: bytes = b"m") -> None:
    messages = [
        NewMessage(body=body, tag=tag, headers={"h": "v"}, queue=queue) for tag in tags
    ]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def pull_one(
    consumer: ConsumerId, queue: int, offset: int = 0, **limits: int
) -> PulledQueue:
    epoch = next(
        one.epoch
        for one in consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    )
    given = {"max_messages": 100, "max_bytes": 1 << 20, **limits}
    return pull.pull(consumer=consumer, queues=[PullQueue(queue, epoch, offset)], **given)[
        0
    ]


def read(answer: PulledQueue) -> tuple[list[int], int]:
    """The offsets that came, and where to go on."""
    return [message.offset for message in answer.messages], answer.next_offset


def test_only_messages_with_one_of_the_tags_come_and_the_position_passes_the_others(
    queue: int, member: ConsumerId
) -> None:
    send(queue, "old", "new", None, "it's", "NEW", "newer")
    answer = pull_one(member, queue)
    assert (answer.state, *read(answer)) == ("ok", [1, 3], 6)
    assert [(m.body, m.headers) for m in answer.messages] == [(b"m", {"h": "v"})] * 2


def test_where_nothing_fits_the_position_moves_all_the_same_and_can_be_committed(
    queue: int, member: ConsumerId
) -> None:
    send(queue, *["old"] * 30)
    assert read(pull_one(member, queue)) == ([], 30)
    epoch = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned[0].epoch
    done = positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, 30)])
    assert done == [Committed(queue, "ok", 30)]


@pytest.mark.one_engine
def test_a_pull_passes_no_more_than_the_scan_limit(
    queue: int, member: ConsumerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "config", Config(scan_limit=50))
    send(queue, *["old"] * 60, "new")
    assert read(pull_one(member, queue)) == ([], 50)
    assert read(pull_one(member, queue, 50)) == ([60], 61)


@pytest.mark.one_engine
def test_several_reads_of_a_long_queue_make_one_answer(
    queue: int, member: ConsumerId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_FILTERED_AT_ONCE", 10)
    send(queue, *(["old"] * 12 + ["new"]) * 5, "old")
    assert read(pull_one(member, queue)) == ([12, 25, 38, 51, 64], 66)
    assert read(pull_one(member, queue, max_messages=2)) == ([12, 25], 30), (
        "no further than what was read"
    )


@pytest.mark.one_engine
def test_what_does_not_fit_into_the_answer_comes_with_the_next(
    queue: int, member: ConsumerId
) -> None:
    send(queue, "old", *["new"] * 9, "old", body=b"x" * 1000)
    offsets, following = read(pull_one(member, queue, max_bytes=4_000))
    assert offsets == [*range(1, following)] and 1 < following < 10
    assert read(pull_one(member, queue, max_messages=3)) == ([1, 2, 3], 4)


def test_a_large_message_of_another_tag_costs_nothing(
    queue: int, member: ConsumerId
) -> None:
    send(queue, *["old"] * 5, body=b"x" * 100_000)
    send(queue, "new")
    assert read(pull_one(member, queue, max_bytes=1_000)) == ([5], 6)


@pytest.mark.one_engine
def test_another_filter_holds_from_the_next_pull_on(queue: int, member: ConsumerId) -> None:
    send(queue, "old", "new", "paid")
    take("paid")
    assert read(pull_one(member, queue)) == ([2], 3)
    take("")
    assert read(pull_one(member, queue)) == ([0, 1, 2], 3)
