"""Series: counted in memory, added by the minute, rolled up, trimmed; and the lag that a
job records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from messagestore.consume import group_lag
from messagestore.engine.messages import NewMessage
from messagestore.produce import publish
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db.clock import database_now, ms
from metadata.groups import groups
from metadata.models import ConsumerGroupTopic, Sample, Topic
from metadata.monitoring import counters, metrics_history, rollups
from tests.support import rows

ACTOR = actors.command("test")


@dataclass
class Clock:
    """A database's clock that tests move."""

    now: datetime


@pytest.fixture(autouse=True)
def nothing_counted(metadata_db: None) -> Iterator[None]:
    """What other tests counted in this process is not counted here."""
    metrics_history._counters.take()
    yield
    metrics_history._counters = counters.Counters()


def test_what_processes_count_adds_up_in_the_row_of_the_minute() -> None:
    for _ in range(3):
        metrics_history.count_sent(topic_id=1, messages=2, bytes=20, errors=1)
        metrics_history.count_pulled(topic_id=1, group_id=5, messages=4, bytes=40)
        assert metrics_history.flush() == 2
    assert metrics_history.flush() == 0
    before, last = metrics_history.read_points(for_s=600, topic_id=1, step_s=60)[
        -2:
    ]  # the minute may have changed
    assert last.sent + before.sent == 6 and last.errors + before.errors == 3
    assert last.pulled + before.pulled == 12 and last.sent_bytes + before.sent_bytes == 60


