"""The two tasks, by whichever system runs them: one does nothing, one writes down when it
began.
"""

from __future__ import annotations

import os
import time
from typing import Any

SYSTEM = os.environ["BENCH_SYSTEM"]


def _same(function: Any) -> Any:
    return function


if SYSTEM in ("catmq", "django-tasks-db"):
    from django_tasks import task

    _wrap: Any = task
elif SYSTEM == "celery":
    from celery import Celery

    app = Celery(
        "bench",
        broker=f"{os.environ['BENCH_REDIS']}/0",
        backend=f"{os.environ['BENCH_REDIS']}/1",
    )
    app.conf.update(worker_prefetch_multiplier=4, broker_connection_retry_on_startup=True)
    _wrap = app.task
else:  # django-q2 calls plain functions
    _wrap = _same


@_wrap
def noop(number: int) -> int:
    return number


@_wrap
def stamp(path: str, sent_at: float) -> None:
    """Append the seconds since `sent_at` to a file."""
    line = f"{time.time() - sent_at}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)
