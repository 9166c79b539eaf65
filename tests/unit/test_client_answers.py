"""What the client reads of HTTP/1.1, and what it writes: whole answers in any pieces, and
broken ones.
"""

from __future__ import annotations

import gzip
import itertools
import socket
import threading
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catmq_client.http import answers

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nTrailer: X-Sum\r\n\r\n"
    b"5;name=value\r\nhello\r\n00A \t\r\n\r\nworld\r\n!\r\n0;last\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"
)
# two members are one body
PACKED = gzip.compress(b"hello", mtime=0) + gzip.compress(b" world", mtime=0)
GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: GZIP\r\nContent-Length: %d\r\n\r\n%b" % (
    len(PACKED),
    PACKED,
)
INFORMED = (
    b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + PLAIN
)

VALID = {
    "plain": PLAIN,
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}",
    "an empty reason": b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n{}",
    "an error": b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:2\r\nRetry-After:   "
    b"1\r\n\r\n{}",
    "nothing": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    "chunked": CHUNKED,
    "no chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "closing": PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"),
    "closing, among others": PLAIN.replace(
        b"\r\n\r\n", b"\r\nConnection: close, X-Own\r\n\r\n"
    ),
    "old": PLAIN.replace(b"1.1", b"1.0"),
    "old and kept": PLAIN.replace(b"1.1", b"1.0").replace(
        b"\r\n\r\n", b"\r\nConnection: Keep-Alive\r\n\r\n"
    ),
    "until the end": b"HTTP/1.1 200 OK\r\n\r\nall that comes",
    "nothing until the end": b"HTTP/1.1 200 OK\r\n\r\n",
    "a colon in a value": PLAIN.replace(b"text/plain", b'text/plain; a="b:c"'),
    "an empty value": PLAIN.replace(b"text/plain", b""),
    "a field twice": PLAIN.replace(
        b"\r\n\r\n", b"\r\nVary: Accept\r\nvary: Origin\r\n\r\n"
    ),
    "Latin-1": PLAIN.replace(b"text/plain", b"caf\xe9"),
}


class Dripping(socket.socket):
    """A socket that gives no more at once than it is told; `more` is what TLS would hold
    ready.
    """

    sizes: Any = itertools.repeat(1 << 20)
    more = 0

    def recv(self, most: int, flags: int = 0) -> bytes:
        return super().recv(min(most, next(self.sizes)), flags)

    def recv_into(self, buffer: Any, count: int = 0, flags: int = 0) -> int:
        return super().recv_into(memoryview(buffer)[: next(self.sizes)], count, flags)

    def pending(self) -> int:
        return self.more


def read(
    data: bytes, sizes: Sequence[int] = (), *, method: str = "GET", more: int = 0
) -> answers.Answer:
    """What is read of some bytes and the end behind them, in pieces of the given sizes, the
    last one as often as it takes."""
    near, far = socket.socketpair()
    with far, Dripping(fileno=near.detach()) as receiving:
        receiving.settimeout(10)
        receiving.more = more
        if sizes:
            receiving.sizes = itertools.chain(sizes, itertools.repeat(sizes[-1]))
        sending = threading.Thread(
            target=lambda: (far.sendall(data), far.shutdown(socket.SHUT_WR))
        )
        sending.start()
        try:
            return answers.read_answer(receiving, method=method)
        finally:
            receiving.close()
            sending.join()


def told(answer: answers.Answer) -> tuple[int, dict[str, str], bytes, bool]:
    return answer.status, dict(answer.headers), bytes(answer.data), answer.stays_open


@pytest.mark.parametrize("name", VALID)
def test_a_valid_answer_is_read_as_the_standard_library_reads_it(name: str) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(VALID[name])
        far.shutdown(socket.SHUT_WR)
        with closing(HTTPResponse(near, method="GET")) as known:
            known.begin()
            body, fields = known.read(), known.headers
            expected = {
                name.lower(): ", ".join(fields.get_all(name, [])) for name in fields
            }
            status, will_close = known.status, known.will_close

    assert told(read(VALID[name])) == (status, expected, body, not will_close)


@pytest.mark.parametrize("name", [*VALID, "gzip", "informed"])
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_the_pieces_in_which_an_answer_comes_change_nothing(
    name: str, sizes: list[int]
) -> None:
    data = {**VALID, "gzip": GZIP, "informed": INFORMED}[name]
    assert told(read(data, sizes)) == told(read(data))


@pytest.mark.parametrize("name", [*VALID, "gzip", "informed"])
def test_an_answer_may_come_byte_by_byte(name: str) -> None:
    data = {**VALID, "gzip": GZIP, "informed": INFORMED}[name]
    assert told(read(data, [1])) == told(read(data))


