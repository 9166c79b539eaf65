"""Requests whose head or body is framed in an unusual, ambiguous or invalid way: chunks,
`Expect`, other versions and methods, and what is known as request smuggling.

Each is sent whole and split at each byte of its interesting part, which must not change the
answer. Behind it comes another request: it is answered, or the connection ends. Bytes of a
body are never taken for a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from tests.support.broker import Broker
from tests.support.hot_calls import KINDS, HotCall, HotCalls
from tests.support.raw_http import Answer
from tests.support.waiting import until

SEND = "/api/v1/topics/sent/messages"
MALFORMED = (400, "malformed")
NOT_IMPLEMENTED = (501, "not_implemented")
HEAD_TOO_LARGE = (431, "too_large")
CHUNKED = "Transfer-Encoding: chunked"
LAST_CHUNK = b"0\r\n\r\n"
# Connections at once with a body that a thread reads: the worker ends the oldest of more.
SLOW_WAVE = 3


def chunks(body: bytes, size: int, extension: bytes = b"") -> bytes:
    """Return a body in chunks of `size` bytes, without the last chunk."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in pieces)


def chunked_call(
    calls: HotCalls,
    kind: str,
    *,
    size: int,
    extension: bytes = b"",
    end: bytes = LAST_CHUNK,
) -> HotCall:
    """Return the next call of a kind, with a chunked body."""
    call = calls.make(kind)
    length = b"Content-Length: %d" % len(call.body)
    head = call.head.replace(length, CHUNKED.encode())
    return HotCall(head, chunks(call.body, size, extension) + end, call.check)


def test_a_chunked_body_is_like_any_other(calls: HotCalls) -> None:
    variants = [  # size of the chunks, extension, end
        (1, b"", LAST_CHUNK),
        (7, b"", LAST_CHUNK),
        (1 << 20, b"", LAST_CHUNK),
        (9, b";a", LAST_CHUNK),
        (9, b' ; a = b;c="d \\" e"', LAST_CHUNK),
        (9, b"", b"0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"),
        (9, b"", b"000;last\r\n\r\n"),
    ]

    def exchanges() -> Iterator[tuple[Sequence[HotCall], list[bytes]]]:
        for kind, (size, extension, end) in product(KINDS, variants):
            call = chunked_call(calls, kind, size=size, extension=extension, end=end)
            after = calls.make("pull")
            yield [call, after], [call.data + after.data]

    calls.exchange_many(exchanges())


def test_a_chunked_body_may_be_split_anywhere(calls: HotCalls) -> None:
    end = b"0\r\nX-Sum: 1\r\n\r\n"

    def exchanges(kind: str) -> Iterator[tuple[Sequence[HotCall], list[bytes]]]:
        probe = chunked_call(calls, kind, size=16, extension=b";a=b", end=end)
        # Calls that share a transaction with others wait for it; few are at once here.
        step = 1 if kind in ("send", "pull", "share") else 7
        for cut in range(len(probe.head) - 4, len(probe.data) + 3, step):
            call = chunked_call(calls, kind, size=16, extension=b";a=b", end=end)
            after = calls.make("pull")
            data = call.data + after.data
            yield [call, after], [data[:cut], data[cut:]]

    for kind in KINDS:
        calls.exchange_many(exchanges(kind), wave_size=SLOW_WAVE)


def refusal(calls: HotCalls, pieces: list[bytes]) -> tuple[int, str]:
    """Send a request that must be refused, and end the connection with it. Return status
    and code.
    """
    with calls.client() as client:
        client.send_pieces(pieces)
        client.half_close()
        answer = client.answer()
        assert answer.ends_connection, answer
        assert client.read_until_end() == b""
        return answer.check_problem()


