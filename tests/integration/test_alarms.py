"""Alarms begin and end by what a look finds, with patience; people acknowledge them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catmq_site.background import sweeps
from messagestore.engine.mysql_session import Session
from messagestore.inspect import raise_alarms
from messagestore.nodes import disks
from messagestore.nodes.disks import Space
from messagestore.pool import node_pools, session_pool
from messagestore.topology import membership
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import consumer_ids, prune
from metadata.db.clock import database_now
from metadata.errors import Conflict, Forbidden, NodeUnavailable, NotFound
from metadata.groups import groups
from metadata.membership import consumers, expiry
from metadata.models import (
    Alarm,
    AlarmMail,
    AuditLog,
    ConsumerGroup,
    ConsumerGroupTopic,
    DeadLetterCount,
    Heartbeat,
    JobRun,
    NodeSize,
    Queue,
)
from metadata.monitoring import alarms, dead_letter_counts, mails
from metadata.monitoring.alarms import AlarmFindings
from tests.support import failing, rows
from tests.support.environment import ENGINE
from tests.support.failing import ME, fail, failure_queues
from tests.support.tampering import plant

GB = 1_000_000_000


def owner(name: str = "olga", **rights: list[str]) -> Actor:
    return Actor(kind="user", name=name, rights=rights)


def lasting(kind: str | None = None) -> list[str]:
    rows = Alarm.objects.filter(ended_at__isnull=True)
    return sorted((rows.filter(kind=kind) if kind else rows).values_list("name", flat=True))


def turn_back(seconds: float) -> None:
    """Makes what looks saw last that much older."""
    for row in Alarm.objects.filter(pending_since__isnull=False):
        Alarm.objects.filter(pk=row.pk).update(
            pending_since=row.pending_since - timedelta(seconds=seconds)
        )


def look() -> int:
    snapshot.refresh()
    return raise_alarms.update_alarms(every_minutes={"often": 1, "rare": 60})


def behind(lag: int, *, age_s: int = 0) -> None:
    """What the job that records lag would have seen."""
    rows = ConsumerGroupTopic.objects.filter(topic__kind="normal")
    rows.update(lag=lag, lag_ms=age_s * 1000, lag_at=database_now())


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of topic `orders`, which group `billing` reads."""
    return failing.billing()


def test_an_alarm_begins_at_once_or_after_a_while_and_ends_when_all_was_well_for_a_while(
    metadata_db: None,
) -> None:
    assert alarms.reconcile(kind="lag", active={"a/b": "much"}) == 1
    assert (
        alarms.reconcile(kind="no_consumer", active={"a/b": "none"}, begins_after_s=60) == 0
    )
    assert (lasting("lag"), lasting("no_consumer")) == (["a/b"], [])
    turn_back(61)
    assert (
        alarms.reconcile(kind="no_consumer", active={"a/b": "none"}, begins_after_s=60) == 1
    )
    assert alarms.reconcile(kind="lag", active={}) == 0 and lasting("lag") == ["a/b"]
    turn_back(60)
    # it comes and goes: one alarm
    assert alarms.reconcile(kind="lag", active={"a/b": "much"}) == 0
    assert alarms.reconcile(kind="lag", active={}) == 0
    turn_back(181)
    assert alarms.reconcile(kind="lag", active={}, unclear=["a/b"]) == 0  # nobody knows
    assert alarms.reconcile(kind="lag", active={}) == 1 and lasting("lag") == []
    assert alarms.reconcile(kind="lag", active={"a/b": "more"}) == 1
    row = Alarm.objects.get(kind="lag")
    assert (row.times, row.detail, row.ended_at) == (2, "more", None)


