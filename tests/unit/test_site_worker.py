"""The worker: a client that stops in the middle holds a thread for a limited time; SIGTERM may come twice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.errors import NoMoreData

from catmq_site import worker
from catmq_site.worker import Answer, Connection, Worker
from tests.support.environment import ROOT

LIMIT_S = 10.0


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection as the server has it, and the client's end."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        yield Connection(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2)), theirs


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits a hundredth of a second for the rest of a request."""
    monkeypatch.setattr(worker, "READ_S", 0.01)


def begin(connection: Connection) -> Any:
    """What a thread does first with a connection that has something to read."""
    connection.sock.setblocking(True)
    connection.init()
    return next(connection.parser)


@pytest.mark.usefixtures("impatient")
def test_a_request_whose_head_does_not_end_is_given_up(pair: tuple[Connection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nX")

    with pytest.raises((NoMoreData, StopIteration)):
        begin(connection)


@pytest.mark.usefixtures("impatient")
def test_a_body_that_does_not_come_is_given_up(pair: tuple[Connection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab")

    with pytest.raises(NoMoreData):
        begin(connection).body.read(10)


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_nobody_takes_is_given_up(pair: tuple[Connection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    begin(connection)

    with pytest.raises(BlockingIOError):
        connection.sock.sendall(bytes(64 << 20))


def test_a_request_that_comes_drop_by_drop_is_given_up(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, client = pair
    client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab")
    body = begin(connection).body
    monkeypatch.setattr(worker, "REQUEST_S", 0.0)
    client.sendall(b"c")

    with pytest.raises(NoMoreData):
        body.read(10)


def test_the_next_request_of_a_connection_has_all_its_time(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, client = pair
    client.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert begin(connection).path == "/1"
    connection.parser.unreader.begun -= 1e6
    client.sendall(b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")

    assert begin(connection).path == "/2"


def test_a_connection_is_closed_by_the_thread_that_served_it_and_once(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, client = pair
    client.shutdown(socket.SHUT_WR)
    connection.close(graceful=True)
    connection.close(graceful=True)

    client.settimeout(LIMIT_S)
    assert client.recv(1) == b""


@pytest.fixture
def answered() -> Iterator[tuple[Answer, socket.socket]]:
    """An answer that was not begun, and the client's end; it receives what was sent piece by piece."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ours:
        connection = Connection(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2))
        theirs.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        theirs.settimeout(LIMIT_S)
        yield Answer(begin(connection), ours, connection.cfg), theirs


def test_an_answer_leaves_in_one_piece(answered: tuple[Answer, socket.socket]) -> None:
    answer, client = answered
    answer.start_response("200 OK", [("Content-Length", "4")])
    answer.write(b"done")
    answer.close()

    whole = client.recv(9999)

    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert whole.endswith(b"\r\nContent-Length: 4\r\n\r\ndone")


def test_an_answer_without_a_body_has_a_head(answered: tuple[Answer, socket.socket]) -> None:
    answer, client = answered
    answer.start_response("204 No Content", [])
    answer.close()

    assert client.recv(9999).startswith(b"HTTP/1.1 204 No Content\r\n")


def test_an_answer_of_unknown_length_goes_in_chunks(answered: tuple[Answer, socket.socket]) -> None:
    answer, client = answered
    answer.start_response("200 OK", [])
    for piece in (b"one", b"three"):
        answer.write(piece)
    answer.close()

    head, *chunks = [client.recv(9999) for _ in range(4)]

    assert b"\r\nTransfer-Encoding: chunked\r\n" in head
    assert chunks == [b"3\r\none\r\n", b"5\r\nthree\r\n", b"0\r\n\r\n"]


class Serving(Worker):
    """A worker with an application and nothing else."""

    def __init__(self, application: Any) -> None:
        self.cfg, self.wsgi = Config(), application
        self.alive, self.max_keepalived = True, 1
        self.keepalived_conns: list[Connection] = []
        self.log = Logger(self.cfg)


@pytest.mark.parametrize("close", [False, True])
def test_a_connection_is_kept_unless_the_client_closes_it(
    pair: tuple[Connection, socket.socket], *, close: bool
) -> None:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    connection, client = pair
    header = b"Connection: close\r\n" if close else b""
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
    client.shutdown(socket.SHUT_WR)

    request = begin(connection)

    assert Serving(application).handle_request(request, connection) is not close
    assert client.recv(9999).endswith(b"\r\n\r\nok")


def test_an_answer_that_breaks_off_is_not_followed_by_another(
    pair: tuple[Connection, socket.socket],
) -> None:
    def application(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "4")])
        yield b"ok"
        raise ValueError("no more")

    connection, client = pair
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    client.shutdown(socket.SHUT_WR)
    request = begin(connection)

    with pytest.raises(StopIteration):
        Serving(application).handle_request(request, connection)

    client.settimeout(LIMIT_S)
    assert client.recv(9999).endswith(b"\r\n\r\nok")
    assert client.recv(1) == b"", "and the connection is closed"


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Worker, socket.socket, list[socket.socket]]]:
    """A worker that was told to end, its listener, and clients that have connected but were not accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        waiting = [socket.create_connection(listener.getsockname(), LIMIT_S) for _ in range(3)]
        made = Worker.__new__(Worker)
        made.cfg, made.alive, made.nr_conns, made._accepting = Config(), False, 0, False
        made.sockets, made.accepted = [listener], []
        monkeypatch.setattr(made, "enqueue_req", made.accepted.append)
        yield made, listener, waiting
        for one in (*waiting, *(connection.sock for connection in made.accepted)):
            one.close()


@pytest.mark.parametrize(("stopping", "served"), [(True, 3), (False, 0)])
def test_a_worker_that_ends_stops_listening_at_once(
    leaving: tuple[Any, socket.socket, list[socket.socket]], monkeypatch: pytest.MonkeyPatch,
    *, stopping: bool, served: int,
) -> None:  # fmt: skip
    """If its broker stops, whoever has connected is served; else the other workers do that."""
    made, listener, _ = leaving
    monkeypatch.setattr(worker.master, "stopping", lambda: stopping)
    where = listener.getsockname()

    made.set_accept_enabled(False)

    assert len(made.accepted) == made.nr_conns == served
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, LIMIT_S)


TWICE = """
import os, signal, sys
from types import SimpleNamespace
from catmq_site import gunicorn_conf, master
import django
django.setup()
from brokerapi import draining
said = []
def drain():
    said.append("drained")
    os.kill(os.getpid(), signal.SIGTERM)  # while the handler of the first one runs
draining.drain = drain
master.stop()
worker = SimpleNamespace(handle_exit=lambda number, frame: said.append("left"))
signal.signal(signal.SIGTERM, lambda number, frame: gunicorn_conf.leave(worker, number, frame))
os.kill(os.getpid(), signal.SIGTERM)
print(*said, gunicorn_conf.worker_class)
"""


def test_a_second_sigterm_does_not_interrupt_the_handler_of_the_first() -> None:
    environ = dict(os.environ) | {"DJANGO_SETTINGS_MODULE": "catmq_site.settings"}
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60
    )

    assert done.stdout.split() == ["drained", "left", "catmq_site.worker.Worker"], done.stderr


FROZEN = """
import gc
import django
django.setup()
from catmq_site import gunicorn_conf
gunicorn_conf.freeze()
frozen, left = gc.get_freeze_count(), len(gc.get_objects())
print(frozen > 50_000, left < frozen / 20, "brokerapi.views.messages" in __import__("sys").modules)
"""


def test_what_the_application_is_made_of_is_not_looked_at_by_the_garbage_collector() -> None:
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "catmq_site.settings"}
    command = [sys.executable, "-c", FROZEN]
    said = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True"] * 3
