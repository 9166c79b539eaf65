"""What benchmarks make of what they timed: percentiles, ratios, windows, verdicts. No
benchmark is run.
"""

from __future__ import annotations

import json
from array import array

import pytest

from benchmarks.figures import (
    LATENCY_HEADS,
    Latencies,
    Spread,
    machine,
    percentile,
    plain,
    ratios,
)
from benchmarks.loads import Load
from benchmarks.matrix import Row, Size, behind, missed, shown, timed, within

CALM = Latencies(10, 1.0, 2.0, 3.0, 4.0, 5.0)
LATE = Latencies(10, 10.0, 20.0, 50.0, 60.0, 70.0)


def half(end_to_end: Latencies | None) -> Row:
    return Row("1 KB", "half", 100, 5000.0, 5000.0, 4990.0, CALM, end_to_end)


@pytest.mark.parametrize(
    ("percent", "value"),
    [(0, 1.0), (50, 501.0), (95, 951.0), (99, 991.0), (99.9, 1000.0), (100, 1000.0)],
)
def test_a_percentile_is_the_value_below_which_so_many_lie(
    percent: float, value: float
) -> None:
    assert percentile([float(one) for one in range(1, 1001)], percent) == value


def test_latencies_are_told_in_milliseconds_whatever_their_order() -> None:
    seconds = [0.001 * one for one in range(1000, 0, -1)]
    found = Latencies.of(seconds)
    assert found.count == 1000
    assert [round(one) for one in (found.p50, found.p95, found.p99, found.p999, found.max)] == [
        501, 951, 991, 1000, 1000,
    ]  # fmt: skip


def test_one_time_is_every_percentile_of_itself() -> None:
    assert Latencies.of([0.5]) == Latencies(1, 500.0, 500.0, 500.0, 500.0, 500.0)


def test_latencies_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        Latencies.of([])


def test_the_columns_stand_below_their_heads() -> None:
    assert len(str(CALM)) == len(LATENCY_HEADS)


def test_a_ratio_belongs_to_its_round() -> None:
    assert ratios([50.0, 90.0], [100.0, 100.0]) == [0.5, 0.9]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ratios([50.0, 90.0], [100.0])


def test_a_target_within_the_spread_counts_as_met() -> None:
    spread = Spread.of([0.43, 0.41, 0.46])
    assert spread == Spread(0.43, 0.41, 0.46)
    assert spread.reaches(0.45) and not spread.reaches(0.5)


def test_only_what_ended_within_the_window_is_counted() -> None:
    times = array("d", [0.0, 0.9, 0.5, 1.5, 1.8, 2.0, 1.9, 2.1])
    assert within(times, (1.0, 2.0)) == [1.0, pytest.approx(0.2)]


def test_rates_and_latencies_of_a_phase_are_those_of_its_window() -> None:
    load = Load("http://here", "key", "t", (1, 2), size=100, batch=10, rate=None)
    sends = array("d", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    messages = array("d", [0.5, 0.6, 1.2, 1.3, 2.9, 3.4])
    found = timed(load, sends, messages, window=(1.0, 3.0))
    assert (found["published"], found["received"]) == (10.0, 0.5)
    assert found["publish"] == Latencies.of([0.5, 0.5])
    assert found["end_to_end"].count == 2, (
        "late messages count: they were due within the window"
    )
    assert found["end_to_end"].max == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("end_to_end", "late"),
    [(CALM, []), (LATE, ["1 KB"]), (None, ["1 KB"])],
    ids=["calm", "late", "unknown"],
)
def test_a_size_whose_messages_come_late_at_half_of_the_maximum_is_named(
    end_to_end: Latencies | None, late: list[str]
) -> None:
    assert (
        missed([half(end_to_end), Row("100 B", "max", 100, None, end_to_end=LATE)]) == late
    )


def test_a_consumer_that_was_behind_is_told() -> None:
    assert behind(0.2) == ""
    assert behind(12.0) == "the consumer was 12.0 s behind in the end"
    assert "not all was read" in behind(None)


def test_a_row_is_shown_with_what_was_not_measured_left_open() -> None:
    drained = Row(
        "64 KB", "drain", 4, None, received=3987.4, note="1,728 messages in 0.7 s"
    )
    assert shown(drained).split() == [
        "64", "KB", "drain", "4", "-", "3,987", "1,728", "messages", "in", "0.7", "s",
    ]  # fmt: skip
    first, second = shown(half(LATE)).splitlines()
    assert first.split() == [
        "1",
        "KB",
        "half",
        "100",
        "5,000",
        "4,990",
        "publish",
        *["1.0", "2.0", "3.0", "4.0", "5.0"],
    ]
    assert second.split() == ["end", "to", "end", *["10.0", "20.0", "50.0", "60.0", "70.0"]]


def test_everything_measured_goes_into_json() -> None:
    written = json.loads(
        json.dumps(
            {"machine": machine(), "rows": plain([half(CALM), Size("1 KB", 1024, 100)])}
        )
    )
    assert written["rows"][0]["end_to_end"]["p999"] == 4.0
    assert written["rows"][1] == {"name": "1 KB", "size": 1024, "batch": 100}
    assert written["machine"]["cores"] >= 1 and written["machine"]["memory_gb"] > 0
