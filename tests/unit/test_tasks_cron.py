"""Times of schedules: cron expressions and intervals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from catmq_client.contrib.django_tasks.working.cron import Cron, WrongCron
from catmq_client.contrib.django_tasks.working.schedules import (
    _from_column,
    _to_column,
    find_problems,
    next_time,
)

NOW = datetime(2026, 11, 23, 12, 0)  # a Monday


@pytest.mark.parametrize(
    ("rule", "then"),
    [
        ("* * * * *", datetime(2026, 11, 23, 12, 1)),
        ("0 3 * * *", datetime(2026, 11, 24, 3, 0)),
        ("0 12 * * *", datetime(2026, 11, 24, 12, 0)),
        ("*/7 12-13 * * *", datetime(2026, 11, 23, 12, 7)),
        ("5/20 * * * *", datetime(2026, 11, 23, 12, 5)),
        ("0 0 * * 7", datetime(2026, 11, 29)),
        ("0 0 * * sun", datetime(2026, 11, 29)),
        ("0 0 1 * fri", datetime(2026, 11, 27)),
        ("0 0 29 feb *", datetime(2028, 2, 29)),
        ("59 23 31 12 *", datetime(2026, 12, 31, 23, 59)),
        ("0 9 1,15 jan-mar *", datetime(2027, 1, 1, 9)),
    ],
)
def test_the_next_time_of_a_rule(rule: str, then: datetime) -> None:
    assert Cron.parse(rule).next_wall_time(NOW) == then


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "*/x * * * *",
        "0 0 30 2 *",
        "-1 * * * *",
        "1,,2 * * * *",
    ],
)
def test_a_rule_that_is_wrong_is_refused(rule: str) -> None:
    with pytest.raises(WrongCron):
        Cron.parse(rule)


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2040, 1, 1)),
    st.integers(0, 59),
    st.integers(0, 23),
)
def test_the_next_time_is_later_and_fits_and_none_is_left_out(
    now: datetime, minute: int, hour: int
) -> None:
    then = Cron.parse(f"{minute} {hour} * * *").next_wall_time(now)
    assert now < then <= now + timedelta(days=1)
    assert (then.minute, then.hour) == (minute, hour)


def test_a_rule_goes_by_the_wall_clock_of_the_project() -> None:
    with override_settings(TIME_ZONE="Europe/Berlin"):
        zone = ZoneInfo("Europe/Berlin")
        before = datetime(2026, 3, 28, 12, tzinfo=zone).astimezone(UTC)
        # the clocks go from 2 to 3 that night
        left_out = next_time({"cron": "30 2 * * *"}, before)
        assert left_out.astimezone(zone).replace(tzinfo=None) == datetime(
            2026, 3, 29, 3, 30
        )
        twice = next_time({"cron": "30 2 * * *"}, datetime(2026, 10, 24, 12, tzinfo=UTC))
        assert twice == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
        assert next_time({"cron": "30 2 * * *"}, twice) == datetime(
            2026, 10, 26, 1, 30, tzinfo=UTC
        )


def is_time_of(rule: Cron, wall: datetime) -> bool:
    return rule.next_wall_time(wall - timedelta(minutes=1)) == wall


# The minute from which the clocks of a zone go by another offset.
CHANGES = {
    "Europe/Berlin": [
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 1, tzinfo=UTC),
    ],
    "America/New_York": [
        datetime(2026, 3, 8, 7, tzinfo=UTC),
        datetime(2026, 11, 1, 6, tzinfo=UTC),
    ],
    "Australia/Lord_Howe": [
        datetime(2026, 4, 4, 15, tzinfo=UTC),
        datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
    ],
    "Asia/Shanghai": [datetime(2026, 3, 29, 1, tzinfo=UTC)],
}
PLACES = [(zone, change) for zone, changes in CHANGES.items() for change in changes]


@pytest.mark.parametrize(
    "rule",
    [
        "* * * * *",
        "*/10 * * * *",
        "0 * * * *",
        "30 */2 * * *",
        "*/20 2 * * *",
        "7 0-23 * * *",
    ],
)
@pytest.mark.parametrize(("zone", "change"), PLACES)
def test_a_rule_below_a_day_goes_on_at_its_pace_when_the_clocks_change(
    zone: str, change: datetime, rule: str
) -> None:
    start, cron = change - timedelta(hours=3, seconds=-20), Cron.parse(rule)
    minutes = [change + timedelta(minutes=n) for n in range(-179, 181)]
    wanted = [
        one
        for one in minutes
        if is_time_of(cron, one.astimezone(ZoneInfo(zone)).replace(tzinfo=None))
    ]
    found, time = [], cron.next_after(start, ZoneInfo(zone))
    while time <= minutes[-1]:
        found.append(time)
        time = cron.next_after(time, ZoneInfo(zone))
    assert found == wanted


@pytest.mark.parametrize("minute", [0, 30, 59])
@pytest.mark.parametrize("hour", [1, 2, 3])
@pytest.mark.parametrize(("zone", "change"), PLACES)
def test_a_daily_rule_comes_once_on_each_day(
    zone: str, change: datetime, hour: int, minute: int
) -> None:
    cron, time = Cron.parse(f"{minute} {hour} * * *"), change - timedelta(days=3)
    days = []
    for _ in range(6):
        time = cron.next_after(time, ZoneInfo(zone))
        days.append(time.astimezone(ZoneInfo(zone)).date())
    assert days == [days[0] + timedelta(days=n) for n in range(6)]


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_time_is_stored_and_read_again_also_when_the_wall_clock_shows_it_twice(
    use_tz: bool,
) -> None:
    with override_settings(TIME_ZONE="Europe/Berlin", USE_TZ=use_tz):
        for minutes in range(-180, 180, 30):
            time = datetime(2026, 10, 25, 1, tzinfo=UTC) + timedelta(minutes=minutes)
            stored = _to_column(time)
            assert (stored.tzinfo is not None) is use_tz and _from_column(stored) == time
        assert _from_column(datetime(2026, 10, 25, 2, 30)) == datetime(
            2026, 10, 25, 0, 30, tzinfo=UTC
        )


def test_an_interval_is_counted_from_1970_so_all_workers_agree() -> None:
    at = datetime(2026, 11, 23, 12, 0, 7, tzinfo=UTC)
    assert next_time({"every": 60}, at) == datetime(2026, 11, 23, 12, 1, tzinfo=UTC)
    assert next_time({"every": 60}, datetime(2026, 11, 23, 12, 1, tzinfo=UTC)).minute == 2


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        ("daily", "must be a dict"),
        ({"task": "tests.support.tasking.calls.add"}, "'cron' or 'every'"),
        (
            {"task": "tests.support.tasking.calls.add", "every": 1, "cron": "* * * * *"},
            "'cron' or 'every'",
        ),
        ({"task": "tests.support.tasking.calls.add", "every": 0}, "whole seconds"),
        ({"task": "tests.support.tasking.calls.add", "cron": "hourly"}, "not five"),
        (
            {"task": "tests.support.tasking.calls.add", "every": 5, "arg": [1]},
            "'arg' is unknown",
        ),
        ({"task": "tests.support.tasking.calls.gone", "every": 5}, "cannot be imported"),
        ({"task": "tests.support.tasking.calls.plain", "every": 5}, "is no task"),
    ],
)
def test_a_wrong_schedule_is_named_with_what_is_wrong(schedule: object, named: str) -> None:
    (said,) = find_problems({"nightly": schedule})
    assert said.startswith("schedule 'nightly': ") and named in said
