"""A new task: its row and its message, in one transaction."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from catmq_client.contrib.django_tasks.compat import InvalidTask, task_backends, task_enqueued
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import Job, alias_of, json_of, send
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import AnyResult, AnyTask, TaskMissing, find_task
from catmq_client.sending.ids import uuid7

log = logging.getLogger("catmq.tasks")

MOST_PATH = 255


def enqueue(
    task: AnyTask,
    args: Any,
    kwargs: Any,
    settings: TaskSettings,
    *,
    task_id: str | None = None,
) -> AnyResult:
    """Enqueue a task as part of the transaction under way; see CatmqBackend.

    `task_id`: that of a tick of a schedule, which may exist once. Raises InvalidTask, TypeError, ValueError,
    and CatmqError if it is sent directly and no broker takes it.
    """
    record = _record(task, args, kwargs, settings=settings, task_id=task_id or uuid7().replace("-", ""))
    job = job_of(record, task, settings)
    # Refused before anything is written: the message could not be sent later.
    job.body()
    if settings.send == "direct":
        _send_directly(record, job, settings)
    else:
        _save_and_send(record, job, settings)
    result = record.result(task)
    backend = type(task_backends[settings.alias])
    for receiver, error in task_enqueued.send_robust(sender=backend, task_result=result):
        if isinstance(error, Exception):
            log.error("%s: receiver %r of task_enqueued failed", record, receiver, exc_info=error)
    return result


def job_of(record: TaskRecord, task: AnyTask | None, settings: TaskSettings, **more: Any) -> Job:
    """Return what is sent for a row; `task` None if it is not known here."""
    return Job(
        id=record.id,
        path=record.path,
        args=record.args,
        kwargs=record.kwargs,
        backend=record.backend_name,
        queue=record.queue_name,
        priority=record.priority,
        max_attempts=record.max_attempts or settings.max_attempts,
        timeout=getattr(task, "timeout", None) or settings.timeout,
        run_after_ms=_ms(record.run_after),
        enqueued_at_ms=_ms(record.enqueued_at) or 0,
        is_direct=settings.send == "direct",
        **more,
    )


def _ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    aware = timezone.make_aware(time) if timezone.is_naive(time) else time
    return int(aware.timestamp() * 1000)


def _record(task: AnyTask, args: Any, kwargs: Any, *, settings: TaskSettings, task_id: str) -> TaskRecord:
    path = task.module_path
    if len(path) > MOST_PATH:
        raise InvalidTask(f"task {path}: its path has {len(path)} characters, and {MOST_PATH} are allowed")
    try:
        find_task(path)
    except TaskMissing as error:
        raise InvalidTask(f"a worker could not find the task: {error}") from error
    if path.startswith("__main__."):
        raise InvalidTask(f"task {path} is of the program that runs: move it to a module that workers import")
    return TaskRecord(
        id=task_id,
        path=path,
        queue_name=task.queue_name,
        priority=task.priority,
        backend_name=settings.alias,
        args=json_of(list(args), f"the arguments of task {path}"),
        kwargs=json_of(dict(kwargs), f"the arguments of task {path}"),
        run_after=task.run_after,
        max_attempts=getattr(task, "max_attempts", None),
        enqueued_at=timezone.now(),
    )


def _save_and_send(record: TaskRecord, job: Job, settings: TaskSettings) -> None:
    alias = alias_of(settings)
    # All that may be wrong was looked at, so what fails here fails the caller's transaction, too.
    with transaction.atomic(using=alias, savepoint=False):
        if settings.results == "database":
            record.save(using=alias, force_insert=True)
        send(job, settings, due_ms=job.run_after_ms)


def _send_directly(record: TaskRecord, job: Job, settings: TaskSettings) -> None:
    alias, is_kept = alias_of(settings), settings.results == "database"
    if is_kept:
        record.save(using=alias, force_insert=True)
    try:
        send(job, settings, due_ms=job.run_after_ms)
    except BaseException:
        if is_kept:
            TaskRecord.objects.using(alias).filter(pk=record.pk).delete()
        raise