@pytest.mark.one_engine
def test_what_was_only_suspected_is_no_alarm(metadata_db: None) -> None:
    alarms.reconcile(kind="no_consumer", active={"a/b": "none"}, begins_after_s=60)
    alarms.reconcile(kind="no_consumer", active={}, begins_after_s=60)
    turn_back(100)
    alarms.reconcile(kind="no_consumer", active={"a/b": "none"}, begins_after_s=60)
    assert lasting() == [] and Alarm.objects.get().times == 0


def test_two_looks_at_once_make_one_alarm(
    metadata_db: None, in_threads: Callable[..., list[Any]]
) -> None:
    found = {f"g{number}/t": "much" for number in range(50)}
    in_threads([lambda: alarms.reconcile(kind="lag", active=found)] * 4)
    assert len(lasting("lag")) == 50
    assert set(Alarm.objects.values_list("times", flat=True)) == {1}


@pytest.mark.one_engine
def test_a_group_is_behind_by_its_own_limits_or_those_of_the_settings(queue: int) -> None:
    behind(99_999, age_s=899)
    look()
    assert lasting("lag") == []
    behind(100_000)
    look()
    assert lasting("lag") == ["billing/orders"]
    behind(90_000)
    look()
    turn_back(1000)
    look()
    assert lasting("lag") == ["billing/orders"]  # not far enough below the limit
    groups.update(
        name="billing", settings={"alarm_lag": 200_000, "alarm_lag_s": 60}, actor=ME
    )
    look()
    turn_back(1000)
    look()
    assert lasting("lag") == []
    behind(5, age_s=61)
    look()
    assert "5 unread messages" in Alarm.objects.get(kind="lag", ended_at=None).detail
    groups.update(name="billing", settings={"stopped": True}, actor=ME)
    look()
    turn_back(1000)
    look()
    assert lasting("lag") == []  # who stops a group knows that it falls behind


def test_queues_with_unread_messages_and_no_consumer_are_an_alarm_after_a_while(
    queue: int,
) -> None:
    failing.send(b"a")
    Queue.objects.update(head_seen=1)
    behind(9, age_s=100_000)
    look()
    turn_back(301)
    look()
    assert lasting() == [], "a few messages of a trial are no alarm"
    behind(10)
    look()
    assert lasting("no_consumer") == []
    turn_back(301)
    look()
    assert Alarm.objects.get(kind="no_consumer", ended_at=None).detail.endswith(
        ": orders/0"
    )
    failing.member()
    look()
    turn_back(181)
    look()
    assert lasting("no_consumer") == []


def joined(name: str, *, sdk: str, group: str = "look") -> consumer_ids.ConsumerId:
    """A member of a group that is made, with its subscription to `orders`, if it is not
    there.
    """
    made = membership.join(
        group=group,
        name=name,
        incarnation=str(uuid.uuid4()),
        topics=["orders"],
        sdk=sdk,
        actor=ME,
    )
    snapshot.refresh()
    return consumer_ids.check(made.consumer_id)


def left(*members: consumer_ids.ConsumerId) -> list[str]:
    """The alarms about the group `look` long after these members left, with 200,000
    messages unread.
    """
    for member in members:
        consumers.leave(consumer=member, actor=ME)
    Queue.objects.update(head_seen=1)
    behind(200_000)
    for _ in range(2):
        look()
        turn_back(1000)
    look()
    return [name for name in lasting() if name.startswith("look/")]


@pytest.mark.one_engine
def test_a_group_that_a_command_made_for_a_look_is_quiet_once_it_has_left(
    queue: int,
) -> None:
    tool = joined("t", sdk="catmq-cli/0.1.0 python/3.11")
    assert ConsumerGroup.objects.get(name="look").casual
    assert left(tool) == []


@pytest.mark.one_engine
@pytest.mark.parametrize("who", ["service", "operator"])
def test_a_group_that_is_used_in_earnest_is_watched_whoever_made_it(
    queue: int, who: str
) -> None:
    members = [joined("t", sdk="catmq-cli/0.1.0 python/3.11")]
    if who == "service":
        members.append(joined("s", sdk="catmq-client/0.1.0 python/3.11"))
    else:
        groups.update(name="look", settings={"description": "of the shop"}, actor=ME)
    assert left(*members) == ["look/orders", "look/orders"]


