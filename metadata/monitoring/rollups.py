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

    A call writes a limited number of steps, those that have finer rows. Repeating it changes
    nothing while the finer rows are kept.
    """
    # Quarters before days, because days sum up quarters.
    return sum(_roll_up(step_s) for step_s in (900, 86_400))


def _roll_up(step_s: int) -> int:
    written = 0
    with reachable():
        now = database_now()
        last = Sample.objects.filter(step_s=step_s).aggregate(at=Max("at"))["at"]
    start = last
    if last is not None and last < now - timedelta(days=KEPT_DAYS[FINER[step_s]]):
        # Some finer rows of the last step may be deleted by now: its sums must stay as they are.
        start = last + timedelta(seconds=step_s)
    # The last step is written again, because it was not over when it was written. Then steps
    # follow until none has finer rows.
    while written < MAX_STEPS:
        finer = Sample.objects.filter(step_s=FINER[step_s], at__lte=now)
        if start is not None:
            finer = finer.filter(at__gte=start)
        with reachable():
            oldest = finer.aggregate(at=Min("at"))["at"]
        if oldest is None:
            break
        # Steps without finer rows are passed over, however long nothing was recorded.
        at = start_of_step(oldest, step_s=step_s)
        _write_step(at, step_s)
        start, written = at + timedelta(seconds=step_s), written + 1
    return written


@transactional
def _write_step(at: datetime, step_s: int) -> None:
    within = {"at__gte": at, "at__lt": at + timedelta(seconds=step_s)}
    rows = Sample.objects.filter(step_s=FINER[step_s], **within).order_by(
        "topic_ref", "group_ref"
    )
    sums = rows.values("topic_ref", "group_ref").annotate(
        # Django refuses annotations with the names of fields.
        sum_messages=Sum("messages"), sum_bytes=Sum("bytes"), sum_errors=Sum("errors"),
        sum_handled=Sum("handled"), max_lag=Max("lag"), max_lag_ms=Max("lag_ms"),
    )  # fmt: skip
    samples = [
        Sample(
            step_s=step_s, at=at, topic_ref=row["topic_ref"], group_ref=row["group_ref"],
            messages=row["sum_messages"], bytes=row["sum_bytes"], errors=row["sum_errors"],
            handled=row["sum_handled"], lag=row["max_lag"], lag_ms=row["max_lag_ms"],
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
