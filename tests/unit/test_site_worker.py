"""The worker: clients that stop in the middle hold no thread, or one for a limited time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import LimitRequestHeaders
from gunicorn.http.parser import RequestParser

from catmq_site.server import channels, connections, worker
from catmq_site.server.answers import Answer
from catmq_site.server.channels import BODY, Channel
from catmq_site.server.wait_lists import WaitList
from tests.support.environment import ROOT
from tests.support.serving import LIMIT_S, Serving
from tests.support.waiting import until

WHOLE = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
BEGUN = b"POST / HTTP/1.1\r\nHost: x\r\nX"


def echo(environ: Any, start_response: Any) -> list[bytes]:
    """Answers the path, and the body."""
    body = environ["PATH_INFO"].encode() + environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Serving]]:
    """A function that starts a worker; `limits` are constants of its module."""
    with ExitStack() as stack:

        def start(application: Any = echo, **limits: Any) -> Serving:
            for name, value in limits.items():
                monkeypatch.setattr(worker, name, value)
            made = Serving(application)
            stack.callback(made.stop)
            stack.callback(made.stack.close)
            made.thread.start()
            return made

        yield start


def all_of(client: socket.socket) -> bytes:
    """Return what the server sends until it ends the connection."""
    pieces = []
    while piece := client.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def received(client: socket.socket, end: bytes) -> bytes:
    """Return what the server sends up to an end that is expected."""
    data = b""
    while not data.endswith(end):
        piece = client.recv(65536)
        assert piece, data
        data += piece
    return data


def refusal(data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and problem of a whole answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"\r\nContent-Type: application/problem+json\r\n" in head
    assert b"\r\nConnection: close\r\n" in head
    return int(head.split()[1]), json.loads(body)


def test_clients_that_have_sent_nothing_or_a_part_take_no_thread(
    serve: Callable[..., Serving],
) -> None:
    serving = serve()
    idle = [serving.client() for _ in range(50)]
    begun = [serving.client(BEGUN) for _ in range(50)]
    until(
        lambda: (
            len(serving.worker.unfinished) == len(begun)
            and len(serving.worker.idle) == len(idle)
        )
    )

    assert serving.threads == 0
    begun[0].sendall(b": 1\r\n\r\n")
    idle[0].sendall(WHOLE % 7)
    assert received(idle[0], b"/7") and received(begun[0], b"/")


def test_a_request_that_does_not_come_to_its_end_is_answered_in_time(
    serve: Callable[..., Serving],
) -> None:
    client = serve(REQUEST_S=0.05, MAX_POLL_S=0.05).client(BEGUN)

    status, problem = refusal(all_of(client))

    assert (status, problem["code"], problem["retriable"]) == (408, "request_timeout", True)


def test_a_small_body_that_comes_in_parts_is_waited_for_without_a_thread(
    serve: Callable[..., Serving],
) -> None:
    serving = serve()
    client = serving.client(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo")
    until(lambda: len(serving.worker.unfinished) == 1)

    assert serving.threads == 0
    client.sendall(b"dy")
    assert received(client, b"/abody")


def test_above_the_limit_of_an_address_its_oldest_unfinished_request_goes(
    serve: Callable[..., Serving],
) -> None:
    serving = serve(MAX_UNFINISHED_PER_ADDRESS=2)
    first, *others = [serving.client(BEGUN) for _ in range(3)]

    assert all_of(first) == b""
    for one in others:
        one.sendall(b": 1\r\n\r\n")
        assert received(one, b"/")


def test_when_all_places_are_taken_the_oldest_idle_connection_goes(
    serve: Callable[..., Serving],
) -> None:
    serving = serve()
    serving.worker.capacity = 3
    oldest = serving.client(WHOLE % 1)
    assert received(oldest, b"/1")
    until(lambda: len(serving.worker.idle) == 1)
    others = [serving.client(WHOLE % number) for number in range(3)]

    assert all_of(oldest) == b""
    assert received(others[2], b"/2")


def test_requests_that_are_sent_at_once_are_answered_in_their_order(
    serve: Callable[..., Serving],
) -> None:
    client = serve().client(b"".join(WHOLE % number for number in range(20)))

    bodies = [part[-3:] for part in received(client, b"/19").split(b"HTTP/1.1 200 OK")[1:]]

    assert [int(body.partition(b"/")[2]) for body in bodies] == list(range(20))


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000])
def test_a_body_arrives_whole_whatever_its_size(
    serve: Callable[..., Serving], size: int
) -> None:
    body = bytes(97 + number % 26 for number in range(size))
    client = serve().client()
    head = (
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        % size
    )
    sending = threading.Thread(target=client.sendall, args=(head + body,))
    sending.start()

    assert all_of(client).partition(b"\r\n\r\n/")[2] == body
    sending.join(LIMIT_S)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, "malformed"),
        (b"GET  / HTTP/1.1\r\n\r\n", 400, "malformed"),
        (b"GET /" + b"a" * 6000 + b" HTTP/1.1\r\n\r\n", 414, "too_large"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431, "too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 9000, 431, "too_large"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: magic\r\n\r\n", 501, "not_implemented"),
    ],
)
def test_a_request_that_cannot_be_read_is_answered_by_a_problem(
    serve: Callable[..., Serving], sent: bytes, status: int, code: str
) -> None:
    found, problem = refusal(all_of(serve().client(sent)))

    assert (found, problem["status"], problem["code"]) == (status, status, code)
    assert len(problem["detail"]) < 300


def test_nobody_moves_the_application_by_a_header(serve: Callable[..., Serving]) -> None:
    client = serve().client(
        b"GET /1 HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /1\r\nPATH_INFO: /2\r\n\r\n"
    )

    assert received(client, b"/1")


def test_the_log_has_one_short_line_for_a_request_that_cannot_be_read(
    serve: Callable[..., Serving], capfd: pytest.CaptureFixture[str]
) -> None:
    all_of(
        serve().client(
            b"GET /\x1b[31m\r2026-01-01 ERROR forged" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n"
        )
    )

    lines = [line for line in capfd.readouterr().err.splitlines() if "forged" in line]
    assert len(lines) == 1 and lines[0].isprintable() and len(lines[0]) < 500


def test_an_answer_before_the_body_ends_the_connection_and_holds_no_thread(
    serve: Callable[..., Serving],
) -> None:
    def refuse(environ: Any, start_response: Any) -> list[bytes]:
        start_response("401 Unauthorized", [("Content-Length", "2")])
        return [b"no"]

    serving = serve(refuse)
    client = serving.client(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")

    assert b"\r\nConnection: close\r\n" in all_of(client)
    until(lambda: len(serving.worker.closing) == 1)
    client.close()
    until(lambda: not serving.worker.connections)


def test_no_thread_reads_the_rest_of_a_body_that_was_refused(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(environ: Any, start_response: Any) -> list[bytes]:
        start_response("413 Too Large", [("Content-Length", "2")])
        return [b"no"]

    finished: list[object] = []
    monkeypatch.setattr(
        RequestParser,
        "finish_body",
        lambda parser: parser.mesg is None or finished.append(parser),
    )
    client = serve(refuse).client(
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nbegun"
    )

    assert b"413" in all_of(client)
    assert not finished


@pytest.mark.parametrize("close", [False, True])
def test_a_connection_is_kept_unless_the_client_closes_it(
    serve: Callable[..., Serving], *, close: bool
) -> None:
    header = b"Connection: close\r\n" if close else b""
    serving = serve()
    client = serving.client(b"GET /1 HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
    received(client, b"/1")

    until(lambda: len(serving.worker.closing if close else serving.worker.idle) == 1)


def test_an_answer_that_breaks_off_is_not_followed_by_another(
    serve: Callable[..., Serving],
) -> None:
    def breaks(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "4")])
        yield b"ok"
        raise ValueError("no more")

    assert all_of(serve(breaks).client(WHOLE % 1)).endswith(b"\r\n\r\nok")


def test_an_application_that_fails_is_answered_by_a_problem(
    serve: Callable[..., Serving],
) -> None:
    def fails(environ: Any, start_response: Any) -> list[bytes]:
        raise ValueError("a secret")

    status, problem = refusal(all_of(serve(fails).client(WHOLE % 1)))
    assert (status, problem["code"]) == (500, "internal")
    assert "secret" not in problem["detail"]


@pytest.mark.parametrize("stopping", [True, False])
def test_a_worker_that_ends_stops_listening_and_finishes_what_it_has(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch, *, stopping: bool
) -> None:
    """If its broker stops, whoever has connected is served; else the other workers do that."""
    monkeypatch.setattr(worker.broker_memory, "is_stopping", lambda: stopping)
    goes_on = threading.Event()

    def slow(environ: Any, start_response: Any) -> list[bytes]:
        goes_on.wait(LIMIT_S)
        return echo(environ, start_response)

    serving = serve(slow)
    client = serving.client(WHOLE % 1)
    until(lambda: serving.threads == 1 and not serving.worker.idle)
    ending = threading.Thread(target=serving.stop)
    ending.start()
    until(lambda: serving.listener.fileno() == -1)
    goes_on.set()

    assert received(client, b"/1")
    client.close()
    ending.join(LIMIT_S)


def test_whoever_has_connected_when_the_broker_stops_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker.broker_memory, "is_stopping", lambda: True)
    serving = Serving(echo)
    clients = [serving.client(WHOLE % number) for number in range(3)]
    serving.worker.alive = False
    serving.thread.start()

    for number, client in enumerate(clients):
        assert b"\r\nConnection: close\r\n" in received(client, b"/%d" % number)
    serving.stack.close()
    serving.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection as the server has it, and the client's end."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        ours.setblocking(False)
        theirs.settimeout(LIMIT_S)
        yield ours, theirs


def channel(sock: socket.socket, crowd: WaitList[Channel] | None = None) -> Channel:
    """A channel in whose phase a thread waits for the client."""
    made = Channel(
        sock, "192.0.2.1", WaitList(limit_s=99, max_size=9) if crowd is None else crowd
    )
    made.phase = BODY
    return made


def test_a_body_that_does_not_come_is_given_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GRACE_S", 0.01)
    with pytest.raises(TimeoutError):
        channel(pair[0]).recv(10)


def test_a_body_that_comes_drop_by_drop_is_given_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GRACE_S", 0.05)
    ours, theirs = pair
    drops = threading.Event()

    def drip() -> None:
        while not drops.wait(0.005):
            theirs.send(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    made = channel(ours)
    try:
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                made.recv(10)
    finally:
        drops.set()
        dripping.join()


def test_an_answer_that_nobody_takes_is_given_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GRACE_S", 0.01)
    monkeypatch.setattr(channels, "MIN_BYTES_PER_S", 1 << 40)
    with pytest.raises(TimeoutError):
        channel(pair[0]).sendall(bytes(64 << 20))


def test_when_too_many_threads_wait_for_clients_the_oldest_wait_ends(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    slow: WaitList[Channel] = WaitList(limit_s=99, max_size=1)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            channel(pair[0], slow).recv(10)
        except TimeoutError as error:
            ended.append(error)

    first = threading.Thread(target=wait)
    first.start()
    until(lambda: len(slow) == 1)
    theirs, ours = socket.socketpair()
    with theirs, ours:
        ours.setblocking(False)
        second = threading.Thread(target=lambda: channel(ours, slow).recv(10))
        second.start()
        first.join(LIMIT_S)
        theirs.send(b"x")
        second.join(LIMIT_S)

    assert "too many" in str(ended[0])


def test_nothing_is_read_behind_a_head_that_is_too_long(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(LimitRequestHeaders):
        Channel(pair[0], "", WaitList(limit_s=1, max_size=1)).recv(1)


@pytest.fixture
def answered() -> Iterator[tuple[Answer, socket.socket]]:
    """An answer that was not begun, and the client's end; it receives what was sent piece
    by piece.
    """
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ours:
        made = channel(ours)
        parser = RequestParser(Config(), made, ("127.0.0.1", 1))
        parser.unreader.unread(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        theirs.settimeout(LIMIT_S)
        yield Answer(next(parser), made, Config()), theirs


def test_an_answer_leaves_in_one_piece(answered: tuple[Answer, socket.socket]) -> None:
    answer, client = answered
    answer.start_response("200 OK", [("Content-Length", "4")])
    answer.write(b"done")
    answer.close()

    whole = client.recv(9999)

    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert whole.endswith(b"\r\nContent-Length: 4\r\n\r\ndone")


def test_an_answer_without_a_body_has_a_head(
    answered: tuple[Answer, socket.socket],
) -> None:
    answer, client = answered
    answer.start_response("204 No Content", [])
    answer.close()

    assert client.recv(9999).startswith(b"HTTP/1.1 204 No Content\r\n")


def test_an_answer_of_unknown_length_goes_in_chunks(
    answered: tuple[Answer, socket.socket],
) -> None:
    answer, client = answered
    answer.start_response("200 OK", [])
    for piece in (b"one", b"three"):
        answer.write(piece)
    answer.close()

    head, *chunks = [client.recv(9999) for _ in range(4)]

    assert b"\r\nTransfer-Encoding: chunked\r\n" in head
    assert chunks == [b"3\r\none\r\n", b"5\r\nthree\r\n", b"0\r\n\r\n"]


TWICE = """
import os, signal, sys
from types import SimpleNamespace
from catmq_site.background import broker_memory
from catmq_site.server import gunicorn_conf
import django
django.setup()
from brokerapi.http import draining
said = []
def drain():
    said.append("drained")
    os.kill(os.getpid(), signal.SIGTERM)  # while the handler of the first one runs
