"""The OPTIONS of a backend in the Django setting TASKS, checked when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from catmq_client.admin.calls import NAME, NAME_RULE

MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_ATTEMPTS = 100
MAX_TOPIC_LENGTH = 100  # characters; brokers refuse longer names from users


class Lane(NamedTuple):
    """A range of priorities that share a topic. The topic's name ends with `suffix`."""

    suffix: str
    min_priority: int
    max_priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """A backend's alias and queues, and the keys of its OPTIONS, which are in capitals in
    TASKS.
    """

    alias: str = "default"
    queues: tuple[str, ...] = ("default",)
    # A topic's name is this prefix, the name of the queue, and the suffix of the lane.
    topic_prefix: str = "tasks."
    # The share group of the workers.
    group: str = "tasks"
    # "database": each task is a row of catmq_task. "none": there are no rows and no results.
    results: str = "database"
    # "outbox": a task exists if and only if the caller's transaction commits. "direct": it
    # is sent at once.
    send: str = "outbox"
    # Attempts of a task at most, including the first; 1 to 100.
    max_attempts: int = 3
    # Seconds that an attempt may take. None: no limit.
    timeout: int | None = None
    # The thread of an attempt that takes longer cannot be stopped. "leave": another thread
    # replaces it. "kill": the worker process ends when its other running tasks have ended.
    on_timeout: str = "leave"
    # True: a task that has failed for good becomes a dead letter, too. That needs a retry
    # node.
    dead: bool = False
    # Days for which rows are kept: of tasks that succeeded or were discarded, and of tasks
    # that failed.
    result_days: int = 14
    failed_days: int = 90
    # [lowest, highest] priority of each topic of a queue; together all from -100 to 100.
    priority_lanes: Sequence[Sequence[int]] = ((-100, -1), (0, 0), (1, 100))
    # Seconds for which a task whose function this worker does not have waits for a worker
    # that has it.
    missing_task_s: int = 60
    # Further modules or packages with tasks that workers may import. Those of installed apps
    # and the package of the settings module are allowed already.
    task_modules: Sequence[str] = ()
    # {name: {"task": path, "cron": "0 3 * * *" or "every": seconds, "args", "kwargs",
    # "queue", "priority"}}
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes, the highest priority first. The lane of priority 0 has no suffix.

        >>> [lane.suffix for lane in TaskSettings().lanes]
        ['.high', '', '.low']
        """
        return name_lanes(self.priority_lanes)

    def topic(self, queue: str, priority: int) -> str:
        """Return the topic of a task.

        >>> TaskSettings().topic("mails", 7), TaskSettings().topic("mails", 0)
        ('tasks.mails.high', 'tasks.mails')
        """
        return next(
            f"{self.topic_prefix}{queue}{lane.suffix}"
            for lane in self.lanes
            if lane.min_priority <= priority <= lane.max_priority
        )

    def topics(self, queues: Sequence[str] | None = None) -> list[str]:
        """Return the topics of `queues` (None: of all), those of the highest priority first."""
        return [
            f"{self.topic_prefix}{queue}{lane.suffix}"
            for lane in self.lanes
            for queue in (self.queues if queues is None else queues)
        ]


def name_lanes(ranges: Sequence[Sequence[int]]) -> list[Lane]:
    """Return the lanes of priority ranges, the highest priority first.

    The lane of priority 0 has no suffix. Lanes above it end with `.high`, lanes below it with
    `.low`. If there are several, they are numbered by their distance from priority 0.

    >>> [lane.suffix for lane in name_lanes([[-100, 9], [10, 50], [51, 100]])]
    ['.high2', '.high1', '']
    """
    rising = sorted((lowest, highest) for lowest, highest in ranges)
    lows = [bounds for bounds in rising if bounds[1] < 0]
    highs = [bounds for bounds in rising if bounds[0] > 0]
    suffixes = (
        dict.fromkeys(rising, "")
        | dict.fromkeys(lows, ".low")
        | dict.fromkeys(highs, ".high")
    )
    for side in (lows[::-1], highs):
        suffixes |= {
            bounds: f"{suffixes[bounds]}{n}"
            for n, bounds in enumerate(side, 1)
            if len(side) > 1
        }
    return [Lane(suffixes[bounds], *bounds) for bounds in reversed(rising)]


class Problem(NamedTuple):
    """An invalid option: the id of its system check, its name, and the error text after the
    name.
    """

    check: str
    option: str
    text: str


def _is_integer(minimum: int, maximum: int | None = None) -> Callable[[Any], bool]:
    # type() and not isinstance(): True and False are no numbers here.
    return lambda value: (
        type(value) is int and value >= minimum and (maximum is None or value <= maximum)
    )


def _covers_all_priorities(ranges: Any) -> bool:
    """Return True if the ranges contain every priority exactly once.

    >>> _covers_all_priorities([[-100, 0], [0, 100]])
    False
    >>> _covers_all_priorities([[-100, 0], [1, 100]])
    True
    """
    try:
        priorities = [
            priority
            for lowest, highest in ranges
            for priority in range(lowest, highest + 1)
        ]
    except (TypeError, ValueError):
        return False
    return sorted(priorities) == [*range(MIN_PRIORITY, MAX_PRIORITY + 1)]


# By option: a predicate, and the requirement as an error message states it.

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
        _is_integer(1, MAX_ATTEMPTS),
        f"must be a whole number from 1 to {MAX_ATTEMPTS}",
    ),
    "timeout": (
        lambda value: value is None or _is_integer(1)(value),
        "must be whole seconds, at least 1, or None",
    ),
    "on_timeout": (lambda value: value in ("leave", "kill"), "must be 'leave' or 'kill'"),
    "dead": (lambda value: isinstance(value, bool), "must be True or False"),
    "result_days": (_is_integer(1), "must be a whole number, at least 1"),
    "failed_days": (_is_integer(1), "must be a whole number, at least 1"),
    "priority_lanes": (
        _covers_all_priorities,
        "must be pairs [least, most] that together have each priority from -100 to 100 once",
    ),
    "missing_task_s": (_is_integer(0), "must be whole seconds, at least 0"),
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


def find_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in options.items():
        field_name = name.lower() if name.isupper() else ""
        if field_name not in _CHECKS:
            valid_names = ", ".join(option.upper() for option in _CHECKS)
            yield Problem("E007", name, f"is unknown; there are {valid_names}")
            continue
        is_valid, requirement = _CHECKS[field_name]
        if not is_valid(value):
            yield Problem(
                _IDS.get(field_name, "E007"), name, f"{requirement}, not {value!r}"
            )


def read(alias: str, queues: Sequence[str], options: Mapping[str, Any]) -> TaskSettings:
    """Return a backend's settings. Raises ImproperlyConfigured for the first invalid option."""
    for problem in find_problems(options):
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]['OPTIONS'][{problem.option!r}] {problem.text}"
        )
    values = {name.lower(): value for name, value in options.items()}
    return TaskSettings(alias=alias, queues=tuple(sorted(queues)), **values)


def find_invalid_topics(settings: TaskSettings) -> list[str]:
    """Return the topics whose names brokers would refuse."""
    return [
        topic
        for topic in settings.topics()
        if len(topic) > MAX_TOPIC_LENGTH or not NAME.fullmatch(topic)
    ]
