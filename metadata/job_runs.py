"""Records what jobs did: one row per run, kept for a month."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from metadata.clock import before, database_now
from metadata.models import JobRun
from metadata.transactions import reachable

log = logging.getLogger(__name__)
KEPT_DAYS = 30


@dataclass(slots=True)
class Run:
    """A run in progress: the job sets `count`, how many things it did, and `detail`, a line for people."""

    id: int
    name: str
    count: int | None = None
    detail: str = ""


@contextmanager
def record(name: str) -> Iterator[Run]:
    """Writes a row: running, then done or failed. What the job raises stands in it and goes on."""
    with reachable():
        row = JobRun.objects.create(name=name, started_at=database_now())
    run = Run(row.pk, name)
    try:
        yield run
    except BaseException as error:
        _finish(run, state=JobRun.State.FAILED, detail=f"{type(error).__name__}: {error}")
        raise
    _finish(run, state=JobRun.State.DONE, detail=run.detail)


def _finish(run: Run, *, state: str, detail: str) -> None:
    with reachable():
        rows = JobRun.objects.filter(pk=run.id)
        rows.update(state=state, count=run.count, detail=detail[:10_000], finished_at=database_now())


def trim(*, days: int = KEPT_DAYS, limit: int = 5_000) -> int:
    """Deletes up to `limit` rows older than `days`; how many went."""
    with reachable():
        limit_at = before(database_now(), seconds=days * 86_400)
        ids = list(
            JobRun.objects.filter(started_at__lt=limit_at).order_by("pk").values_list("pk", flat=True)[:limit]
        )
        return JobRun.objects.filter(pk__in=ids).delete()[0]
