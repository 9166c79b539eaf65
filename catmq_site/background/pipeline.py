"""Executes runs of the data pipeline that were requested in the portal. They do the same as
the commands.

django-q starts a process of its own for each: `manage.py run_asked RUN`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from catmq_site.background import reporting, spark
from messagestore import retention
from messagestore.retention import Progress
from metadata import actors
from metadata.config import config
from metadata.jobs import pipeline, runs
from metadata.jobs.pipeline import Place, Settings
from metadata.jobs.runs import Run

LOG_LINES = 300  # the last lines that are kept


def describe_place() -> Place:
    return Place(
        str(config.archive_home),
        config.spark_master,
        config.spark_memory,
        spark.blocked_by(),
    )


def execute_run(id: int) -> bool:
    """Claim a run and execute it. Return False if another process has claimed it.

    Raises the exception of the job, which is recorded in the run as well.
    """
    claimed = pipeline.claim_run(id=id)
    if claimed is None:
        return False
    run, settings = claimed
    with runs.record_end(run):
        RUNNERS.get(run.name, _run_report)(run, settings)
    return True


def _run_archive(run: Run, settings: Settings) -> None:
    _, directory = spark.run_job(
        "archive", settings=_with_archive(settings), parent_run=run
    )
    results = spark.read_results(directory)
    run.count = sum(row["rows"] for row in results["days"])
    days = ", ".join(f"{row['day']}: {row['rows']:,}" for row in results["days"])
    notes = "; ".join(row["note"] for row in results["notes"])
    run.detail = ". ".join(filter(None, [days, notes]))


def _run_replay(run: Run, settings: Settings) -> None:
    _, directory = spark.run_job("replay", settings=_with_archive(settings), parent_run=run)
    run.count = sum(row["messages"] for row in spark.read_results(directory)["days"])


class _ProgressLog:
    """Records the progress of a run in this process: each step at once, and its last lines
    every few seconds.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._reported_at = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Record a step. Raises Cancelled if a user has cancelled the run."""
        self._lines.append(f"{progress.what} {progress.done:,} of {progress.total:,}")
        self._run.report_progress(progress.what, progress.done, progress.total)
        if time.monotonic() - self._reported_at > spark.REPORT_EVERY_S:
            self.report_alive()
        # After the report, so that the page shows how far the run came.
        if self._run.cancel_asked():
            raise runs.Cancelled(
                f"{self._run.name} was cancelled: {progress.what} {progress.done:,}"
            )

    def report_alive(self) -> None:
        self._reported_at = time.monotonic()
        self._run.record_alive(log="\n".join(self._lines))


def _run_purge(run: Run, settings: Settings) -> None:
    progress = _ProgressLog(run)
    try:
        cleaned_queues = retention.purge(
            topic=settings["topic"],
            archive=config.archive_home,
            actor=actors.job("purge"),
            progress=progress,
        )
    # Also after a failure, so that the run shows the last lines.
    finally:
        progress.report_alive()
    run.count = sum(cleaned.plan.messages for cleaned in cleaned_queues if cleaned.raised)
    problems = [cleaned.problem or cleaned.plan.blocked_by for cleaned in cleaned_queues]
    if any(problems):
        raise spark.JobFailed("; ".join(filter(None, problems)))


def _run_report(run: Run, settings: Settings) -> None:
    name = run.name.removeprefix(pipeline.REPORT)
    _, rows = reporting.make_report(
        name=name, topic=settings["topic"], days=settings["days"], engine="spark",
        actor=actors.job("report"), parent_run=run,
    )  # fmt: skip
    run.count = len(rows)


def _with_archive(settings: Settings) -> dict[str, Any]:
    """Return the chosen settings, with the archive directory of this installation."""
    chosen = {name: value for name, value in settings.items() if value not in (None, "")}
    return {**chosen, "archive": str(Path(config.archive_home))}


RUNNERS: dict[str, Callable[[Run, Settings], None]] = {
    pipeline.ARCHIVE: _run_archive,
    pipeline.REPLAY: _run_replay,
    pipeline.PURGE: _run_purge,
}
