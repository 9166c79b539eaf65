"""The backend that TASKS names. It imports no model: tasks are decorated before Django
knows its apps.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from django.core.checks import CheckMessage

from catmq_client.contrib.django_tasks import conf
from catmq_client.contrib.django_tasks.compat import BaseTaskBackend, TaskResultDoesNotExist
from catmq_client.contrib.django_tasks.task import (
    AnyResult,
    AnyTask,
    CatmqTask,
    check_fields,
)


class CatmqBackend(BaseTaskBackend):
    """Tasks as messages of CatMQ; OPTIONS: conf.TaskSettings.

    `enqueue` joins the transaction of its caller, or makes one: the task exists if and only
    if that commits. Nothing has to wait for on_commit. With SEND "direct" the task is sent
    at once, whatever becomes of the transaction.
    """

    task_class = CatmqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.supports_get_result = self.options.get("RESULTS", "database") != "none"

    @cached_property
    def settings(self) -> conf.TaskSettings:
        """The options. Raises ImproperlyConfigured naming what is wrong."""
        return conf.read(self.alias, [*self.queues], self.options)

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask for a task that cannot be run."""
        super().validate_task(task)
        check_fields(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task. Raises InvalidTask, and TypeError or ValueError if its arguments
        are no JSON.
        """
        from catmq_client.contrib.django_tasks import enqueueing

        self.validate_task(task)
        return enqueueing.enqueue(task, args, kwargs, self.settings)

    def enqueue_many(self, task: Any, calls: Iterable[Any]) -> list[AnyResult]:
        """Enqueue a task once for each of `calls`, a tuple of arguments or a dict of
        keyword arguments.

        For tasks that @task of Django 6.0 made; others have `enqueue_many` themselves.
        """
        from catmq_client.contrib.django_tasks import enqueueing

        self.validate_task(task)
        return enqueueing.enqueue_many(task, calls, self.settings)

    def get_result(self, result_id: str) -> AnyResult:
        """Return a result. Raises TaskResultDoesNotExist, and TaskMissing if its task is
        gone.
        """
        from catmq_client.contrib.django_tasks.jobs import alias_of
        from catmq_client.contrib.django_tasks.models import TaskRecord

        if not self.supports_get_result:
            result: AnyResult = super().get_result(result_id)
            return result
        # replicas may not have it yet
        records = TaskRecord.objects.using(alias_of(self.settings))
        try:
            record = records.get(pk=result_id, backend_name=self.alias)
        except (TaskRecord.DoesNotExist, ValueError, TypeError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        return record.result(record.task)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return what is wrong with the settings."""
        from catmq_client.contrib.django_tasks import checks

        return [*checks.of_backend(self.alias, [*self.queues], self.options)]
