"""The bars of a report: sums, or the longest, by what the rows are named."""

from __future__ import annotations

from portal.kit.bars import MAX_BARS, draw_bars


def test_messages_are_summed_by_day_in_order_of_days() -> None:
    rows: list[dict[str, object]] = [
        {"topic": "b", "day": "2026-11-02", "queue": 1, "messages": 30},
        {"topic": "a", "day": "2026-11-01", "queue": 2, "messages": 5},
        {"topic": "a", "day": "2026-11-02", "queue": 3, "messages": 10},
        {"topic": "a", "queue": 4, "problem": "node n1 does not answer"},
    ]
    found = draw_bars("volume", rows)
    assert found is not None
    bars = [(bar.label, bar.width, bar.value) for bar in found.bars]
    assert bars == [("2026-11-01", "12.50", 5), ("2026-11-02", "100.00", 40)]


def test_the_longest_wait_of_each_topic_and_group_is_drawn_the_longest_first() -> None:
    rows: list[dict[str, object]] = [
        {"topic": "t", "group": "g", "waited_p99_ms": 10},
        {"topic": "t", "group": "h", "waited_p99_ms": 20},
        {"topic": "t", "group": "g", "waited_p99_ms": 15},
        {"topic": "t", "group": "i", "waited_p99_ms": None},
    ]
    found = draw_bars("latency", rows)
    assert found is not None
    assert [(bar.label, bar.value) for bar in found.bars] == [("t · h", 20), ("t · g", 15)]


def test_of_many_days_the_last_are_drawn_and_of_many_topics_the_largest() -> None:
    days = draw_bars(
        "volume", [{"day": f"2026-{n:04d}", "messages": n} for n in range(100)]
    )
    names = draw_bars("topics", [{"topic": f"t{n}", "messages": n} for n in range(100)])
    assert days is not None and names is not None
    assert [len(days.bars), days.bars[-1].value, days.bars[0].value] == [
        MAX_BARS,
        99,
        100 - MAX_BARS,
    ]
    assert [len(names.bars), names.bars[0].label] == [MAX_BARS, "t99"]


def test_nothing_is_drawn_of_nothing_or_of_what_no_drawing_is_known_for() -> None:
    assert draw_bars("volume", []) is None
    assert draw_bars("topics", [{"topic": "t", "messages": None}]) is None
    assert draw_bars("unheard of", [{"topic": "t", "messages": 1}]) is None


def test_zeros_are_bars_of_no_width() -> None:
    found = draw_bars("topics", [{"topic": "t", "messages": 0}])
    assert found is not None and found.bars[0].width == "0.00"