draining.stop = drain
broker_memory.mark_stopping()
worker = SimpleNamespace(handle_exit=lambda number, frame: said.append("left"))
signal.signal(
    signal.SIGTERM,
    lambda number, frame: gunicorn_conf.handle_sigterm(worker, number, frame),
)
os.kill(os.getpid(), signal.SIGTERM)
print(*said, gunicorn_conf.worker_class, repr(gunicorn_conf.forwarder_headers))
"""


def test_a_second_sigterm_does_not_interrupt_the_handler_of_the_first() -> None:
    environ = dict(os.environ) | {"DJANGO_SETTINGS_MODULE": "catmq_site.settings"}
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stdout.split() == [
        "drained",
        "left",
        "catmq_site.server.worker.Worker",
        "''",
    ], done.stderr


LOADED = """
import gc
import sys
import threading
from catmq_site.server import gunicorn_conf
gunicorn_conf.load_application()
frozen, left = gc.get_freeze_count(), len(gc.get_objects())
print(frozen > 50_000, left < frozen / 20, "brokerapi.views.messages" in sys.modules)
from django.db import connections
print(threading.active_count() == 1, all(one.connection is None for one in connections.all()))
"""


def test_what_the_application_is_made_of_is_loaded_once_and_not_looked_at_by_the_garbage_collector(
    tmp_path: Path,
) -> None:
    settings = {
        "DJANGO_SETTINGS_MODULE": "catmq_site.settings",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
    }
    environ = os.environ | settings
    command = [sys.executable, "-c", LOADED]
    said = subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    # and a fork afterwards copies neither threads nor connections
    assert said.split() == ["True"] * 5


FORKED = """
import os
from catmq_site import wsgi
from brokerapi.http import group_metrics
from messagestore.heads import durability
for _ in range(4):
    if not os.fork():
        print(durability._own_row(), group_metrics.board._totals_file, flush=True)
        os._exit(0)
    os.wait()