@pytest.mark.one_engine
def test_a_command_that_dies_leaves_a_group_that_is_watched(queue: int) -> None:
    joined("t", sdk="catmq-cli/0.1.0 python/3.11")
    Heartbeat.objects.update(last_seen=database_now() - timedelta(hours=1))
    assert expiry.expire_silent_members(guard=rows.steady_guard()) == 1
    assert left() == ["look/orders", "look/orders"]


@pytest.mark.one_engine
def test_a_group_that_a_service_made_is_watched(queue: int) -> None:
    assert left(joined("s", sdk="catmq-client/0.1.0 python/3.11")) == [
        "look/orders",
        "look/orders",
    ]


@pytest.fixture
def main_away(queue: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Nobody can connect to node `main` while the list holds True."""
    real, away = session_pool.connect, [True]

    def connect(info: NodeInfo, **words: Any) -> Session:
        if info.name == "main" and away[0]:
            raise NodeUnavailable("Node main cannot be reached.")
        return real(info, **words)

    node_pools.evict_all()
    monkeypatch.setattr(session_pool, "connect", connect)
    yield away


@pytest.mark.one_engine
def test_a_node_is_away_after_two_looks_and_back_after_three_good_minutes(
    main_away: list[bool],
) -> None:
    look()
    assert lasting() == []
    turn_back(46)
    look()
    assert lasting() == ["main"]
    main_away[0] = False
    node_pools.evict_all()
    look()
    assert lasting() == ["main"]
    turn_back(181)
    look()
    assert lasting() == []


@pytest.mark.one_engine
def test_a_node_that_fills_up_is_an_alarm_some_days_before(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = snapshot.find_node("main").id
    monkeypatch.setattr(
        disks, "measure", lambda _session, _info: Space(total=100 * GB, free=67 * GB)
    )
    now = database_now()
    # 1 GB an hour: when 10 of the 100 are left, nothing is stored any more
    for hour in range(25):
        at = now - timedelta(hours=24 - hour)
        NodeSize.objects.create(node_id=node, at=at, bytes=(10 + hour) * GB, tables=1)
    look()
    assert lasting("node_filling") == ["main"]
    assert "full in 2.4 days" in Alarm.objects.get(kind="node_filling").detail
    NodeSize.objects.all().delete()
    look()
    turn_back(181)
    look()
    assert lasting("node_filling") == []


def test_many_deaths_within_an_hour_are_an_alarm_and_all_dead_are_counted(
    queue: int,
) -> None:
    failing.change(retries=0)
    failing.send(*[b"x"] * 12)
    fail(failing.member(), queue, *range(9))
    look()
    assert lasting() == [] and DeadLetterCount.objects.get().messages == 9
    assert dead_letter_counts.list_dead_letters().unseen[0].group == "billing"
    dead_letter_counts.mark_seen(group="billing", actor=ME)
    assert (
        dead_letter_counts.list_dead_letters().unseen == ()
        and dead_letter_counts.list_dead_letters().messages == 9
    )
    with pytest.raises(Conflict):
        dead_letter_counts.mark_seen(group="billing", actor=ME)
    with pytest.raises(Forbidden):
        dead_letter_counts.mark_seen(group="billing", actor=owner())
    assert AuditLog.objects.filter(verb="saw", name="billing").count() == 1


def test_more_deaths_are_unseen_again_and_alarm_above_the_limit(queue: int) -> None:
    failing.change(retries=0)
    failing.send(*[b"x"] * 12)
    who = failing.member()
    fail(who, queue, 0)
    look()
    dead_letter_counts.mark_seen(group="billing", actor=ME)
    fail(who, queue, *range(1, 12))
    look()
    assert (
        lasting() == ["billing"]
        and dead_letter_counts.list_dead_letters().unseen[0].messages == 12
    )
    older = "died_at - 7200000" if ENGINE == "sqlite" else "died_at - INTERVAL 2 HOUR"
    plant(failure_queues()[0], f"UPDATE dead_message SET died_at = {older}")
    look()
    turn_back(181)
    look()
    assert lasting() == [] and dead_letter_counts.list_dead_letters().messages == 12


def test_the_dead_of_a_node_that_is_away_stay_as_they_were(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.change(retries=0)
    failing.send(b"x")
    fail(failing.member(), queue, 0)
    look()
    monkeypatch.setattr(raise_alarms, "count_dead", lambda: None)
    look()
    assert dead_letter_counts.list_dead_letters().messages == 1


def ran(name: str, *states: str) -> None:
    for state in states:
        JobRun.objects.create(
            name=name, state=state, started_at=database_now(), detail="ValueError: bad"
        )


def test_a_job_that_fails_is_an_alarm_and_one_that_comes_often_when_it_fails_twice(
    metadata_db: None,
) -> None:
    ran("rare", "done", "failed")
    ran("often", "done", "failed")
    ran("old", "failed")
    JobRun.objects.filter(name="old").update(started_at=database_now() - timedelta(days=8))
    look()
    assert lasting() == ["rare"]
    ran("often", "failed")
    ran("rare", "done", "running")
    look()
    assert lasting() == ["often", "rare"]
    turn_back(181)
    look()
    assert lasting() == ["often"]


def test_who_manages_the_group_or_topic_acknowledges_and_it_is_audited(queue: int) -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="much")
    alarms.raise_alarm(kind="node_low", name="main", detail="full")
    with pytest.raises(Forbidden):
        alarms.acknowledge(kind="lag", name="billing/orders", actor=owner(manage=["other"]))
    with pytest.raises(Forbidden):
        alarms.acknowledge(kind="node_low", name="main", actor=owner(manage=["*"]))
    with pytest.raises(NotFound):
        alarms.acknowledge(kind="lag", name="nobody/nothing", actor=ME)
    alarms.acknowledge(kind="lag", name="billing/orders", actor=owner(manage=["billing"]))
    assert Alarm.objects.get(kind="lag").acknowledged_by == "olga"
    with pytest.raises(Conflict):
        alarms.acknowledge(
            kind="lag", name="billing/orders", actor=owner(manage=["orders"])
        )
    assert AuditLog.objects.get(verb="acknowledge").after == {"alarm": "lag"}
    alarms.end_alarms(kind="lag", names=["billing/orders"])
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="again")
    assert Alarm.objects.get(kind="lag").acknowledged_by == ""  # it is another time


def test_alarms_at_what_is_gone_end_and_what_happened_once_is_over_after_a_week(
    metadata_db: None,
) -> None:
    for kind, name in (
        ("node_low", "gone"),
        ("not_cleaned", "gone/7"),
        ("unread_dropped", "a/b"),
    ):
        alarms.raise_alarm(kind=kind, name=name, detail="x", count=3)
    look()
    assert lasting() == ["a/b"]
    Alarm.objects.filter(name="a/b").update(last_at=database_now() - timedelta(days=8))
    look()
    assert lasting() == [] and Alarm.objects.get(name="a/b").count == 3


def test_old_alarms_and_their_mails_go_in_small_steps_until_none_is_left(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = database_now() - timedelta(days=91)
    kept = [("node_low", None), ("corrupt", None), ("lag", database_now())]
    Alarm.objects.bulk_create(
        [
            Alarm(kind="lag", name=f"g{n}/t", first_at=old, last_at=old, ended_at=old)
            for n in range(11)
        ]
        + [Alarm(kind=kind, name="k", first_at=old, last_at=at or old) for kind, at in kept]
    )
    AlarmMail.objects.bulk_create(
        AlarmMail(
            alarm=alarm, occurrence=occurrence, what="began", address="a@x.org", made_at=old
        )
        for alarm in Alarm.objects.order_by("pk")
        for occurrence in (1, 2)
    )
    monkeypatch.setattr(prune, "AT_ONCE", 3)
    with CaptureQueriesContext(connection) as seen:
        assert (mails.prune(limit=5), alarms.prune(limit=4)) == (5, 4)
        monkeypatch.setattr(prune, "READ", 6)
        assert sweeps.prune_alarms() == 20 + 7  # three mails went with the four alarms
    deleted = [
        one["sql"].split("IN (")[-1].count(",") + 1
        for one in seen
        if one["sql"].startswith("DELETE")
    ]
    assert max(deleted) == 3, "rows that one statement names"
    assert sorted(Alarm.objects.values_list("kind", flat=True)) == [
        "corrupt",
        "lag",
        "node_low",
    ]


def test_an_alarm_that_is_raised_while_old_ones_go_stays(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = database_now() - timedelta(days=91)
    for name in "abcd":
        alarms.raise_alarm(kind="lag", name=name, detail="far behind")
    alarms.end_alarms(kind="lag", names="abcd")
    Alarm.objects.update(last_at=old)
    monkeypatch.setattr(prune, "AT_ONCE", 2)
    raised: list[str] = []

    def raises(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("DELETE") and not raised:
            raised.append("d")
            alarms.raise_alarm(kind="lag", name="d", detail="again")
        return execute(sql, *rest)

    with connection.execute_wrapper(raises):
        assert alarms.prune() == 3
    assert lasting() == ["d"]


def test_an_alarm_whose_old_row_goes_while_it_is_raised_is_raised_all_the_same(
    metadata_db: None,
) -> None:
    alarms.raise_alarm(kind="lag", name="a", detail="far behind")
    alarms.end_alarms(kind="lag", names="a")
    gone: list[str] = []

    def goes(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and not gone:
            gone.append("a")
            Alarm.objects.all().delete()
        return execute(sql, *rest)

    with connection.execute_wrapper(goes):
        alarms.raise_alarm(kind="lag", name="a", detail="again", count=3)
    assert lasting() == ["a"]
    assert Alarm.objects.get().count == 3


@pytest.mark.one_engine
def test_a_lost_node_is_one_alarm_however_many_groups_read_from_it(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_pools.node_of(queue).info.name
    away = AlarmFindings({node: "no answer"})
    monkeypatch.setattr(raise_alarms, "find_nodes_away", lambda: away)
    behind(500_000, age_s=10_000)
    look()
    turn_back(301)
    look()
    assert lasting() == [node]
    away.active.clear()
    look()
    assert "billing/orders" in lasting("lag")


def test_all_alarms_are_acknowledged_that_somebody_may_each_with_an_audit_row(
    queue: int,
) -> None:
    alarms.raise_alarm(kind="lag", name="billing/orders", detail="much")
    alarms.raise_alarm(kind="unread_dropped", name="billing/orders", detail="some")
    alarms.raise_alarm(kind="node_away", name="main", detail="no answer")
    olga = owner(manage=["billing"])
    assert alarms.list_acknowledgeable(actor=owner()) == []
    chosen = alarms.list_acknowledgeable(actor=olga)
    assert chosen == [("lag", "billing/orders"), ("unread_dropped", "billing/orders")]
    with pytest.raises(Forbidden):
        alarms.acknowledge_all(chosen=[("node_away", "main")], actor=olga)
    assert alarms.acknowledge_all(chosen=chosen, actor=olga) == 2
    assert alarms.acknowledge_all(chosen=chosen, actor=olga) == 0, "somebody was faster"
    assert AuditLog.objects.filter(verb="acknowledge", actor_name="olga").count() == 2
    assert alarms.list_acknowledgeable(actor=ME) == [("node_away", "main")]
