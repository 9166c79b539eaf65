"""Jobs of the data pipeline, as users ask for them: archive, purge, replay, reports by a
scan.

They take minutes or hours, so whoever asks gets the number of a run at once; a process of
its own takes the run up, on whatever machine runs jobs, and what it does is followed in the
run's row (see job_runs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from metadata.actors import Actor
from metadata.db import access, audit, rows
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict, NotFound
from metadata.jobs import runs
from metadata.jobs.runs import Run, RunFacts
from metadata.models import JobRun, Report

ARCHIVE, PURGE, REPLAY, REPORT = "spark_archive", "purge", "spark_replay", "spark_report_"
SPARK = "spark_"  # what the names of its other jobs begin with
WAITING = "waiting for a worker"
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Place where jobs of this installation work; `blocked_by` says what Spark lacks here,
    '' if nothing.
    """

    archive: str
    master: str
    memory: str
    blocked_by: str = ""


@dataclass(slots=True)
class _Known:
    """Start function and place of runs, as the composition root says."""

    start: Callable[[int], None] | None = None
    place: Callable[[], Place] = field(default=lambda: Place("", "", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView(RunFacts):
    """A run with all that is known of it; times in ms since 1970, None: not yet.

    `waiting`: no process has taken it up. `report` is the report that came of it.
    """

    finished_at_ms: int | None
    now_ms: int
    settings: Settings
    log: str
    directory: str
    waiting: bool
    report: int | None


_known = _Known()


def set_runner(start: Callable[[int], None], job_place: Callable[[], Place]) -> None:
    """Say who takes runs up and where they work; called once, by the composition root."""
    _known.start, _known.place = start, job_place


def is_pipeline_job(name: str) -> bool:
    """Return True for a job of the data pipeline, False for one of the schedule."""
    return name == PURGE or name.startswith(SPARK)


def job_place(*, actor: Actor) -> Place:
    """Return the place where jobs work. Needs `admin` on everything."""
    access.require(actor, "admin", "*", what="job")
    return _known.place()


def request_run(*, name: str, settings: Settings, actor: Actor) -> int:
    """Have a job carried out; the number of its run. Needs `admin` on everything: files are
    read and written.

    Raises Forbidden, Conflict if this process has nobody to ask.
    """
    access.require(actor, "admin", "*", what="job")
    if _known.start is None:
        raise Conflict("No process here runs jobs of the data pipeline.")
    return _ask(name, dict(settings), actor, _known.start)


@transactional
def _ask(
    name: str, settings: dict[str, Any], actor: Actor, start: Callable[[int], None]
) -> int:
    made = JobRun.objects.create(
        name=name,
        started_at=database_now(),
        stage=WAITING,
        asked_by=actor.name,
        settings=settings,
    )
    number = int(made.pk)
    after = {"run": number, **settings}
    audit.record(actor=actor, verb="run", kind="job", name=name, after=after)
    transaction.on_commit(lambda: start(number))
    return number


def claim_run(*, id: int) -> tuple[Run, Settings] | None:
    """The run for the one process that takes it up; None if another one did, or it was
    cancelled.
    """
    with reachable():
        rows = JobRun.objects.filter(
            pk=id, state=JobRun.State.RUNNING, seen_at__isnull=True
        )
        if not rows.update(seen_at=database_now(), stage="starting"):
            return None
        row = JobRun.objects.get(pk=id)
    return Run(row.pk, row.name), row.settings


def find_run(*, id: int, actor: Actor) -> RunView:
    """A run. Needs `admin` on everything, because logs name files. Raises NotFound."""
    access.require(actor, "admin", "*", what="job")
    with reachable():
        row = JobRun.objects.filter(pk=id).first()
        if row is None:
            raise NotFound(f"There is no run {id} of a job.")
        report = Report.objects.filter(job_run=row).values_list("pk", flat=True).first()
        now_ms = ms(database_now())
    return rows.make_view(
        RunView,
        row,
        now_ms=now_ms,
        cancelling=row.cancel_asked,
        waiting=runs.is_waiting(row),
        silent=runs.is_silent(row, now_ms),
        report=report,
    )