"""


def test_what_workers_must_not_share_is_chosen_after_the_fork(tmp_path: Path) -> None:
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FORKED]
    said = subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    rows, files = zip(*(line.split() for line in said.splitlines()), strict=True)
    assert len(set(rows)) > 1, "of 1024 rows two may be the same by chance"
    assert len(set(files)) == 4


def large(environ: Any, start_response: Any) -> list[bytes]:
    """Answers more than the kernel keeps below MAX_UNSENT_BYTES, and less than a thread
    would wait for.
    """
    start_response("200 OK", [("Content-Length", "100000")])
    return [b"x" * 100_000]


def deaf(serving: Serving, request: bytes = WHOLE % 1) -> socket.socket:
    """Return a client that asks and does not read: its window is shut at once."""
    client = serving.stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(LIMIT_S)
    client.connect(("127.0.0.1", serving.port))
    client.sendall(request)
    return client


def was_reset(client: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        all_of(client)
        return False
    return True


@pytest.mark.parametrize(
    "request_", [WHOLE % 1, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"]
)
def test_answers_that_their_clients_do_not_take_are_dropped_in_time(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.2)
    serving = serve(large, MAX_POLL_S=0.05, CLOSE_S=0.05)
    client = deaf(serving, request_)
    until(lambda: len(serving.worker.unread) == 1)
    until(lambda: not serving.worker.connections)
    assert was_reset(client)


def test_of_too_many_that_do_not_read_an_older_one_goes(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "MAX_UNREAD_PER_ADDRESS": 2,
        "UNREAD_GRACE_S": 0.0,
        "CHECK_UNREAD_EVERY_S": 0.0,
    }.items():
        monkeypatch.setattr(connections, name, value)
    serving = serve(large, MAX_POLL_S=0.05)

    def served() -> set[int]:
        """Return the ports of the clients that are connected."""
        return {
            connection.client[1] for connection in list(serving.worker.connections.values())
        }

    clients = [deaf(serving), deaf(serving)]
    until(lambda: len(serving.worker.unread) == 2)
    clients.append(deaf(serving))
    ports = [client.getsockname()[1] for client in clients]
    until(lambda: ports[2] in served() and len(served()) == 2)
    ended = next(
        client for client, port in zip(clients, ports, strict=True) if port not in served()
    )
    assert ended is not clients[2] and was_reset(ended)
    assert len(received_of(clients[2], 100_000)[2]) == 100_000


def test_who_reads_late_gets_all_and_may_ask_again(serve: Callable[..., Serving]) -> None:
    serving = serve(large, MAX_POLL_S=0.05)
    client = deaf(serving)
    until(lambda: len(serving.worker.unread) == 1)
    head, _, body = received_of(client, 100_000)
    assert b"200 OK" in head and len(body) == 100_000
    client.sendall(WHOLE % 2)
    assert len(received_of(client, 100_000)[2]) == 100_000


def received_of(client: socket.socket, length: int) -> tuple[bytes, bytes, bytes]:
    """Head, separator and body of an answer, whose body has so many bytes."""
    data = b""
    while len(data.partition(b"\r\n\r\n")[2]) < length:
        piece = client.recv(65536)
        assert piece, len(data)
        data += piece
    return data.partition(b"\r\n\r\n")