@pytest.mark.parametrize("sizes", [[1 << 20], [1], [70, 1 << 20], [100_000]])
def test_a_body_larger_than_a_piece_is_read_whole(sizes: list[int]) -> None:
    count = 3 * answers.RECEIVE_BYTES // (100 if sizes == [1] else 1)
    body = bytes(range(256)) * (count // 256)
    answer = read(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body), sizes
    )
    assert (bytes(answer.data), answer.stays_open) == (body, True)


def test_large_chunks_are_put_together() -> None:
    body = bytes(range(256)) * 1024
    parts = [body[:100_000], body[100_000:100_001], body[100_001:]]
    chunks = b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts)
    assert (
        read(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        ).data
        == body
    )


def test_chunks_trailers_and_extensions_are_taken_apart() -> None:
    answer = read(CHUNKED)
    assert (answer.data, answer.stays_open) == (b"hello\r\nworld\r\n!", True)
    assert "x-sum" not in answer.headers


def test_what_comes_before_the_answer_is_passed_over() -> None:
    assert told(read(INFORMED)) == told(read(PLAIN))


@pytest.mark.parametrize(
    "head", ["Content-Length: 5", "Transfer-Encoding: chunked", "Content-Encoding: gzip"]
)
@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", 200), ("GET", 204), ("DELETE", 204), ("GET", 304)]
)
def test_some_answers_have_no_body_whatever_their_head_says(
    method: str, status: int, head: str
) -> None:
    answer = read(f"HTTP/1.1 {status} X\r\n{head}\r\n\r\n".encode(), method=method)
    assert (answer.status, answer.data, answer.stays_open) == (status, b"", True)


def test_fields_are_found_whatever_the_case_of_their_names() -> None:
    headers = read(PLAIN).headers
    assert headers.get("CONTENT-type") == headers.get("content-type") == "text/plain"
    assert headers.get("X-None", "default") == "default"


def test_gzip_is_unpacked() -> None:
    assert read(GZIP).data == b"hello world"
    empty = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    assert read(empty).data == b""


