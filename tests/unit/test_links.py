"""Links that fail on demand: what each fault does to the two ends of a connection."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.links import Link
from tests.support.mysql_answers import End, MySqlAnswers
from tests.support.waiting import until


class Echo(socketserver.ThreadingTCPServer):
    """Answers every line with itself, twice; `heard` has all lines."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.heard: list[bytes] = []


class Answer(socketserver.StreamRequestHandler):
    """One connection."""

    server: Echo

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.heard.append(line)
                self.wfile.write(line + line)
        except ConnectionError:
            return


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        serving.start()
        yield server
        server.shutdown()


@pytest.fixture
def link(echo: Echo) -> Iterator[Link]:
    with Link(echo.server_address[1]).running() as made:
        yield made


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with ExitStack() as stack:
        yield stack.enter_context(dial(link))


def dial(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=10)


def is_refused(link: Link) -> None:
    """A new connection is reset, at once or when it is read from."""
    with pytest.raises(ConnectionResetError), dial(link) as client:
        client.recv(10)


def exactly(client: socket.socket, count: int) -> bytes:
    """So many bytes, fewer if the other side ended."""
    data = b""
    while len(data) < count and (piece := client.recv(count - len(data))):
        data += piece
    return data


def ask(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return exactly(client, 2 * len(line))


def test_a_link_that_nothing_was_done_to_passes_everything_on(
    client: socket.socket,
) -> None:
    assert ask(client, b"hello\n") == b"hello\nhello\n"
    client.shutdown(socket.SHUT_WR)
    assert client.recv(10) == b"", "an end is passed on, too"


def test_a_cut_resets_every_connection_and_lets_new_ones_through(
    link: Link, client: socket.socket
) -> None:
    ask(client, b"x\n")
    assert link.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    with dial(link) as again:
        assert ask(again, b"y\n") == b"y\ny\n"


def test_a_link_that_refuses_resets_new_connections_until_it_is_restored(
    link: Link, client: socket.socket
) -> None:
    ask(client, b"x\n")
    link.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    is_refused(link)
    link.restore()
    with dial(link) as again:
        assert ask(again, b"y\n") == b"y\ny\n"


def test_a_link_that_holds_takes_connections_and_passes_nothing_until_it_is_restored(
    link: Link, echo: Echo, client: socket.socket
) -> None:
    ask(client, b"x\n")
    link.hold()
    client.sendall(b"held\n")
    client.settimeout(0.1)
    with dial(link) as newcomer:
        newcomer.sendall(b"new\n")
        with pytest.raises(TimeoutError):
            client.recv(10)
        assert echo.heard == [b"x\n"]
        link.restore()
        assert exactly(newcomer, 8) == b"new\nnew\n"
    client.settimeout(10)
    assert exactly(client, 10) == b"held\nheld\n"


def test_a_half_closed_link_ends_the_answers_and_still_takes_requests(
    link: Link, echo: Echo, client: socket.socket
) -> None:
    ask(client, b"x\n")
    assert link.half_close() == 1
    assert client.recv(10) == b""
    client.sendall(b"still heard\n")
    until(lambda: b"still heard\n" in echo.heard)


def test_a_lost_answer_was_given_to_a_request_that_was_done(
    link: Link, echo: Echo, client: socket.socket
) -> None:
    lost = link.lose_answers(match=b"this")
    assert ask(client, b"another\n") == b"another\nanother\n"
    client.sendall(b"this one\n")
    assert lost.hit.wait(10)
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    assert echo.heard == [b"another\n", b"this one\n"]
    with dial(link) as again:
        assert ask(again, b"this again\n") == 2 * b"this again\n", "one was to be lost"


def test_an_answer_is_cut_after_so_many_bytes(link: Link, client: socket.socket) -> None:
    cut = link.cut_answer(after=7)
    assert ask(client, b"hello\n") == b"hello\nh"
    assert cut.hit.is_set()


def test_a_fault_that_has_not_struck_is_forgotten_when_the_link_is_restored(
    link: Link, client: socket.socket
) -> None:
    lost = link.lose_answers()
    link.restore()
    assert ask(client, b"x\n") == b"x\nx\n"
    assert not lost.hit.is_set()


def test_a_link_to_nobody_resets(echo: Echo) -> None:
    with Link(1).running() as nowhere:
        is_refused(nowhere)


def packet(*payload: int | bytes) -> bytes:
    whole = b"".join(one if isinstance(one, bytes) else bytes([one]) for one in payload)
    return len(whole).to_bytes(3, "little") + b"\x01" + whole


GREETING, WELCOME = packet(10, b"8.4.0"), packet(0, 0, 0, 2, 0, 0, 0)
OK_MORE, OK_LAST = packet(0, 1, 0, 0x0A, 0, 0, 0), packet(0, 1, 0, 0x02, 0, 0, 0)
EOF_MORE, EOF_LAST = packet(0xFE, 0, 0, 0x0A, 0), packet(0xFE, 0, 0, 0x02, 0)
ROWS = packet(1) + packet(3, b"def") + EOF_LAST + packet(1, b"7") + packet(0, 1, b"")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_ends_of_results_are_found_however_the_bytes_are_cut(size: int) -> None:
    answers = [
        OK_MORE,
        ROWS + EOF_MORE,
        OK_LAST,
        packet(0xFF, b"\x04\x04#"),
        ROWS + packet(0xFF, b"\x04\x04#"),
    ]
    sent = GREETING + WELCOME + b"".join(answers)
    parser, found = MySqlAnswers(), []
    for first in range(0, len(sent), size):
        found += [
            End(first + end.at, end.more) for end in parser.feed(sent[first : first + size])
        ]
    begun, wanted = len(GREETING + WELCOME), []
    for answer, more in zip(answers, (True, True, False, False, False), strict=True):
        begun += len(answer)
        wanted.append(End(begun, more))
    assert found == wanted


def test_a_fault_whose_connection_ends_first_waits_for_the_next_one(link: Link) -> None:
    fault = link.lose_answers(match=b"send")
    with dial(link) as gone:
        gone.sendall(b"send 1")  # no whole line yet: nothing answers
        until(lambda: fault.left == 0, limit_s=10)
        link.cut()
        until(lambda: not link.connections, limit_s=10)
        assert fault.hits == 0
    with dial(link) as client:
        client.sendall(b"send 2\n")
        assert fault.hit.wait(10)
