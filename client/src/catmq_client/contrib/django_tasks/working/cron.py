"""Times of schedules: cron expressions of five fields, and intervals."""

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
# 29 February on a certain weekday comes every 28 years; across 2100 it takes 40.
LOOKED_AHEAD_DAYS = 41 * 366
HOURS = 24
MINUTE = timedelta(minutes=1)


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()


FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, MONTHS),
    _Field("day of the week", 0, 7, DAYS),
)


class WrongCron(ValueError):
    """A cron expression is wrong; the text says where."""


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
    # A day needs to be of both sets, because one of them is all.
    needs_both: bool
    # It has `*` for minutes or hours, so it goes on at its pace when the clocks change, as
    # in cron(8).
    repeats: bool

    def after(self, time: datetime) -> datetime:
        """Return the next time, whole minutes, on the same wall clock. Raises WrongCron if
        there is none.

        >>> Cron.parse("30 3 * * mon").after(datetime(2026, 11, 23, 3, 30))
        datetime.datetime(2026, 11, 30, 3, 30)
        """
        time = time.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day, last = time.date(), time.date() + timedelta(days=LOOKED_AHEAD_DAYS)
        while day <= last:
            if day.month in self.months and self._has_day(day.day, day.isoweekday() % 7):
                least = (time.hour, time.minute) if day == time.date() else (0, 0)
                found = [
                    (h, m)
                    for h in sorted(self.hours)
                    for m in sorted(self.minutes)
                    if (h, m) >= least
                ]
                if found:
                    hour, minute = found[0]
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
        """Return the next time after `now`, both aware, on the wall clock of a zone. Raises
        WrongCron.

        Where clocks change: a rule with `*` for minutes or hours goes on at its pace, so
        its times come twice when the clocks go back, and those that are left out when they
        go forward do not come. Any other rule comes once on each of its days: at the first
        of two equal times, or an hour later if its time is left out.
        """
        if self.repeats:
            return self._next_at_pace(now, zone)
        wall = now.astimezone(zone).replace(tzinfo=None)
        while True:
            wall = self.after(wall)
            # In UTC and back: a time that is left out is an hour later.
            time = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
            if time > now:
                return time

    def _next_at_pace(self, now: datetime, zone: tzinfo) -> datetime:
        # Between two changes of its clocks a zone has one offset. `inside` is a moment of
        # such a span.
        start = inside = now.astimezone(UTC)
        while True:
            offset = _offset(inside, zone)
            time = (
                self.after((start + offset).replace(tzinfo=None)).replace(tzinfo=UTC)
                - offset
            )
            change = _next_change(inside, time, zone)
            if change is None:
                return time
            # The minute of the change may be one of its times.
            start, inside = change - MINUTE, change

    def _has_day(self, day: int, weekday: int) -> bool:
        both = day in self.days, weekday in self.weekdays
        return all(both) if self.needs_both else any(both)

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Read an expression. Raises WrongCron.

        >>> sorted(Cron.parse("*/20 8-10 1,15 jan *").minutes)
        [0, 20, 40]
        """
        parts = text.split()
        if len(parts) != len(FIELDS):
            names = ", ".join(one.name for one in FIELDS)
            raise WrongCron(f"{text!r} has {len(parts)} fields, not five: {names}")
        minutes, hours, days, months, weekdays = map(_values, parts, FIELDS)
        made = cls(
            minutes=minutes,
            hours=hours,
            days=days,
            months=months,
            weekdays=frozenset(day % 7 for day in weekdays),
            needs_both=parts[2].startswith("*") or parts[4].startswith("*"),
            repeats=parts[0].startswith("*")
            or parts[1].startswith("*")
            or len(hours) == HOURS,
        )
        made.after(datetime(2026, 1, 1))
        return made


def _offset(time: datetime, zone: tzinfo) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta(0)


def _next_change(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """Return the first whole minute after `start`, up to `end`, with another UTC offset
    than `start`.
    """
    offset, day = _offset(start, zone), start
    while day < end:
        following = min(day + timedelta(days=1), end)
        if _offset(following, zone) != offset:
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


def _values(text: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        least = field.least if span == "*" else _number(first, field)
        most = field.most if span == "*" or step else least
        if last:
            most = _number(last, field)
        if most < least or (step and not step.isdecimal()) or step == "0":
            raise WrongCron(f"{part!r} is no {field.name}")
        found.update(range(least, most + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, field: _Field) -> int:
    if text in field.words:
        return field.words.index(text) + (1 if field.words is MONTHS else 0)
    if not text.isdecimal() or not field.least <= int(text) <= field.most:
        raise WrongCron(f"{text!r} is no {field.name}: {field.least} to {field.most}")
    return int(text)
