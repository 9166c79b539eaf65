"""The backend class for the Django setting TASKS.

@task looks the backend up when a module is imported, which may be before Django has loaded
its models. So this module imports models only inside functions.
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
    """Sends tasks as messages of CatMQ. conf.TaskSettings documents its OPTIONS.

    `enqueue` joins the transaction of its caller, or opens one: the task exists if and only
    if that transaction commits. So callers need no on_commit. With SEND "direct" the task is
    sent at once, even if the transaction is rolled back later.
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
        """The OPTIONS. Raises ImproperlyConfigured, which names the invalid option."""
        return conf.read(self.alias, [*self.queues], self.options)

    def validate_task(self, task: AnyTask) -> None:
        super().validate_task(task)
        check_fields(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task. Raises InvalidTask, and TypeError or ValueError if its arguments
        cannot be written as JSON.
        """
        from catmq_client.contrib.django_tasks import enqueueing

        self.validate_task(task)
        return enqueueing.enqueue(task, args, kwargs, self.settings)

    def enqueue_many(self, task: Any, calls: Iterable[Any]) -> list[AnyResult]:
        """Enqueue a task once for each of `calls`, which are tuples of arguments or dicts of
        keyword arguments.

        For tasks made by @task of Django 6.0, which do not have CatmqTask.enqueue_many.
        """
        from catmq_client.contrib.django_tasks import enqueueing

        self.validate_task(task)
        return enqueueing.enqueue_many(task, calls, self.settings)

    def get_result(self, result_id: str) -> AnyResult:
        """Return a task's result. Raises TaskResultDoesNotExist, and TaskMissing if the
        application has the task no more.
        """
        from catmq_client.contrib.django_tasks.jobs import database_alias
        from catmq_client.contrib.django_tasks.models import TaskRecord

        if not self.supports_get_result:
            return super().get_result(result_id)
        # The database that is written to: a replica may not have the row yet.
        records = TaskRecord.objects.using(database_alias(self.settings))
        try:
            record = records.get(pk=result_id, backend_name=self.alias)
        except (TaskRecord.DoesNotExist, ValueError, TypeError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        return record.result(record.task)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        from catmq_client.contrib.django_tasks import checks

        return [*checks.check_backend(self.alias, [*self.queues], self.options)]
