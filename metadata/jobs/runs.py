"""Records what jobs did: one row per run, kept for a month; what is running tells where it
is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import UtcNow, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict, NotFound
from metadata.models import JobRun

log = logging.getLogger(__name__)
KEPT_DAYS = 30
# after so long without a sign of life a run's process is taken for dead
SILENT_MS = 120_000
LOG_CHARS = 20_000  # kept of a log, from its end


class Cancelled(Exception):
    """The run ended because somebody wanted it to."""


@dataclass(slots=True)
class Run:
    """A run in progress: the job sets `count`, how many things it did, and `detail`, a line
    of text.
    """

    id: int
    name: str
    count: int | None = None
    detail: str = ""

    def report_progress(self, stage: str, done: int, total: int) -> None:
        self._write(stage=stage[:200], done=done, total=total)

    def record_alive(self, *, log: str) -> None:
        """Note that the process of the run lives, and the end of its log."""
        self._write(seen_at=UtcNow(), log=log[-LOG_CHARS:].replace("\0", ""))

    def set_directory(self, directory: str) -> None:
        self._write(directory=directory)

    def end(self, state: str, detail: str) -> None:
        self._write(
            state=state, count=self.count, detail=detail[:10_000], finished_at=UtcNow()
        )

    def _write(self, **values: Any) -> None:
        with reachable():
            JobRun.objects.filter(pk=self.id).update(**values)

    def cancel_asked(self) -> bool:
        with reachable():
            return JobRun.objects.filter(pk=self.id, cancel_asked=True).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run of a job; `count` is how many things it did. `cancelling`: it was asked to end.

    `stage`, `done` and `total` say where a long one is, as far as it tells; `total` is 0
    where that is not known. `silent`: it runs, and its process is taken for dead.
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


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job as the composition root announces it: what it does, in words, and how often."""

    text: str
    every_minutes: int


@dataclass(frozen=True, slots=True)
class BrokerLoop:
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
class _Known:
    """The background work of this installation, and the function that runs a job now."""

    jobs: Mapping[str, ScheduledJob]
    ask: Callable[[str], None] | None = None
    list_loops: Callable[[], Sequence[BrokerLoop]] = tuple


_known = _Known({})


def set_scheduled_jobs(
    jobs: Mapping[str, ScheduledJob], run_now: Callable[[str], None]
) -> None:
    """Say which jobs there are and who runs one when asked; called once, by the composition
    root.
    """
    _known.jobs, _known.ask = jobs, run_now


def set_broker_loops(list_loops: Callable[[], Sequence[BrokerLoop]]) -> None:
    """Set the function that lists the loops of brokers; called once, by the composition root."""
    _known.list_loops = list_loops


def broker_loops() -> Sequence[BrokerLoop]:
    return _known.list_loops()


def scheduled_jobs() -> Mapping[str, ScheduledJob]:
    return _known.jobs


def run_now(*, name: str, actor: Actor) -> None:
    """Have a scheduled job run now, besides its schedule. Needs `admin`. Raises Forbidden,
    NotFound.
    """
    access.require_everything(actor, name, what="job")
    if name not in _known.jobs or _known.ask is None:
        raise NotFound(f"There is no job {name}.")
    _note(name, actor)
    _known.ask(name)


@transactional
def _note(name: str, actor: Actor) -> None:
    audit.record(actor=actor, verb="run", kind="job", name=name)


@contextmanager
def record_run(name: str, *, directory: str = "") -> Iterator[Run]:
    """Write a row: running, then done, failed or cancelled. What the job raises stands in
    it and goes on.
    """
    with reachable():
        row = JobRun.objects.create(
            name=name, started_at=database_now(), directory=directory
        )
    with record_end(Run(row.pk, name)) as run:
        yield run


@contextmanager
def record_end(run: Run) -> Iterator[Run]:
    """Write how a run ends: done, failed or cancelled. What is raised stands in its row and
    goes on.
    """
    try:
        yield run
    except Cancelled as stop:
        run.end(JobRun.State.CANCELLED, str(stop))
        raise
    except BaseException as error:
        run.end(JobRun.State.FAILED, f"{type(error).__name__}: {error}")
        raise
    run.end(JobRun.State.DONE, run.detail)


@transactional
def cancel(*, id: int, actor: Actor) -> None:
    """Ask a run to end; who follows it sees that soon. One that nobody follows is ended
    here and now.

    Needs `admin`. Raises NotFound, Conflict.
    """
    access.require_everything(actor, str(id), what="run")
    row = JobRun.objects.select_for_update().filter(pk=id).first()
    if row is None:
        raise NotFound(f"There is no run {id} of a job.")
    if row.state != JobRun.State.RUNNING:
        raise Conflict(f"Run {id} of job {row.name} is already {row.state}.")
    JobRun.objects.filter(pk=id).update(cancel_asked=True, **_nobodys(row))
    audit.record(actor=actor, verb="cancel", kind="job", name=row.name, after={"run": id})


def is_waiting(row: JobRun) -> bool:
    """Return True if a run was asked for, and no process has taken it up."""
    return bool(row.state == JobRun.State.RUNNING and row.asked_by and row.seen_at is None)


def is_silent(row: JobRun, now_ms: int) -> bool:
    """Return True if the process that did a run is taken for dead."""
    running = row.state == JobRun.State.RUNNING
    return running and row.seen_at is not None and now_ms - ms(row.seen_at) > SILENT_MS


def _nobodys(row: JobRun) -> dict[str, Any]:
    """Fields that end a run at once that nobody takes up, or whose process is dead; {} if
    it is followed.
    """
    now = database_now()
    if is_waiting(row):
        detail = "It was cancelled before it began."
    elif is_silent(row, ms(now)):
        detail = "Its process stopped reporting."
    else:
        return {}
    return {"state": JobRun.State.CANCELLED, "detail": detail, "finished_at": now}


prune = PruneRule(JobRun.objects.all(), at="started_at", days=KEPT_DAYS)
