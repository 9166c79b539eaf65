"""Heads that were parsed before: the next request gets what the parser made of the first."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

from catmq_site.server import answers, known_heads
from catmq_site.server.connections import Connection
from tests.support.serving import Serving
from tests.support.waiting import until

POST = b"POST /a%%20b?c=d HTTP/1.1\r\nHost: x\r\nX-Two: 1\r\nX-Two: 2\r\n%b\r\n"
PER_REQUEST = ("wsgi.input", "wsgi.early_hints", "gunicorn.socket", "wsgi.errors")


class Recorder:
    """An application that keeps the environ of each request and answers with its body."""

    def __init__(self) -> None:
        self.status = "200 OK"
        self.seen: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read()
        self.seen.append(
            {name: value for name, value in environ.items() if name not in PER_REQUEST}
        )
        # As the broker does behind a proxy: the remembered environ must not change.
        environ["REMOTE_ADDR"] = environ["PATH_INFO"] = "changed"
        start_response(self.status, [("Content-Length", str(len(body)))])
        return [body]


@pytest.fixture
def application() -> Recorder:
    return Recorder()


@pytest.fixture
def serving(application: Recorder) -> Iterator[Serving]:
    with ExitStack() as stack:
        made = Serving(application)
        stack.callback(made.stop)
        stack.callback(made.stack.close)
        made.thread.start()
        yield made


def exchange(client: socket.socket, request: bytes, body: bytes) -> None:
    """Send a request and wait for the answer, which has this body."""
    client.sendall(request)
    data = b""
    while not data.endswith(b"\r\n\r\n" + body):
        piece = client.recv(65536)
        assert piece, data
        data += piece


def connections(serving: Serving) -> list[Connection]:
    return list(serving.worker.connections.values())


def remembered(serving: Serving) -> int:
    return len(serving.worker.known_heads._heads)


def with_body(body: bytes) -> bytes:
    return POST % (b"Content-Length: %d\r\n" % len(body)) + body


def test_a_repeated_head_gives_the_same_environ_and_its_own_body(
    serving: Serving, application: Recorder
) -> None:
    client = serving.client()
    exchange(client, with_body(b"first"), b"first")
    exchange(client, with_body(b"other"), b"other")

    parsed, copied = application.seen
    assert copied == parsed
    assert copied["HTTP_X_TWO"] == "1,2" and copied["PATH_INFO"] == "/a b"
    until(lambda: remembered(serving) == 1)


def test_each_connection_has_its_own_port(serving: Serving, application: Recorder) -> None:
    for client in (serving.client(), serving.client()):
        exchange(client, with_body(b"body"), b"body")
        assert application.seen[-1]["REMOTE_PORT"] == str(client.getsockname()[1])
    until(lambda: remembered(serving) == 1)


@pytest.mark.parametrize("cut", range(1, len(with_body(b"body")) * 2))
def test_two_requests_are_told_apart_wherever_their_bytes_are_cut(
    serving: Serving, cut: int
) -> None:
    client = serving.client()
    exchange(client, with_body(b"warm"), b"warm")
    both = with_body(b"body") + with_body(b"next")
    client.sendall(both[:cut])
    client.sendall(both[cut:])

    data = b""
    while data.count(b"HTTP/1.1 200") < 2 or not data.endswith(b"next"):
        data += client.recv(65536)
    assert data.index(b"body") < data.index(b"next")


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST % b"Connection: close\r\nContent-Length: 1\r\n" + b"x",
        POST.replace(b"1.1", b"1.0") % b"Content-Length: 1\r\n" + b"x",
        POST.replace(b"1.1", b"1.0") % b"Connection: keep-alive\r\nContent-Length: 1\r\n"
        + b"x",
        POST % b"Transfer-Encoding: chunked\r\n" + b"1\r\nx\r\n0\r\n\r\n",
        POST % b"Expect: 100-continue\r\nContent-Length: 1\r\n" + b"x",
        POST % b"Cookie: sessionid=secret\r\nContent-Length: 1\r\n" + b"x",
        POST % b"Upgrade: h2c\r\nContent-Length: 1\r\n" + b"x",
        POST % (b"X-Long: %b\r\nContent-Length: 1\r\n" % (b"y" * 2048)) + b"x",
        POST % (b"Content-Length: %d\r\n" % (65 << 10)) + b"x" * (65 << 10),
    ],
)
def test_special_heads_are_parsed_each_time(
    serving: Serving, application: Recorder, request_bytes: bytes
) -> None:
    client = serving.client()
    client.sendall(request_bytes)
    until(lambda: len(application.seen) == 1)
    # A head is remembered before the connection is given back to the loop.
    until(lambda: all(one.wait_list is not None for one in connections(serving)))
    assert remembered(serving) == 0


def test_heads_of_refused_requests_are_not_remembered(
    serving: Serving, application: Recorder
) -> None:
    application.status = "401 Unauthorized"
    exchange(serving.client(), with_body(b"body"), b"body")
    assert remembered(serving) == 0


def test_a_client_with_ever_new_heads_does_not_fill_the_memory(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_heads, "MAX_HEADS", 4)
    client = serving.client()
    for number in range(11):
        exchange(
            client, POST % (b"X-Number: %d\r\nContent-Length: 1\r\n" % number) + b"x", b"x"
        )
    until(lambda: remembered(serving) == 3)


def test_an_answer_without_a_length_is_sent_in_chunks(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_chunks(
        environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> list[bytes]:
        start_response("200 OK", [])
        return [b"one", b"two"]

    monkeypatch.setattr(serving.worker, "wsgi", in_chunks)
    client = serving.client()
    for _ in range(2):
        client.sendall(with_body(b"body"))
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += client.recv(65536)
        assert b"3\r\none\r\n3\r\ntwo\r\n" in data
    until(lambda: remembered(serving) == 1)


def test_an_answer_that_changes_its_headers_changes_those_of_no_other(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_late(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "4"), ("X-Of", "an answer")])
        try:
            raise LookupError
        except LookupError:
            # As a framework does that finds an error after it has begun: WSGI allows it.
            start_response("500 No", [("Content-Length", "4")], sys.exc_info())
        return [b"oops"]

    def succeeds(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "4"), ("X-Of", "an answer")])
        return [b"fine"]

    for _ in range(2):
        monkeypatch.setattr(serving.worker, "wsgi", fails_late)
        exchange(serving.client(), with_body(b"body"), b"oops")
        monkeypatch.setattr(serving.worker, "wsgi", succeeds)
        client = serving.client()
        client.sendall(with_body(b"body"))
        data = b""
        while not data.endswith(b"fine"):
            data += client.recv(65536)
        assert data.count(b"Content-Length") == data.count(b"X-Of") == 1


def test_cookies_of_answers_are_not_remembered() -> None:
    for headers in ([("Set-Cookie", "sessionid=secret")], [("X-Of", "an answer")]):
        answer = answers.Answer(
            SimpleNamespace(method="GET", version=(1, 1)), None, Config()
        )
        answer.start_response("200 OK", headers)
    assert (("X-Of", "an answer"),) in answers._checked_headers
    assert not any("secret" in str(headers) for headers in answers._checked_headers)
