"""Tasks as an application has them. They record their results in `done`."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

from catmq_client.contrib.django_tasks import compat

# Any: tests also pass what a task does not take.
task: Any = importlib.import_module(
    "django_tasks" if "django_tasks" in compat.Task.__module__ else "django.tasks"
).task

done: list[Any] = []
entered, may_leave = threading.Event(), threading.Event()


def forget() -> None:
    done.clear()
    entered.clear()
    may_leave.clear()


@task
def add(one: int, two: int = 1) -> int:
    done.append(one + two)
    return one + two


@task(queue_name="mails")
async def mail(to: str) -> str:
    done.append(to)
    return to


@task(takes_context=True)
def attempt(context: Any) -> int:
    return int(context.attempt)


@task(max_attempts=3, backoff=lambda error, result: 0.0)
def fail(text: str = "broken") -> None:
    done.append(text)
    raise LookupError(text)


@task(max_attempts=2, backoff=lambda error, result: None if "final" in str(error) else 0.0)
def give_up(text: str) -> None:
    done.append(text)
    raise LookupError(text)


@task(max_attempts=2, backoff=lambda error, result: 30.0)
def fail_slowly() -> None:
    raise LookupError("slowly")


@task(max_attempts=1)
def leave() -> None:
    sys.exit("a task may try")


@task
def odd() -> Any:
    return object()


@task
def half() -> str:
    return "\ud800"


@task(max_attempts=1)
def deep() -> list[Any]:
    """Return a list nested deeper than MySQL (100) and MariaDB (32) accept."""
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    return nested


@task
def large() -> str:
    return "x" * 2_000_000


@task(max_attempts=1, timeout=1)
def stuck() -> int:
    entered.set()
    may_leave.wait(30)
    done.append("late")
    return 1


@task
def wait() -> int:
    entered.set()
    may_leave.wait(30)
    done.append("waited")
    return 1


def plain() -> None:
    """A function that is not a task."""


async def _named_otherwise() -> None:
    done.append("other")


another = task(_named_otherwise)
