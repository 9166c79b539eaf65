"""Tag filters tried on the last messages of a topic before they are set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from messagestore.engine.messages import NewMessage
from messagestore.inspect import tag_preview
from messagestore.inspect.tag_preview import TagMatches, tag_matches
from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import partition_sql, promotion_sql
from messagestore.topology import topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import Forbidden, Invalid, NotFound

ACTOR = command("test")


@pytest.fixture
def queues(node: str) -> list[int]:
    """Three queues of topic `orders`."""
    made = topics.create(name="orders", queues=3, actor=ACTOR)
    snapshot.refresh()
    return [one.queue.queue for one in made.queues]


def send(queue: int, *tags: str | None) -> None:
    messages = [NewMessage(body=b"m", tag=tag, queue=queue) for tag in tags]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def matches(tags: str) -> TagMatches:
    return tag_matches(topic="orders", tags=tags, actor=ACTOR)


def test_it_counts_in_all_queues_as_pulls_compare(queues: list[int]) -> None:
    send(queues[0], "new", "NEW", "newer", None, "it's")
    send(queues[1], "new", "old")
    assert matches("new") == TagMatches(7, 2)
    assert matches("new || it's") == matches("it's,new") == TagMatches(7, 3)
    assert matches("paid") == TagMatches(7, 0)
    assert matches("") == matches("*") == TagMatches(7, 7)


@pytest.mark.one_engine
def test_a_topic_without_messages_has_nothing_to_look_at(queues: list[int]) -> None:
    assert matches("new") == TagMatches(0, 0)


@pytest.mark.one_engine
def test_it_looks_at_the_last_messages_only_an_even_share_of_each_queue(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tag_preview, "MAX_SAMPLED", 10)
    for queue in queues:
        send(queue, *["old"] * 20, *["new"] * 3)
    assert matches("new") == TagMatches(10, 9)
    assert matches("old") == TagMatches(10, 1), "the first queue's share is one larger"
    monkeypatch.setattr(tag_preview, "MAX_SAMPLED", 2)
    assert matches("new") == TagMatches(2, 2), "the third queue has no share"


def test_what_retention_took_and_declared_gaps_are_passed_over(queues: list[int]) -> None:
    send(queues[0], *["old"] * 5, "new")
    with node_pools.node_of(queues[0]).writing() as session:
        partition_sql.raise_low(session, queue=queues[0], low=4)
    assert matches("old") == TagMatches(2, 1)
    with node_pools.node_of(queues[0]).writing() as session:
        promotion_sql.raise_heads(session, heads=[(queues[0], 1_000_000)], cause="test")
    assert matches("new") == TagMatches(2, 1)


@pytest.mark.one_engine
def test_a_node_that_is_away_is_named_and_the_others_are_counted(
    node: str, make_node: Callable[..., str]
) -> None:
    make_node("other")
    made = topics.create(name="orders", queues=2, actor=ACTOR)
    snapshot.refresh()
    for one in made.queues:
        send(one.queue.queue, "new", "old")
    assert {node_pools.node_of(one.queue.queue).info.name for one in made.queues} == {
        "main",
        "other",
    }
    registry.update(name="other", settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    assert matches("new") == TagMatches(2, 1, ("other",))
    registry.update(name="main", settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    assert matches("new") == TagMatches(0, 0, ("main", "other"))


@pytest.mark.one_engine
def test_an_expression_is_refused(queues: list[int]) -> None:
    with pytest.raises(Invalid, match="expression"):
        matches("new && paid")


@pytest.mark.one_engine
def test_it_needs_the_right_to_look(queues: list[int]) -> None:
    with pytest.raises(Forbidden):
        tag_matches(topic="orders", tags="new", actor=Actor(kind="key", name="nobody"))
    reader = Actor(kind="key", name="reader", rights={"browse": ("orders",)})
    assert tag_matches(topic="orders", tags="new", actor=reader) == TagMatches(0, 0)
    with pytest.raises(NotFound):
        tag_matches(topic="nothing", tags="new", actor=ACTOR)
