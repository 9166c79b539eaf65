"""Runs of jobs: a row for each run, kept for a month, with its progress while it lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db.models import Max
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import UtcNow, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict, NotFound
from metadata.models import JobRun
from metadata.rules.audit_verbs import Verb
from metadata.rules.jobs import JobState

log = logging.getLogger(__name__)
KEPT_DAYS = 30
# Time without a sign of life after which the process of a run counts as dead.
SILENT_MS = 120_000
LOG_CHARS = 20_000  # stored from the end of a log


class Cancelled(Exception):
    """The run ended because a user cancelled it."""


@dataclass(slots=True)
class Run:
    """A run in progress. The job sets `count`, the number of objects it handled, and
    `detail`, a line of text.
    """

    id: int
    name: str
    count: int | None = None
    detail: str = ""

    def report_progress(self, stage: str, done: int, total: int) -> None:
        self._write(stage=stage[:200], done=done, total=total)

    def record_alive(self, *, log: str) -> None:
        """Record that the process of the run is alive, and the end of its log."""
        self._write(seen_at=UtcNow(), log=log[-LOG_CHARS:].replace("\0", ""))

    def set_directory(self, directory: str) -> None:
        self._write(directory=directory)

    def end(self, state: str, detail: str) -> None:
        self._write(
            state=state, count=self.count, detail=detail[:10_000], finished_at=UtcNow()
        )

    def _write(self, **values: Any) -> None:
        # Only these columns, so that a concurrent cancel() is not overwritten.
        with reachable():
            JobRun.objects.filter(pk=self.id).update(**values)

    def cancel_asked(self) -> bool:
        with reachable():
            return JobRun.objects.filter(pk=self.id, cancel_asked=True).exists()


class RunFacts(Struct, frozen=True, kw_only=True):
    """A run of a job. `count` is the number of objects it handled. `cancelling`: a user has
    cancelled it and it has not ended yet.

    `stage`, `done` and `total` are the progress of a long run, `total` is 0 if unknown.
    `silent`: it has not ended, and its process counts as dead.
    """

    id: int
    name: str
    state: str
    started_at_ms: int
    count: int | None
    detail: str
    cancelling: bool
    stage: str
    done: int
    total: int
    asked_by: str
    silent: bool


class ScheduledJob(Struct, frozen=True):
    """A job of the schedule: its description, and its interval."""

    text: str
    every_minutes: int


class BrokerLoop(Struct, frozen=True):
    """A loop of the broker processes as the composition root announces it.

    `every_s`: pause between two passes in seconds, 0 if a pass waits for an event. `lease`:
    name of the lease whose holder makes the passes, "" if every process does. `per_node`:
    there is a loop for each node.
    """

    name: str
    purpose: str
    every_s: float
    lease: str
    per_node: bool


@dataclass(slots=True)
class _Schedule:
    """The jobs of this installation, and the function that runs a job now."""

    jobs: Mapping[str, ScheduledJob]
    ask: Callable[[str], None] | None = None
    list_loops: Callable[[], Sequence[BrokerLoop]] = tuple


_schedule = _Schedule({})


def set_scheduled_jobs(
    jobs: Mapping[str, ScheduledJob], run_now: Callable[[str], None]
) -> None:
    """Set the scheduled jobs, and the function that runs a job now. Called once, by the
    composition root.
    """
    _schedule.jobs, _schedule.ask = jobs, run_now


def set_broker_loops(list_loops: Callable[[], Sequence[BrokerLoop]]) -> None:
    """Set the function that lists the loops of brokers; called once, by the composition root."""
    _schedule.list_loops = list_loops


def broker_loops() -> Sequence[BrokerLoop]:
    return _schedule.list_loops()


def scheduled_jobs() -> Mapping[str, ScheduledJob]:
    return _schedule.jobs


def last_starts() -> dict[str, int]:
    """Return when the last run of each job began, in ms since 1970, by name. Raises
    MetadataUnavailable.
    """
    with reachable():
        # The ids rise with time, and the index has name and id.
        newest = JobRun.objects.order_by().values("name").annotate(last=Max("id"))
        rows = JobRun.objects.filter(pk__in=list(newest.values_list("last", flat=True)))
        return {name: ms(at) for name, at in rows.values_list("name", "started_at")}


def run_now(*, name: str, actor: Actor) -> None:
    """Run a scheduled job now, in addition to its schedule. Needs `admin`. Raises
    Forbidden, NotFound.
    """
    access.require_everything(actor, name, what="job")
    if name not in _schedule.jobs or _schedule.ask is None:
        raise NotFound(f"There is no job {name}.")
    # Before the run, so that no run lacks its audit entry.
    transactional(audit.record)(actor=actor, verb=Verb.RUN, kind="job", name=name)
    _schedule.ask(name)


@contextmanager
def record_run(name: str, *, directory: str = "") -> Iterator[Run]:
    """Record a run of a block: running, then done, failed or cancelled. An error is stored
    in its row and raised again.
    """
    # The row exists before the block begins, so a run whose process is killed is visible.
    with reachable():
        row = JobRun.objects.create(
            name=name, started_at=database_now(), directory=directory
        )
    with record_end(Run(row.pk, name)) as run:
        yield run


@contextmanager
def record_end(run: Run) -> Iterator[Run]:
    """Record the end of a run when the block ends: done, failed or cancelled. An error is
    stored in its row and raised again.
    """
    try:
        yield run
    except Cancelled as cancellation:
        run.end(JobState.CANCELLED, str(cancellation))
        raise
    # Also KeyboardInterrupt and SystemExit: else a stopped run would look like a live one.
    except BaseException as error:
        run.end(JobState.FAILED, f"{type(error).__name__}: {error}")
        raise
    run.end(JobState.DONE, run.detail)


def may_begin(name: str, *, retry_ms: int) -> bool:
    """Return False while a run of a job has a live process, or `retry_ms` after it failed."""
    with reachable():
        row = JobRun.objects.filter(name=name).order_by("-pk").first()
        now_ms = ms(database_now())
    if row is None:
        return True
    if row.state == JobState.RUNNING:
        return now_ms - ms(row.seen_at or row.started_at) > SILENT_MS
    ended_ms = ms(row.finished_at or row.started_at)
    return row.state != JobState.FAILED or now_ms - ended_ms > retry_ms


@transactional
def cancel(*, id: int, actor: Actor) -> None:
    """Cancel a run. Its process sees that soon and ends it. A run without a live process is
    ended at once.

    Needs `admin`. Raises NotFound, Conflict if it has ended.
    """
    access.require_everything(actor, str(id), what="run")
    # Locked, so that no process claims the run meanwhile.
    row = JobRun.objects.select_for_update().filter(pk=id).first()
    if row is None:
        raise NotFound(f"There is no run {id} of a job.")
    if row.state != JobState.RUNNING:
        raise Conflict(f"Run {id} of job {row.name} is already {row.state}.")
    # A live process sees the mark and ends its run. Without one the run ends here.
    now, detail = database_now(), ""
    if is_waiting(row):
        detail = "It was cancelled before it began."
    elif is_silent(row, ms(now)):
        detail = "Its process stopped reporting."
    end: dict[str, Any] = {}
    if detail:
        end = {"state": JobState.CANCELLED, "detail": detail, "finished_at": now}
    JobRun.objects.filter(pk=id).update(cancel_asked=True, **end)
    audit.record(
        actor=actor, verb=Verb.CANCEL, kind="job", name=row.name, after={"run": id}
    )


def is_waiting(row: JobRun) -> bool:
    """Return True if a run was requested and no process has claimed it."""
    return bool(row.state == JobState.RUNNING and row.asked_by and row.seen_at is None)


def is_silent(row: JobRun, now_ms: int) -> bool:
    """Return True if a run has not ended and its process counts as dead."""
    # Runs of scheduled jobs never report, so they are never silent.
    running = row.state == JobState.RUNNING
    return running and row.seen_at is not None and now_ms - ms(row.seen_at) > SILENT_MS


prune = PruneRule(JobRun.objects.all(), at="started_at", days=KEPT_DAYS)
