"""The progress of groups, by what was counted, what a job saw and what the nodes say now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from messagestore.consume import group_lag, offset_reset
from messagestore.consume.offset_reset import Target
from messagestore.engine.messages import NewMessage
from messagestore.pool.node import Node
from messagestore.produce.publish import publish
from messagestore.topology import membership, subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.errors import NodeUnavailable
from metadata.groups import groups
from metadata.membership import rebalance
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Rebalance, Sample, Topic
from metadata.monitoring import counters, lag_trends, metrics_history
from metadata.rules.groups.lag_trend import LagTrend

ACTOR = actors.command("test")


@pytest.fixture(autouse=True)
def orders(node: str) -> Iterator[None]:
    """Topic `orders` with a queue; group `billing` reads it and has a member."""
    topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    membership.join(group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR)
    yield
    metrics_history._counters = counters.Counters()


def send(count: int) -> None:
    publish(
        topic="orders", messages=[NewMessage(body=b"x")] * count, batch_id=None, actor=ACTOR
    )


def minutes(
    *lags: int, handled: int | None = 60, sent: int = 600, pulled: int = 6_000
) -> None:
    """Rows of the last minutes, the last of them the one that is over; the messages are
    old.
    """
    topic, group = Topic.objects.get(name="orders").pk, ConsumerGroup.objects.get().pk
    last = metrics_history.start_of_step(database_now(), step_s=60)
    for back, found in enumerate(reversed(lags), start=1):
        at = last - timedelta(minutes=back)
        Sample.objects.create(at=at, topic_ref=topic, messages=sent)
        Sample.objects.create(
            at=at,
            topic_ref=topic,
            group_ref=group,
            messages=pulled,
            handled=handled,
            lag=found,
            lag_ms=60_000,
        )


def seen(now: int | None, *, oldest_ms: int = 60_000) -> lag_trends.GroupProgress:
    """Return what is said of the group when its lag of now is that."""
    found = lag_trends.read_group_progress(
        group="billing", lags={"orders": lag_trends.Lag(now, oldest_ms)}
    )
    assert found is not None
    return found


def test_a_group_that_pulls_more_than_it_handles_falls_behind() -> None:
    minutes(*range(0, 5_400, 540))
    found = seen(5_400)
    assert (found.trend.state, round(found.trend.per_s or 0)) == ("falls_behind", 9)
    assert found.lag_before == 0 and 540 <= found.between_s <= 660
    assert found.pace.handled is not None
    assert found.pace.pulled > 50 * found.pace.handled, (
        "it pulls the same messages again and again"
    )
    assert found.pace.sent > 5 * found.pace.handled


def test_a_group_catches_up_by_what_its_lag_shrinks() -> None:
    minutes(*range(10_800, 5_400, -540), handled=1_200, sent=660)
    found = seen(5_400)
    assert found.trend.state == "catches_up"
    assert 480 < (found.trend.in_s or 0) < 720


def test_nothing_is_said_of_what_was_before_a_reset() -> None:
    send(30)
    minutes(*[0] * 10)
    offset_reset.reset(
        group="billing", topic="orders", target=Target("latest"), actor=ACTOR
    )
    offset_reset.reset(
        group="billing", topic="orders", target=Target("earliest"), actor=ACTOR
    )
    assert seen(30).trend.state == "too_little_data"


def test_what_an_earlier_version_did_not_count_is_not_zero() -> None:
    minutes(*range(0, 5_400, 540), handled=None)
    found = seen(5_400)
    assert found.trend.state == "falls_behind" and found.pace.handled is None


def test_a_message_that_must_still_ripen_is_not_late() -> None:
    ConsumerGroupTopic.objects.filter(topic__name="orders").update(delay_s=3_600)
    minutes(*[50] * 10, handled=0)
    assert seen(50, oldest_ms=3_601_000).trend.state == "keeps_up"
    assert seen(50, oldest_ms=3_700_000).trend.state == "stalled"


def test_paused_groups_and_topics_say_so() -> None:
    minutes(*[50] * 10, handled=0)
    ConsumerGroupTopic.objects.filter(topic__name="orders").update(stopped=True)
    assert seen(50).trend == LagTrend("paused")
    ConsumerGroupTopic.objects.filter(topic__name="orders").update(stopped=False)
    assert seen(50).trend == LagTrend("stalled")
    groups.update(name="billing", settings={"stopped": True}, actor=ACTOR)
    assert seen(50).trend == LagTrend("paused")


def test_a_node_that_is_away_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    send(3)
    offsets, found = group_lag.standing(group="billing", actor=ACTOR)
    assert [one.lag for one in offsets] == [3] and found is not None
    assert found.trend == LagTrend("keeps_up"), "it is behind for seconds only"

    def away(*_: Any, **__: Any) -> Any:
        raise NodeUnavailable("away")

    monkeypatch.setattr(Node, "reading", away)
    _offsets, found = group_lag.standing(group="billing", actor=ACTOR)
    assert found is not None and found.trend == LagTrend("unknown") and found.lag is None


def test_of_lists_what_the_job_has_not_seen_lately_is_unknown() -> None:
    send(3)
    assert group_lag.record() >= 1
    (pk,) = ConsumerGroup.objects.values_list("pk", flat=True)
    assert lag_trends.read_progress_of_groups([pk])[pk].lag == 3
    long_ago = database_now() - timedelta(seconds=lag_trends.STALE_S + 1)
    ConsumerGroupTopic.objects.update(lag_at=long_ago)
    assert lag_trends.read_progress_of_groups([pk])[pk].trend == LagTrend("unknown")


def test_a_group_without_members_or_subscriptions_has_no_trend() -> None:
    groups.create(name="lone", actor=ACTOR)
    found = lag_trends.read_group_progress(group="lone", lags={})
    assert found is not None and found.trend == LagTrend("no_members")
    assert lag_trends.read_group_progress(group="nobody", lags={}) is None


def test_rebalances_that_take_no_queue_from_a_member_are_no_cause_of_lag() -> None:
    group_id = ConsumerGroup.objects.values_list("pk", flat=True).get()
    for name in ("a", "b", "c", "d"):
        topics.create(name=name, queues=1, actor=ACTOR)
        subscriptions.create(group="billing", topic=name, start="earliest", actor=ACTOR)
        rebalance.rebalance_if_due(group_id)
    assert Rebalance.objects.filter(group=group_id).count() >= 4
    assert lag_trends.read_recent_events(group_id=group_id).rebalances == 0
    membership.join(group="billing", name="two", incarnation=str(uuid4()), actor=ACTOR)
    assert lag_trends.read_recent_events(group_id=group_id).rebalances == 1


def test_many_groups_take_as_many_queries_as_one(django_assert_num_queries: Any) -> None:
    for number in range(5):
        groups.create(name=f"g{number}", actor=ACTOR)
    ids = list(ConsumerGroup.objects.values_list("pk", flat=True))
    with django_assert_num_queries(7):
        assert len(lag_trends.read_progress_of_groups(ids)) == 6
