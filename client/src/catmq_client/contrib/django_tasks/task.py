"""A task with its own attempts, pauses and time limit, and the way from a path to a task."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings

from catmq_client.callables import check_callable
from catmq_client.contrib.django_tasks.compat import InvalidTask, Task, TaskResult
from catmq_client.contrib.django_tasks.conf import MOST_ATTEMPTS
from catmq_client.errors import OptionError

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult

# Called with the exception and the result so far; returns the seconds until the next
# attempt, None for none.
Backoff = Callable[[BaseException, AnyResult], float | None]


class TaskMissing(ImportError):
    """The path of a task leads to nothing, or to something else, in this release of the
    application.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CatmqTask(AnyTask):
    """A task of this backend. None takes what the backend says."""

    # How often it is begun at most.
    max_attempts: int | None = None
    backoff: Backoff | None = None
    # How long an attempt may take, s.
    timeout: int | None = None

    def using(self, **changes: Any) -> CatmqTask:
        """Return the task with some of its fields changed; None leaves one as it is."""
        return replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )

    def enqueue_many(self, calls: Iterable[Any]) -> list[AnyResult]:
        """Enqueue the task once for each of `calls`, all of them or none; return their
        results, in order.

        A call is a tuple of arguments, or a dict of keyword arguments. Rows are inserted in
        batches.
        """
        backend: Any = self.get_backend()
        found: list[AnyResult] = backend.enqueue_many(self, calls)
        return found

    async def aenqueue_many(self, calls: Iterable[Any]) -> list[AnyResult]:
        """Do as enqueue_many."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)


def check_fields(task: AnyTask) -> None:
    """Raise InvalidTask if a field that only tasks of this backend have is wrong."""
    attempts, backoff, timeout = (
        getattr(task, name, None) for name in ("max_attempts", "backoff", "timeout")
    )
    if attempts is not None and not (
        type(attempts) is int and 1 <= attempts <= MOST_ATTEMPTS
    ):
        raise InvalidTask(
            f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS}, not {attempts!r}"
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


def restored(task: AnyTask, **changes: Any) -> AnyTask:
    """Return a task with other values, unchecked: it was checked where it was enqueued.

    Settings may have changed since, such as the queues of the backend.
    """
    made: AnyTask = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(made, one.name, changes.get(one.name, getattr(task, one.name)))
    return made


def find_task(path: str) -> AnyTask:
    """Return the task whose function has this path. Raises TaskMissing.

    The name may be that of the function, if the module has the task under another one.
    Nothing else is returned, so a message cannot make a worker call any function. Modules
    that are not imported yet are imported only if `may_import` allows it.
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
    # Neither getattr() nor isinstance(): a module or a lazy object may do anything when it
    # is asked.
    for value in (names[name], *names.values()):
        if issubclass(type(value), Task) and value.module_path == path:
            task: AnyTask = value
            return task
    raise TaskMissing(f"{path} is no task: decorate it with @task")


def may_import(module_name: str) -> bool:
    """Return True if workers import a module because a message names a task of it.

    These are modules in the packages of installed apps, in that of the settings, of
    schedules, and what TASK_MODULES names.
    """
    packages = {config.name for config in apps.get_app_configs()}
    # Settings that tests override do not know their module.
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