@pytest.mark.parametrize(
    "broken", [b"no gzip", PACKED[:-1], PACKED[:12], PACKED[:20] + b"\0" + PACKED[21:]],
    ids=["none", "cut", "cut early", "damaged"],
)  # fmt: skip
def test_broken_gzip_is_no_answer(broken: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(
        broken
    )
    with pytest.raises(HTTPException, match="no gzip"):
        read(head + broken)


@pytest.mark.parametrize(
    "line",
    [
        "", "HTTP/2 200", "SSH-2.0-OpenSSH", "HTTP/1.1", "HTTP/1.1 OK", "HTTP/1.1 20",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 2\xb20 OK", "HTTP/1.1 -20 OK", "HTTP/1.1 099 Low", "<html>", "HTTP/1.1\t200 OK",
    ],
)  # fmt: skip
def test_a_wrong_status_line_is_no_answer(line: str) -> None:
    with pytest.raises(HTTPException):
        read(line.encode("latin-1") + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("line", ["no colon", " folded", "\tfolded"])
def test_a_header_without_a_colon_is_no_answer(line: str) -> None:
    with pytest.raises(HTTPException, match="no header"):
        read(b"HTTP/1.1 200 OK\r\nA: b\r\n%b\r\nContent-Length: 0\r\n\r\n" % line.encode())


@pytest.mark.parametrize(
    "length", ["five", "-1", "", "+5", "1_0", "5.0", "0x5", "5, 5", "9" * 30, "9" * 5000]
)
def test_a_length_that_is_none_is_no_answer(length: str) -> None:
    with pytest.raises(HTTPException):
        read(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nhello".encode())


def test_two_lengths_are_no_answer() -> None:
    with pytest.raises(HTTPException, match="no length"):
        read(PLAIN.replace(b"Content-Type: text/plain", b"Content-Length: 3"))


@pytest.mark.parametrize(
    "chunks",
    [
        "",
        "-5\r\nhello\r\n",
        "g\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5\r\nhelloXY0\r\n\r\n",
        "F" * 40 + "\r\n",
    ],
)
def test_broken_chunks_are_no_answer(chunks: str) -> None:
    with pytest.raises(HTTPException):
        read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks.encode())


@pytest.mark.parametrize("sizes", [[1], [7], [1 << 20]])
@pytest.mark.parametrize(
    "data", [PLAIN, CHUNKED, GZIP, INFORMED], ids=["plain", "chunked", "gzip", "informed"]
)
def test_an_answer_that_ends_anywhere_before_its_end_is_none(
    data: bytes, sizes: list[int]
) -> None:
    for end in range(1, len(data)):
        with pytest.raises(IncompleteRead):
            read(data[:end], sizes)


def test_an_end_before_the_first_byte_is_told_apart() -> None:
    with pytest.raises(RemoteDisconnected):
        read(b"")


@pytest.mark.parametrize("surplus", [b"!", PLAIN, b"\r\n"])
@pytest.mark.parametrize(
    "data", [PLAIN, CHUNKED, VALID["no content"]], ids=["plain", "chunked", "none"]
)
def test_what_comes_behind_an_answer_ends_the_use_of_its_connection(
    data: bytes, surplus: bytes
) -> None:
    assert read(data).stays_open
    answer = read(data + surplus)
    assert (answer.data, answer.stays_open) == (read(data).data, False)


def test_what_tls_holds_ready_behind_an_answer_ends_the_use_of_its_connection() -> None:
    assert not read(PLAIN, more=1).stays_open


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_head_that_never_ends_is_not_read_for_ever(begin: bytes) -> None:
    near, far = socket.socketpair()
    sent = 0

    def send() -> None:
        nonlocal sent
        try:
            while sent < 100 * answers.MAX_HEAD_BYTES:
                sent += far.send(begin if not sent and begin else b"1" * 4096)
        except OSError:  # the reader has gone
            return

    with far:
        sending = threading.Thread(target=send)
        with near:
            near.settimeout(10)
            sending.start()
            with pytest.raises(HTTPException, match="without an end"):
                answers.read_answer(near, method="GET")
        sending.join()
    assert sent < 20 * answers.MAX_HEAD_BYTES


@pytest.mark.parametrize(
    "field", ["gzip, chunked", "Chunked\r\nContent-Length: 5", "identity"]
)
def test_an_answer_whose_end_others_could_see_elsewhere_is_refused(field: str) -> None:
    with pytest.raises(HTTPException, match="where the answer ends"):
        read(CHUNKED.replace(b"Chunked", field.encode(), 1))


HEAD = b"HTTP/1.1 200 OK\r\n"
MUCH = answers.MAX_BODY_BYTES + 1
TOO_MUCH = {
    "a length": HEAD + b"Content-Length: %d\r\n\r\n" % MUCH,
    "a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % MUCH,
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000 + PLAIN,
    "headers": HEAD + b"a: b\r\n" * 1_000 + b"\r\n",
    "a trailer": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    + b"a: b\r\n" * 1_000
    + b"\r\n",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_an_answer_without_measure_is_refused_before_it_takes_memory_or_time(
    name: str,
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException, match="more than"):
            read(TOO_MUCH[name])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_memory_follows_what_came_of_an_answer_and_not_what_it_announced() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(IncompleteRead):
            read(HEAD + b"Content-Length: %d\r\n\r\n" % (MUCH - 1) + b"x" * 100_000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_what_grows_too_large_when_it_is_unpacked_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "MAX_BODY_BYTES", 1 << 20)
    packed = gzip.compress(b"0" * (1 << 20)) + gzip.compress(b"0")
    with pytest.raises(HTTPException, match="unpacked"):
        read(
            HEAD
            + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
            % (len(packed), packed)
        )


def test_gzip_that_nobody_asked_for_is_refused() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(GZIP)
        with pytest.raises(HTTPException, match="nobody asked for"):
            answers.read_answer(near, method="GET", takes_gzip=False)


class Clock:
    """A monotonic clock on which each piece of an answer takes a second to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.limits: list[float] = []
        monkeypatch.setattr(answers, "time", SimpleNamespace(monotonic=lambda: self.now))

    def drip(self, data: bytes, piece: int, timeout_s: float) -> answers.Answer:
        """Return what is read of bytes that come a piece a second."""
        clock, left = self, memoryview(data)

        class Peer:
            def settimeout(self, limit_s: float) -> None:
                clock.limits.append(limit_s)

            def recv(self, most: int) -> bytes:
                nonlocal left
                clock.now += 1
                count = min(piece, most)
                got, left = bytes(left[:count]), left[count:]
                return got

            def recv_into(self, buffer: memoryview) -> int:
                got = self.recv(len(buffer))
                buffer[: len(got)] = got
                return len(got)

        return answers.read_answer(Peer(), method="GET", timeout_s=timeout_s)  # type: ignore[arg-type]


def test_an_answer_that_drips_is_given_up_when_its_whole_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(TimeoutError):
        clock.drip(PLAIN, 1, 10)
    assert clock.now == 10
    assert clock.limits == [10 - n for n in range(10)], (
        "no piece may wait longer than the rest of it"
    )


def test_a_large_body_is_given_the_time_that_it_needs_at_the_least_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 20 * answers.MIN_BYTES_PER_S
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
    answer = Clock(monkeypatch).drip(whole, 64 << 10, 30)
    assert len(answer.data) == size
    with pytest.raises(TimeoutError):
        Clock(monkeypatch).drip(whole, answers.MIN_BYTES_PER_S // 4, 10)
