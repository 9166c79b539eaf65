"""report.py SECONDS: waits until all tasks of now have ended, and prints as JSON what there
is then.

It asks again and again in one process: the start of one takes as long as hundreds of
questions.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import django

django.setup()

from django.db import DatabaseError, InterfaceError, connection  # noqa: E402

from catmq_client.contrib.django_tasks.models import TaskRecord  # noqa: E402
from tests.acceptance.programs.workshop.models import Begin, Order  # noqa: E402

EVERY_S = 0.1


def ended(limit_s: float) -> int:
    """The number of tasks, when all of them have ended."""
    wanted, left, end = None, "all", time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if wanted is None:
                wanted = [*TaskRecord.objects.values_list("pk", flat=True)]
            count = TaskRecord.objects.filter(
                pk__in=wanted, status__in=("READY", "RUNNING")
            ).count()
            if not count:
                return len(wanted)
            left = str(count)
        except (DatabaseError, InterfaceError):  # it is away
            connection.close()
        time.sleep(EVERY_S)
    raise SystemExit(f"{left} tasks did not end within {limit_s} s")


def told() -> dict[str, Any]:
    """Orders, tasks and their attempts."""
    tasks = TaskRecord.objects.values_list("args", "status", "errors", "worker_ids")
    begins = Begin.objects.order_by("at").values_list("order_id", "attempt", "at", "token")
    return {
        "orders": [*Order.objects.values_list("id", flat=True)],
        "tasks": [[args[0], *others] for args, *others in tasks],
        "begins": [*map(list, begins)],
    }


if __name__ == "__main__":
    json.dump({"ended": ended(float(sys.argv[1])), **told()}, sys.stdout)
