"""Schedules: tasks that are enqueued at their times, each time once, by whichever worker
comes first.

A row says when a schedule is due next. Who moves that time enqueues the task in the same
transaction. A time that passed while no worker ran is made up for once; of several only one
is. A new schedule waits for its next time, and so does one whose rule has changed.
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
from catmq_client.contrib.django_tasks.jobs import alias_of
from catmq_client.contrib.django_tasks.models import TaskRecord, TaskSchedule
from catmq_client.contrib.django_tasks.task import TaskMissing, find_task
from catmq_client.contrib.django_tasks.working.cron import Cron, WrongCron
from catmq_client.errors import CatmqError

log = logging.getLogger("catmq.tasks")

KEYS = {"task", "cron", "every", "args", "kwargs", "queue", "priority"}
MOST_NAME = 150
# Of a schedule's ticks, as ids of tasks.
NAMESPACE = uuid.UUID("7c1f2f0e-7d53-4b8e-9a52-0d2b6c1b41aa")
# Schedules are looked at again after so long, s: another worker may have moved them.
LOOK_EVERY_S = 30.0


class WrongSchedule(CatmqError, code="wrong_schedule"):
    """A schedule of the settings is wrong; the text says how."""


def wrong(schedules: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with schedules, one sentence for each that is."""
    for name, one in schedules.items():
        try:
            _check(name, one)
        except (WrongSchedule, WrongCron, TaskMissing) as error:
            yield f"schedule {name!r}: {error}"


def _check(name: str, one: Any) -> None:
    if not isinstance(name, str) or len(name) > MOST_NAME:
        raise WrongSchedule(f"its name must be text of at most {MOST_NAME} characters")
    if not isinstance(one, Mapping) or not isinstance(one.get("task"), str):
        raise WrongSchedule("it must be a dict with 'task', the path of one")
    unknown = sorted(map(str, one.keys() - KEYS))
    if unknown:
        raise WrongSchedule(
            f"{unknown[0]!r} is unknown; there are {', '.join(sorted(KEYS))}"
        )
    if ("cron" in one) == ("every" in one):
        raise WrongSchedule("it needs 'cron' or 'every', one of them")
    every = one.get("every", 1)
    if type(every) is not int or every < 1:
        raise WrongSchedule(f"'every' must be whole seconds, at least 1, not {every!r}")
    if "cron" in one:
        Cron.parse(str(one["cron"]))
    find_task(one["task"])


def next_time(one: Mapping[str, Any], now: datetime) -> datetime:
    """Return when a schedule is due after `now`, both aware; cron goes by the project's
    time zone.
    """
    if "every" in one:
        every = int(one["every"])
        return datetime.fromtimestamp((int(now.timestamp()) // every + 1) * every, UTC)
    return Cron.parse(one["cron"]).next_after(now, timezone.get_default_timezone())


class Schedules:
    """The schedules of a backend, as one worker looks after them."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._told: set[str] = set()

    def run_due(self) -> float:
        """Enqueue what is due; return the seconds until something may be."""
        waits = [LOOK_EVERY_S]
        for name, one in self._settings.schedules.items():
            try:
                _check(name, one)
                waits.append(self._run_one(name, one))
                self._told.discard(name)
            except (
                WrongSchedule,
                WrongCron,
                TaskMissing,
                InvalidTask,
                CatmqError,
                TypeError,
                ValueError,
            ) as error:
                if name not in self._told:
                    log.error("schedule %r does not run: %s", name, error)
                self._told.add(name)
        return max(0.0, min(waits))

    def _run_one(self, name: str, one: Mapping[str, Any]) -> float:
        now = datetime.now(UTC)
        rule = f"every {one['every']}" if "every" in one else str(one["cron"])
        key, alias = f"{self._settings.alias}:{name}", alias_of(self._settings)
        rows = TaskSchedule.objects.using(alias)
        later = next_time(one, now)
        row, is_new = rows.get_or_create(
            pk=key, defaults={"rule": rule, "due_at": _stored(later)}
        )
        if not is_new and row.rule != rule:
            rows.filter(pk=key, rule=row.rule).update(rule=rule, due_at=_stored(later))
            row.refresh_from_db()
        due = _aware(row.due_at)
        if due <= now:
            with transaction.atomic(using=alias):
                if rows.filter(pk=key, rule=rule, due_at=row.due_at).update(
                    due_at=_stored(later)
                ):
                    self._enqueue(key, one, due)
            due = later
        return (due - datetime.now(UTC)).total_seconds()

    def _enqueue(self, key: str, one: Mapping[str, Any], due: datetime) -> None:
        task_id = uuid.uuid5(NAMESPACE, f"{key} {due.isoformat()}").hex
        if TaskRecord.objects.using(alias_of(self._settings)).filter(pk=task_id).exists():
            return
        task = find_task(one["task"]).using(
            backend=self._settings.alias,
            queue_name=one.get("queue"),
            priority=one.get("priority"),
        )
        enqueueing.enqueue(
            task,
            one.get("args", ()),
            one.get("kwargs", {}),
            self._settings,
            task_id=task_id,
        )
        late_s = (datetime.now(UTC) - due).total_seconds()
        log.info(
            "schedule %s: task %s enqueued, %.1f s after its time", key, task_id, late_s
        )


def _stored(time: datetime) -> datetime:
    """Return a time as its column takes it.

    Without USE_TZ that is the wall clock, which shows some times twice. A microsecond,
    which schedules do not have, marks the second one.
    """
    from django.conf import settings

    if settings.USE_TZ:
        return time
    wall = timezone.make_naive(time, timezone.get_default_timezone())
    return wall.replace(microsecond=wall.fold, fold=0)


def _aware(time: datetime) -> datetime:
    """Return the time in UTC that `_stored` returned."""
    if timezone.is_naive(time):
        wall = time.replace(microsecond=0, fold=1 if time.microsecond else 0)
        time = timezone.make_aware(wall, timezone.get_default_timezone())
    return time.astimezone(UTC)
