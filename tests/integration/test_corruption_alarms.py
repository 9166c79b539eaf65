"""A queue that contradicts itself is an alarm, until its node contradicts itself no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from messagestore.engine.messages import NewMessage
from messagestore.heads import corruption
from messagestore.nodes import corruption_alarms
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import StoreCorrupt
from metadata.models import Alarm
from metadata.monitoring import alarms
from metadata.rules.alarm_texts import alarm_text
from tests.support.tampering import declare_gap, plant, raise_low, remove

ACTOR = command("test")


@pytest.fixture
def queue(node: str) -> Iterator[int]:
    """The queue of topic `orders`, with five messages."""
    made = topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()
    queue = made.queues[0].queue.queue
    for _ in range(5):
        send(queue)
    yield queue
    corruption.evict_except(())


def send(queue: int) -> None:
    publish(
        topic="orders",
        messages=[NewMessage(body=b"m", queue=queue)],
        batch_id=None,
        actor=ACTOR,
    )


def lasting() -> list[tuple[str, str, int | None]]:
    """The alarms that last: kind, name, place."""
    return list(Alarm.objects.filter(ended_at=None).values_list("kind", "name", "place"))


def wrong(queue: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the alarm stays when it is reviewed, and the mark when it is looked at again."""
    monkeypatch.setattr(corruption_alarms, "CALM_S", 0.0)
    monkeypatch.setattr(corruption_alarms, "AGAIN_S", float("inf"))
    corruption_alarms.raise_alarms()
    corruption_alarms.review(calm_s=0)
    assert bool(lasting()) == (queue in corruption.current())
    return bool(lasting())


def test_a_hole_is_an_alarm_that_says_where(queue: int) -> None:
    remove(queue, 2)
    corruption.report(queue, offset=2, why=alarm_text("missing", end="5"))
    assert corruption_alarms.raise_alarms() == 1
    assert lasting() == [("corrupt", "orders/0", 2)], (
        "the number of the queue in its topic, and no id"
    )
    assert Alarm.objects.get().detail == "no message, log end offset is 5"


def test_an_alarm_of_a_queue_that_has_a_number_above_0_is_reviewed_by_that_number(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topics.create(name="many", queues=3, actor=ACTOR).queues
    snapshot.refresh()
    third = made[2].queue.queue
    for _ in range(5):
        publish(
            topic="many",
            messages=[NewMessage(body=b"m", queue=third)],
            batch_id=None,
            actor=ACTOR,
        )
    remove(third, 2)
    corruption.report(third, offset=2, why="no message, log end offset is 5")
    assert wrong(third, monkeypatch)
    assert [name for _kind, name, _place in lasting()] == ["many/2"]
    alarms.raise_alarm(
        kind="corrupt", name=f"many/{third + 1000}", detail="named by its id once", place=2
    )
    corruption_alarms.review(calm_s=0)
    assert [name for _kind, name, _place in lasting()] == ["many/2"], (
        "no such queue is there"
    )


def test_a_mark_that_is_met_with_every_pull_is_told_only_now_and_then(queue: int) -> None:
    for _ in range(3):
        corruption.report(queue, offset=2, why="no message, log end offset is 5")
    assert [corruption_alarms.raise_alarms() for _ in range(3)] == [1, 0, 0]


def test_an_alarm_that_could_not_be_written_is_told_by_the_next_pass(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    corruption.report(queue, offset=2, why="a hole")
    with monkeypatch.context() as away:
        away.setattr("metadata.monitoring.alarms.raise_alarm", lambda **given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            corruption_alarms.raise_alarms()
    assert (corruption_alarms.raise_alarms(), len(lasting())) == (1, 1)


@pytest.mark.parametrize(
    "mend",
    [
        lambda queue: declare_gap(queue, 2, 3),
        lambda queue: raise_low(queue, 3),
        lambda queue: plant(
            queue, "UPDATE message_{q} SET msg_offset = 2 WHERE msg_offset = 4"
        ),
        lambda queue: topics.delete(name="orders", confirm="orders", actor=ACTOR),
    ],
    ids=["declared", "cleaned", "filled", "deleted"],
)
def test_the_alarm_of_a_hole_lasts_until_the_hole_is_explained(
    queue: int, mend: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(queue, 2)
    corruption.report(queue, offset=2, why="a hole")
    assert wrong(queue, monkeypatch) and wrong(queue, monkeypatch)
    mend(queue)
    snapshot.refresh()
    assert not wrong(queue, monkeypatch)


def test_a_head_below_a_stored_message_is_an_alarm_until_it_is_raised(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(queue, "UPDATE queue_head SET head = 4 WHERE queue_id = {q}")
    with pytest.raises(StoreCorrupt):
        send(queue)
    corruption.delivered(queue, next_offset=4)  # reading goes on, which proves nothing
    assert wrong(queue, monkeypatch)
    plant(queue, "UPDATE queue_head SET head = 5 WHERE queue_id = {q}")
    assert not wrong(queue, monkeypatch)
    send(queue)


@pytest.mark.parametrize(
    ("spoil", "mend"),
    [
        (
            "ALTER TABLE message_{q} RENAME COLUMN body TO corpse",
            "ALTER TABLE message_{q} RENAME COLUMN corpse TO body",
        ),
        ("ALTER TABLE message_{q} RENAME TO moved", "ALTER TABLE moved RENAME TO message_{q}"),
        ("ALTER TABLE reader RENAME TO moved", "ALTER TABLE moved RENAME TO reader"),
        ("ALTER TABLE sent_batch RENAME TO moved", "ALTER TABLE moved RENAME TO sent_batch"),
    ],
)  # fmt: skip
def test_a_table_that_is_missing_or_was_altered_is_an_alarm_until_it_is_back(
    queue: int, spoil: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(queue, spoil)
    corruption.report(queue, offset=None, why="the table is missing or was altered")
    assert wrong(queue, monkeypatch)
    plant(queue, mend)
    node_pools.evict_all()
    assert not wrong(queue, monkeypatch)


def test_the_alarm_of_a_process_that_is_no_more_ends_all_the_same(queue: int) -> None:
    remove(queue, 2)
    corruption.report(queue, offset=2, why="a hole")
    corruption_alarms.raise_alarms()
    corruption.evict_except(())
    assert corruption_alarms.review(calm_s=0) == 0
    declare_gap(queue, 2, 3)
    assert corruption_alarms.review() == 0, "it was raised a moment ago"
    assert corruption_alarms.review(calm_s=0) == 1
    assert lasting() == []


def test_while_the_node_is_away_the_alarm_stays(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(queue, 2)
    corruption.report(queue, offset=2, why="a hole")
    corruption_alarms.raise_alarms()
    declare_gap(queue, 2, 3)
    from metadata.errors import NodeUnavailable

    def away(*_: object, **__: object) -> None:
        raise NodeUnavailable("away")

    with monkeypatch.context() as silent:
        silent.setattr(Node, "reading", away)
        assert corruption_alarms.review(calm_s=0) == 0
    assert corruption_alarms.review(calm_s=0) == 1
