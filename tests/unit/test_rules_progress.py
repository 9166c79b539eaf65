"""The trend of a group: a pure rule of its lag of now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metadata.rules.groups.lag_trend import (
    MIN_SPAN_S,
    LagFigures,
    LagTrend,
    TrendState,
    find_trend,
)

BEHIND = LagFigures(
    members=1,
    lag=10_000,
    oldest_ms=60_000,
    lag_before=4_000,
    between_s=600,
    sent=9_000,
    handled=3_000,
)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (structs.replace(BEHIND, lag=None), "unknown"),
        (structs.replace(BEHIND, paused=True), "paused"),
        (structs.replace(BEHIND, paused=True, members=0, lag=None), "paused"),
        (structs.replace(BEHIND, members=0), "no_members"),
        (structs.replace(BEHIND, members=0, lag=0), "no_members"),
        (structs.replace(BEHIND, lag=0), "keeps_up"),
        (structs.replace(BEHIND, lag=0, sent=0, handled=0), "nothing_sent"),
        (structs.replace(BEHIND, lag=0, lag_before=None, between_s=0), "keeps_up"),
        (structs.replace(BEHIND, oldest_ms=900), "keeps_up"),
        (structs.replace(BEHIND, lag_before=None), "too_little_data"),
        (structs.replace(BEHIND, between_s=MIN_SPAN_S - 1), "too_little_data"),
        (structs.replace(BEHIND, handled=0), "stalled"),
        (structs.replace(BEHIND, handled=0, lag=3_000), "stalled"),
        (structs.replace(BEHIND, handled=None), "falls_behind"),
        (structs.replace(BEHIND, lag_before=9_980), "steady"),
        (structs.replace(BEHIND, lag=1, lag_before=1, sent=0, handled=None), "steady"),
        (BEHIND, "falls_behind"),
        (structs.replace(BEHIND, lag_before=16_000, handled=9_000), "catches_up"),
    ],
)
def test_each_case_has_its_state(seen: LagFigures, state: TrendState) -> None:
    assert find_trend(seen).state == state


def test_a_group_that_falls_behind_says_by_how_much() -> None:
    assert find_trend(BEHIND) == LagTrend("falls_behind", 10.0)


def test_a_group_that_catches_up_says_when() -> None:
    seen = structs.replace(BEHIND, lag=6_000, lag_before=12_000, sent=0, handled=6_000)
    assert find_trend(seen) == LagTrend("catches_up", 10.0, 600.0)


def test_what_retention_took_from_the_lag_is_no_progress() -> None:
    seen = structs.replace(BEHIND, lag=6_000, lag_before=120_000, sent=0, handled=600)
    assert find_trend(seen) == LagTrend("catches_up", 1.0, 6_000.0)


COUNTS = st.integers(0, 10**9)


@given(
    st.builds(
        LagFigures,
        members=st.integers(0, 3),
        paused=st.booleans(),
        lag=COUNTS | st.none(),
        oldest_ms=COUNTS | st.none(),
        lag_before=COUNTS | st.none(),
        between_s=st.floats(0, 700),
        sent=COUNTS,
        handled=COUNTS | st.none(),
    )
)
def test_whatever_was_seen_a_figure_stands_only_where_there_is_a_trend(
    seen: LagFigures,
) -> None:
    said = find_trend(seen)
    assert (said.per_s is not None) == (said.state in ("catches_up", "falls_behind"))
    assert said.per_s is None or said.per_s > 0
    assert (said.in_s is not None) == (said.state == "catches_up")
    assert said.state != "falls_behind" or (seen.lag or 0) > (seen.lag_before or 0)
