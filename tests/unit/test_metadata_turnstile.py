"""The turnstile: few work at once, whoever waits steps aside, and nobody is shut out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from metadata.limits.concurrency import Turnstile
from tests.support.waiting import until

LIMIT_S = 15.0
NEVER_S = 3600.0  # nobody is let in beyond the places


def waiting(turnstile: Turnstile) -> int:
    return len(turnstile._later) + len(turnstile._first)


def test_no_more_than_its_places_work_at_once(in_threads: Callable[..., list[Any]]) -> None:
    turnstile = Turnstile(places=3, stall_s=NEVER_S)
    guard, inside, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def work() -> None:
        for _ in range(50):
            with turnstile.passage():
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    if inside[0] == 3:
                        full.set()
                assert full.wait(LIMIT_S), "the first stay until all places are taken"
                with guard:
                    inside[0] -= 1

    in_threads([work] * 12)

    assert turnstile._inside == 0
    assert most[0] == 3
    assert waiting(turnstile) == 0


def test_who_steps_aside_makes_room_and_comes_back_before_the_newcomers(
    in_threads: Callable[..., list[Any]],
) -> None:
    turnstile = Turnstile(places=1, stall_s=NEVER_S)
    stepped_aside, has_come = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with turnstile.passage():
            with turnstile.aside():
                stepped_aside.set()
                assert has_come.wait(LIMIT_S)
            order.append("first")

    def second() -> None:
        assert stepped_aside.wait(LIMIT_S)
        with turnstile.passage():
            order.append("second")
            assert until(lambda: len(turnstile._later) == 1)
            has_come.set()
            assert until(lambda: len(turnstile._first) == 1)

    def third() -> None:
        assert until(lambda: order == ["second"])
        with turnstile.passage():
            order.append("third")

    in_threads([first, second, third])

    assert order == ["second", "first", "third"]


def test_while_all_who_are_inside_are_stuck_the_others_are_let_in_one_by_one(
    in_threads: Callable[..., list[Any]],
) -> None:
    turnstile = Turnstile(places=2, stall_s=0.01)
    through: list[int] = []

    def stuck() -> None:
        with turnstile.passage():
            assert until(lambda: len(through) == 5)

    def quick() -> None:
        assert until(lambda: turnstile._inside >= 2)
        with turnstile.passage():
            through.append(1)

    in_threads([stuck, stuck, *[quick] * 5])

    assert turnstile._inside == 0


def test_a_thread_that_never_entered_steps_aside_freely() -> None:
    turnstile = Turnstile(places=1, stall_s=NEVER_S)
    with turnstile.aside():
        pass
    assert turnstile._inside == 0


class Broken(Exception):
    """What a request raises."""


def test_who_fails_inside_leaves_its_place() -> None:
    turnstile = Turnstile(places=1, stall_s=NEVER_S)
    for _ in range(3):
        with pytest.raises(Broken), turnstile.passage():
            assert turnstile._inside == 1
            raise Broken
        assert turnstile._inside == 0


def test_who_fails_aside_comes_back_in_and_leaves_once() -> None:
    turnstile = Turnstile(places=1, stall_s=NEVER_S)
    with turnstile.passage():
        with pytest.raises(Broken), turnstile.aside():
            assert turnstile._inside == 0
            raise Broken
        assert turnstile._inside == 1
    assert turnstile._inside == 0

    with pytest.raises(Broken), turnstile.passage(), turnstile.aside():
        raise Broken
    assert turnstile._inside == 0


def test_who_fails_aside_waits_for_its_turn_before_the_failure_goes_on(
    in_threads: Callable[..., list[Any]],
) -> None:
    turnstile = Turnstile(places=1, stall_s=NEVER_S)
    stepped_aside, other_is_in = threading.Event(), threading.Event()
    order: list[str] = []

    def failing() -> None:
        with turnstile.passage():
            try:
                with turnstile.aside():
                    stepped_aside.set()
                    assert other_is_in.wait(LIMIT_S)
                    raise Broken
            except Broken:
                order.append("failed")

    def other() -> None:
        assert stepped_aside.wait(LIMIT_S)
        with turnstile.passage():
            other_is_in.set()
            assert until(lambda: len(turnstile._first) == 1)
            order.append("other")

    in_threads([failing, other])

    assert order == ["other", "failed"]
    assert turnstile._inside == 0


def test_stepping_aside_twice_gives_one_place_and_takes_one_back() -> None:
    turnstile = Turnstile(places=2, stall_s=NEVER_S)
    with turnstile.passage():
        with turnstile.aside():
            with turnstile.aside():
                assert turnstile._inside == 0
            assert turnstile._inside == 0  # the outer one still waits
            with pytest.raises(Broken), turnstile.aside():
                raise Broken
            assert turnstile._inside == 0
        assert turnstile._inside == 1
        with turnstile.aside():
            assert turnstile._inside == 0
        assert turnstile._inside == 1
    assert turnstile._inside == 0


def test_a_turn_is_ended_once_and_only_by_the_thread_that_has_it(
    in_threads: Callable[..., list[Any]],
) -> None:
    turnstile = Turnstile(places=2, stall_s=NEVER_S)
    assert not turnstile.leave()
    turnstile.enter(first=False)
    assert in_threads([turnstile.leave]) == [False]
    assert turnstile._inside == 1
    assert turnstile.leave()
    assert not turnstile.leave()
    assert turnstile._inside == 0
