"""Enqueueing: a task's row and its message are written in one transaction."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone

from catmq_client.contrib.django_outbox import outbox
from catmq_client.contrib.django_outbox.outbox import split_into_batches
from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.compat import (
    InvalidTask,
    task_backends,
    task_enqueued,
)
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import (
    Job,
    build_message,
    database_alias,
    is_nested_deeper,
    to_json_types,
)
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import (
    AnyResult,
    AnyTask,
    TaskMissing,
    find_task,
    may_import,
)
from catmq_client.errors import CatmqError
from catmq_client.sending.ids import uuid7
from catmq_client.sending.new_messages import NewMessage, encode_body

log: logging.Logger = logging.getLogger("catmq.tasks")

MAX_PATH_LENGTH = 255
# Deepest nesting of arguments that MariaDB stores.
MARIADB_DEPTH = 31
# \u0000 in JSON text, with an even number of backslashes before it.
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class NotAllSent(CatmqError, code="not_all_sent"):
    """Brokers refused some of the tasks that were sent directly. Those do not exist; the
    others do.
    """


class NewTask(NamedTuple):
    """The unsaved row of a task and its message."""

    record: TaskRecord
    message: NewMessage

    @property
    def size(self) -> int:
        """The row's approximate size, in bytes."""
        return len(self.message.body)


def enqueue(
    task: AnyTask,
    args: Any,
    kwargs: Any,
    settings: TaskSettings,
    *,
    task_id: str | None = None,
) -> AnyResult:
    """Enqueue a task as part of the current transaction; see CatmqBackend.

    Schedules pass a `task_id`, which is unique to the time at which the schedule was due.
    Raises InvalidTask, TypeError, ValueError, and CatmqError if it is sent directly and
    brokers refuse it.
    """
    _check_path(task)
    return _enqueue_all(
        task, [_prepare(task, args, kwargs, settings=settings, task_id=task_id)], settings
    )[0]


def enqueue_many(
    task: AnyTask, calls: Iterable[Any], settings: TaskSettings
) -> list[AnyResult]:
    """Enqueue a task once for each of `calls`; see CatmqTask.enqueue_many.

    Raises InvalidTask, TypeError, ValueError, and NotAllSent if they are sent directly.
    """
    _check_path(task)
    new_tasks = []
    for number, call in enumerate(calls):
        if not isinstance(call, list | tuple | Mapping):
            raise TypeError(
                f"call {number} of task {task.module_path} is a {type(call).__name__}: "
                "give a tuple of its "
                "arguments, or a dict of its keyword arguments"
            )
        args, kwargs = ((), call) if isinstance(call, Mapping) else (call, {})
        new_tasks.append(_prepare(task, args, kwargs, settings=settings))
    return _enqueue_all(task, new_tasks, settings) if new_tasks else []


def _enqueue_all(
    task: AnyTask, new_tasks: Sequence[NewTask], settings: TaskSettings
) -> list[AnyResult]:
    if settings.send == "direct":
        _send_directly(task, new_tasks, settings)
    else:
        alias = database_alias(settings)
        topic = settings.topic(task.queue_name, task.priority)
        outbox.check_other_transactions(f"enqueue() of task {task.module_path}", alias)
        # No savepoint: the values have been checked, so an error here is the database's and
        # ends the caller's transaction, too.
        with transaction.atomic(using=alias, savepoint=False):
            if settings.results == "database":
                _save(new_tasks, alias)
            outbox.send_batch(
                topic, (new_task.message for new_task in new_tasks), using=alias
            )
    results = [new_task.record.result(task) for new_task in new_tasks]
    backend = type(task_backends[settings.alias])
    for result in results:
        for receiver, error in task_enqueued.send_robust(
            sender=backend, task_result=result
        ):
            # The task exists already: a receiver that fails is only logged.
            if isinstance(error, Exception):
                log.error(
                    "%s: receiver %r of task_enqueued failed",
                    result.id,
                    receiver,
                    exc_info=error,
                )
    return results


