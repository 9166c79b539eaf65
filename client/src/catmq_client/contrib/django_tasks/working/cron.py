"""Cron expressions of five fields, and the times that they match."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

MONTHS = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# 29 February falls on a given weekday every 28 years; across 2100, which is no leap year,
# after 40 years.
MAX_DAYS_AHEAD = 41 * 366
HOURS = 24
MINUTE = timedelta(minutes=1)


class _Field(NamedTuple):
    name: str
    minimum: int
    maximum: int
    names: tuple[str, ...] = ()


FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, MONTHS),
    _Field("day of the week", 0, 7, DAYS),
)


class WrongCron(ValueError):
    """A cron expression is invalid. The text names the invalid part."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression: `minute hour day month weekday`, with `*`, lists, ranges, steps
    and English names.

    If both days are given, either is enough, as in cron(8).
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    # Day of the month and weekday must both match. True if either field is `*`.
    needs_both_days: bool
    # The minutes or hours are `*`: the schedule keeps its pace when the clocks change, as in
    # cron(8).
    keeps_pace: bool

    def next_wall_time(self, time: datetime) -> datetime:
        """Return the next matching minute after a naive time, without regard to changes of
        the clocks. Raises WrongCron if there is none.

        >>> Cron.parse("30 3 * * mon").next_wall_time(datetime(2026, 11, 23, 3, 30))
        datetime.datetime(2026, 11, 30, 3, 30)
        """
        time = time.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day, last = time.date(), time.date() + timedelta(days=MAX_DAYS_AHEAD)
        while day <= last:
            matches = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
            is_day = all(matches) if self.needs_both_days else any(matches)
            if day.month in self.months and is_day:
                earliest = (time.hour, time.minute) if day == time.date() else (0, 0)
                times = ((h, m) for h in sorted(self.hours) for m in sorted(self.minutes))
                first = next((time for time in times if time >= earliest), None)
                if first is not None:
                    hour, minute = first
                    return time.replace(
                        year=day.year,
                        month=day.month,
                        day=day.day,
                        hour=hour,
                        minute=minute,
                    )
            day += timedelta(days=1)
        raise WrongCron("there is no such day")

    def next_after(self, now: datetime, zone: tzinfo) -> datetime:
        """Return the next matching time after `now` in a time zone. Both times are aware.
        Raises WrongCron.

        When the clocks change, a rule with `*` for minutes or hours keeps its pace: its times
        match twice when the clocks go back, and skipped times do not match when they go
        forward. Any other rule matches once on each of its days: at the first of two equal
        times, or an hour later if its time is skipped.
        """
        # Between two changes of its clocks a zone has a constant offset. `inside` is a time in
        # such a span.
        start = inside = now.astimezone(UTC)
        while self.keeps_pace:
            offset = _offset(inside, zone)
            wall = self.next_wall_time((start + offset).replace(tzinfo=None))
            time = wall.replace(tzinfo=UTC) - offset
            change = _next_change(inside, time, zone)
            if change is None:
                return time
            # The minute of the change itself may match.
            start, inside = change - MINUTE, change
        wall = now.astimezone(zone).replace(tzinfo=None)
        while True:
            wall = self.next_wall_time(wall)
            # fold=0 is the first of two equal times. A skipped time becomes an hour later.
            time = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
            if time > now:
                return time

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Parse an expression. Raises WrongCron, also if it never matches.

        >>> sorted(Cron.parse("*/20 8-10 1,15 jan *").minutes)
        [0, 20, 40]
        """
        parts = text.split()
        if len(parts) != len(FIELDS):
            raise WrongCron(
                f"{text!r} has {len(parts)} fields, not five: "
                f"{', '.join(field.name for field in FIELDS)}"
            )
        minutes, hours, days, months, weekdays = map(_parse_field, parts, FIELDS)
        cron = cls(
            minutes=minutes,
            hours=hours,
            days=days,
            months=months,
            # Sunday is 0 or 7.
            weekdays=frozenset(day % 7 for day in weekdays),
            needs_both_days=parts[2].startswith("*") or parts[4].startswith("*"),
            keeps_pace=parts[0].startswith("*")
            or parts[1].startswith("*")
            or len(hours) == HOURS,
        )
        # Raises WrongCron for a date such as 30 February.
        cron.next_wall_time(datetime(2026, 1, 1))
        return cron


def _offset(time: datetime, zone: tzinfo) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta(0)


def _next_change(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """Return the first whole minute after `start` and up to `end` whose UTC offset differs
    from that of `start`. None if there is none.
    """
    offset, day = _offset(start, zone), start
    while day < end:
        following = min(day + timedelta(days=1), end)
        if _offset(following, zone) != offset:
            # Binary search for the minute of the change.
            low, high = int(day.timestamp() // 60), int(-(-following.timestamp() // 60))
            while high - low > 1:
                middle = (low + high) // 2
                is_changed = (
                    _offset(datetime.fromtimestamp(middle * 60, UTC), zone) != offset
                )
                low, high = (low, middle) if is_changed else (middle, high)
            return datetime.fromtimestamp(high * 60, UTC)
        day = following
    return None


def _parse_field(text: str, field: _Field) -> frozenset[int]:
    values: set[int] = set()
    for element in text.lower().split(","):
        span, _, step = element.partition("/")
        first, _, last = span.partition("-")
        lowest = field.minimum if span == "*" else _parse_number(first, field)
        # "5/10" means from 5 to the end of the range, in steps of 10.
        highest = field.maximum if span == "*" or step else lowest
        if last:
            highest = _parse_number(last, field)
        if highest < lowest or (step and not step.isdecimal()) or step == "0":
            raise WrongCron(f"{element!r} is no {field.name}")
        values.update(range(lowest, highest + 1, int(step or 1)))
    return frozenset(values)


def _parse_number(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names.index(text) + (1 if field.names is MONTHS else 0)
    if not text.isdecimal() or not field.minimum <= int(text) <= field.maximum:
        raise WrongCron(f"{text!r} is no {field.name}: {field.minimum} to {field.maximum}")
    return int(text)
