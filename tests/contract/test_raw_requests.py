"""Hot calls whose bytes arrive in every way that TCP allows: in pieces, several at once, cut
off, from clients that do not read or vanish. Each gets the right answer or none, and nothing
is stored twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec

from catmq_client.sending.ids import uuid7
from tests.support.broker import Broker
from tests.support.hot_calls import KINDS, HotCall, HotCalls
from tests.support.waiting import until


def test_a_request_may_be_split_at_any_byte(calls: HotCalls) -> None:
    calls.exchange_many(
        ([call], [call.data[:cut], call.data[cut:]])
        for kind in KINDS
        for cut in calls.make(kind).cuts()
        for call in [calls.make(kind)]
    )


def test_a_request_may_arrive_byte_by_byte(calls: HotCalls) -> None:
    for kind in KINDS:
        call = calls.make(kind)
        calls.exchange([call], [call.data[at : at + 1] for at in range(len(call.data))])


def test_a_request_that_is_cut_off_does_nothing(calls: HotCalls) -> None:
    before = calls.committed()
    for kind in KINDS:
        call = calls.make(kind)
        for cut in call.cuts():
            with calls.client() as client:
                client.send(call.data[:cut])
                client.half_close()
                assert client.read_until_end() == b""
            with calls.client() as client:
                client.send(call.data[:cut])
                until(client.is_read, every_s=0.0002)
                client.reset()
    assert calls.committed() == before


def orders() -> Iterator[tuple[str, ...]]:
    """Return all pairs, and every rotation of three to five kinds."""
    yield from itertools.product(KINDS, repeat=2)
    for count, start in itertools.product((3, 4, 5), range(len(KINDS))):
        yield (KINDS * 2)[start : start + count]


def test_requests_that_arrive_at_once_are_answered_in_their_order(calls: HotCalls) -> None:
    calls.exchange_many(
        (made, [b"".join(call.data for call in made)])
        for kinds in orders()
        for made in [[calls.make(kind) for kind in kinds]]
    )


def test_requests_may_be_followed_by_the_end_of_the_stream(calls: HotCalls) -> None:
    with ExitStack() as stack:
        exchanges = []
        for kinds in orders():
            made = [calls.make(kind) for kind in kinds]
            client = stack.enter_context(calls.client())
            client.send(b"".join(call.data for call in made))
            client.half_close()
            exchanges.append((client, made))
        for client, made in exchanges:
            calls.check_answers(client, made)
            assert client.read_until_end() == b""


def test_the_border_of_two_requests_may_be_anywhere_in_a_read(calls: HotCalls) -> None:
    def exchanges() -> Iterator[tuple[list[HotCall], list[bytes]]]:
        for kind, next_kind in zip(KINDS, KINDS[1:] + KINDS[:1], strict=True):
            for at in range(-6, len(calls.make(next_kind).head) + 3):
                first, second = calls.make(kind), calls.make(next_kind)
                data, cut = first.data + second.data, len(first.data) + at
                yield [first, second], [data[:cut], data[cut:]]

    calls.exchange_many(exchanges())


def refused(calls: HotCalls) -> list[tuple[HotCall, tuple[int, str]]]:
    """Return requests that are refused, and how."""
    path = "/api/v1/topics/sent/messages"
    good = calls.make("send")

    def post(
        head: bytes, body: bytes, status: int, code: str
    ) -> tuple[HotCall, tuple[int, str]]:
        def check(answer: object) -> None:
            raise AssertionError(answer)

        return HotCall(head, body, check), (status, code)

    length = f"Content-Length: {len(good.body)}"
    key = f"Bearer {calls.broker.api_key}".encode()
    return [
        post(calls.head(path, "Content-Length: 2"), b"{]", 400, "malformed"),
        post(calls.head(path, "Content-Length: 0"), b"", 400, "malformed"),
        post(calls.head(path), b"", 400, "malformed"),
        post(
            calls.head("/api/v1/topics/none/messages", length),
            good.body,
            404,
            "topic_not_found",
        ),
        post(calls.head("/api/v1/nowhere", length), good.body, 404, "url_not_found"),
        post(
            calls.head(path, length).replace(key, b"Bearer x"),
            good.body,
            401,
            "unauthenticated",
        ),
        post(
            calls.head(path, length, "Accept: text/csv"), good.body, 406, "not_acceptable"
        ),
        post(
            calls.head(path, length, "Content-Encoding: br"),
            good.body,
            415,
            "unsupported_media_type",
        ),
    ]


def test_a_refused_request_is_followed_by_its_own_answer_only(calls: HotCalls) -> None:
    """The next request is answered, unless the refusal has announced the end."""
    for call, refusal in refused(calls):
        for kind in KINDS:
            with calls.client() as client:
                after = calls.make(kind)
                client.send(call.data + after.data)
                answer = client.answer()
                assert answer.check_problem() == refusal
                assert not answer.ends_connection
                after.check(client.answer())


def test_a_refused_request_may_be_split_at_the_end_of_its_head(calls: HotCalls) -> None:
    for call, refusal in refused(calls):
        at = len(call.head)
        for cut in range(at - 5, at + 2):
            with calls.client() as client:
                client.send_pieces([call.data[:cut], call.data[cut:]])
                assert client.answer().check_problem() == refusal


def test_a_client_that_does_not_read_delays_no_other(
    calls: HotCalls, broker: Broker, queue: int
) -> None:
    big = "x" * 200_000
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": big}] * 5})
    path, body, _ = calls.parts("pull")
    with calls.client(receive_buffer=4096) as deaf:
        count = 30
        for number in range(count):
            offset = 20 + number % 5
            wanted = {"queue": queue, "epoch": body["queues"][0]["epoch"], "offset": offset}
            encoded = msgspec.json.encode({**body, "queues": [wanted]})
            deaf.send(calls.head(path, f"Content-Length: {len(encoded)}") + encoded)
        for kind in KINDS * 3:
            call = calls.make(kind)
            calls.exchange([call], [call.data])
        for number in range(count):
            (pulled,) = deaf.answer().json["queues"]
            assert [m["offset"] for m in pulled["messages"]] == [20 + number % 5]
            assert pulled["messages"][0]["body"] == big


def test_clients_that_vanish_with_answers_unread_leave_nothing(calls: HotCalls) -> None:
    for kinds in orders():
        made = [calls.make(kind) for kind in kinds if kind != "send"]
        with calls.client() as client:
            client.send(b"".join(call.data for call in made))
            client.reset()


def test_a_send_whose_client_vanishes_is_stored_once_when_it_is_repeated(
    calls: HotCalls,
) -> None:
    probe = calls.make("send", batch_id=str(uuid7()))
    # From the middle of the body on: earlier cuts are no request.
    for cut in range(len(probe.head), len(probe.data) + 1):
        call = calls.make("send", batch_id=str(uuid7()))
        with calls.client() as client:
            client.send(call.data[:cut])
            client.reset()
        for _ in range(2):
            calls.exchange([call], [call.data])