def _prepare(
    task: AnyTask,
    args: Any,
    kwargs: Any,
    *,
    settings: TaskSettings,
    task_id: str | None = None,
) -> NewTask:
    """Build a task's row and message, and raise an error if either could not be stored.

    So nothing is written for a task that could not be sent later.
    """
    path = task.module_path
    record = TaskRecord(
        id=task_id or uuid7().replace("-", ""),
        path=path,
        queue_name=task.queue_name,
        priority=task.priority,
        backend_name=settings.alias,
        args=to_json_types(list(args), f"the arguments of task {path}"),
        kwargs=to_json_types(dict(kwargs), f"the arguments of task {path}"),
        run_after=task.run_after,
        max_attempts=getattr(task, "max_attempts", None),
        enqueued_at=timezone.now(),
    )
    job = build_job(record, task, settings)
    message = build_message(job, due_ms=job.run_after_ms)
    if settings.results == "database":
        # An INSERT that fails would end the caller's transaction on PostgreSQL.
        connection = transaction.get_connection(database_alias(settings))
        if connection.vendor == "postgresql" and ESCAPED_NUL.search(
            encode_body(message.body)
        ):
            raise ValueError(
                f"the arguments of task {path} have a NUL character, which PostgreSQL does "
                "not keep: leave it out"
            )
        if getattr(connection, "mysql_is_mariadb", False) and any(
            is_nested_deeper(value, MARIADB_DEPTH) for value in (record.args, record.kwargs)
        ):
            raise ValueError(
                f"the arguments of task {path} are nested deeper than {MARIADB_DEPTH} levels, "
                "which MariaDB does not keep: store them, and give their id"
            )
    return NewTask(record, message)


def build_job(
    record: TaskRecord, task: AnyTask | None, settings: TaskSettings, **more: Any
) -> Job:
    """Return the job of a row. `task` is None if this release does not have the task; its
    own time limit is then unknown.
    """
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
        run_after_ms=_to_ms(record.run_after),
        enqueued_at_ms=_to_ms(record.enqueued_at) or 0,
        is_direct=settings.send == "direct",
        **more,
    )


def _to_ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    aware = timezone.make_aware(time) if timezone.is_naive(time) else time
    return int(aware.timestamp() * 1000)


def _check_path(task: AnyTask) -> None:
    """Raise InvalidTask if no worker could find the task by its path."""
    path = task.module_path
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidTask(
            f"task {path}: its path has {len(path)} characters, and {MAX_PATH_LENGTH} are "
            "allowed"
        )
    try:
        find_task(path)
    except TaskMissing as error:
        raise InvalidTask(f"a worker could not find the task: {error}") from error
    if path.startswith("__main__."):
        raise InvalidTask(
            f"task {path} is of the program that runs: move it to a module that workers import"
        )
    # find_task has found it because this process has imported its module. A worker may not
    # have imported it.
    if not may_import(path.rpartition(".")[0]):
        raise InvalidTask(
            f"task {path} is in no package of INSTALLED_APPS or of the settings, so "
            "workers do not import "
            f"it: add its module to TASK_MODULES in the OPTIONS of backend {task.backend!r}"
        )


def _save(new_tasks: Sequence[NewTask], alias: str) -> None:
    for batch in split_into_batches(new_tasks, lambda new_task: new_task.size):
        TaskRecord.objects.using(alias).bulk_create([new_task.record for new_task in batch])


def _send_directly(
    task: AnyTask, new_tasks: Sequence[NewTask], settings: TaskSettings
) -> None:
    """Save the rows, then send the messages, then delete the rows of refused messages.

    A worker that receives a message before the caller's commit postpones it until the row
    exists.
    """
    alias, topic = database_alias(settings), settings.topic(task.queue_name, task.priority)
    has_rows = settings.results == "database"
    if has_rows:
        with transaction.atomic(using=alias, savepoint=False):
            _save(new_tasks, alias)
    # If send_batch raises, all rows are deleted.
    refused = {new_task.record.pk: None for new_task in new_tasks}
    try:
        outcomes = connections.producer().send_batch(
            topic, [new_task.message for new_task in new_tasks]
        )
        errors = {
            new_task.record.pk: error
            for new_task, error in zip(new_tasks, outcomes, strict=True)
            if isinstance(error, CatmqError)
        }
        refused = dict.fromkeys(errors)
    finally:
        if has_rows and refused:
            TaskRecord.objects.using(alias).filter(pk__in=refused).delete()
    first_error = next(iter(errors.values()), None)
    if first_error is not None and len(new_tasks) == 1:
        raise first_error
    if first_error is not None:
        raise NotAllSent(
            f"{len(errors)} of {len(new_tasks)} tasks could not be sent: {first_error}"
        ) from first_error