def check_refused(
    calls: HotCalls, before: bytes, part: bytes, after: bytes, *, expected: tuple[int, str]
) -> None:
    """Check that a request is refused as expected, also if it is split within `part`. What
    follows it, here a send, is not executed.
    """
    follower = calls.make("send").data
    data = before + part + after + follower
    assert refusal(calls, [data]) == expected, part
    start = len(before)
    cuts = range(start, start + len(part) + 1, max(1, len(part) // 40))
    for cut in cuts:
        # The server may refuse what it has, and close before the rest is sent.
        assert refusal(calls, [data[:cut], data[cut:]]) == expected, (part, cut)


BAD_CHUNKS = [
    b"zz\r\n",
    b"-5\r\n",
    b"+5\r\n",
    b"0x5\r\n",
    b" 5\r\n",
    b"5 \r\n",
    b"1_0\r\n",
    b"\r\n",
    b"5\n",
    b"5;\r\r\n",
    b"5;a=\0\r\n",
    b"5\r\nabcdefgh\r\n",
    b"ffffffffffffffffff\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"0\r\nno colon\r\n\r\n",
    b"0\r\nX: a\n\r\n\r\n",
    b"0\r\nX: a\r\n folded\r\n\r\n",
]


def test_a_body_of_bad_chunks_is_refused(calls: HotCalls) -> None:
    body = calls.make("send").body
    before = calls.head(SEND, CHUNKED) + chunks(body, 10)
    for bad in BAD_CHUNKS:
        check_refused(calls, before, bad, LAST_CHUNK, expected=MALFORMED)


def test_a_chunked_body_that_breaks_off_is_refused(calls: HotCalls) -> None:
    data = calls.head(SEND, CHUNKED) + chunks(calls.make("send").body, 10) + LAST_CHUNK
    start = data.index(b"\r\n\r\n") + 4
    for cut in range(start, len(data)):
        assert refusal(calls, [data[:cut]]) == MALFORMED, data[start:cut]


SMUGGLED_LENGTHS = [
    "+5",
    "-5",
    "5, 5",
    "5 5",
    "0x5",
    "1e1",
    "5;",
    "",
    "\u00b2",  # a digit of Latin-1 that int() refuses
    "9" * 5000,
]


def test_a_length_that_is_no_number_is_refused(calls: HotCalls) -> None:
    for length in SMUGGLED_LENGTHS:
        check_head(calls, f"Content-Length: {length}", MALFORMED)


LENGTH = "Content-Length: 5"


AMBIGUOUS_LENGTHS = [
    ((LENGTH, LENGTH), MALFORMED),
    ((LENGTH, "Content-Length: 6"), MALFORMED),
    ((LENGTH, CHUNKED), MALFORMED),
    ((CHUNKED, LENGTH), MALFORMED),
    ((CHUNKED, CHUNKED), MALFORMED),
    (("Transfer-Encoding: chunked, chunked",), MALFORMED),
    (("Transfer-Encoding: identity",), MALFORMED),
    (("Transfer-Encoding: chunked, identity",), MALFORMED),
    (("Transfer-Encoding: gzip", LENGTH), MALFORMED),
    (("Transfer-Encoding: xchunked",), NOT_IMPLEMENTED),
    (("Transfer-Encoding: chunked;q=1",), NOT_IMPLEMENTED),
    (("Transfer-Encoding: chunked,",), NOT_IMPLEMENTED),
    (("Transfer-Encoding:",), NOT_IMPLEMENTED),
    (("Transfer-Encoding: gzip, chunked",), NOT_IMPLEMENTED),
    (("Transfer-Encoding : chunked",), MALFORMED),
    (("Content-Length : 5",), MALFORMED),
    (("Transfer-Encoding:\r\n chunked",), MALFORMED),
    (("Transfer-Encoding: \x0bchunked",), MALFORMED),
]


def test_an_ambiguous_length_is_refused(calls: HotCalls) -> None:
    for lines, expected in AMBIGUOUS_LENGTHS:
        check_head(calls, "\r\n".join(lines), expected)


def check_head(calls: HotCalls, part: str, expected: tuple[int, str]) -> None:
    """Check that header lines are refused: before a body that is a whole send, once as it
    is and once in a chunk, so that each reading of the length would find another request.
    """
    smuggled = calls.make("send").data
    head, mark, _ = calls.head(SEND, "X-Mark: 1").partition(b"X-Mark: 1")
    assert mark
    for body in (smuggled, chunks(b"12345", 5) + LAST_CHUNK + smuggled):
        check_refused(
            calls, head, part.encode("latin-1"), b"\r\n\r\n" + body, expected=expected
        )


BAD_HEADERS = [
    ("X : a", MALFORMED),
    (" X: a", MALFORMED),
    ("X: a\r\n b", MALFORMED),
    ("no colon", MALFORMED),
    (": a", MALFORMED),
    ("X: a\0b", MALFORMED),
    ("X\0: a", MALFORMED),
    ("X(: a", MALFORMED),
    ("X: a\nY: b", MALFORMED),
    ("X: a\rY: b", MALFORMED),
    ("X: \x7f", MALFORMED),
    ("Host: elsewhere", MALFORMED),
    ("Content-Type: text/plain", MALFORMED),
    ("Expect: 200-ok", (417, "malformed")),
    ("X: " + "a" * 9000, HEAD_TOO_LARGE),
    ("\r\n".join(["X: a"] * 101), HEAD_TOO_LARGE),
]


def test_a_header_that_is_not_valid_is_refused(calls: HotCalls) -> None:
    for line, expected in BAD_HEADERS:
        check_head(calls, line, expected)


def test_a_head_may_be_written_in_several_ways(calls: HotCalls) -> None:
    """Names in any case, blanks or none after the colon, names with an underscore, an empty
    line before it.
    """
    ways = [
        lambda head: head.replace(b"Content-Length", b"content-LENGTH"),
        lambda head: head.replace(b"Content-Length: ", b"Content-Length:"),
        lambda head: head.replace(b"Content-Length: ", b"Content-Length: \t 0"),
        lambda head: head.replace(b"\r\n\r\n", b" \t\r\n\r\n"),
        lambda head: head.replace(b"\r\n\r\n", b"\r\nContent_Length: 1\r\n\r\n"),
        lambda head: head.replace(b"\r\n\r\n", b"\r\nTransfer_Encoding: chunked\r\n\r\n"),
        lambda head: head.replace(b"\r\n\r\n", b"\r\nX: \xff\r\nx:\r\n\r\n"),
        lambda head: b"\r\n" + head,
        lambda head: head.replace(b" /api", b" http://elsewhere/api", 1),
        lambda head: head.replace(b" /api", b" //api", 1),
        lambda head: head.replace(b" /api/v1", b" /%61pi/v1", 1),
        lambda head: head.replace(b" HTTP", b"#fragment HTTP", 1),
    ]

    def exchanges() -> Iterator[tuple[Sequence[HotCall], list[bytes]]]:
        for kind, change in product(KINDS, ways):
            made, after = calls.make(kind), calls.make("pull")
            call = HotCall(change(made.head), made.body, made.check)
            data = call.data + after.data
            yield [call, after], [data]
            made, after = calls.make(kind), calls.make("pull")
            call = HotCall(change(made.head), made.body, made.check)
            yield [call, after], [call.head[:-2], call.head[-2:] + call.body, after.data]

    calls.exchange_many(exchanges())


BAD_REQUEST_LINES = [
    ("GET /api/v1 HTTP/2.0", MALFORMED),
    ("GET /api/v1 HTTP/0.9", MALFORMED),
    ("GET /api/v1 HTTP/1", MALFORMED),
    ("GET /api/v1 http/1.1", MALFORMED),
    ("GET /api/v1 HTTP/1.1 ", MALFORMED),
    ("GET /api/v1", MALFORMED),
    ("GET  /api/v1 HTTP/1.1", MALFORMED),
    ("get /api/v1 HTTP/1.1", MALFORMED),
    (" GET /api/v1 HTTP/1.1", MALFORMED),
    ("GET\0 /api/v1 HTTP/1.1", MALFORMED),
    ("GET /api/v1\0 HTTP/1.1", MALFORMED),
    ("GET /api/v\xe9 HTTP/1.1", MALFORMED),
    ("GET api/v1 HTTP/1.1", MALFORMED),
    ("GET example.com:80 HTTP/1.1", MALFORMED),
    ("GET http://[::1 HTTP/1.1", MALFORMED),
    ("GET * HTTP/1.1", MALFORMED),
    ("PRI * HTTP/2.0", MALFORMED),
    ("GET /" + "a" * 5000 + " HTTP/1.1", (414, "too_large")),
]


def test_a_request_line_that_is_not_valid_is_refused(calls: HotCalls) -> None:
    rest = b"\r\nHost: x\r\n\r\n"
    for line, expected in BAD_REQUEST_LINES:
        check_refused(calls, b"", line.encode("latin-1"), rest, expected=expected)


def test_a_long_head_is_refused_whether_it_arrives_at_once_or_not(calls: HotCalls) -> None:
    lines = ["X: " + "a" * 8000] * 5
    head = calls.head(SEND, *lines)
    for cut in (0, 1000, 33_000, len(head) - 1):
        assert refusal(calls, [head[:cut], head[cut:]]) == HEAD_TOO_LARGE


def test_lines_that_end_otherwise_are_refused(calls: HotCalls) -> None:
    call = calls.make("send")
    for end in (b"\n", b"\n\r", b"\r\r\n"):
        head = call.head.replace(b"\r\n", end)
        check_refused(calls, b"", head[:60], head[60:] + call.body, expected=MALFORMED)


def test_a_client_of_http_1_0_is_answered_once_or_asks_to_be_kept(calls: HotCalls) -> None:
    for kind, keeps in product(KINDS, (False, True)):
        lines = ("Connection: keep-alive",) if keeps else ()
        call, after = (calls.make(k, *lines, version="HTTP/1.0") for k in (kind, "pull"))
        for pieces in ([call.data, after.data], [call.data + after.data]):
            with calls.client() as client:
                client.send_pieces(pieces)
                answer = client.answer()
                call.check(answer)
                assert answer.ends_connection != keeps
                if keeps:
                    after.check(client.answer())
                else:
                    assert client.read_until_end() == b""
            if kind == "send":
                break  # the check of a second send would take it for the first


def test_the_request_after_the_last_is_not_executed(calls: HotCalls) -> None:
    for value in ("close", "Close"):
        call, after = calls.make("pull", f"Connection: {value}"), calls.make("send")
        with calls.client() as client:
            client.send(call.data + after.data)
            answer = client.answer()
            call.check(answer)
            assert answer.ends_connection
            assert client.read_until_end() == b""


def test_who_expects_100_continue_gets_it(calls: HotCalls) -> None:
    for kind, value in product(KINDS, ("100-continue", "100-Continue")):
        expect = f"Expect: {value}"
        with calls.client() as client:
            call = calls.make(kind, expect)
            client.send(call.head)
            client.wait_for_interim(100)
            client.send(call.body)
            call.check(client.answer())
            # A client may send the body at once, too, and another request.
            call, after = calls.make(kind, expect), calls.make("pull")
            client.send(call.data + after.data)
            call.check(client.answer())
            after.check(client.answer())
        # HTTP/1.0 has no interim answers.
        with calls.client() as client:
            call = calls.make(kind, expect, version="HTTP/1.0")
            client.send_pieces([call.head, call.body])
            answer = client.answer()
            assert answer.interim == ()
            call.check(answer)


def test_who_expects_100_continue_may_be_refused(calls: HotCalls) -> None:
    call = calls.make("send", "Expect: 100-continue")
    refused = call.head.replace(b"Bearer ", b"Bearer no")
    with calls.client() as client:
        client.send(refused)
        answer = client.answer()
        assert answer.check_problem() == (401, "unauthenticated")
        assert answer.ends_connection, "the server does not wait for the body"
        assert client.read_until_end() == b""


def test_another_method_is_refused_and_changes_nothing(calls: HotCalls) -> None:
    before = calls.committed()
    methods = ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW")
    for kind, method, has_body in product(KINDS, methods, (True, False)):
        call, after = calls.make(kind), calls.make("pull")
        data = call.data.replace(b"POST", method.encode(), 1)
        if not has_body:
            path, _, _ = calls.parts(kind)
            data = calls.head(path, method=method)
        with calls.client() as client:
            client.send(data + after.data)
            answer = client.answer(method)
            assert answer.check_problem() == (405, "method_not_allowed")
            if answer.ends_connection:
                assert method == "CONNECT" and client.read_until_end() == b""
            else:
                after.check(client.answer())
    assert calls.committed() == before


def test_head_is_answered_like_get_without_a_body(
    calls: HotCalls, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    paths = ["/livez", "/api/v1", "/api/v1/topics", SEND, "/api/v1/nowhere", "/login"]
    paths += [calls.parts(kind)[0] for kind in KINDS]
    for path in paths:
        answers: list[Answer] = []
        for method in ("HEAD", "GET"):
            call, after = calls.make("send"), calls.make("pull")
            bodies = (calls.head(path, method=method), call.data.replace(
                b"POST " + SEND.encode(), f"{method} {path}".encode(), 1
            ))  # fmt: skip
            for data in bodies:
                with calls.client() as client:
                    client.send(data + after.data)
                    answers.append(client.answer(method))
                    after.check(client.answer())
        assert len({answer.status for answer in answers}) == 1, path
    assert [r for r in caplog.records if "no-body" in r.getMessage()] == []


def test_the_key_of_a_refused_head_is_neither_logged_nor_answered(
    calls: HotCalls, caplog: pytest.LogCaptureFixture
) -> None:
    head = calls.head(SEND)
    key = calls.broker.api_key
    heads = [
        head.replace(b"Authorization:", b"Authorization"),
        head.replace(b"Authorization: Bearer", b"Key"),
        head[:-4].replace(b"\r\n", b"\r") + b"\r\n\r\n",
        head.replace(b"Authorization: Bearer ", b"Cookie sessionid="),
    ]
    for refused_head in heads:
        with calls.client() as client:
            client.send(refused_head)
            answer = client.answer()
        assert answer.check_problem() == MALFORMED
        assert key not in answer.body.decode()
    # A refusal is logged after its answer.
    until(lambda: caplog.text.count("Refused a request") == len(heads))
    assert key not in caplog.text
