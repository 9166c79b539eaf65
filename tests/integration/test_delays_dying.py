"""A broker that dies at any point of a move leaves each message either waiting or in its
queue, and once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from messagestore.engine.mysql_session import MySqlSession
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.pool import node_pools
from messagestore.produce import delayed_store
from messagestore.produce.delayed_delivery import DelayedDelivery
from messagestore.topology import queues, topics
from messagestore.verify import verify
from metadata.actors import command
from metadata.cache import snapshot
from tests.support.killing import killed_step_by_step
from tests.support.moving import Stopped, bodies, delay, make_due, mover, stop_at, waiting

ACTOR = command("test")
MOST_STEPS = 40


def step_by_step(
    monkeypatch: pytest.MonkeyPatch, engine: str, act: Callable[[], object]
) -> int:
    """Lets the process die before the first statement, the second, … until `act` comes
    through; how often.

    A session that is only being made has nothing to lose, so its settings do not count.
    """
    kind, name = (
        (MySqlSession, "send") if engine == "mysql" else (SqliteSession, "_run_section")
    )
    for step in range(1, MOST_STEPS):
        with monkeypatch.context() as patch:
            patch.setattr(
                kind, name, stop_at(step, getattr(kind, name), unless=b"SET SESSION")
            )
            try:
                act()
                return step - 1
            except Stopped:
                node_pools.evict_all()  # what the server does when the process is gone
    raise AssertionError("it never came through")


def test_kill_9_before_any_statement_of_a_move_loses_and_doubles_nothing(node: str) -> None:
    mine = [
        one.queue.queue
        for one in topics.create(name="orders", queues=2, actor=ACTOR).queues
    ]
    for queue in mine:
        delay("orders", b"%d-a" % queue, b"%d-b" % queue, queue=queue)
    make_due(mine[0])
    assert killed_step_by_step(lambda: mover(mine[0]).move()) >= 4
    for queue in mine:
        assert bodies(queue) == [b"%d-a" % queue, b"%d-b" % queue]
    assert waiting(mine[0]) == []
    assert verify(topics=["orders"], actor=ACTOR, digests=True).findings == ()


def test_a_mover_whose_commit_was_not_answered_moves_nothing_again(
    node: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "sqlite":
        pytest.skip("a commit into a file has no answer to lose")
    queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    delay("orders", b"a")
    make_due(queue)
    real = MySqlSession.send

    def unanswered(session: MySqlSession, text: bytes, **more: bool) -> object:
        answer = real(session, text, **more)
        if b"COMMIT" in text:
            raise Stopped
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(MySqlSession, "send", unanswered)
        with pytest.raises(Stopped):
            mover(queue).move()
    node_pools.evict_all()
    mover(queue).run_once()
    assert (bodies(queue), waiting(queue)) == ([b"a"], [])


def test_a_message_that_is_handed_over_by_many_that_die_comes_once(
    make_node: Callable[..., str], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("a")
    make_node("b")
    here, there = [
        one.queue.queue
        for one in topics.create(name="orders", queues=2, actor=ACTOR).queues
    ]
    delay("orders", b"a", queue=here)
    queues.set_state(topic="orders", queue=here, state="read_only", actor=ACTOR)
    snapshot.refresh()
    make_due(here)
    movers = [
        DelayedDelivery(node_pools.node_of(queue).info.id, holder="test")
        for queue in (here, there)
    ]

    def both() -> None:
        for _ in range(3):
            for one in movers:
                one.move()

    assert step_by_step(monkeypatch, engine, both) >= 5
    both()
    assert (waiting(here), waiting(there)) == ([], [])
    assert (bodies(here), bodies(there)) == ([], [b"a"])


def test_a_send_that_dies_before_any_statement_and_is_repeated_waits_once(
    node: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from messagestore.engine import batch_ids
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.publish import publish

    queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    batch_id = batch_ids.new()
    messages = [NewMessage(body=b"a", delay_ms=1000), NewMessage(body=b"now")]

    def send() -> list[object]:
        return list(
            publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)
        )

    step_by_step(monkeypatch, engine, send)
    first, again = send(), send()
    assert first == again
    assert isinstance(first[0], delayed_store.DelayedReceipt)
    assert (waiting(queue), bodies(queue)) == ([(queue, b"a")], [b"now"])
