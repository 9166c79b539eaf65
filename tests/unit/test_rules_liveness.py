"""The liveness rule: who is dead, and when nobody may be declared dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args, get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from brokerapi.shapes.consumer_shapes import RegisterRequest
from metadata.membership import heartbeats
from metadata.rules.membership.liveness import (
    ClockReading,
    Watch,
    find_expired,
    is_overdue,
    may_expire,
    observe,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def look(second: float, *, clock: float | None = None, server: str = "a") -> ClockReading:
    """A look after `second` seconds of the observer's clock; the database's shows `clock`."""
    return ClockReading(
        server, START + timedelta(seconds=second if clock is None else clock), second
    )


def watched(*looks: ClockReading) -> Watch:
    watch = None
    for one in looks:
        watch = observe(watch, one)
    assert watch is not None
    return watch


def test_a_member_is_overdue_one_second_after_its_session_timeout() -> None:
    at = START + timedelta(seconds=16)

    assert not is_overdue(last_seen=START, now=at, session_timeout_ms=15_000)
    assert is_overdue(
        last_seen=START, now=at + timedelta(milliseconds=1), session_timeout_ms=15_000
    )


def test_a_new_observer_expires_nobody_for_a_full_session_timeout() -> None:
    assert not may_expire(watched(look(0)), session_timeout_ms=2_000)
    assert not may_expire(watched(look(0), look(1), look(2.9)), session_timeout_ms=2_000)
    assert may_expire(watched(look(0), look(1), look(3)), session_timeout_ms=2_000)


def test_a_steady_watch_stays_steady() -> None:
    watch = watched(*(look(second) for second in range(100)))

    assert watch.steady_since_s == 0


def test_a_jump_of_the_database_clock_counts_as_an_outage() -> None:
    assert watched(look(0), look(1), look(2, clock=60)).steady_since_s == 2
    assert watched(look(0), look(1), look(2, clock=-60)).steady_since_s == 2


def test_another_server_counts_as_an_outage() -> None:
    assert watched(look(0), look(1), look(2, server="b")).steady_since_s == 2


def test_a_long_time_without_a_look_counts_as_an_outage() -> None:
    assert watched(look(0), look(1), look(7)).steady_since_s == 7


def test_nobody_dies_during_an_outage_however_silent() -> None:
    members = [(1, START - timedelta(days=1), 2_000)]

    assert find_expired(watched(look(0), look(1), look(30)), members) == []


def test_only_the_silent_die() -> None:
    watch = watched(*(look(second) for second in range(0, 31, 3)))
    members = [
        (1, START, 15_000),
        (2, START + timedelta(seconds=20), 15_000),
        (3, START, 300_000),
    ]

    assert find_expired(watch, members) == [1]


@given(st.lists(st.floats(0.1, 4.9), min_size=1, max_size=30), st.floats(-1.9, 1.9))
def test_small_differences_of_the_clocks_are_no_outage(
    steps: list[float], drift: float
) -> None:
    second, watch = 0.0, observe(None, look(0))
    for step in steps:
        second += step
        watch = observe(
            watch,
            look(second, clock=second + drift * (second / sum(steps)) if sum(steps) else 0),
        )

    assert watch.steady_since_s == 0


def test_a_heartbeat_waits_for_others_at_most_a_tenth_of_the_shortest_session_timeout() -> (
    None
):
    kind = get_type_hints(RegisterRequest, include_extras=True)["session_timeout_ms"]
    _, bounds = get_args(get_args(kind)[0])
    assert bounds.ge / 10 >= heartbeats.EVERY_S * 1000
