"""Roll-ups of samples: minutes are summed up into quarters of an hour and days. Old rows
are deleted.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Max, Min, Sum

from metadata.db.clock import database_now
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.models import Sample
from metadata.monitoring.metrics_history import start_of_step

KEPT_DAYS = {60: 2, 900: 30, 86_400: 730}  # step in s → retention of its rows
FINER = {900: 60, 86_400: 900}  # step in s → the step that it sums up
MAX_STEPS = 200  # per step size in a pass


def roll_up() -> int:
    """Sum up finer steps into coarser steps. Return how many were written.

    A call does a limited number of steps. Repeating it changes nothing.
    """
    written_steps = 0
    # The finer step first, because the coarser step sums it up.
    for step_s in (900, 86_400):
        finer = Sample.objects.filter(step_s=FINER[step_s])
        with reachable():
            start = Sample.objects.filter(step_s=step_s).aggregate(at=Max("at"))["at"]
            start = start or finer.aggregate(at=Min("at"))["at"]
            now = database_now()
        if start is None:
            continue
        # The last step is written again, because it was not over when it was written.
        at, steps = start_of_step(start, step_s=step_s), 0
        while at <= now and steps < MAX_STEPS:
            _write_step(at, step_s)
            at, steps = at + timedelta(seconds=step_s), steps + 1
        written_steps += steps
    return written_steps


@transactional
def _write_step(at: datetime, step_s: int) -> None:
    within = {"at__gte": at, "at__lt": at + timedelta(seconds=step_s)}
    rows = Sample.objects.filter(step_s=FINER[step_s], **within).order_by(
        "topic_ref", "group_ref"
    )
    sums = rows.values("topic_ref", "group_ref").annotate(
        n=Sum("messages"), b=Sum("bytes"), e=Sum("errors"), h=Sum("handled"), most=Max("lag"),
        oldest=Max("lag_ms"),
    )  # fmt: skip
    samples = [
        Sample(
            step_s=step_s, at=at, topic_ref=row["topic_ref"], group_ref=row["group_ref"],
            messages=row["n"],
            bytes=row["b"], errors=row["e"], handled=row["h"], lag=row["most"],
            lag_ms=row["oldest"],
        )
        for row in sums
    ]  # fmt: skip
    # Deleted and inserted again, so that a repeat gives the same rows.
    Sample.objects.filter(step_s=step_s, at=at).delete()
    Sample.objects.bulk_create(samples, batch_size=500)


_RULES = [
    PruneRule(Sample.objects.filter(step_s=step_s), at="at", days=days)
    for step_s, days in KEPT_DAYS.items()
]


def prune() -> int:
    return sum(rule() for rule in _RULES)
