"""Brokers over HTTP: found by clients, drained and enabled by operators, refusing work
while they are out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.db import OperationalError

from brokerapi.http import draining
from messagestore.heads.heads import board
from metadata.brokers import discovery
from metadata.config import config
from metadata.db.clock import database_now
from metadata.models import Broker as Row
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader
from tests.support.waiting import until

ME = config.broker_name
MESSAGES = "/topics/single/messages"
SEND = {"messages": [{"body": "a"}]}
LONG_MS = 20_000


@pytest.fixture
def registered(broker: Broker) -> Broker:
    """A broker that is in the registry, with another one alive."""
    another("other", alive=True)
    until(lambda: {one["name"] for one in listed(broker)} == {ME, "other"})
    return broker


def another(name: str, *, alive: bool) -> None:
    """The row of a broker elsewhere."""
    # 8: for as long as a test may take
    seen = database_now() + timedelta(seconds=8 if alive else -60)
    Row.objects.create(name=name, url=f"http://{name}:1", started_at=seen, last_seen=seen)


def listed(broker: Broker) -> list[dict[str, Any]]:
    """What the broker tells of all brokers."""
    found: list[dict[str, Any]] = broker.ok("GET", "/brokers")["brokers"]
    return found


def pull(broker: Broker, state: str) -> None:
    """Pulls the broker in or out, and returns when it has noticed."""
    assert broker.ok("PATCH", f"/brokers/{ME}", {"state": state})["state"] == state
    until(lambda: (draining.refusal_reason() == "") is (state == "in"))


def ready(broker: Broker) -> tuple[int, list[str]]:
    """(status, because) of /readyz."""
    answer = requests.get(broker.url + "/readyz", timeout=10)
    return answer.status_code, answer.json()["because"]


def test_a_broker_lists_itself_to_everybody_who_has_a_key(broker: Broker) -> None:
    until(lambda: listed(broker))
    weak = broker.as_key({"consume": ["nothing"]})
    (one,) = listed(weak)
    assert set(one) == {
        "name", "url", "state", "alive", "version", "started_at_ms", "last_seen_at_ms",
        "stopped_at_ms",
    }  # fmt: skip
    assert (one["name"], one["url"], one["state"], one["alive"]) == (
        ME,
        broker.url,
        "in",
        True,
    )
    assert (one["version"], one["stopped_at_ms"]) == (broker.ok("GET", "")["version"], None)
    assert abs(one["last_seen_at_ms"] - time.time() * 1000) < 60_000
    assert weak.ok("GET", f"/brokers/{ME}")["name"] == ME
    problem(Broker(broker.url, "").call("GET", "/brokers"), 401, "unauthenticated")


def test_an_unknown_broker_is_named_so(registered: Broker) -> None:
    for method, body in (("GET", None), ("PATCH", {"state": "out"}), ("DELETE", None)):
        answer = registered.call(method, "/brokers/nope", body)
        found = problem(answer, 404, "broker_not_found")
        assert "nope" in found["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "state"),
        ({"state": "up"}, "state"),
        ({"state": None}, "state"),
        ({"state": ["out"]}, "state"),
        ({"state": "out", "url": "x"}, "url"),
        ([], "(body)"),
    ],
)
def test_a_wrong_change_is_named_and_nothing_happens(
    registered: Broker, body: Any, field: str
) -> None:
    problem(registered.call("PATCH", f"/brokers/{ME}", body), 400, "invalid", field)
    assert registered.ok("GET", f"/brokers/{ME}")["state"] == "in"


def test_pulling_and_forgetting_need_admin_on_everything(registered: Broker) -> None:
    for rights in (
        {"manage": ["*"], "produce": ["*"], "consume": ["*"]},
        {"admin": ["other*", ME]},
    ):
        weak = registered.as_key(rights)
        found = problem(
            weak.call("PATCH", f"/brokers/{ME}", {"state": "out"}), 403, "forbidden"
        )
        assert f"admin on *, which broker {ME} needs" in found["detail"]
        problem(weak.call("DELETE", f"/brokers/{ME}?confirm={ME}"), 403, "forbidden")
    assert registered.ok("GET", f"/brokers/{ME}")["state"] == "in"


def test_the_last_live_broker_that_is_in_cannot_be_pulled_out(broker: Broker) -> None:
    another("dead", alive=False)
    until(lambda: ME in {one["name"] for one in listed(broker)})
    problem(broker.call("PATCH", f"/brokers/{ME}", {"state": "out"}), 409, "last_broker")
    assert ready(broker) == (200, [])


def test_a_broker_is_forgotten_only_when_it_is_dead_and_the_name_is_repeated(
    registered: Broker,
) -> None:
    another("dead", alive=False)
    problem(registered.call("DELETE", "/brokers/dead"), 400, "not_confirmed")
    problem(registered.call("DELETE", f"/brokers/{ME}?confirm={ME}"), 409, "in_use")
    assert registered.call("DELETE", "/brokers/dead?confirm=dead").status_code == 204
    assert {one["name"] for one in listed(registered)} == {ME, "other"}


@dataclass
class Work:
    """What begins something."""

    broker: Broker
    member: Member
    queue: int

    def answers(self) -> Iterator[requests.Response]:
        """A register, a pull and a send."""
        join = {
            "name": "c9",
            "incarnation": "0190b6f0-0000-7000-8000-000000000001",
            "sdk": "test",
        }
        yield self.broker.call("POST", "/groups/readers/consumers", join)
        pulling = {"generation": 0, "queues": [self.member.position(self.queue, 0)]}
        yield self.broker.call("POST", f"{self.member.path}/pull", pulling)
        yield self.broker.call("POST", MESSAGES, SEND)


@pytest.fixture
def work(registered: Broker, queue: int) -> Work:
    """A member that owns the queue of topic `single`."""
    return Work(registered, reader(registered), queue)


def test_a_broker_that_is_out_refuses_what_begins_and_does_all_else(work: Work) -> None:
    pull(work.broker, "out")

    assert ready(work.broker) == (503, ["this broker was drained"])
    for answer in work.answers():
        found = problem(answer, 503, "draining")
        assert (
            found["retriable"],
            found["retry_after_ms"],
            answer.headers["Retry-After"],
        ) == (
            True,
            1000,
            "1",
        )
        assert "drained" in found["detail"]
    assert [
        queue["head"] for queue in work.broker.ok("GET", "/topics/single")["queues"]
    ] == [0]
    assert list(work.member.heartbeat()["assigned"])
    assert work.member.acquire()[0]["state"] == "ok"
    assert work.member.commit(work.member.position(work.queue, 0)) == ["ok"]
    assert work.broker.call("DELETE", work.member.path).status_code == 204


def test_refusals_do_not_fill_the_log(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    pull(work.broker, "out")
    with caplog.at_level(logging.WARNING):
        assert ready(work.broker)[0] == 503
        assert {answer.status_code for answer in work.answers()} == {503}
    assert caplog.records == []


def test_a_broker_that_is_pulled_in_again_serves(work: Work) -> None:
    pull(work.broker, "out")
    pull(work.broker, "in")
    assert ready(work.broker) == (200, [])
    assert [answer.status_code for answer in work.answers()] == [201, 200, 200]


def test_pulling_out_ends_every_wait_with_a_normal_answer(
    work: Work, in_threads: Callable[..., list[Any]]
) -> None:
    position = work.member.position(work.queue, 0)

    def out() -> None:
        until(lambda: board.waiters() == 1)
        pull(work.broker, "out")

    begun = time.monotonic()
    answer, _ = in_threads([lambda: work.member.pull(position, wait_ms=LONG_MS), out])
    assert time.monotonic() - begun < LONG_MS / 2000
    assert answer["queues"][0]["state"] == "ok"


def test_a_broker_that_stops_refuses_and_leaves_the_list_at_once(work: Work) -> None:
    draining.stop()
    assert ready(work.broker) == (503, ["this broker is stopping"])
    for answer in work.answers():
        assert "stopping" in problem(answer, 503, "draining")["detail"]
    assert work.member.commit(work.member.position(work.queue, 0)) == ["ok"]
    until(lambda: not work.broker.ok("GET", f"/brokers/{ME}")["alive"])
    # The list is told from memory, which the broker's loop refreshes after it has written
    # its row.
    until(
        lambda: (
            {one["name"]: one["alive"] for one in listed(work.broker)}
            == {ME: False, "other": True}
        )
    )
    draining.enable()  # the row says `in`
    assert ready(work.broker)[0] == 503


def test_a_broker_stays_in_or_out_while_metadata_is_away(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pull(work.broker, "out")
    passes = []

    def away() -> Any:
        passes.append(1)
        raise OperationalError(2006, "gone")

    monkeypatch.setattr(discovery, "read_rows", away)
    with caplog.at_level(logging.WARNING, logger="catmq_site"):
        until(lambda: len(passes) >= 3)
    assert [
        record.levelname
        for record in caplog.records
        if record.name == "catmq_site.background.broker_loop"
    ] == ["WARNING"], "once, and without a traceback"
    assert {one["name"]: one["state"] for one in listed(work.broker)} == {
        ME: "out",
        "other": "in",
    }
    assert work.broker.ok("GET", f"/brokers/{ME}")["alive"]
    assert ready(work.broker)[0] == 503
    assert {answer.status_code for answer in work.answers()} == {503}


def test_a_broker_whose_name_another_one_has_serves_and_complains(
    registered: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    other = {
        "url": "http://elsewhere:1",
        "incarnation": "another",
        "last_seen": database_now(),
    }
    with caplog.at_level(logging.ERROR):
        Row.objects.filter(name=ME).update(**other, state="out")
        status, because = until(lambda: ready(registered) if ready(registered)[1] else None)
    assert status == 200
    assert "http://elsewhere:1" in because[0]
    assert "CATMQ_BROKER_NAME" in because[0]
    assert because[0].partition(": ")[2] in caplog.text
    assert draining.refusal_reason() == ""
