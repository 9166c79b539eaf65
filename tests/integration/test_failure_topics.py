"""Failure topics come and go with subscriptions, whatever dies in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from messagestore.retention import planning
from messagestore.tables import delayed_sql, node_sql, queue_sql, reader_sql
from messagestore.topology import queues, retry_topics, subscriptions, topics
from metadata.cache import snapshot
from metadata.db import paging
from metadata.errors import CatmqError, Code, Conflict, Invalid, NodeUnavailable
from metadata.groups import groups, retry_topic_rows
from metadata.membership import consumers
from metadata.models import ConsumerGroupTopic, QueueOffset, Topic
from metadata.topics import topic_rows
from tests.support import failing, tampering
from tests.support.failing import ME, fail, failure_queues, waiting


class Crash(BaseException):
    """The process dies here."""


def dies(*args: object, **kwargs: object) -> Any:
    raise Crash


def failing_topics() -> list[str]:
    return list(
        Topic.objects.filter(kind="failure", state="ready").values_list("name", flat=True)
    )


def refused(code: Code, kind: type[CatmqError], call: Callable[[], object]) -> CatmqError:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_a_subscription_gets_a_failure_topic_that_its_group_reads(
    node: str, failure_node: str
) -> None:
    queue = failing.billing()
    made = topic_rows.find_topic(name="billing_orders_fail", actor=ME)
    assert (made.kind, made.state, [one.node for one in made.queues]) == (
        "failure",
        "ready",
        ["failure", "failure"],
    )
    told = failing.Instance("one", group="billing").join().beat()
    assert {(one.queue, one.topic, one.origin_topic) for one in told.assigned} == {
        (queue, "orders", None),
        *((one.queue, "billing_orders_fail", "orders") for one in made.queues),
    }


def test_failure_topics_stand_in_lists_of_their_own(node: str, failure_node: str) -> None:
    failing.billing()
    window = paging.Window()
    assert [one.name for one in topic_rows.list_topics(actor=ME, window=window).items] == [
        "orders"
    ]
    theirs = topic_rows.list_topics(actor=ME, window=window, kind="failure").items
    assert [one.name for one in theirs] == ["billing_orders_fail"]
    shown = groups.describe(name="billing", actor=ME)
    assert [one.topic for one in shown.subscriptions] == ["orders"]


def test_queues_are_spread_over_the_failure_nodes(
    node: str, make_node: Callable[..., str]
) -> None:
    make_node("f1", kind="failure")
    make_node("f2", kind="failure")
    failing.billing()
    made = topic_rows.find_topic(name="billing_orders_fail", actor=ME)
    assert sorted(one.node for one in made.queues) == ["f1", "f2"]


def test_a_broadcasting_group_gets_none(node: str, failure_node: str) -> None:
    topics.create(name="orders", queues=1, actor=ME)
    groups.create(name="news", mode="broadcasting", actor=ME)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ME)
    assert failing_topics() == []
    assert retry_topics.sweep() == 0


def test_the_sweep_makes_those_of_older_subscriptions(
    node: str, make_node: Callable[..., str]
) -> None:
    failing.billing()
    assert (retry_topics.sweep(), failing_topics()) == (0, [])
    make_node("failure", kind="failure")
    assert (retry_topics.sweep(), failing_topics()) == (1, ["billing_orders_fail"])
    assert retry_topics.sweep() == 0


def test_a_report_makes_a_missing_one(node: str, make_node: Callable[..., str]) -> None:
    queue = failing.billing()
    failing.send(b"a")
    who = failing.member()
    make_node("failure", kind="failure")
    assert len(fail(who, queue, 0).retried) == 1


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("module", "step"),
    [
        (node_sql, "create_node_tables"),
        (queue_sql, "create_queue"),
        (reader_sql, "insert_readers"),
        (retry_topic_rows, "make_ready"),
    ],
)
def test_a_crash_while_it_is_made_is_mended_by_the_sweeps(
    module: Any, step: str, make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = failing.billing()
    make_node("failure", kind="failure")
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(module, step, dies)
        retry_topics.sweep()
    assert failing_topics() == []
    topics.sweep(older_than_s=-1)
    subscriptions.sweep(older_than_s=-1)
    assert retry_topics.sweep() == 1
    assert failing_topics() == ["billing_orders_fail"]
    failing.send(b"a")
    assert len(fail(failing.member(), queue, 0).retried) == 1


def test_a_failure_node_that_is_away_keeps_no_group_from_subscribing(
    node: str, failure_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> Any:
        raise NodeUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(node_sql, "create_node_tables", away)
        failing.billing()
    assert failing_topics() == []
    assert (retry_topics.sweep(), failing_topics()) == (1, ["billing_orders_fail"])


def test_a_clash_of_names_is_told_with_the_other_pair(node: str, failure_node: str) -> None:
    for topic, group in (("b_c", "a"), ("c", "a_b")):
        topics.create(name=topic, queues=1, actor=ME)
        groups.create(name=group, actor=ME)
    subscriptions.create(group="a", topic="b_c", start="earliest", actor=ME)
    error = refused(
        Code.ALREADY_EXISTS,
        Conflict,
        lambda: subscriptions.create(group="a_b", topic="c", start="earliest", actor=ME),
    )
    assert "a_b_c_fail" in error.detail and "group a and topic b_c" in error.detail
    assert not ConsumerGroupTopic.objects.filter(topic__name="c").exists()


def test_nobody_else_reads_or_reshapes_a_failure_topic(
    node: str, failure_node: str
) -> None:
    failing.billing()
    groups.create(name="spies", actor=ME)
    name = "billing_orders_fail"
    for call in (
        lambda: subscriptions.create(group="spies", topic=name, start="earliest", actor=ME),
        lambda: queues.expand(topic=name, queues=1, actor=ME),
        lambda: queues.shrink(topic=name, count=1, actor=ME),
    ):
        refused(Code.INVALID, Invalid, call)  # type: ignore[arg-type]
    refused(Code.IN_USE, Conflict, lambda: topics.delete(name=name, confirm=name, actor=ME))


def test_unsubscribing_while_retries_wait_ends_them_and_a_new_start_is_clean(
    node: str, failure_node: str
) -> None:
    queue = failing.billing()
    failing.send(b"a", b"b")
    who = failing.member()
    fail(who, queue, 0, 1)
    consumers.leave(consumer=who.id, actor=ME)
    old = failure_queues()
    subscriptions.delete(group="billing", topic="orders", actor=ME)
    assert tampering.look(old[0], "SELECT COUNT(*) FROM delayed_message") == [(0,)]
    assert not QueueOffset.objects.exists()
    assert Topic.objects.get(kind="failure").state == "deleted"
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    assert set(failure_queues()).isdisjoint(old)
    assert len(fail(failing.member("two"), queue, 0).retried) == 1
    assert len(waiting()) == 1


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (queue_sql, "set_queue_state"),
        (delayed_sql, "delete_queue_delayed"),
        (reader_sql, "delete_readers"),
    ],
)
def test_a_crash_while_unsubscribing_is_finished_by_the_sweep(
    node: str, failure_node: str, module: Any, step: str, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = failing.billing()
    failing.send(b"a")
    fail(failing.member(), queue, 0)
    old = failure_queues()[0]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(module, step, dies)
        subscriptions.delete(group="billing", topic="orders", actor=ME)
    subscriptions.sweep()
    assert tampering.look(old, "SELECT COUNT(*) FROM delayed_message") == [(0,)]
    assert not ConsumerGroupTopic.objects.exists()
    assert Topic.objects.get(kind="failure").failure_of is None


def test_a_deleted_group_takes_its_failure_topics_along(
    node: str, failure_node: str
) -> None:
    failing.billing()
    groups.delete(name="billing", confirm="billing", actor=ME)
    subscriptions.sweep()
    assert failing_topics() == []
    topics.delete(name="orders", confirm="orders", actor=ME)
    assert topics.drop_deleted(after_days=-1) == 2
    assert not Topic.objects.exists()


def test_a_retry_that_nobody_has_read_is_never_cleaned_away(
    node: str, failure_node: str
) -> None:
    failing.billing()
    name = "billing_orders_fail"
    made = topic_rows.find_topic(name=name, actor=ME)
    first = made.queues[0].queue
    failing.publish(
        topic=name,
        messages=[failing.NewMessage(body=b"x", queue=first)] * 3,
        batch_id=None,
        actor=ME,
    )
    tampering.age(first, 0, 3, seconds=400 * 86_400)
    who = failing.member()
    who.commit(first, 1)
    (plan, _) = planning.plan(topic_rows.find_topic(name=name, actor=ME), record=False)
    assert (plan.keep_from, plan.unread) == (1, ())
