"""Pulls that wait: what ends the wait, and what a wait must not cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from brokerapi.http import draining, longpoll
from messagestore.heads.heads import board
from metadata.cache import snapshot
from metadata.config import Config
from metadata.limits.places import Places
from tests.support.broker import Broker
from tests.support.members import Member, reader
from tests.support.waiting import until

LONG_MS = 20_000


def waiting(pull: Callable[[], Any]) -> Future[Any]:
    """A pull that runs in a thread of its own and is known to wait."""
    before = board.waiters()
    pool = ThreadPoolExecutor(1)
    future = pool.submit(pull)
    pool.shutdown(wait=False)
    until(lambda: board.waiters() > before or future.done())
    assert not future.done(), future.result()
    return future


def quick(future: Future[Any]) -> Any:
    """The answer, which must come long before the wait is over."""
    return future.result(timeout=LONG_MS / 2000)


def test_a_send_ends_the_wait(broker: Broker, queue: int) -> None:
    member = reader(broker)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    assert quick(future)["queues"][0]["messages"][0]["body"] == "a"


def test_a_send_through_another_broker_ends_the_wait(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = reader(broker)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    # Another process' send notes its head there, not here: only the watcher can see it.
    monkeypatch.setattr("messagestore.produce.group_commit.board", type(board)())
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    assert quick(future)["queues"][0]["messages"][0]["body"] == "a"


def test_the_time_ends_the_wait_with_an_empty_answer(broker: Broker, queue: int) -> None:
    member = reader(broker)
    begun = time.monotonic()
    answer = member.pull(member.position(queue, 0), wait_ms=300)
    assert time.monotonic() - begun >= 0.3
    assert answer["queues"][0]["messages"] == []
    assert answer["assignment_changed"] is False


def test_a_change_of_the_group_ends_the_wait(
    broker: Broker, queue: int, topic: str
) -> None:
    member = reader(broker)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": topic})
    answer = quick(future)
    assert answer["assignment_changed"] is True
    assert answer["generation"] > member.generation


def test_a_member_without_queues_waits_with_an_empty_list(
    broker: Broker, queue: int
) -> None:
    first = reader(broker)
    idle = Member.join(broker, name="c2")
    until(
        lambda: (
            idle.heartbeat()["assigned"] == []
            and idle.generation >= first.heartbeat()["generation"]
        )
    )
    future = waiting(lambda: idle.pull(wait_ms=LONG_MS))
    broker.ok("DELETE", first.path)
    assert quick(future)["assignment_changed"] is True


def test_a_worker_that_leaves_ends_every_wait_and_lets_nobody_wait_again(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    draining.stop_worker()
    assert quick(future)["queues"][0]["state"] == "ok"
    begun = time.monotonic()
    member.pull(member.position(queue, 0), wait_ms=LONG_MS)
    assert time.monotonic() - begun < LONG_MS / 4000


def test_above_the_cap_a_pull_is_answered_at_once(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longpoll, "_places", Places(most=1, most_per_caller=1))
    member = reader(broker)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    begun = time.monotonic()
    answer = member.pull(member.position(queue, 0), wait_ms=LONG_MS)
    assert time.monotonic() - begun < LONG_MS / 4000
    assert answer["queues"][0]["messages"] == []
    assert board.waiters() == 1
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    quick(future)


@pytest.mark.parametrize("address", ["", "192.0.2.1"])
def test_consumers_of_one_key_or_address_leave_places_to_others(address: str) -> None:
    places = Places(most=4, most_per_caller=2, most_shared=3)
    mine = [
        longpoll.place_owner(
            f"c{n}", key_id=n if address else 1, address=address or f"a{n}"
        )
        for n in range(4)
    ]
    assert [places.take(*waiter) for waiter in mine] == [True, True, True, False]
    assert places.take(*longpoll.place_owner("other", key_id=9, address="198.51.100.1"))
    places.give_back(*mine[0])
    assert places.take(*mine[3])


def test_a_waiting_pull_takes_a_place_of_its_key_and_its_address(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(most=4, most_per_caller=4, most_shared=1)
    monkeypatch.setattr(longpoll, "_places", places)
    member = reader(broker)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    assert not places.take("other", [("address", "127.0.0.1")])
    other = reader(broker, group="others")
    assert "retry_after_ms" in other.pull(other.position(queue, 0), wait_ms=LONG_MS)
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    quick(future)


def test_a_fenced_queue_is_told_at_once(broker: Broker, queue: int) -> None:
    old = reader(broker)
    reader(broker)
    begun = time.monotonic()
    assert (
        old.pull(old.position(queue, 0), wait_ms=LONG_MS)["queues"][0]["state"] == "fenced"
    )
    assert time.monotonic() - begun < LONG_MS / 4000


def test_a_stopped_group_waits_and_hears_of_its_start(broker: Broker, queue: int) -> None:
    member = reader(broker)
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    broker.ok("PATCH", "/groups/readers", {"stopped": True})
    until(lambda: member.heartbeat() and snapshot.current().group("readers").stopped)  # type: ignore[union-attr]
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    broker.ok("PATCH", "/groups/readers", {"stopped": False})
    answer = quick(future)
    assert answer["assignment_changed"] is True


def test_a_waiting_pull_holds_no_connection_of_metadata(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections

    held: list[bool] = []
    real = board.watch

    def watch(*args: Any) -> Any:
        held.append(any(connections[alias].connection is not None for alias in connections))
        return real(*args)

    monkeypatch.setattr(board, "watch", watch)
    member = reader(broker)
    member.pull(member.position(queue, 0), wait_ms=50)
    assert held
    assert not any(held)


def test_a_wait_goes_on_behind_messages_that_a_tag_filter_leaves_out(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"tags": "new"})
    snapshot.refresh()
    member.heartbeat()
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    for _ in range(3):
        broker.ok(
            "POST", "/topics/single/messages", {"messages": [{"body": "a", "tag": "old"}]}
        )
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "b", "tag": "new"}]}
    )
    (answer,) = quick(future)["queues"]
    assert [message["offset"] for message in answer["messages"]] == [3] and answer[
        "next_offset"
    ] == 4


def test_a_wait_that_only_passed_others_tells_at_its_end_how_far_it_is(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"tags": "new"})
    snapshot.refresh()
    member.heartbeat()
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "a", "tag": "old"}] * 5}
    )
    (answer,) = member.pull(member.position(queue, 0), wait_ms=300)["queues"]
    assert answer["messages"] == [] and answer["next_offset"] == 5
    assert member.commit(member.position(queue, 5)) == ["ok"]


def test_a_wait_that_passed_others_tells_soon_how_far_it_is(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = reader(broker)
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"tags": "new"})
    snapshot.refresh()
    member.heartbeat()
    monkeypatch.setattr(longpoll, "SKIPPED_WAIT_S", 0.2)
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "a", "tag": "old"}]}
    )
    assert quick(future)["queues"][0]["next_offset"] == 1


def test_a_wait_ends_once_it_has_passed_the_scan_limit(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = reader(broker)
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"tags": "new"})
    snapshot.refresh()
    member.heartbeat()
    monkeypatch.setattr(longpoll, "config", Config(scan_limit=4))
    future = waiting(lambda: member.pull(member.position(queue, 0), wait_ms=LONG_MS))
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "a", "tag": "old"}] * 4}
    )
    assert quick(future)["queues"][0]["next_offset"] == 4
