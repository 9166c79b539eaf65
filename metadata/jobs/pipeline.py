"""Jobs of the data pipeline that users request: archive, purge, replay, reports by a scan.

They take minutes or hours, so a request returns the number of a run at once. A process of
its own claims the run, on any machine that runs jobs, and records its progress in the run's
row (see metadata/jobs/runs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit, rows
from metadata.db.clock import database_now, ms
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict, NotFound
from metadata.jobs import runs
from metadata.jobs.runs import Run, RunFacts
from metadata.models import JobRun, Report
from metadata.rules.audit_verbs import Verb
from metadata.rules.jobs import JobState
from metadata.rules.rights import Right

ARCHIVE, PURGE, REPLAY, REPORT = "spark_archive", "purge", "spark_replay", "spark_report_"
SPARK = "spark_"  # prefix of the names of all its jobs but PURGE
WAITING = "waiting for a worker"
Settings = Mapping[str, Any]


class Place(Struct, frozen=True):
    """Where jobs of this installation work: archive directory, Spark master and memory.
    `blocked_by` is the reason why Spark cannot run here, '' if it can.
    """

    archive: str
    master: str
    memory: str
    blocked_by: str = ""


@dataclass(slots=True)
class _Runner:
    """How runs are started and where they work. Set by the composition root."""

    start: Callable[[int], None] | None = None
    place: Callable[[], Place] = field(default=lambda: Place("", "", ""))


class RunView(RunFacts, frozen=True, kw_only=True):
    """A run in full. Times are in ms since 1970.

    `waiting`: no process has claimed it. `report` is the id of the report that it made.
    """

    finished_at_ms: int | None
    now_ms: int
    settings: Settings
    log: str
    directory: str
    waiting: bool
    report: int | None


_runner = _Runner()


def set_runner(start: Callable[[int], None], job_place: Callable[[], Place]) -> None:
    """Set how runs are started and where they work. Called once, by the composition root."""
    _runner.start, _runner.place = start, job_place


def is_pipeline_job(name: str) -> bool:
    """Return True for a job of the data pipeline, False for a scheduled job."""
    return name == PURGE or name.startswith(SPARK)


def job_place(*, actor: Actor) -> Place:
    """Return the place where jobs work. Needs `admin` on everything."""
    access.require(actor, Right.ADMIN, "*", what="job")
    return _runner.place()


def request_run(*, name: str, settings: Settings, actor: Actor) -> int:
    """Request a run of a job. Return its number. Needs `admin` on everything, because jobs
    read and write files.

    Raises Forbidden, Conflict if this process cannot start runs.
    """
    access.require(actor, Right.ADMIN, "*", what="job")
    if _runner.start is None:
        raise Conflict("No process here runs jobs of the data pipeline.")
    # The checks above need no database, so they come before the transaction.
    return _request_run(name, dict(settings), actor, _runner.start)


@transactional
def _request_run(
    name: str, settings: dict[str, Any], actor: Actor, start: Callable[[int], None]
) -> int:
    row = JobRun.objects.create(
        name=name,
        started_at=database_now(),
        stage=WAITING,
        asked_by=actor.name,
        settings=settings,
    )
    number = int(row.pk)
    after = {"run": number, **settings}
    audit.record(actor=actor, verb=Verb.RUN, kind="job", name=name, after=after)
    # After the commit, because the process that claims the run reads its row.
    transaction.on_commit(lambda: start(number))
    return number


def claim_run(*, id: int) -> tuple[Run, Settings] | None:
    """Claim a run for this process. Return it with its settings, None if another process
    has claimed it, or it was cancelled.
    """
    # A single UPDATE decides, so that no two processes claim the same run.
    with reachable():
        rows = JobRun.objects.filter(pk=id, state=JobState.RUNNING, seen_at__isnull=True)
        if not rows.update(seen_at=database_now(), stage="starting"):
            return None
        row = JobRun.objects.get(pk=id)
    return Run(row.pk, row.name), row.settings


def find_run(*, id: int, actor: Actor) -> RunView:
    """Return a run. Needs `admin` on everything, because logs name files. Raises NotFound."""
    access.require(actor, Right.ADMIN, "*", what="job")
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
