"""Reads at the end of a queue that wait: for a message, for their time, never for what is
there.
"""

from __future__ import annotations

import threading
import time

import pytest

from brokerapi.http import longpoll
from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from messagestore.heads.heads import board
from metadata.cache import snapshot
from metadata.limits.places import Places
from tests.support.broker import Broker, problem
from tests.support.waiting import until


def send(broker: Broker, body: str) -> None:
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": body}]})


def read(broker: Broker, queue: int, offset: int, wait_ms: int) -> tuple[list[str], float]:
    """The bodies, and how long the answer took, s."""
    begun = time.monotonic()
    with_key = HttpTransport(broker.url, api_key=broker.api_key)
    found = Admin(with_key).messages(
        "single", queue=queue, offset=offset, limit=10, wait_ms=wait_ms
    )
    with_key.close()
    return [one["body_bytes"].decode() for one in found], time.monotonic() - begun


def test_a_read_behind_the_last_message_waits_for_the_next(
    broker: Broker, queue: int
) -> None:
    send(broker, "a")
    got: list[tuple[list[str], float]] = []
    reader = threading.Thread(target=lambda: got.append(read(broker, queue, 1, 20_000)))
    before = board.waiters()
    reader.start()
    until(lambda: board.waiters() > before)
    send(broker, "b")
    reader.join(10)
    assert got and got[0][0] == ["b"] and got[0][1] < 10


def test_what_is_there_is_read_at_once(broker: Broker, queue: int) -> None:
    send(broker, "a")
    assert read(broker, queue, 0, 20_000)[1] < 10


def test_nothing_is_answered_when_the_time_is_over(broker: Broker, queue: int) -> None:
    bodies, took_s = read(broker, queue, 0, 300)
    assert bodies == [] and took_s >= 0.3


def test_readers_of_one_key_leave_places_to_others(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longpoll, "_browsers", Places(most=4, most_per_caller=1))
    other = broker.as_key({"browse": ["*"]})
    before = board.waiters()
    first = threading.Thread(target=read, args=(broker, queue, 0, 20_000))
    first.start()
    until(lambda: board.waiters() == before + 1)
    assert read(broker, queue, 0, 20_000)[1] < 10, "the second of a key does not wait"
    second = threading.Thread(target=read, args=(other, queue, 0, 20_000))
    second.start()
    until(lambda: board.waiters() == before + 2)
    send(broker, "a")
    first.join(10)
    second.join(10)


def test_who_lost_its_key_while_it_waited_gets_nothing(broker: Broker, queue: int) -> None:
    weak = broker.as_key({"browse": ["*"]})
    statuses: list[int] = []
    path = f"/topics/single/messages?queue={queue}&offset=0&wait_ms=20000"
    waiting = threading.Thread(
        target=lambda: statuses.append(weak.call("GET", path).status_code)
    )
    before = board.waiters()
    waiting.start()
    until(lambda: board.waiters() > before)
    name = next(
        key["name"]
        for key in broker.ok("GET", "/keys")["keys"]
        if key["rights"] == {"browse": ["*"]}
    )
    broker.ok("DELETE", f"/keys/{name}?confirm={name}")
    snapshot.refresh()
    send(broker, "a")
    waiting.join(10)
    assert statuses == [401]


def test_where_no_place_is_free_the_answer_comes_at_once(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longpoll, "_places", Places(most=0, most_per_caller=0))
    assert read(broker, queue, 0, 20_000)[1] < 10


@pytest.mark.parametrize("wrong", ["-1", "30001", "soon"])
def test_a_wait_beyond_its_range_is_refused(broker: Broker, queue: int, wrong: str) -> None:
    answer = broker.call("GET", f"/topics/single/messages?queue={queue}&wait_ms={wrong}")
    problem(answer, 400, "invalid", field="wait_ms")
