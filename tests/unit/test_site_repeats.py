"""Requests that are repeated: they wait without a thread and get the same answer, or a full
one at news.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from brokerapi.http.repeats import CAME_AT, REPEAT
from catmq_site.server import repeats, worker
from catmq_site.server.repeats import HeldRequest, RepeatedRequests
from messagestore.heads.heads import Flag
from tests.support.serving import Serving
from tests.support.waiting import until

ASK = b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Told:
    """The conditions of an answer, as a test sets them."""

    wait_s: float = 5.0
    is_same: bool = True
    has_news: bool = False
    begun: int = 0
    counted: int = 0
    flags: list[Flag] = field(default_factory=list)

    def begins(self) -> bool:
        self.begun += 1
        return self.is_same

    def watch(self, flag: Flag) -> Callable[[], object]:
        self.flags.append(flag)
        return lambda: self.flags.remove(flag)

    def is_still_valid(self) -> bool:
        return not self.has_news

    def answered(self) -> None:
        self.counted += 1

    def tell(self) -> None:
        """Say that something is new."""
        self.has_news = True
        for flag in list(self.flags):
            flag.set()


class View:
    """An application whose answers are numbered, and may be given again as it is told."""

    def __init__(self, told: Told, *, pieces: int = 1) -> None:
        self.told, self.pieces = told, pieces
        self.waited: list[float | None] = []  # of each full answer

    def __call__(self, environ: Any, start_response: Any) -> list[bytes]:
        came_at = environ.get(CAME_AT)
        self.waited.append(None if came_at is None else time.monotonic() - came_at)
        environ["wsgi.input"].read()
        environ[REPEAT] = self.told
        body = b"answer-%d." % len(self.waited)
        start_response(
            "200 OK", [("Content-Length", str(len(body) * self.pieces)), ("X-Kind", "full")]
        )
        return [body] * self.pieces


@pytest.fixture
def serve() -> Iterator[Callable[[View], Serving]]:
    with ExitStack() as stack:

        def start(view: View) -> Serving:
            made = Serving(view)
            stack.callback(made.stop)
            stack.callback(made.stack.close)
            made.thread.start()
            return made

        yield start


def answer(client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of the next answer."""
    data = b""
    while not data.endswith(b"."):
        piece = client.recv(65536)
        assert piece, data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def held_client(serving: Serving) -> socket.socket:
    """A client whose repeated request waits."""
    client = serving.client(ASK % 1)
    answer(client)
    client.sendall(ASK % 1)
    until(lambda: len(serving.worker.held) == 1)
    return client


