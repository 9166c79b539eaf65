"""The OPTIONS of a backend in TASKS, checked when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from catmq_client.admin.calls import NAME, NAME_RULE

LEAST_PRIORITY, MOST_PRIORITY = -100, 100
MOST_ATTEMPTS = 100
MOST_TOPIC = 100  # characters of a name that users may give


class Lane(NamedTuple):
    """Priorities that share a topic; `suffix` is the end of its name."""

    suffix: str
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """A backend's alias and queues, and the keys of its OPTIONS, in capitals there."""

    alias: str = "default"
    queues: tuple[str, ...] = ("default",)
    # The topics of a queue are called by this, the queue, and the suffix of the lane.
    topic_prefix: str = "tasks."
    # The share group of the workers.
    group: str = "tasks"
    # "database": each task is a row of catmq_task. "none": nothing is kept, and there are
    # no results.
    results: str = "database"
    # "outbox": a task exists if and only if the caller's transaction commits. "direct": it
    # is sent at once.
    send: str = "outbox"
    # How often a task is begun at most, 1 to 100.
    max_attempts: int = 3
    # How long an attempt may take, s; None: for ever.
    timeout: int | None = None
    # What becomes of the thread of an attempt that takes longer: "leave" replaces it;
    # "kill" ends the worker
    # process, and the thread with it, when the other tasks at work have ended.
    on_timeout: str = "leave"
    # Make a dead letter of a task that has failed for good, as well; that needs a retry
    # node.
    dead: bool = False
    # How long finished tasks are kept, days: those that succeeded or were discarded, and
    # those that failed.
    result_days: int = 14
    failed_days: int = 90
    # [least, most] priority of the topics of a queue: together all from -100 to 100.
    priority_lanes: Sequence[Sequence[int]] = ((-100, -1), (0, 0), (1, 100))
    # How long a task whose function is missing waits for a worker that has it, s.
    missing_task_s: int = 60
    # Modules or packages with tasks that workers may import, beside those of installed apps
    # and of the
    # package of the settings.
    task_modules: Sequence[str] = ()
    # {name: {"task": path, "cron": "0 3 * * *" or "every": seconds, "args", "kwargs",
    # "queue", "priority"}}
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes, the highest priority first. That of priority 0 has no suffix.

        >>> [lane.suffix for lane in TaskSettings().lanes]
        ['.high', '', '.low']
        """
        return named_lanes(self.priority_lanes)

    def topic(self, queue: str, priority: int) -> str:
        """Return the topic of a task.

        >>> TaskSettings().topic("mails", 7), TaskSettings().topic("mails", 0)
        ('tasks.mails.high', 'tasks.mails')
        """
        suffix = next(
            lane.suffix for lane in self.lanes if lane.least <= priority <= lane.most
        )
        return f"{self.topic_prefix}{queue}{suffix}"

    def topics(self, queues: Sequence[str] | None = None) -> list[str]:
        """Return the topics of some queues (None: all), those of the highest priority
        first.
        """
        wanted = self.queues if queues is None else queues
        return [
            f"{self.topic_prefix}{queue}{lane.suffix}"
            for lane in self.lanes
            for queue in wanted
        ]


def named_lanes(ranges: Sequence[Sequence[int]]) -> list[Lane]:
    """Name lanes by their place above or below that of priority 0; several of a kind are
    counted from it.

    >>> [lane.suffix for lane in named_lanes([[-100, 9], [10, 50], [51, 100]])]
    ['.high2', '.high1', '']
    """
    rising = sorted((least, most) for least, most in ranges)
    lows = [one for one in rising if one[1] < 0]
    highs = [one for one in rising if one[0] > 0]
    names = (
        dict.fromkeys(rising, "")
        | dict.fromkeys(lows, ".low")
        | dict.fromkeys(highs, ".high")
    )
    for many in (lows[::-1], highs):
        names |= {one: f"{names[one]}{n}" for n, one in enumerate(many, 1) if len(many) > 1}
    return [Lane(names[one], *one) for one in reversed(rising)]


class Problem(NamedTuple):
    """A wrong option: the id of its check, and what to write."""

    check: str
    option: str
    what: str


def _is_whole(least: int, most: int | None = None) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is int and value >= least and (most is None or value <= most)
    )


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "topic_prefix": (lambda value: isinstance(value, str), "must be text"),
    "group": (
        lambda value: isinstance(value, str) and bool(NAME.fullmatch(value)),
        f"is a name: {NAME_RULE}",
    ),
    "results": (
        lambda value: value in ("database", "none"),
        "must be 'database' or 'none'",
    ),
    "send": (lambda value: value in ("outbox", "direct"), "must be 'outbox' or 'direct'"),
    "max_attempts": (
        _is_whole(1, MOST_ATTEMPTS),
        f"must be a whole number from 1 to {MOST_ATTEMPTS}",
    ),
    "timeout": (
        lambda value: value is None or _is_whole(1)(value),
        "must be whole seconds, at least 1, or None",
    ),
    "on_timeout": (lambda value: value in ("leave", "kill"), "must be 'leave' or 'kill'"),
    "dead": (lambda value: isinstance(value, bool), "must be True or False"),
    "result_days": (_is_whole(1), "must be a whole number, at least 1"),
    "failed_days": (_is_whole(1), "must be a whole number, at least 1"),
    "priority_lanes": (
        lambda value: _covers_all(value),
        "must be pairs [least, most] that together have each priority from -100 to 100 once",
    ),
    "missing_task_s": (_is_whole(0), "must be whole seconds, at least 0"),
    "task_modules": (
        lambda value: (
            isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
        ),
        "must be a list of names of modules or packages",
    ),
    "schedules": (
        lambda value: isinstance(value, Mapping),
        "must be a dict of schedules by name",
    ),
}
_IDS = {"priority_lanes": "E004", "max_attempts": "E005", "schedules": "E006"}


def problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the OPTIONS of a backend."""
    for name, value in options.items():
        known = name.lower() if name.isupper() else ""
        if known not in _CHECKS:
            there = ", ".join(one.upper() for one in _CHECKS)
            yield Problem("E007", name, f"is unknown; there are {there}")
            continue
        good, what = _CHECKS[known]
        if not good(value):
            yield Problem(_IDS.get(known, "E007"), name, f"{what}, not {value!r}")


def read(alias: str, queues: Sequence[str], options: Mapping[str, Any]) -> TaskSettings:
    """Return a backend's settings. Raises ImproperlyConfigured naming what is wrong."""
    for problem in problems(options):
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]['OPTIONS'][{problem.option!r}] {problem.what}"
        )
    names = {one.name for one in fields(TaskSettings)}
    given = {
        name.lower(): value for name, value in options.items() if name.lower() in names
    }
    return TaskSettings(alias=alias, queues=tuple(sorted(queues)), **given)


def wrong_topics(settings: TaskSettings) -> list[str]:
    """Return the topics that brokers would refuse for their names."""
    return [
        one for one in settings.topics() if len(one) > MOST_TOPIC or not NAME.fullmatch(one)
    ]


def _covers_all(ranges: Any) -> bool:
    """Return True if lanes have every priority once.

    >>> _covers_all([[-100, 0], [0, 100]]), _covers_all([[-100, 0], [1, 100]])
    (False, True)
    """
    try:
        found = [priority for least, most in ranges for priority in range(least, most + 1)]
    except (TypeError, ValueError):
        return False
    return sorted(found) == [*range(LEAST_PRIORITY, MOST_PRIORITY + 1)]
