"""Schedules: tasks that are enqueued at given times. Of all workers one enqueues the task of
each time.

A row has the time when a schedule is due next. The worker that moves this time enqueues the
task in the same transaction. If several times passed while no worker ran, the task is
enqueued once. A schedule that is new, or whose rule has changed, waits for its next time.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from catmq_client.contrib.django_tasks import enqueueing
from catmq_client.contrib.django_tasks.compat import InvalidTask
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import database_alias
from catmq_client.contrib.django_tasks.models import TaskRecord, TaskSchedule
from catmq_client.contrib.django_tasks.task import TaskMissing, find_task
from catmq_client.contrib.django_tasks.working.cron import Cron, WrongCron
from catmq_client.errors import CatmqError

log: logging.Logger = logging.getLogger("catmq.tasks")

KEYS = {"task", "cron", "every", "args", "kwargs", "queue", "priority"}
MAX_NAME_LENGTH = 150
# Of the task ids, which are made from the schedule's name and the time when it was due.
NAMESPACE = uuid.UUID("7c1f2f0e-7d53-4b8e-9a52-0d2b6c1b41aa")
# The rows are read at least this often, because another worker may have moved the times.
CHECK_EVERY_S = 30.0


class WrongSchedule(CatmqError, code="wrong_schedule"):
    """A schedule in the settings is invalid. The text has the cause."""


def find_problems(schedules: Mapping[str, Any]) -> Iterator[str]:
    for name, schedule in schedules.items():
        try:
            _check(name, schedule)
        except (WrongSchedule, WrongCron, TaskMissing) as error:
            yield f"schedule {name!r}: {error}"


def _check(name: str, schedule: Any) -> None:
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
        raise WrongSchedule(
            f"its name must be text of at most {MAX_NAME_LENGTH} characters"
        )
    if not isinstance(schedule, Mapping) or not isinstance(schedule.get("task"), str):
        raise WrongSchedule("it must be a dict with 'task', the path of one")
    unknown = sorted(map(str, schedule.keys() - KEYS))
    if unknown:
        raise WrongSchedule(
            f"{unknown[0]!r} is unknown; there are {', '.join(sorted(KEYS))}"
        )
    if ("cron" in schedule) == ("every" in schedule):
        raise WrongSchedule("it needs 'cron' or 'every', one of them")
    every = schedule.get("every", 1)
    if type(every) is not int or every < 1:
        raise WrongSchedule(f"'every' must be whole seconds, at least 1, not {every!r}")
    if "cron" in schedule:
        Cron.parse(str(schedule["cron"]))
    find_task(schedule["task"])


def next_time(schedule: Mapping[str, Any], now: datetime) -> datetime:
    """Return when a schedule is due next after `now`. Both times are aware. Cron expressions
    are in the project's time zone.
    """
    if "every" in schedule:
        every = int(schedule["every"])
        # Multiples of the interval since 1970, so all workers compute the same times.
        return datetime.fromtimestamp((int(now.timestamp()) // every + 1) * every, UTC)
    return Cron.parse(schedule["cron"]).next_after(now, timezone.get_default_timezone())


class Schedules:
    """Enqueues the scheduled tasks of a backend. Each worker has an instance."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        # Names of schedules whose error is logged: it is logged once, not at every check.
        self._logged: set[str] = set()

    def run_due(self) -> float:
        """Enqueue the tasks that are due. Return the seconds until the next check."""
        waits = [CHECK_EVERY_S]
        for name, schedule in self._settings.schedules.items():
            try:
                # Checked again each time: the task's module may not be importable now.
                _check(name, schedule)
                waits.append(self._run_if_due(name, schedule))
                self._logged.discard(name)
            except (
                WrongSchedule,
                WrongCron,
                TaskMissing,
                InvalidTask,
                CatmqError,
                TypeError,
                ValueError,
            ) as error:
                if name not in self._logged:
                    log.error("schedule %r does not run: %s", name, error)
                self._logged.add(name)
        return max(0.0, min(waits))

    def _run_if_due(self, name: str, schedule: Mapping[str, Any]) -> float:
        """Enqueue the task if it is due. Return the seconds until it is due next."""
        now = datetime.now(UTC)
        rule = (
            f"every {schedule['every']}" if "every" in schedule else str(schedule["cron"])
        )
        key, alias = f"{self._settings.alias}:{name}", database_alias(self._settings)
        rows = TaskSchedule.objects.using(alias)
        next_due_at = next_time(schedule, now)
        row, is_new = rows.get_or_create(
            pk=key, defaults={"rule": rule, "due_at": _to_column(next_due_at)}
        )
        if not is_new and row.rule != rule:
            rows.filter(pk=key, rule=row.rule).update(
                rule=rule, due_at=_to_column(next_due_at)
            )
            row.refresh_from_db()
        due_at = _from_column(row.due_at)
        if due_at <= now:
            # The id is made from the schedule and its time: a time is enqueued at most once.
            task_id = uuid.uuid5(NAMESPACE, f"{key} {due_at.isoformat()}").hex
            records = TaskRecord.objects.using(alias).filter(pk=task_id)
            with transaction.atomic(using=alias):
                # Only one worker's UPDATE finds the old time.
                is_first = rows.filter(pk=key, rule=rule, due_at=row.due_at).update(
                    due_at=_to_column(next_due_at)
                )
                if is_first and not records.exists():
                    task = find_task(schedule["task"]).using(
                        backend=self._settings.alias,
                        queue_name=schedule.get("queue"),
                        priority=schedule.get("priority"),
                    )
                    enqueueing.enqueue(
                        task,
                        schedule.get("args", ()),
                        schedule.get("kwargs", {}),
                        self._settings,
                        task_id=task_id,
                    )
                    log.info(
                        "schedule %s: task %s enqueued, %.1f s after its time",
                        key,
                        task_id,
                        (datetime.now(UTC) - due_at).total_seconds(),
                    )
            due_at = next_due_at
        return (due_at - datetime.now(UTC)).total_seconds()


def _to_column(time: datetime) -> datetime:
    """Convert an aware time for the column `due_at`."""
    from django.conf import settings

    if settings.USE_TZ:
        return time
    # Without USE_TZ the column has wall time, in which some times occur twice. A microsecond,
    # which times of schedules do not have, marks the second occurrence.
    wall = timezone.make_naive(time, timezone.get_default_timezone())
    return wall.replace(microsecond=wall.fold, fold=0)


def _from_column(time: datetime) -> datetime:
    """Convert a value of the column `due_at` to the time in UTC. Inverse of `_to_column`."""
    if timezone.is_naive(time):
        wall = time.replace(microsecond=0, fold=1 if time.microsecond else 0)
        time = timezone.make_aware(wall, timezone.get_default_timezone())
    return time.astimezone(UTC)
