"""The task of an order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task  # type: ignore[no-redef]

from catmq_client.contrib.django_tasks.models import TaskRecord
from tests.acceptance.programs.workshop.models import Begin


@task(takes_context=True, max_attempts=50, backoff=lambda error, result: 0.2)
def make(context: Any, order: str) -> int:
    """Every eighth order fails at its first attempt."""
    Begin.objects.create(
        order_id=order,
        attempt=context.attempt,
        token=TaskRecord.objects.values_list("token", flat=True).get(
            pk=context.task_result.id
        ),
        at=time.time(),
        process=os.getpid(),
    )
    time.sleep(0.05)
    if context.attempt == 1 and int(order[-1], 16) % 8 == 0:
        raise RuntimeError("not today")
    return int(context.attempt)


@task(max_attempts=2)
def hold(place: str) -> str:
    """Say that it has begun, and wait until it may end."""
    begun, may_end = Path(place, "begun"), Path(place, "may_end")
    begun.write_text(str(os.getpid()))
    while not may_end.exists():
        time.sleep(0.01)
    return "held"


@task(max_attempts=1, timeout=1)
def spin() -> None:
    """Never end, and take what there is of the interpreter."""
    while True:
        pass
