"""Sends that went to another node while their queue was closed, and are repeated when it is
open again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import Receipt, publish
from messagestore.topology import queues, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable, OutcomeUnknown
from metadata.rules.topics.slots import slot_of

ACTOR = command("test")


@pytest.fixture
def pair(make_node: Callable[..., str]) -> tuple[int, int]:
    """The queues of a topic, each on a node of its own."""
    make_node("a")
    make_node("b")
    made = topics.create(
        name="orders", queues=2, actor=ACTOR, settings={"keyed": "available"}
    )
    home, other = (one.queue.queue for one in made.queues)
    return home, other


def set_state(queue: int, state: str) -> None:
    queues.set_state(topic="orders", queue=queue, state=state, actor=ACTOR)
    snapshot.refresh()


def send(message: NewMessage, batch_id: UUID) -> list[Any]:
    return publish(topic="orders", messages=[message], batch_id=batch_id, actor=ACTOR)


def heads() -> list[int | None]:
    return [one.head for one in topics.describe(name="orders", actor=ACTOR).queues]


def wishes(home: int) -> list[NewMessage]:
    """One message of each kind that may go to another queue than `home`, which is its first
    choice.
    """
    layout = snapshot.find_topic("orders").layout
    key = next(key for key in map(str, range(100)) if layout[slot_of(key)] == home)
    return [
        NewMessage(body=b"x", queue=home, queue_strict=False),
        NewMessage(body=b"x", key=key),
    ]


def test_what_went_elsewhere_while_its_queue_was_closed_is_stored_once(
    pair: tuple[int, int],
) -> None:
    home, other = pair
    set_state(home, "read_only")
    sent = [(message, batch_ids.new()) for message in wishes(home)]
    first = [send(*one) for one in sent]
    assert first == [[Receipt(other, 0)], [Receipt(other, 1)]]
    set_state(home, "read_write")
    assert [send(*one) for one in sent] == first, (
        "the repeat is answered, and not stored anew"
    )
    assert heads() == [0, 2]
    assert send(wishes(home)[0], batch_ids.new()) == [Receipt(home, 0)], (
        "what comes later goes home"
    )


def test_a_repeat_waits_while_nobody_can_say_whether_it_went_elsewhere(
    pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, other = pair
    set_state(home, "read_only")
    message, batch_id = wishes(home)[0], batch_ids.new()
    first = send(message, batch_id)
    set_state(home, "read_write")
    connect, away = session_pool.connect, node_pools.node_of(other).info.name

    def reachable(info: Any, *args: Any, **more: Any) -> Any:
        if info.name == away:
            raise NodeUnavailable(f"Node {away} is away.")
        return connect(info, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(session_pool, "connect", reachable)
        node_pools.evict_all()
        with pytest.raises(OutcomeUnknown):
            send(message, batch_id)
    node_pools.evict_all()
    assert send(message, batch_id) == first and heads() == [0, 1]
