"""A new task: its row and its message, in one transaction."""

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
    alias_of,
    is_deeper,
    message_of,
    plain_of,
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

log = logging.getLogger("catmq.tasks")

MOST_PATH = 255
MARIADB_DEPTH = 31
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class NotAllSent(CatmqError, code="not_all_sent"):
    """Of tasks that are sent directly some were refused, and do not exist; the others do."""


class New(NamedTuple):
    """A task that is to exist: its row and its message."""

    record: TaskRecord
    message: NewMessage

    @property
    def size(self) -> int:
        """The bytes of its row, about."""
        return len(self.message.body)


def enqueue(
    task: AnyTask,
    args: Any,
    kwargs: Any,
    settings: TaskSettings,
    *,
    task_id: str | None = None,
) -> AnyResult:
    """Enqueue a task as part of the transaction under way; see CatmqBackend.

    `task_id`: that of a tick of a schedule, which may exist once. Raises InvalidTask,
    TypeError, ValueError, and CatmqError if it is sent directly and no broker takes it.
    """
    _check_path(task)
    return _all(
        task, [_new(task, args, kwargs, settings=settings, task_id=task_id)], settings
    )[0]


def enqueue_many(
    task: AnyTask, calls: Iterable[Any], settings: TaskSettings
) -> list[AnyResult]:
    """Enqueue a task once for each of `calls`; see CatmqTask.enqueue_many.

    Raises InvalidTask, TypeError, ValueError, and NotAllSent if they are sent directly.
    """
    _check_path(task)
    made = []
    for number, call in enumerate(calls):
        if not isinstance(call, list | tuple | Mapping):
            raise TypeError(
                f"call {number} of task {task.module_path} is a {type(call).__name__}: "
                "give a tuple of its "
                "arguments, or a dict of its keyword arguments"
            )
        args, kwargs = ((), call) if isinstance(call, Mapping) else (call, {})
        made.append(_new(task, args, kwargs, settings=settings))
    return _all(task, made, settings) if made else []


def _all(task: AnyTask, made: Sequence[New], settings: TaskSettings) -> list[AnyResult]:
    (_send_directly if settings.send == "direct" else _save_and_send)(task, made, settings)
    results = [one.record.result(task) for one in made]
    backend = type(task_backends[settings.alias])
    for result in results:
        for receiver, error in task_enqueued.send_robust(
            sender=backend, task_result=result
        ):
            if isinstance(error, Exception):
                log.error(
                    "%s: receiver %r of task_enqueued failed",
                    result.id,
                    receiver,
                    exc_info=error,
                )
    return results


def _new(
    task: AnyTask,
    args: Any,
    kwargs: Any,
    *,
    settings: TaskSettings,
    task_id: str | None = None,
) -> New:
    """Return a task, refused before anything is written if its message could not be sent
    later.
    """
    record = _record(
        task, args, kwargs, settings=settings, task_id=task_id or uuid7().replace("-", "")
    )
    job = job_of(record, task, settings)
    message = message_of(job, due_ms=job.run_after_ms)
    if settings.results == "database":
        _check_row(record, encode_body(message.body), settings)
    return New(record, message)


def _check_row(record: TaskRecord, body: bytes, settings: TaskSettings) -> None:
    """Raise ValueError for arguments that the database does not keep, before a statement
    fails of them.
    """
    connection = transaction.get_connection(alias_of(settings))
    subject = f"the arguments of task {record.path}"
    if connection.vendor == "postgresql" and ESCAPED_NUL.search(body):
        raise ValueError(
            f"{subject} have a NUL character, which PostgreSQL does not keep: leave it out"
        )
    if getattr(connection, "mysql_is_mariadb", False) and any(
        is_deeper(value, MARIADB_DEPTH) for value in (record.args, record.kwargs)
    ):
        raise ValueError(
            f"{subject} are nested deeper than {MARIADB_DEPTH} levels, which MariaDB does "
            "not keep: "
            "store them, and give their id"
        )


def job_of(
    record: TaskRecord, task: AnyTask | None, settings: TaskSettings, **more: Any
) -> Job:
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


def _check_path(task: AnyTask) -> None:
    """Raise InvalidTask if no worker could find a task."""
    path = task.module_path
    if len(path) > MOST_PATH:
        raise InvalidTask(
            f"task {path}: its path has {len(path)} characters, and {MOST_PATH} are allowed"
        )
    try:
        find_task(path)
    except TaskMissing as error:
        raise InvalidTask(f"a worker could not find the task: {error}") from error
    if path.startswith("__main__."):
        raise InvalidTask(
            f"task {path} is of the program that runs: move it to a module that workers import"
        )
    # It is imported here, and perhaps not in a worker.
    if not may_import(path.rpartition(".")[0]):
        raise InvalidTask(
            f"task {path} is in no package of INSTALLED_APPS or of the settings, so "
            "workers do not import "
            f"it: add its module to TASK_MODULES in the OPTIONS of backend {task.backend!r}"
        )


def _record(
    task: AnyTask, args: Any, kwargs: Any, *, settings: TaskSettings, task_id: str
) -> TaskRecord:
    path = task.module_path
    return TaskRecord(
        id=task_id,
        path=path,
        queue_name=task.queue_name,
        priority=task.priority,
        backend_name=settings.alias,
        # That JSON can write them is seen when the message is made.
        args=plain_of(list(args), f"the arguments of task {path}"),
        kwargs=plain_of(dict(kwargs), f"the arguments of task {path}"),
        run_after=task.run_after,
        max_attempts=getattr(task, "max_attempts", None),
        enqueued_at=timezone.now(),
    )


def _save(made: Sequence[New], alias: str) -> None:
    for some in split_into_batches(made, lambda one: one.size):
        TaskRecord.objects.using(alias).bulk_create([one.record for one in some])


def _save_and_send(task: AnyTask, made: Sequence[New], settings: TaskSettings) -> None:
    alias, topic = alias_of(settings), settings.topic(task.queue_name, task.priority)
    outbox.check_other_transactions(f"enqueue() of task {task.module_path}", alias)
    # All that may be wrong was looked at, so what fails here fails the caller's
    # transaction, too.
    with transaction.atomic(using=alias, savepoint=False):
        if settings.results == "database":
            _save(made, alias)
        outbox.send_batch(topic, (one.message for one in made), using=alias)


def _send_directly(task: AnyTask, made: Sequence[New], settings: TaskSettings) -> None:
    alias, topic = alias_of(settings), settings.topic(task.queue_name, task.priority)
    is_kept = settings.results == "database"
    if is_kept:
        with transaction.atomic(using=alias, savepoint=False):
            _save(made, alias)
    refused = {one.record.pk: None for one in made}
    try:
        sent = connections.producer().send_batch(topic, [one.message for one in made])
        errors = {
            one.record.pk: error
            for one, error in zip(made, sent, strict=True)
            if isinstance(error, CatmqError)
        }
        refused = dict.fromkeys(errors)
    finally:
        if is_kept and refused:
            TaskRecord.objects.using(alias).filter(pk__in=refused).delete()
    first = next(iter(errors.values()), None)
    if first is not None and len(made) == 1:
        raise first
    if first is not None:
        raise NotAllSent(
            f"{len(errors)} of {len(made)} tasks could not be sent: {first}"
        ) from first
