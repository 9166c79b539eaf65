"""The job that builds and drops key indexes as the settings of topics say.

A build may take hours, so it has a process of its own. The job looks every minute whether
there is something to do, and starts the process only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from catmq_site.background.loop_threads import Loop, LoopThreads
from messagestore.sweeping import Progress
from messagestore.topology import key_indexes
from metadata import actors
from metadata.jobs import runs
from metadata.jobs.runs import Run

JOB = "build_key_indexes"
RETRY_MS = 600_000  # after a run in which a queue could not be altered
ALIVE_EVERY_S = 20.0  # a run without a sign of life counts as dead after runs.SILENT_MS


class NotBuilt(Exception):
    """Queues could not be altered; the next run tries again."""


def is_due() -> bool:
    """Return True if a queue waits for its index, and no run is alive or failed just now."""
    return runs.may_begin(JOB, retry_ms=RETRY_MS) and key_indexes.count_pending() > 0


def build(run: Run) -> int:
    """Build or drop the key indexes of all topics. Return the number of altered queues.

    Raises NotBuilt with the reasons if a queue could not be altered.
    """
    with _stay_alive(run):
        changes = key_indexes.build(
            actor=actors.job(JOB),
            progress=lambda progress: _report(run, progress),
        )
    run.count = sum(not change.problem for change in changes)
    if problems := [change for change in changes if change.problem]:
        run.detail = f"{run.count} queues were altered."
        # The first few name the cause. The log has all of them.
        reasons = "; ".join(
            f"{change.topic} queue {change.queue}: {change.problem}"
            for change in problems[:5]
        )
        raise NotBuilt(f"{len(problems)} queues were not altered. {reasons}")
    return run.count


def _report(run: Run, progress: Progress) -> None:
    run.report_progress(progress.what, progress.done, progress.total)


@contextmanager
def _stay_alive(run: Run) -> Iterator[None]:
    """Record in the run that its process is alive, also during the build of a large queue."""
    loops = LoopThreads([Loop("alive", ALIVE_EVERY_S, lambda: run.record_alive(log=""))])
    loops.start()
    try:
        yield
    finally:
        loops.stop()
