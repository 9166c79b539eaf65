"""Tasks with attempts, backoff and time limit of their own, and the look-up of a task by its
path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings

from catmq_client.callables import check_callable
from catmq_client.contrib.django_tasks.compat import InvalidTask, Task, TaskResult
from catmq_client.contrib.django_tasks.conf import MAX_ATTEMPTS
from catmq_client.errors import OptionError

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult

# Called with the exception and the task's result so far. Returns the seconds until the next
# attempt, or None if there shall be none.
Backoff = Callable[[BaseException, AnyResult], float | None]


class TaskMissing(ImportError):
    """The path of a task names no task in this release of the application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatmqTask(AnyTask):
    """A task of this backend. A field that is None has the value of the backend's OPTIONS."""

    # Attempts at most, including the first.
    max_attempts: int | None = None
    backoff: Backoff | None = None
    # Seconds that an attempt may take.
    timeout: int | None = None

    def using(self, **changes: Any) -> CatmqTask:
        """Return a copy of the task with changed fields. None leaves a field unchanged."""
        return replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )

    def enqueue_many(self, calls: Iterable[Any]) -> list[AnyResult]:
        """Enqueue the task once for each of `calls`, all of them or none. Return their
        results in order.

        A call is a tuple of arguments, or a dict of keyword arguments. Rows are inserted in
        batches.
        """
        backend: Any = self.get_backend()
        return cast(list[AnyResult], backend.enqueue_many(self, calls))

    async def aenqueue_many(self, calls: Iterable[Any]) -> list[AnyResult]:
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)


def check_fields(task: AnyTask) -> None:
    """Raise InvalidTask if max_attempts, backoff or timeout is invalid."""
    attempts, backoff, timeout = (
        getattr(task, name, None) for name in ("max_attempts", "backoff", "timeout")
    )
    if attempts is not None and not (
        type(attempts) is int and 1 <= attempts <= MAX_ATTEMPTS
    ):
        raise InvalidTask(
            f"max_attempts must be a whole number from 1 to {MAX_ATTEMPTS}, not {attempts!r}"
        )
    if backoff is not None:
        try:
            check_callable("backoff", backoff)
        except OptionError as error:
            raise InvalidTask(
                f"backoff must be a function of (exception, task_result): {error}"
            ) from error
    if timeout is not None and not (type(timeout) is int and timeout >= 1):
        raise InvalidTask(f"timeout must be whole seconds, at least 1, not {timeout!r}")


def copy_unchecked(task: AnyTask, **changes: Any) -> AnyTask:
    """Return a copy of the task with changed fields, without validating it.

    The task was validated when it was enqueued. Settings that would refuse it now, such as
    the queues of the backend, may have changed since.
    """
    # The constructor validates, and the dataclass is frozen, so both are bypassed.
    copy: AnyTask = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(
            copy, field.name, changes.get(field.name, getattr(task, field.name))
        )
    return copy


def find_task(path: str) -> AnyTask:
    """Return the task whose function has this path. Raises TaskMissing.

    Messages name tasks by their path, so only tasks are returned: a message cannot make a
    worker call an arbitrary function. A module that is not imported yet is imported only if
    `may_import` allows it.
    """
    module_name, _, name = path.rpartition(".")
    if module_name not in sys.modules and not may_import(module_name):
        raise TaskMissing(
            f"task {path} is in no package of INSTALLED_APPS or of the settings: name "
            f"{module_name!r}, or "
            "its package, in TASK_MODULES of the backend's OPTIONS"
        )
    try:
        names = vars(import_module(module_name))
    except Exception as error:  # a module may raise anything when it is imported
        raise TaskMissing(f"task {path} cannot be imported: {error!r}") from error
    if name not in names:
        raise TaskMissing(f"task {path} cannot be imported: its module has no {name!r}")
    # The path ends with the name of the function. Usually the task has that name, too. After
    # `mail_task = task(mail)` it has another name, so all values of the module are searched.
    # Neither getattr() nor isinstance(): both may run code of a module's __getattr__ or of a
    # lazy object.
    for value in (names[name], *names.values()):
        if issubclass(type(value), Task) and value.module_path == path:
            return cast(AnyTask, value)
    raise TaskMissing(f"{path} is no task: decorate it with @task")


def may_import(module_name: str) -> bool:
    """Return True if a worker may import the module because a message names a task in it.

    Allowed are modules in the packages of installed apps, of the settings module, of tasks
    in SCHEDULES, and in TASK_MODULES.
    """
    packages = {config.name for config in apps.get_app_configs()}
    # override_settings() has no SETTINGS_MODULE.
    settings_module = getattr(settings, "SETTINGS_MODULE", None) or os.environ.get(
        ENVIRONMENT_VARIABLE, ""
    )
    packages.add(settings_module.partition(".")[0])
    for backend in getattr(settings, "TASKS", {}).values():
        options = backend.get("OPTIONS", {})
        packages.update(options.get("TASK_MODULES", ()))
        for schedule in options.get("SCHEDULES", {}).values():
            packages.add(str(schedule.get("task", "")).rpartition(".")[0])
    return any(
        f"{module_name}.".startswith(f"{package}.") for package in packages if package
    )
