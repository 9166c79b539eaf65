"""The way of a failed message: copied, due, read by its group again, failed again, dead;
whatever dies.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from messagestore.engine.origins import Origin
from messagestore.produce import delayed_store
from messagestore.retries import failures, pending
from messagestore.retries.dead_letters import DeadLetterWrite
from messagestore.retries.failures import Dead
from messagestore.tables import dead_letter_sql, delayed_sql, failure_sql
from metadata.membership import consumers
from tests.support import failing, moving
from tests.support.failing import ME, fail, failure_queues, pull_copies, waiting
from tests.support.instances import Instance


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of topic `orders`, which group `billing` reads; two retries."""
    return failing.billing(retries=2)


def bring_back() -> None:
    """Makes all copies due and moves them."""
    first = failure_queues()[0]
    moving.make_due(first)
    mover = moving.mover(first)
    while mover.move():
        pass


def copies() -> list[tuple[int, int, int, bytes]]:
    """(queue, offset, attempt, body) of all copies that lie in the failure topic."""
    return [
        (queue, one.offset, one.attempt, one.body)
        for queue in failure_queues()
        for one in moving.stored(queue)
    ]


def dead() -> list[bytes]:
    return [
        body
        for (body,) in failing.on_failure_node("SELECT body FROM dead_message ORDER BY id")
    ]


def test_a_failed_message_comes_back_as_it_was_and_knows_where_from(queue: int) -> None:
    failing.send(b"a", key="k", tag="t", headers={"h": "1"}, trace_id="x")
    who = failing.member()
    fail(who, queue, 0)
    bring_back()
    ((place, offset, _, _),) = copies()
    answer = pull_copies(who, place)
    (message,) = answer.messages
    assert (message.body, message.key, message.tag, message.headers, message.trace_id,
    message.attempt) == (
        b"a", "k", "t", {"h": "1"}, "x", 1,
    )  # fmt: skip
    (origin,) = answer.origins
    assert origin is not None
    assert msgspec.json.decode(origin, type=Origin) == Origin(
        "orders", queue, 0, 1_000, "ValueError: bad"
    )
    assert who.commit(place, offset + 1) == "ok"


def test_a_message_dies_after_its_last_retry_and_keeps_its_origin(queue: int) -> None:
    failing.send(b"a")
    who = failing.member()
    fail(who, queue, 0, error="First: 1")
    for attempt in (1, 2):
        bring_back()
        (place, offset) = next((q, o) for q, o, times, _ in copies() if times == attempt)
        done = fail(who, place, offset, error=f"Later: {attempt}")
    assert done.dead == [Dead(place, offset, 3)]
    ((attempts, error, text),) = failing.on_failure_node(
        "SELECT attempts, error, origin FROM dead_message"
    )
    origin = msgspec.json.decode(text, type=Origin)
    assert (attempts, error) == (3, "Later: 2")
    assert origin == Origin("orders", queue, 0, 1_000, "Later: 2")


def test_a_repeat_after_the_copy_has_moved_stores_nothing(queue: int) -> None:
    failing.send(b"a")
    who = failing.member()
    first = fail(who, queue, 0)
    bring_back()
    assert fail(who, queue, 0, error="other").retried == first.retried
    bring_back()
    assert (len(copies()), waiting()) == (1, [])


def test_what_waits_and_what_is_unread_is_listed(queue: int) -> None:
    failing.send(b"a", b"b", b"c")
    who = failing.member()
    fail(who, queue, 0)
    bring_back()
    fail(who, queue, 1, 2, error="KeyError: 'x'")
    found = pending.waiting(group="billing", actor=ME)
    (count,) = found.topics
    assert (count.topic, count.failure_topic, count.waiting, count.unread) == (
        "orders", "billing_orders_fail", 2, 1,
    )  # fmt: skip
    assert {(one.queue, one.offset, one.attempt, one.error) for one in found.messages} == {
        (queue, 1, 1, "KeyError: 'x'"),
        (queue, 2, 1, "KeyError: 'x'"),
    }


# Deaths at each step of fail → store → commit. A next owner gets what was not committed,
# fails at it again, and whatever the first one had stored is found.


TWICE = {
    "store",
    "insert_delayed",
    "insert_dead",
    "Retried",
    "Dead",
}  # steps that each message takes: the second dies


@pytest.mark.parametrize("retries", [5, 0])
@pytest.mark.parametrize(
    ("module", "step"),
    [
        (failure_sql, "read_fences"),
        (failure_sql, "select_failing"),
        (failure_sql, "find_copies"),
        (delayed_store, "store"),
        (delayed_sql, "insert_delayed"),
        (DeadLetterWrite, "store"),
        (dead_letter_sql, "insert_dead"),
        (failures, "Retried"),
        (failures, "Dead"),
        (Instance, "commit"),
    ],
)
@pytest.mark.usefixtures("node", "failure_node")
def test_whoever_dies_between_failing_and_committing_loses_and_doubles_nothing(
    module: Any, step: str, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = failing.billing(retries=retries)
    failing.send(b"a", b"b")
    first = failing.member("one")
    with monkeypatch.context() as patch:
        patch.setattr(
            module, step, failing.stop_at(2 if step in TWICE else 1, getattr(module, step))
        )
        with suppress(failing.Stopped):
            fail(first, queue, 0, 1)
            first.commit(queue, 2)
    consumers.leave(consumer=first.id, actor=ME)
    heir = Instance("two", group="billing").join()
    (_, offset) = heir.take()[queue]
    assert offset in (0, 2)
    if offset == 0:
        done = fail(heir, queue, 0, 1, error="TypeError: another time")
        assert len(done.retried) + len(done.dead) == 2
        assert heir.commit(queue, 2) == "ok"
    bring_back()
    stored = [body for _, _, _, body in copies()] + dead()
    assert sorted(stored) == [b"a", b"b"]
