"""A transport that finds brokers by itself: when it asks, where its requests go, and that
nobody waits.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    ConnectFailed,
    NotFound,
    OptionError,
    Unavailable,
)
from catmq_client.http import discovery
from catmq_client.http.discovery import Brokers, Discovery
from catmq_client.http.transport import HttpTransport
from tests.support.answering import Answer, Server, answering, problem, row, unused_url
from tests.support.waiting import until

OK = (200, "application/json", b'{"ok":1}')
LIST = "/api/v1/brokers"
SEED = "http://a:8000"


class Clock:
    """Time for Discovery, and a broker whose answers come at once, or when `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.asked: list[float] = []
        self.answer: Callable[[], dict[str, Any]] = lambda: {"brokers": []}
        self.go = threading.Event()
        self.go.set()
        self.discovery = Discovery(Brokers([SEED]), self._ask)
        monkeypatch.setattr(discovery.time, "monotonic", lambda: self.now)

    def _ask(self, url: str) -> dict[str, Any]:
        self.asked.append(self.now)
        assert self.go.wait(10)
        return self.answer()

    def settled(self) -> None:
        """Waits until nothing is under way."""
        until(lambda: not self.discovery._asking)

    def during(self, seconds: float, *, failing: bool = False) -> int:
        """How often it asks while ten requests a second succeed, or while a broker is left
        as often.
        """
        before = len(self.asked)
        for _ in range(int(seconds * 10)):
            (self.discovery.refresh_soon if failing else self.discovery.refresh_if_due)()
            self.settled()
            self.now += 0.1
        return len(self.asked) - before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_first_success_asks_and_then_each_half_minute(clock: Clock) -> None:
    assert clock.during(1.0) == 1
    assert 9 <= clock.during(300.0) <= 13


def fail(error: Exception) -> Callable[[], dict[str, Any]]:
    def answer() -> dict[str, Any]:
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [AnswerLost("x"), NotFound("x", status=404), Unavailable("x", status=503)]
)
def test_a_broker_that_gives_no_list_is_asked_less_and_less(
    clock: Clock, error: CatmqError
) -> None:
    clock.answer = fail(error)
    clock.during(120.0)
    assert clock.during(300.0) <= 22


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (NotFound("x", status=404), 1),
        (AnswerLost("x"), discovery.MAX_ASKED),
        (ConnectFailed("x"), discovery.MAX_ASKED),
    ],
)
def test_other_brokers_are_asked_only_if_they_may_know_more(
    clock: Clock, error: CatmqError, times: int
) -> None:
    clock.discovery = Discovery(
        Brokers([f"http://b:{port}" for port in range(1, 9)]), clock._ask
    )
    clock.answer = fail(error)
    clock.discovery.refresh_if_due()
    clock.settled()
    assert len(clock.asked) == times


def test_a_broker_that_a_question_did_not_reach_gets_no_request_before_others(
    clock: Clock,
) -> None:
    brokers = Brokers([SEED, "http://z:1"])
    first = brokers.current

    def ask(url: str) -> dict[str, Any]:
        if url == first:
            raise ConnectFailed("x")
        return {"brokers": []}

    clock.discovery = Discovery(brokers, ask)
    clock.discovery.refresh_if_due()
    clock.settled()
    assert brokers.current != first
    assert first not in brokers.urls


def test_an_answer_that_is_no_list_changes_nothing(clock: Clock) -> None:
    clock.discovery._brokers.update_list([row("http://b:1")])
    clock.answer = lambda: {"brokers": "none"}
    clock.during(1.0)
    assert clock.asked
    assert clock.discovery._brokers.urls == (SEED, "http://b:1")


def test_a_broker_that_was_left_makes_it_ask_at_once_but_no_storm(clock: Clock) -> None:
    clock.during(5.0)
    assert len(clock.asked) == 1
    clock.discovery.refresh_soon()
    clock.settled()
    assert len(clock.asked) == 2
    assert clock.during(60.0, failing=True) <= 31


def test_brokers_that_all_fail_are_not_stormed(clock: Clock) -> None:
    clock.answer = fail(ConnectFailed("x"))
    clock.during(120.0, failing=True)
    assert clock.during(300.0, failing=True) <= 22


def test_a_broker_that_is_left_while_the_question_is_under_way_makes_it_ask_again(
    clock: Clock,
) -> None:
    clock.go.clear()
    clock.discovery.refresh_if_due()
    until(lambda: clock.asked)
    clock.discovery.refresh_soon()
    clock.go.set()
    clock.settled()
    assert clock.during(3.0) == 1


def test_one_question_at_a_time(clock: Clock) -> None:
    clock.go.clear()
    for _ in range(100):
        clock.discovery.refresh_soon()
        clock.now += 60.0
    until(lambda: clock.asked)
    assert len(clock.asked) == 1
    clock.go.set()
    clock.settled()


def test_where_no_thread_can_be_started_requests_go_on(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        clock.discovery.refresh_if_due()
    assert clock.asked == []
    assert clock.during(31.0) == 1


# Over real connections


class Fleet:
    """Brokers that answer OK, and the same list of brokers each."""

    def __init__(self, count: int) -> None:
        self.servers = [Server() for _ in range(count)]
        self.urls = [server.url for server in self.servers]
        self.rows = [row(url) for url in self.urls]
        for server in self.servers:
            server.answer = self.answer

    def answer(self, request: dict[str, Any]) -> Answer:
        """To any request."""
        if request["path"] == LIST:
            return 200, "application/json", json.dumps({"brokers": self.rows}).encode()
        return OK

    def requests(self, number: int) -> list[str]:
        """The paths asked at one of the brokers, those for the list left out."""
        return [r["path"] for r in self.servers[number].requests if r["path"] != LIST]

    def questions(self) -> int:
        """How often the list was asked for."""
        return sum(r["path"] == LIST for server in self.servers for r in server.requests)


@pytest.fixture
def pair() -> Iterator[Fleet]:
    fleet = Fleet(2)
    yield fleet
    for server in fleet.servers:
        server.close()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Callable[..., HttpTransport]:
    def make(*args: Any, **options: Any) -> HttpTransport:
        transport = HttpTransport(*args, **options)
        request.addfinalizer(lambda: until(lambda: not _asking(transport)))
        request.addfinalizer(transport.close)
        return transport

    return make


Connect = Callable[..., HttpTransport]


def _asking(transport: HttpTransport) -> bool:
    return transport._discovery is not None and bool(transport._discovery._asking)


def informed(transport: HttpTransport, count: int = 2) -> HttpTransport:
    """The transport after it has heard of so many brokers in service."""
    assert transport.request("GET", "/x") == {"ok": 1}
    until(lambda: len(transport.urls) == count and not _asking(transport))
    return transport


def test_when_the_only_seed_died_requests_go_on_at_a_broker_that_was_found(
    pair: Fleet, connect: Connect
) -> None:
    transport = informed(connect(pair.urls[0]))
    pair.servers[0].close()
    for _ in range(5):
        assert transport.request("POST", "/y", body={}) == {"ok": 1}
    assert pair.requests(1) == ["/y"] * 5
    assert transport.urls == (pair.urls[1],)


def test_the_key_goes_with_the_question(pair: Fleet, connect: Connect) -> None:
    informed(connect(pair.urls[0], api_key="secret"))
    (question,) = [r for r in pair.servers[0].requests if r["path"] == LIST]
    assert question["headers"]["Authorization"] == "Bearer secret"


def test_a_seed_that_was_pulled_out_gets_no_more_requests(
    pair: Fleet, connect: Connect
) -> None:
    pair.rows[0]["state"] = "out"
    transport = informed(connect(pair.urls[0]), 1)
    for _ in range(5):
        transport.request("GET", "/y")
    assert pair.requests(0) == ["/x"]
    assert pair.requests(1) == ["/y"] * 5


def test_a_draining_seed_is_left_for_a_broker_that_was_found_within_the_request(
    pair: Fleet, connect: Connect
) -> None:
    transport = informed(connect(pair.urls[0]))
    pair.servers[0].answer = lambda request: problem(
        503, "draining", retriable=True, retry_after_ms=500
    )
    assert transport.request("POST", "/y", body={}) == {"ok": 1}
    assert pair.requests(0) == ["/x", "/y"]
    assert pair.requests(1) == ["/y"]


def test_when_all_brokers_drain_the_error_says_when_to_come_again(
    pair: Fleet, connect: Connect
) -> None:
    transport = informed(connect(pair.urls[0]))
    for server in pair.servers:
        server.answer = lambda request: problem(
            503, "draining", retriable=True, retry_after_ms=500
        )
    with pytest.raises(Unavailable) as caught:
        transport.request("POST", "/y", body={})
    assert caught.value.retriable
    assert caught.value.retry_after_ms == 500
    assert set(caught.value.brokers) == set(pair.urls)


def test_a_broker_that_was_left_makes_the_client_look_for_others_at_once(
    pair: Fleet, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "GAP_S", 0.0)
    other = pair.rows.pop()
    transport = informed(connect(pair.urls[0]), 1)
    until(lambda: pair.questions() == 1 and not _asking(transport))
    pair.rows.append(other)

    def not_now(request: dict[str, Any]) -> Answer:
        return (
            pair.answer(request)
            if request["path"] == LIST
            else problem(503, "busy", retriable=True)
        )

    pair.servers[0].answer = not_now
    with pytest.raises(Unavailable):
        transport.request("POST", "/y", body={})
    until(lambda: len(transport.urls) == 2)


def test_a_broker_that_cannot_be_reached_costs_one_request_a_try_and_not_each(
    pair: Fleet, connect: Connect
) -> None:
    nowhere = unused_url()
    pair.rows[1]["url"] = nowhere
    transport = informed(connect(pair.urls[0]))
    pair.servers[0].answer = lambda request: problem(503, "draining", retriable=True)
    tried = []
    for _ in range(5):
        with pytest.raises(CatmqError) as caught:
            transport.request("POST", "/y", body={})
        tried += caught.value.brokers
    assert tried.count(nowhere) == 1
    assert tried.count(pair.urls[0]) == 5


def test_a_broker_that_answers_again_rests_no_longer(pair: Fleet, connect: Connect) -> None:
    transport = connect(pair.urls, discover=False)
    for url in pair.urls:
        transport._brokers.move_away(url, unreachable=True)
    transport.request("GET", "/x")
    assert len(transport.urls) == 1


def test_of_many_brokers_that_do_not_answer_only_as_many_are_tried_as_there_is_time_for(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def silent(self: HttpTransport, url: str, call: Any) -> Any:
        nonlocal now
        now += 3.0
        raise ConnectFailed(url)

    transport = connect([f"http://b:{port}" for port in range(1, 30)], discover=False)
    monkeypatch.setattr(HttpTransport, "_send_once", silent)
    monkeypatch.setattr("catmq_client.http.transport.time.monotonic", lambda: now)
    for timeout_s, most in ((10.0, 4), (1.0, 2)):
        with pytest.raises(ConnectFailed) as caught:
            transport.request("GET", "/x", timeout_s=timeout_s)
        assert len(caught.value.brokers) == most


def test_no_request_waits_for_a_question_that_hangs(pair: Fleet, connect: Connect) -> None:
    go = threading.Event()

    def hang(request: dict[str, Any]) -> Answer:
        if request["path"] == LIST:
            go.wait(10)
        return pair.answer(request)

    pair.servers[0].answer = hang
    transport = connect(pair.urls[0])
    for _ in range(30):
        assert transport.request("GET", "/x") == {"ok": 1}
    until(lambda: pair.questions() == 1)
    assert transport.urls == (pair.urls[0],)
    transport.close()
    go.set()
    until(lambda: not _asking(transport))
    assert pair.questions() == 1
    assert transport._process_session is None
    gc.collect()  # a connection that was left open would be a warning, and so an error


def test_a_question_that_begins_while_the_transport_is_closed_leaves_no_connection(
    pair: Fleet, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, pools = HttpTransport._send_once, []

    def closing(self: HttpTransport, url: str, call: Any) -> Any:
        if call.path == LIST:
            self.close()
            pools.append(call.session.get_adapter(url).poolmanager.pools)
        return once(self, url, call)

    monkeypatch.setattr(HttpTransport, "_send_once", closing)
    transport = connect(pair.urls[0])
    transport.request("GET", "/x")
    until(lambda: pair.questions() == 1 and not _asking(transport))
    assert len(pools[0]) == 0


def test_many_requests_of_many_threads_ask_once(pair: Fleet, connect: Connect) -> None:
    transport = connect(pair.urls[0])
    together = threading.Barrier(8)

    def work() -> None:
        together.wait(10)
        for _ in range(20):
            transport.request("GET", "/x")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    until(lambda: not _asking(transport))
    assert pair.questions() == 1


def test_brokers_of_a_version_without_a_list_are_asked_quietly(connect: Connect) -> None:
    with answering() as old:
        old.answer = lambda r: (
            OK if r["path"] != LIST else problem(404, "url_not_found", retriable=False)
        )
        transport = connect(old.url)
        for _ in range(20):
            assert transport.request("GET", "/x") == {"ok": 1}
        until(lambda: not _asking(transport))
        assert [r["path"] for r in old.requests].count(LIST) == 1


def test_a_transport_that_shall_not_discover_asks_nobody(
    pair: Fleet, connect: Connect
) -> None:
    transport = connect(pair.urls[0], discover=False)
    transport.request("GET", "/x")
    assert transport._discovery is None
    assert transport.urls == (pair.urls[0],)
    assert pair.questions() == 0


def test_a_process_that_was_forked_in_the_middle_of_a_question_asks_for_itself(
    pair: Fleet, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def hang(request: dict[str, Any]) -> Answer:
        if request["path"] == LIST and not go.is_set():
            go.wait(10)
            return problem(500, "internal")
        return pair.answer(request)

    pair.servers[0].answer = hang
    transport = connect(pair.urls[0])
    transport.request("GET", "/x")
    until(lambda: pair.questions() == 1)
    child = os.fork()
    if child == 0:  # no assert and no fixture's end in here
        code = 1
        try:
            monkeypatch.setattr(discovery, "REFRESH_S", 0.0)
            transport._discovery._due_at = 0.0  # type: ignore[union-attr]  # its parent's question is not its own
            transport.request("GET", "/x")
            until(lambda: transport.request("GET", "/x") and len(transport.urls) == 2)
            code = 0
        finally:
            os._exit(code)
    until(lambda: pair.requests(0).count("/x") > 1)
    go.set()
    assert os.waitpid(child, 0)[1] == 0
    until(lambda: not _asking(transport))
    assert transport.urls == (pair.urls[0],)


def test_a_seed_that_is_given_twice_counts_once() -> None:
    assert HttpTransport([SEED, SEED + "/", "http://z:1"]).urls == (SEED, "http://z:1")


@pytest.mark.parametrize("url", ["http://a:b", "http://a:0", "http://[a", "http://"])
def test_a_seed_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="not a broker URL"):
        HttpTransport(url)