def test_a_flush_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_history.count_sent(topic_id=1, messages=1, bytes=1)
    with monkeypatch.context() as patch:
        patch.setattr(metrics_history, "database_now", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            metrics_history.flush()
    metrics_history.count_sent(topic_id=1, messages=1, bytes=1)
    metrics_history.flush()
    assert sum(row.messages for row in Sample.objects.filter(topic_ref=1)) == 2


def test_all_topics_and_groups_are_summed_up_when_they_are_written() -> None:
    for topic in (1, 2):
        metrics_history.count_sent(topic_id=topic, messages=10, bytes=100)
        for group in (5, 6):
            metrics_history.count_pulled(
                topic_id=topic, group_id=group, messages=3, bytes=30
            )
    assert metrics_history.flush() == 6
    seen = metrics_history.read_points(for_s=120, step_s=60)
    assert (sum(one.sent for one in seen), sum(one.pulled for one in seen)) == (20, 12)


def test_ten_seconds_are_told_once_every_process_has_written_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(metrics_history.start_of_step(database_now(), step_s=60))
    monkeypatch.setattr(metrics_history, "database_now", lambda: clock.now)
    monkeypatch.setattr(counters, "monotonic", lambda: clock.now.timestamp() % 10_000)
    metrics_history._counters.learn(clock.now.timestamp())
    # 3 messages a second for ten seconds, then 5, then 7; written when it pleases
    for second in range(30):
        metrics_history.count_sent(topic_id=1, messages=3 + 2 * (second // 10), bytes=1)
        metrics_history.count_pulled(topic_id=1, group_id=5, messages=4, bytes=1)
        metrics_history.count_handled(topic_id=1, group_id=5, messages=1)
        clock.now += timedelta(seconds=1)
        if second % 4 == 3:
            metrics_history.flush()
    assert metrics_history.read_pace(topic_id=1) == (
        5.0,
        4.0,
        1.0,
    )  # the last ten seconds may still lie in some process
    metrics_history.flush()
    clock.now += timedelta(seconds=metrics_history.WRITE_DELAY_S)
    told = metrics_history.read_points(for_s=60, topic_id=1)
    assert [one.sent for one in told[-3:]] == [30, 50, 70] and {
        one.seconds for one in told
    } == {10}
    assert [(one.pulled, one.handled) for one in told[-3:]] == [(40, 10)] * 3
    assert metrics_history.read_pace() == (7.0, 4.0, 1.0) and metrics_history.read_pace(
        group_id=5
    ) == (0.0, 4.0, 1.0)
    assert metrics_history._counters.totals == {5: (120, 30)}
    (minute,) = Sample.objects.filter(step_s=60, topic_ref=1, group_ref=5)
    assert (minute.messages, minute.handled) == (120, 30)


def test_what_an_earlier_version_counted_tells_nothing_of_what_was_handled() -> None:
    at = metrics_history.start_of_step(database_now(), step_s=60) - timedelta(minutes=2)
    Sample.objects.create(at=at, topic_ref=1, group_ref=5, messages=60, bucket_10s_1=60)
    for step_s in (60, metrics_history.SLOT_S):
        told = metrics_history.read_points(for_s=600, group_id=5, step_s=step_s)
        first = next(one for one in told if one.pulled)
        assert (first.pulled, first.handled) == (60, None)
        assert not any(one.is_known for one in told if one.at_ms < ms(at)), (
            "nothing was there to count"
        )


def up(minutes: Iterable[int]) -> datetime:
    """Rows as they are made every minute while a broker is there, so many minutes ago; the
    present minute.
    """
    now = metrics_history.start_of_step(database_now(), step_s=60)
    for back in minutes:
        Sample.objects.create(
            at=now - timedelta(minutes=back), topic_ref=metrics_history.ALL_TOPICS,
            group_ref=metrics_history.ALL_GROUPS, lag=0,
        )  # fmt: skip
    return now


@pytest.mark.parametrize("step_s", [60, metrics_history.SLOT_S])
def test_what_was_not_counted_is_not_known_and_no_zero(
    step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The job came a little late in the fifth minute; brokers were down from the eighth to
    # the tenth.
    now = up([2, 3, 4, 6, 7, 11, 12])
    monkeypatch.setattr(
        metrics_history, "database_now", lambda: now + timedelta(seconds=30)
    )
    Sample.objects.create(
        at=now - timedelta(minutes=12), topic_ref=1, messages=60, bucket_10s_1=60
    )

    told = metrics_history.read_points(for_s=900, topic_id=1, step_s=step_s)

    ago = {
        int((ms(now) - one.at_ms + 59_999) // 60_000) for one in told if not one.is_known
    }
    assert ago == {8, 9, 10, 13, 14, 15}, "zeros of all other minutes are true"
    assert sum(one.sent for one in told) == 60
    assert {one.sent for one in told if not one.is_known} == {0}


def test_nothing_is_known_of_a_topic_before_it_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.node()
    rows.topic("orders")
    now = up(range(10)) + timedelta(seconds=30)
    monkeypatch.setattr(metrics_history, "database_now", lambda: now)
    Topic.objects.update(created_at=now - timedelta(minutes=4))
    told = metrics_history.read_points(
        for_s=540, topic_id=Topic.objects.get().pk, step_s=60
    )
    assert [one.is_known for one in told] == [False] * 5 + [True] * 5
    assert all(one.is_known for one in metrics_history.read_points(for_s=540, step_s=60))


def test_where_nothing_is_sent_the_job_that_sums_lag_up_tells_that_a_broker_was_there() -> (
    None
):
    assert not metrics_history.read_points(for_s=120, topic_id=1, step_s=60)[-1].is_known
    metrics_history.sum_lag()
    last = metrics_history.read_points(for_s=120, topic_id=1, step_s=60)[-1]
    assert (last.is_known, last.sent) == (True, 0)


def test_a_process_that_does_not_know_the_time_yet_counts_when_it_writes() -> None:
    fresh = counters.Counters()
    fresh.add(1, 0, counters.Count(4))
    assert fresh.take() == {(None, 1, 0): counters.Count(4)}
    fresh.learn(1_000_000.0)
    fresh.add(1, 0, counters.Count(4))
    assert fresh.take() == {(100_000, 1, 0): counters.Count(4)}


def test_minutes_are_summed_up_into_quarters_and_days_as_often_as_wanted() -> None:
    day = metrics_history.start_of_step(database_now(), step_s=86_400) - timedelta(days=1)
    for minute in range(45):
        Sample.objects.create(
            at=day + timedelta(minutes=minute), topic_ref=1, messages=10, bytes=5
        )
        Sample.objects.create(
            at=day + timedelta(minutes=minute),
            topic_ref=1,
            group_ref=2,
            messages=1,
            handled=2,
            lag=minute,
        )
    for _ in range(2):
        rollups.roll_up()
        quarters = Sample.objects.filter(step_s=900, group_ref=0).order_by("at")
        assert [(row.messages, row.bytes) for row in quarters] == [(150, 75)] * 3
        assert [
            row.lag for row in Sample.objects.filter(step_s=900, group_ref=2).order_by("at")
        ] == [
            14,
            29,
            44,
        ]
        assert Sample.objects.get(step_s=86_400, group_ref=0).messages == 450
        assert Sample.objects.get(step_s=86_400, group_ref=2).handled == 90


@pytest.mark.parametrize("idle_days", [1, 3, 40])
def test_after_a_time_without_samples_the_old_sums_stay_and_new_ones_are_written(
    monkeypatch: pytest.MonkeyPatch, idle_days: int
) -> None:
    """Nothing was recorded for longer than a pass reaches, and minutes are deleted meanwhile."""
    monkeypatch.setattr(rollups, "MAX_STEPS", 5)
    today = metrics_history.start_of_step(database_now(), step_s=86_400) - timedelta(days=1)
    earlier = today - timedelta(days=idle_days)
    for minute in (0, 5, 14):
        Sample.objects.create(
            at=earlier + timedelta(minutes=minute), topic_ref=1, messages=10
        )
    rollups.roll_up()
    # As the retention of minutes does it: the first ones of the quarter are gone.
    Sample.objects.filter(step_s=60, at__lt=earlier + timedelta(minutes=10)).filter(
        at__lt=database_now() - timedelta(days=rollups.KEPT_DAYS[60])
    ).delete()
    Sample.objects.create(at=today + timedelta(minutes=20), topic_ref=1, messages=7)
    for _ in range(3):
        rollups.roll_up()
    quarters = (
        Sample.objects.filter(step_s=900).order_by("at").values_list("at", "messages")
    )
    assert [*quarters] == [(earlier, 30), (today + timedelta(minutes=15), 7)]
    days = Sample.objects.filter(step_s=86_400).order_by("at").values_list("at", "messages")
    assert [*days] == [(earlier, 30), (today, 7)]


def test_each_step_is_kept_for_its_time() -> None:
    now = metrics_history.start_of_step(database_now(), step_s=60)
    for step_s, days in rollups.KEPT_DAYS.items():
        kept_s = days * 86_400
        for age_s in (kept_s - 3600, kept_s + 3600):
            Sample.objects.create(
                step_s=step_s, at=now - timedelta(seconds=age_s), topic_ref=1
            )
    assert rollups.prune() == 3
    assert Sample.objects.count() == 3


def test_the_lag_of_every_subscription_is_recorded(make_node: Callable[..., str]) -> None:
    make_node("main")
    make_node("failure", kind="failure")
    topics.create(name="orders", queues=2, actor=ACTOR)
    for name in ("billing", "search"):
        groups.create(name=name, actor=ACTOR)
        start = "earliest" if name == "billing" else "latest"
        subscriptions.create(group=name, topic="orders", start=start, actor=ACTOR)
    snapshot.refresh()
    sent = [NewMessage(body=b"x", key=str(n)) for n in range(20)]
    publish.publish(topic="orders", messages=sent, batch_id=None, actor=ACTOR)
    assert group_lag.record() >= 2
    subscribed = ConsumerGroupTopic.objects.filter(topic__name="orders").order_by(
        "group__name"
    )
    assert [row.lag for row in subscribed] == [20, 20]
    assert all(row.lag_at is not None and (row.lag_ms or 0) >= 0 for row in subscribed)
    group = groups.describe(name="billing", actor=ACTOR)
    assert 20 in {
        one.lag
        for one in metrics_history.read_points(for_s=120, group_id=group.id, step_s=60)
    }
    metrics_history.sum_lag()
    assert 40 in {one.lag for one in metrics_history.read_points(for_s=120, step_s=60)}
