"""Runs of the data pipeline that users asked for in the portal; they do the same as the
commands.

A run is taken up by `manage.py run_asked RUN`, a process of its own that django-q starts.
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

LOG_LINES = 300  # the last ones are kept


def place() -> Place:
    return Place(
        str(config.archive_home),
        config.spark_master,
        config.spark_memory,
        spark.blocked_by(),
    )


def carry_out(id: int) -> bool:
    """Take a run up and carry it out to its end; whether there was anything to do.

    Raises what the job raises, which stands in the run too.
    """
    taken = pipeline.claim_run(id=id)
    if taken is None:
        return False
    run, settings = taken
    with runs.record_end(run):
        _job(run.name)(run, settings)
    return True


def _job(name: str) -> Callable[[Run, Settings], None]:
    return JOBS.get(name, _report)


def _archive(run: Run, settings: Settings) -> None:
    _, directory = spark.run("archive", settings=_at_home(settings), record=run)
    found = spark.results(directory)
    run.count = sum(one["rows"] for one in found["days"])
    days = ", ".join(f"{one['day']}: {one['rows']:,}" for one in found["days"])
    notes = "; ".join(one["note"] for one in found["notes"])
    run.detail = ". ".join(filter(None, [days, notes]))


def _replay(run: Run, settings: Settings) -> None:
    _, directory = spark.run("replay", settings=_at_home(settings), record=run)
    run.count = sum(one["messages"] for one in spark.results(directory)["days"])


class _ProgressLog:
    """Reports of a run of this process: each step at once, its last lines every few
    seconds.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._lived_at = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Note a step. Raises Cancelled if somebody wants the run to end."""
        self._lines.append(f"{progress.what} {progress.done:,} of {progress.total:,}")
        self._run.report_progress(progress.what, progress.done, progress.total)
        if time.monotonic() - self._lived_at > spark.TELL_EVERY_S:
            self.live()
        if self._run.cancel_asked():
            raise runs.Cancelled(
                f"{self._run.name} was cancelled: {progress.what} {progress.done:,}"
            )

    def live(self) -> None:
        self._lived_at = time.monotonic()
        self._run.record_alive(log="\n".join(self._lines))


def _purge(run: Run, settings: Settings) -> None:
    progress = _ProgressLog(run)
    try:
        found = retention.purge(
            topic=settings["topic"],
            archive=config.archive_home,
            actor=actors.job("purge"),
            progress=progress,
        )
    finally:
        progress.live()
    run.count = sum(one.plan.messages for one in found if one.raised)
    problems = [one.problem or one.plan.blocked_by for one in found]
    if any(problems):
        raise spark.JobFailed("; ".join(filter(None, problems)))


def _report(run: Run, settings: Settings) -> None:
    name = run.name.removeprefix(pipeline.REPORT)
    _, rows = reporting.make(
        name=name, topic=settings["topic"], days=settings["days"], engine="spark",
        actor=actors.job("report"), record=run,
    )  # fmt: skip
    run.count = len(rows)


def _at_home(settings: Settings) -> dict[str, Any]:
    """Return the settings asked for, with the archive of this installation."""
    given = {name: value for name, value in settings.items() if value not in (None, "")}
    return {**given, "archive": str(Path(config.archive_home))}


JOBS: dict[str, Callable[[Run, Settings], None]] = {
    pipeline.ARCHIVE: _archive,
    pipeline.REPLAY: _replay,
    pipeline.PURGE: _purge,
}
