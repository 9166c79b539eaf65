"""A task with its own attempts, pauses and time limit, and the way from a path to a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from catmq_client.callables import check_callable
from catmq_client.contrib.django_tasks.compat import InvalidTask, Task, TaskResult
from catmq_client.contrib.django_tasks.conf import MOST_ATTEMPTS
from catmq_client.errors import OptionError

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult

# Called with the exception and the result so far; returns the seconds until the next attempt, None for none.
Backoff = Callable[[BaseException, AnyResult], float | None]


class TaskMissing(ImportError):
    """The path of a task leads to nothing, or to something else, in this release of the application."""


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
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def enqueue_many(self, calls: Iterable[Any]) -> list[AnyResult]:
        """Enqueue the task once for each of `calls`, all of them or none; return their results, in order.

        A call is a tuple of arguments, or a dict of keyword arguments. Rows are inserted in batches.
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
    if attempts is not None and not (type(attempts) is int and 1 <= attempts <= MOST_ATTEMPTS):
        raise InvalidTask(f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS}, not {attempts!r}")
    if backoff is not None:
        try:
            check_callable("backoff", backoff)
        except OptionError as error:
            raise InvalidTask(f"backoff must be a function of (exception, task_result): {error}") from error
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

    The name may be that of the function, if the module has the task under another one. Nothing else is
    returned, so a message cannot make a worker call any function.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = import_module(module_name)
        found = getattr(module, name)
    except Exception as error:  # a module may raise anything when it is imported
        raise TaskMissing(f"task {path} cannot be imported: {error!r}") from error
    for one in (found, *vars(module).values()):
        if isinstance(one, Task) and one.module_path == path:
            return one
    raise TaskMissing(f"{path} is no task: decorate it with @task")
