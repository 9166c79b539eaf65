"""Clients that wait: in the order of arrival, within limits; and requests that arrive in
parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from catmq_site.server.connections import MAX_HEAD_BYTES, SMALL_BODY_BYTES, RequestBuffer
from catmq_site.server.wait_lists import WaitList

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


@dataclass(eq=False)
class One:
    """Somebody who waits."""

    address: str


def test_beyond_the_limit_of_an_address_its_oldest_goes() -> None:
    crowd: WaitList[One] = WaitList(limit_s=9, max_size=99, max_per_address=2)
    bystander, *mine = One("b"), One("a"), One("a"), One("a")

    assert [crowd.add(one) for one in (bystander, *mine)] == [None, None, None, mine[0]]
    assert mine[0] not in crowd and bystander in crowd


def test_beyond_the_limit_of_all_the_oldest_of_the_address_that_has_most_goes() -> None:
    crowd: WaitList[One] = WaitList(limit_s=9, max_size=3)
    crowd.add(One("b"))
    mine = [One("a") for _ in range(3)]

    assert [crowd.add(one) for one in mine] == [None, None, mine[0]]


def test_an_address_that_stands_for_many_has_no_limit_of_its_own() -> None:
    crowd: WaitList[One] = WaitList(limit_s=9, max_size=99, max_per_address=1)
    assert [crowd.add(One("")) for _ in range(5)] == [None] * 5


def test_whoever_is_overdue_is_taken_out_once() -> None:
    crowd: WaitList[One] = WaitList(limit_s=0, max_size=9)
    ones = [One("a"), One("b")]
    for one in ones:
        crowd.add(one)

    assert (crowd.pop_overdue(), crowd.pop_overdue(), len(crowd)) == (ones, [], 0)
    assert not crowd.remove(ones[0])
    assert crowd.pop_oldest() is None


def test_in_a_hurry_nobody_waits_longer_than_so() -> None:
    crowd: WaitList[One] = WaitList(limit_s=1e6, max_size=9)
    before, after = One("a"), One("a")
    crowd.add(before)
    assert crowd.pop_overdue() == []

    crowd.shorten_limit(0)
    crowd.add(after)

    assert crowd.pop_overdue() == [before, after]


def parts(*pieces: bytes) -> list[bool]:
    """After which pieces a thread can begin."""
    incoming = RequestBuffer()
    found = []
    for piece in pieces:
        incoming.add(piece)
        found.append(incoming.is_whole())
    return found


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([HEAD, b"\r", b"\n"], [False, False, True]),
        ([HEAD + b"Content-Length: 3\r\n\r\n", b"ab", b"c"], [False, False, True]),
        ([HEAD + b"CONTENT-LENGTH:3 \r\nX: y\r\n\r\nab", b"c"], [False, True]),
        ([HEAD + b"Content-Length: %d\r\n\r\n" % (SMALL_BODY_BYTES + 1)], [True]),
        ([HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"], [True]),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n"], [True]),
        ([HEAD + b"Content-Length: -1\r\n\r\n"], [True]),
        ([HEAD + b"Content-Length: 1" + b"0" * 5000 + b"\r\n\r\n"], [True]),
        ([b"GET / HTTP/1.1\nHost"], [True]),
        ([b"GET /", b"a" * MAX_HEAD_BYTES], [False, True]),
        ([b"", b"\r\n", b"GET / HTTP/1.1\r\n", b"\r\n"], [False, False, False, True]),
    ],
)
def test_a_thread_begins_when_it_need_not_wait(
    pieces: list[bytes], whole: list[bool]
) -> None:
    assert parts(*pieces) == whole


def test_what_was_taken_leaves_nothing_behind() -> None:
    incoming = RequestBuffer(HEAD + b"\r\n")

    assert (incoming.take(), len(incoming), incoming.is_whole()) == (
        HEAD + b"\r\n",
        0,
        False,
    )
