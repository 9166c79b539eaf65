"""The limiter: few work at once, whoever waits steps aside, and nobody is shut out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from metadata.limits.concurrency import ConcurrencyLimiter
from tests.support.waiting import until

LIMIT_S = 15.0
NEVER_S = 3600.0  # nobody is let in beyond the places


def waiting(limiter: ConcurrencyLimiter) -> int:
    return len(limiter._later) + len(limiter._first)


def test_no_more_than_its_places_work_at_once(in_threads: Callable[..., list[Any]]) -> None:
    limiter = ConcurrencyLimiter(places=3, stall_s=NEVER_S)
    guard, inside, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def work() -> None:
        for _ in range(50):
            with limiter.permit():
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    if inside[0] == 3:
                        full.set()
                assert full.wait(LIMIT_S), "the first stay until all places are taken"
                with guard:
                    inside[0] -= 1

    in_threads([work] * 12)

    assert limiter._inside == 0
    assert most[0] == 3
    assert waiting(limiter) == 0


def test_who_steps_aside_makes_room_and_comes_back_before_the_newcomers(
    in_threads: Callable[..., list[Any]],
) -> None:
    limiter = ConcurrencyLimiter(places=1, stall_s=NEVER_S)
    stepped_aside, has_come = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with limiter.permit():
            with limiter.aside():
                stepped_aside.set()
                assert has_come.wait(LIMIT_S)
            order.append("first")

    def second() -> None:
        assert stepped_aside.wait(LIMIT_S)
        with limiter.permit():
            order.append("second")
            assert until(lambda: len(limiter._later) == 1)
            has_come.set()
            assert until(lambda: len(limiter._first) == 1)

    def third() -> None:
        assert until(lambda: order == ["second"])
        with limiter.permit():
            order.append("third")

    in_threads([first, second, third])

    assert order == ["second", "first", "third"]


def test_while_all_who_are_inside_are_stuck_the_others_are_let_in_one_by_one(
    in_threads: Callable[..., list[Any]],
) -> None:
    limiter = ConcurrencyLimiter(places=2, stall_s=0.01)
    through: list[int] = []

    def stuck() -> None:
        with limiter.permit():
            assert until(lambda: len(through) == 5)

    def quick() -> None:
        assert until(lambda: limiter._inside >= 2)
        with limiter.permit():
            through.append(1)

    in_threads([stuck, stuck, *[quick] * 5])

    assert limiter._inside == 0


def test_a_thread_that_never_entered_steps_aside_freely() -> None:
    limiter = ConcurrencyLimiter(places=1, stall_s=NEVER_S)
    with limiter.aside():
        pass
    assert limiter._inside == 0


class Broken(Exception):
    """What a request raises."""


def test_who_fails_inside_leaves_its_place() -> None:
    limiter = ConcurrencyLimiter(places=1, stall_s=NEVER_S)
    for _ in range(3):
        with pytest.raises(Broken), limiter.permit():
            assert limiter._inside == 1
            raise Broken
        assert limiter._inside == 0


def test_who_fails_aside_comes_back_in_and_leaves_once() -> None:
    limiter = ConcurrencyLimiter(places=1, stall_s=NEVER_S)
    with limiter.permit():
        with pytest.raises(Broken), limiter.aside():
            assert limiter._inside == 0
            raise Broken
        assert limiter._inside == 1
    assert limiter._inside == 0

    with pytest.raises(Broken), limiter.permit(), limiter.aside():
        raise Broken
    assert limiter._inside == 0


def test_who_fails_aside_waits_for_its_turn_before_the_failure_goes_on(
    in_threads: Callable[..., list[Any]],
) -> None:
    limiter = ConcurrencyLimiter(places=1, stall_s=NEVER_S)
    stepped_aside, other_is_in = threading.Event(), threading.Event()
    order: list[str] = []

    def failing() -> None:
        with limiter.permit():
            try:
                with limiter.aside():
                    stepped_aside.set()
                    assert other_is_in.wait(LIMIT_S)
                    raise Broken
            except Broken:
                order.append("failed")

    def other() -> None:
        assert stepped_aside.wait(LIMIT_S)
        with limiter.permit():
            other_is_in.set()
            assert until(lambda: len(limiter._first) == 1)
            order.append("other")

    in_threads([failing, other])

    assert order == ["other", "failed"]
    assert limiter._inside == 0


def test_stepping_aside_twice_gives_one_place_and_takes_one_back() -> None:
    limiter = ConcurrencyLimiter(places=2, stall_s=NEVER_S)
    with limiter.permit():
        with limiter.aside():
            with limiter.aside():
                assert limiter._inside == 0
            assert limiter._inside == 0  # the outer one still waits
            with pytest.raises(Broken), limiter.aside():
                raise Broken
            assert limiter._inside == 0
        assert limiter._inside == 1
        with limiter.aside():
            assert limiter._inside == 0
        assert limiter._inside == 1
    assert limiter._inside == 0


def test_a_turn_is_ended_once_and_only_by_the_thread_that_has_it(
    in_threads: Callable[..., list[Any]],
) -> None:
    limiter = ConcurrencyLimiter(places=2, stall_s=NEVER_S)
    assert not limiter.leave()
    limiter.enter(first=False)
    assert in_threads([limiter.leave]) == [False]
    assert limiter._inside == 1
    assert limiter.leave()
    assert not limiter.leave()
    assert limiter._inside == 0
