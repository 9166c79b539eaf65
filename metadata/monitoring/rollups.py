"""Rows of series, summed up from minutes into quarters of an hour and days, and pruned."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Max, Min, Sum

from metadata.db.clock import database_now
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.models import Sample
from metadata.monitoring.metrics_history import start_of_step

KEPT_DAYS = {60: 2, 900: 30, 86_400: 730}  # step → how long its rows are kept
FINER = {900: 60, 86_400: 900}  # step → the step it is made of
MOST_STEPS = 200  # rolled up in one pass


def roll_up() -> int:
    """Sum finer steps up into coarser ones; how many steps. One bounded pass; harmless when
    repeated.
    """
    return sum(_roll_up(step_s) for step_s in (900, 86_400))


def _roll_up(step_s: int) -> int:
    finer = Sample.objects.filter(step_s=FINER[step_s])
    with reachable():
        begun = Sample.objects.filter(step_s=step_s).aggregate(at=Max("at"))["at"]
        begun = begun or finer.aggregate(at=Min("at"))["at"]
        now = database_now()
    if begun is None:
        return 0
    at, done = start_of_step(begun, step_s=step_s), 0
    while at <= now and done < MOST_STEPS:
        _sum_up(at, step_s)
        at, done = at + timedelta(seconds=step_s), done + 1
    return done


@transactional
def _sum_up(at: datetime, step_s: int) -> None:
    """Make the rows of one coarse step anew, so that a repeat changes nothing."""
    within = {"at__gte": at, "at__lt": at + timedelta(seconds=step_s)}
    rows = Sample.objects.filter(step_s=FINER[step_s], **within).order_by(
        "topic_ref", "group_ref"
    )
    sums = rows.values("topic_ref", "group_ref").annotate(
        n=Sum("messages"), b=Sum("bytes"), e=Sum("errors"), h=Sum("handled"), most=Max("lag"),
        oldest=Max("lag_ms"),
    )  # fmt: skip
    made = [
        Sample(
            step_s=step_s, at=at, topic_ref=one["topic_ref"], group_ref=one["group_ref"],
            messages=one["n"],
            bytes=one["b"], errors=one["e"], handled=one["h"], lag=one["most"],
            lag_ms=one["oldest"],
        )
        for one in sums
    ]  # fmt: skip
    Sample.objects.filter(step_s=step_s, at=at).delete()
    Sample.objects.bulk_create(made, batch_size=500)


_RULES = [
    PruneRule(Sample.objects.filter(step_s=step_s), at="at", days=days)
    for step_s, days in KEPT_DAYS.items()
]


def prune() -> int:
    """Delete rows of each step that are older than it is kept; return how many."""
    return sum(rule() for rule in _RULES)
