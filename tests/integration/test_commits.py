"""When offsets were first committed, as the looks of the job that records lag tell it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest

from messagestore.consume import group_lag, offset_reset, positions
from messagestore.consume.offset_reset import Target
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.engine.messages import NewMessage
from messagestore.nodes.replica_inspection import JUMP
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import partition_sql, promotion_sql
from messagestore.topology import membership, subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.clock import database_now, ms
from metadata.db.consumer_ids import ConsumerId
from metadata.groups import commits, groups
from metadata.membership import consumers
from metadata.models import CommitLook, ConsumerGroup, Topic
from metadata.rules.groups.commits import CommitInterval

ACTOR = actors.command("test")


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`, which holds twenty messages and is read by group
    `billing`.
    """
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    publish(
        topic="orders", messages=[NewMessage(body=b"x")] * 20, batch_id=None, actor=ACTOR
    )
    return state.queues[0].queue.queue


def joined() -> tuple[ConsumerId, int]:
    """A member that owns the queue, and the epoch it has it with."""
    answer = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    member = consumer_ids.check(answer.consumer_id)
    (claim,) = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    positions.acquire(consumer=member, queues=[Claim(claim.queue, claim.epoch)])
    return member, claim.epoch


def commit(queue: int, *offsets: int) -> None:
    """Joins, and after each commit lets the job look."""
    member, epoch = joined()
    for offset in offsets:
        positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, offset)])
        group_lag.record()


def handled(queue: int, *offsets: int) -> list[int]:
    """Joins, and what each commit says was handled by it."""
    member, epoch = joined()
    commits = [CommitOffset(queue, epoch, offset) for offset in offsets]
    return [positions.commit(consumer=member, offsets=[one])[0].handled for one in commits]


def told(queue: int) -> list[CommitInterval]:
    """What is known of a queue."""
    return commits.commit_times(topic="orders", group="billing", days=1, actor=ACTOR).get(
        queue, []
    )


def test_offsets_are_committed_between_two_looks(queue: int) -> None:
    group_lag.record()
    assert told(queue) == []
    commit(queue, 15, 20)
    one, two = told(queue)
    assert (one.first, one.end, two.first, two.end) == (0, 15, 15, 20)
    assert one.after_ms is not None and two.after_ms is not None
    assert one.after_ms <= two.after_ms <= one.by_ms <= two.by_ms, (
        "a look is no shorter than its question"
    )


def test_what_was_committed_before_the_first_look_is_not_known(queue: int) -> None:
    commit(queue, 15)
    (step,) = told(queue)
    assert (step.first, step.end, step.after_ms) == (0, 15, None)


def test_a_group_at_rest_takes_no_room(queue: int) -> None:
    commit(queue, 20)
    for _ in range(3):
        group_lag.record()
    assert CommitLook.objects.count() == 1


def test_one_message_was_handled_between_the_looks_around_its_commit(queue: int) -> None:
    since_ms = ms(database_now()) - 60_000
    group_lag.record()
    commit(queue, 15, 20)
    group, topic = ConsumerGroup.objects.get().pk, Topic.objects.get(kind="normal").pk
    find = partial(
        commits.first_committed,
        topic_id=topic,
        group_id=group,
        queue=queue,
        since_ms=since_ms,
    )
    early, late = find(offset=14), find(offset=15)
    assert early is not None and late is not None
    assert (early.first, early.end) == (14, 15) and early.by_ms <= late.by_ms
    assert (
        late.after_ms is not None
        and early.after_ms is not None
        and early.after_ms <= late.after_ms
    )
    assert find(offset=20) is None, "it is not committed yet"


def test_looks_are_kept_for_a_week(queue: int) -> None:
    group_lag.record()
    now = database_now()
    CommitLook.objects.update(at=now - timedelta(days=6))
    assert commits.prune() == 0
    CommitLook.objects.update(at=now - timedelta(days=8))
    assert commits.prune() == 1


def test_nothing_is_told_of_a_group_that_does_not_read(queue: int) -> None:
    assert commits.commit_times(topic="orders", group="nobody", days=1, actor=ACTOR) == {}


def test_a_commit_says_how_many_messages_it_moved_past(queue: int) -> None:
    assert handled(queue, 5, 5, 3, 20) == [5, 0, 0, 15]


def test_what_a_reset_skips_or_repeats_is_handled_only_when_it_is_committed(
    queue: int,
) -> None:
    assert handled(queue, 5) == [5]
    offset_reset.reset(
        group="billing", topic="orders", target=Target("offset", offset=15), actor=ACTOR
    )
    assert handled(queue, 18) == [3]
    offset_reset.reset(
        group="billing", topic="orders", target=Target("offset", offset=10), actor=ACTOR
    )
    assert handled(queue, 18) == [8]


def test_what_retention_took_unread_is_not_handled(queue: int) -> None:
    member, epoch = joined()
    positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, 2)])
    with node_pools.node_of(queue).writing() as session:
        assert partition_sql.raise_low(session, queue=queue, low=10)
    moved = [
        positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, at)])[0]
        for at in (12, 15)
    ]
    assert [one.handled for one in moved] == [0, 3]


def test_a_declared_gap_is_not_handled(queue: int) -> None:
    with node_pools.node_of(queue).writing() as session:
        promotion_sql.raise_heads(session, heads=[(queue, 20 + JUMP)], cause="promoted")
    assert handled(queue, 18, 20 + JUMP) == [18, 2]
