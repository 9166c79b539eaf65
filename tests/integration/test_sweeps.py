"""One bad item must not stop a sweep from the rest, and nothing is tried for ever that can
be done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from catmq_site.background import sweeps
from messagestore.pool import node_pools
from messagestore.tables import audit_sql, queue_sql
from messagestore.topology import queue_states, queues, retry_topics, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.groups import groups
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Topic
from tests.support.rows import long_ago

ACTOR = command("test")


def make(topic: str, group: str = "", *, node: str | None = None) -> int:
    """A topic of one queue, read by a group; its queue."""
    queue = (
        topics.create(name=topic, queues=1, node=node, actor=ACTOR).queues[0].queue.queue
    )
    if group:
        groups.create(name=group, actor=ACTOR)
        subscriptions.create(group=group, topic=topic, start="earliest", actor=ACTOR)
    snapshot.refresh()
    return queue


def head_state(node: str, queue: int) -> str:
    with node_pools.node(snapshot.find_node(node).id).reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    assert head is not None
    return head.state


def set_head(node: str, queue: int, state: str) -> None:
    with node_pools.node(snapshot.find_node(node).id).writing() as session:
        queue_sql.set_queue_state(session, queue=queue, state=state)


def test_a_group_and_its_topic_that_are_deleted_at_once_leave_nothing_to_sweep(
    node: str, failure_node: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make("orders", "billing")
    groups.delete(name="billing", confirm="billing", actor=ACTOR)
    topics.delete(name="orders", confirm="orders", actor=ACTOR)
    snapshot.refresh()
    with caplog.at_level(logging.WARNING):
        sweeps.finish_creations()
        sweeps.finish_creations()
    assert [one.getMessage() for one in caplog.records] == []
    assert not ConsumerGroupTopic.objects.exists()
    with node_pools.node(snapshot.find_node(node).id).reading() as session:
        assert [
            one for one in audit_sql.list_all_readers(session) if one.queue == queue
        ] == []


def test_a_head_of_a_deleted_topic_keeps_none_of_the_others_wrong(
    node: str, caplog: pytest.LogCaptureFixture
) -> None:
    gone, there = make("gone"), make("there")
    set_head(node, gone, "ro")
    set_head(node, there, "ro")
    topics.delete(name="gone", confirm="gone", actor=ACTOR)
    snapshot.refresh()
    with caplog.at_level(logging.WARNING):
        queue_states.sweep()
    assert [one.getMessage() for one in caplog.records] == []
    assert head_state(node, there) == "rw"


def half_made(count: int) -> None:
    """Topics that a crash left without tables."""
    made = [
        Topic(name=f"left-{number:03}", state="creating", created_at=long_ago(seconds=3600))
        for number in range(count)
    ]
    Topic.objects.bulk_create(made)


def failing(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bad: Callable[..., bool]
) -> list[Any]:
    """Has a verb fail as a bug does where `bad` says so; what it was called with otherwise."""
    real, done = getattr(module, name), list[Any]()

    def act(*args: Any, **named: Any) -> Any:
        if bad(*args, **named):
            raise AssertionError("a bug")
        done.append((args, named))
        return real(*args, **named)

    monkeypatch.setattr(module, name, act)
    return done


def test_an_item_that_meets_a_bug_is_logged_and_the_rest_is_swept(
    node: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    half_made(3)
    failing(monkeypatch, topics, "_roll_back", lambda topic, _: topic.name == "left-000")
    assert topics.sweep() == 2
    assert list(Topic.objects.exclude(state="deleted").values_list("name", flat=True)) == [
        "left-000"
    ]
    assert [
        "left-000" in one.getMessage() and one.exc_info is not None
        for one in caplog.records
    ] == [True]


def test_items_that_fail_again_and_again_do_not_hide_those_behind_them(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_made(103)
    failing(monkeypatch, topics, "_roll_back", lambda topic, _: topic.name < "left-101")
    assert topics.sweep() == 2


def test_a_sweep_that_fails_as_a_whole_stops_none_behind_it(
    node: str, failure_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, topics, "sweep", lambda: True)
    behind = [
        failing(monkeypatch, module, "sweep", lambda: False)
        for module in (subscriptions, queues, retry_topics)
    ]
    with pytest.raises(AssertionError, match="a bug"):
        sweeps.finish_creations()
    assert [len(calls) for calls in behind] == [1, 1, 1]
    assert not ConsumerGroup.objects.exists()