def test_the_same_request_gets_the_same_answer_after_its_wait_and_no_thread(
    serve: Callable[[View], Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(wait_s=0.2)
    view = View(told)
    client = serve(view).client(ASK % 1)
    first, _ = answer(client)
    monkeypatch.setattr(
        "catmq_site.server.answers.current_date", lambda: "Thu, 26 Nov 2026 21:00:00 GMT"
    )

    begun = time.monotonic()
    client.sendall(ASK % 1)
    again, body = answer(client)

    assert body == b"answer-1." and len(view.waited) == 1 and told.counted == 1
    assert time.monotonic() - begun >= 0.2
    assert b"\r\nDate: Thu, 26 Nov 2026 21:00:00 GMT\r\n" in again
    assert sorted(again.splitlines())[1:] != sorted(first.splitlines())[1:], (
        "the date is its own"
    )
    assert [line for line in again.splitlines() if not line.startswith(b"Date")] == [
        line for line in first.splitlines() if not line.startswith(b"Date")
    ]
    assert not told.flags


def test_an_answer_without_a_wait_comes_at_once_and_again_and_again(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told(wait_s=0))
    client = serve(view).client()

    for _ in range(20):
        client.sendall(ASK % 1)
        assert answer(client)[1] == b"answer-1."
    assert view.told.counted == 19


def test_another_request_is_answered_in_full(serve: Callable[[View], Serving]) -> None:
    client = serve(View(Told(wait_s=0))).client(ASK % 1)
    assert answer(client)[1] == b"answer-1."

    client.sendall(ASK % 2)
    assert answer(client)[1] == b"answer-2."
    client.sendall((ASK % 1).replace(b"{}", b"[]"))
    assert answer(client)[1] == b"answer-3."


def test_news_give_the_request_to_a_thread_that_knows_how_long_it_waited(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told())
    serving = serve(view)
    client = held_client(serving)
    time.sleep(0.1)

    view.told.flags[0].set()  # somebody called for nothing: it goes on waiting
    time.sleep(0.05)
    assert len(serving.worker.held) == 1
    view.told.tell()

    assert answer(client)[1] == b"answer-2."
    assert (
        view.waited[0] is None and view.waited[1] is not None and 0.1 <= view.waited[1] < 5
    )
    assert not view.told.flags and view.told.counted == 0
    client.sendall(ASK % 2)
    answer(client)
    assert view.waited[2] is None, "that was the request before"


def test_news_before_the_flag_could_be_raised_are_not_missed(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told())
    client = serve(view).client(ASK % 1)
    answer(client)

    view.told.has_news = True  # nobody raises a flag
    client.sendall(ASK % 1)
    assert answer(client)[1] == b"answer-2."


def test_news_at_the_end_of_the_wait_are_told(serve: Callable[[View], Serving]) -> None:
    view = View(Told(wait_s=0.2))
    serving = serve(view)
    client = held_client(serving)

    view.told.has_news = True  # nobody raises a flag
    assert answer(client)[1] == b"answer-2."


def test_what_is_not_certain_is_answered_in_full(serve: Callable[[View], Serving]) -> None:
    view = View(Told(wait_s=0))
    client = serve(view).client(ASK % 1)
    answer(client)

    view.told.is_same = False
    client.sendall(ASK % 1)
    assert answer(client)[1] == b"answer-2."


@pytest.mark.parametrize("name", ["begins", "watch", "is_still_valid", "answered"])
def test_a_view_that_fails_costs_one_request_its_short_way_and_not_the_worker(
    serve: Callable[[View], Serving], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    view = View(Told(wait_s=0.05))
    serving = serve(view)
    client = serving.client(ASK % 1)
    answer(client)

    def fail(*flag: Flag) -> bool:
        raise ValueError("a bug")

    setattr(view.told, name, fail)
    client.sendall(ASK % 1)

    assert answer(client)[1] == (b"answer-1." if name == "answered" else b"answer-2.")
    assert "a bug" in caplog.text and serving.thread.is_alive()


def test_a_client_that_hangs_up_while_it_waits_is_forgotten(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told())
    serving = serve(view)
    client = held_client(serving)

    client.close()
    until(lambda: not serving.worker.connections)
    assert not serving.worker.held and not view.told.flags


def test_a_request_behind_one_that_waits_is_answered_after_it(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told(wait_s=0.2))
    client = serve(view).client(ASK % 1)
    answer(client)

    client.sendall(ASK % 1)
    time.sleep(0.05)
    client.sendall(ASK % 2)

    assert answer(client)[1] == b"answer-1."
    assert answer(client)[1] == b"answer-2."


def test_two_requests_in_one_piece_are_both_answered(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told(wait_s=0))
    client = serve(view).client(ASK % 1)
    answer(client)

    client.sendall(ASK % 1 + ASK % 3)
    found = b""
    while found.count(b"answer-") < 2:
        found += client.recv(65536)
    assert found.index(b"answer-2.") < found.index(b"answer-3."), (
        "the loop does not take them apart"
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n|2\r\n{}\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b" " * 70_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nX: "
        + b"x" * 5_000
        + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
    ids=["chunked", "large body", "large head", "HTTP/1.0", "closing"],
)
def test_a_request_that_the_loop_does_not_have_as_a_whole_is_not_remembered(
    serve: Callable[[View], Serving], sent: bytes
) -> None:
    view = View(Told(wait_s=0))
    serving = serve(view)

    for number in (1, 2):
        head, _, rest = sent.partition(b"|")
        client = serving.client(head)
        if rest:
            until(
                lambda: (
                    serving.threads
                    and not serving.worker.idle
                    and not serving.worker.unfinished
                )
            )
            client.sendall(rest)  # a thread waits for it
        assert answer(client)[1] == b"answer-%d." % number
        client.close()


def test_an_answer_of_several_pieces_is_not_remembered(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told(wait_s=0), pieces=2)
    serving = serve(view)
    for number in (1, 2):
        data, client = b"", serving.client(ASK % 1)
        while data.count(b"answer-%d." % number) < 2:
            data += client.recv(65536)


def test_who_waits_when_the_worker_ends_is_answered(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told())
    serving = serve(view)
    client = held_client(serving)

    serving.worker.handle_exit(15, None)
    view.told.tell()  # as the end of a process does

    head, body = answer(client)
    assert body == b"answer-2." and b"\r\nConnection: close" in head


def test_a_client_that_does_not_take_its_answer_is_ended(
    serve: Callable[[View], Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = serve(View(Told(wait_s=0.1)))
    client = serving.client(ASK % 1)
    answer(client)
    monkeypatch.setattr(
        "catmq_site.server.answers.build_repeated_answer", lambda *parts: b"x" * (64 << 20)
    )

    client.sendall(ASK % 1)
    until(lambda: not serving.worker.connections)


def test_when_all_places_are_taken_one_who_waits_goes(
    serve: Callable[[View], Serving],
) -> None:
    view = View(Told())
    serving = serve(view)
    serving.worker.capacity = 2
    first = held_client(serving)
    serving.client(ASK % 1)
    until(lambda: len(serving.worker.held) == 2)

    late = serving.client(ASK % 5)

    assert answer(late)[1] == b"answer-2."
    assert first.recv(100) == b"", "it came first"
    until(lambda: len(view.told.flags) == 1)


class Nowhere:
    """A worker that does nothing with its connections; who was answered."""

    def __init__(self) -> None:
        self.answered: list[Any] = []

    def hold_client(self, client: Any) -> None:
        """It waits."""

    def send_remembered_answer(self, client: Any, status: bytes, rest: bytes) -> None:
        self.answered.append(client)

    def answer_in_full(self, client: Any) -> None:
        raise AssertionError("there are no news")

    def defer_news_check(self, held: HeldRequest[Any]) -> None:
        raise AssertionError("nobody raises a flag")


@dataclass(frozen=True)
class Client:
    peer: str


def test_what_one_address_was_answered_is_no_answer_for_another() -> None:
    found: RepeatedRequests[Client] = RepeatedRequests(Nowhere())
    mine, theirs = Client("192.0.2.1"), Client("192.0.2.2")

    found.remember(mine, b"ask", b"HTTP/1.1 200 OK\r\nDate: x\r\n\r\nbody", Told(wait_s=0))

    assert found.remembers(mine, b"ask") and not found.remembers(theirs, b"ask")
    assert found.begin_repeat(mine, b"ask") and not found.begin_repeat(theirs, b"ask")


def test_the_request_that_came_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "MAX_REMEMBERED", 2)
    found: RepeatedRequests[Client] = RepeatedRequests(Nowhere())
    mine = Client("192.0.2.1")
    for ask in (b"1", b"2"):
        found.remember(mine, ask, b"HTTP/1.1 200 OK\r\nDate: x\r\n\r\nbody", Told(wait_s=0))
    assert found.begin_repeat(mine, b"1")

    found.remember(mine, b"3", b"HTTP/1.1 200 OK\r\nDate: x\r\n\r\nbody", Told(wait_s=0))

    assert [found.remembers(mine, ask) for ask in (b"1", b"2", b"3")] == [True, False, True]


def test_waits_end_in_the_order_of_their_times_and_not_of_their_beginnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(repeats.time, "monotonic", lambda: now[0])
    loop = Nowhere()
    found: RepeatedRequests[Client] = RepeatedRequests(loop)
    long, short = Client("192.0.2.1"), Client("192.0.2.2")
    for client, wait_s in ((long, 3.0), (short, 1.0)):
        found.remember(
            client, b"ask", b"HTTP/1.1 200 OK\r\nDate: x\r\n\r\nbody", Told(wait_s=wait_s)
        )
        assert found.begin_repeat(client, b"ask")
    assert (
        found.seconds_to_next_due(worker.MAX_POLL_S) == 1.0
        and found.seconds_to_next_due(0.5) == 0.5
    )

    now[0] = 101.2
    found.answer_due()
    assert loop.answered == [short] and 1.7 <= found.seconds_to_next_due(9.0) <= 1.9
    now[0] = 103.2
    found.answer_due()
    assert loop.answered == [short, long] and found.seconds_to_next_due(9.0) == 9.0
