"""The working directory of a job: settings, progress that the server follows, results with
a manifest.

DIRECTORY/settings.json   the job's settings, written by the process that starts it
DIRECTORY/inputs.json     rows of the server that the job completes, if it uses any
DIRECTORY/progress.json   {"stage", "done", "total"}; replaced by a rename
DIRECTORY/cancel          created by the process that wants the job to stop
DIRECTORY/<name>.jsonl    a result, a JSON object in each line
DIRECTORY/manifest.json   written last: the results with their rows and SHA-256; without it
                          no result counts
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_tasks import sessions
from spark_tasks.archives import file_sha256, write_atomically
from spark_tasks.errors import JobError, OptionError

POLL_INTERVAL_S = 0.5


class Cancelled(JobError):
    """The job's directory has a file `cancel`."""


class Job:
    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self._settings: Mapping[str, Any] = self._read_json("settings.json")
        self._results: list[dict[str, Any]] = []
        self._spark: SparkSession | None = None

    def _read_json(self, name: str) -> Any:
        path = self.directory / name
        try:
            return json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise OptionError(f"{path} is no JSON: {error}") from None

    @property
    def spark(self) -> SparkSession:
        """The job's session, started at the first use."""
        if self._spark is None:
            self.report_progress("starting Spark", 0, 0)
            self._spark = sessions.start(
                f"catmq {self.name}",
                master=str(self.setting("master", "local[*]")),
                memory=str(self.setting("memory", "1g")),
            )
        return self._spark

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting or its default. Raises OptionError if it is missing without a
        default.
        """
        value = self._settings.get(name)
        if value is None and default is None:
            raise OptionError(f"setting {name} is missing")
        return default if value is None else value

    def number(self, name: str, default: int) -> int:
        """Return a setting that is a whole number >= 0. Raises OptionError."""
        value = self.setting(name, default)
        if type(value) is not int or value < 0:
            raise OptionError(f"setting {name} must be a whole number, not {value!r}")
        return value

    def inputs(self) -> list[dict[str, Any]]:
        """Return the rows that the server made and the job completes."""
        return [dict(row) for row in self._read_json("inputs.json")]

    def report_progress(self, stage: str, done: int, total: int) -> None:
        """Write the job's progress. Raises Cancelled if the job shall stop."""
        progress = json.dumps({"stage": stage, "done": done, "total": total})
        write_atomically(self.directory / "progress.json", progress)
        if (self.directory / "cancel").exists():
            raise Cancelled(f"{self.name} was cancelled: {stage}")

    @contextmanager
    def run_stage(self, stage: str) -> Iterator[None]:
        """Report the progress of Spark's tasks while the block runs. Raises Cancelled."""
        # The session starts in this thread, before the other: two threads must not start it.
        context = self.spark.sparkContext
        self.report_progress(stage, 0, 0)
        finished, cancelled = threading.Event(), threading.Event()
        watcher = threading.Thread(
            target=self._follow_stage,
            args=(context, stage, finished, cancelled),
            daemon=True,
        )
        watcher.start()
        try:
            yield
        except Exception:
            # Cancelling makes Spark raise an error of its own, which hides the cause.
            if cancelled.is_set():
                raise Cancelled(f"{self.name} was cancelled: {stage}") from None
            raise
        finally:
            finished.set()
            watcher.join()

    def _follow_stage(
        self,
        context: SparkContext,
        stage: str,
        finished: threading.Event,
        cancelled: threading.Event,
    ) -> None:
        while not finished.wait(POLL_INTERVAL_S):
            tracker = context.statusTracker()
            infos = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            # A stage that ended between the two calls has no info.
            stages = [info for info in infos if info is not None]
            done = sum(info.numCompletedTasks for info in stages)
            total = sum(info.numTasks for info in stages)
            try:
                self.report_progress(stage, done, total)
            except Cancelled:
                cancelled.set()
                context.cancelAllJobs()

    def write_result(self, name: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write a result and return its number of rows. It counts once `finish` has run."""
        path = self.directory / f"{name}.jsonl"
        count = 0
        with path.open("w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                count += 1
        self._results.append({"name": name, "rows": count, "sha256": file_sha256(path)})
        return count

    def finish(self) -> None:
        """Write the manifest, which makes the results count."""
        value = {"job": self.name, "results": self._results}
        write_atomically(
            self.directory / "manifest.json", json.dumps(value, indent=1) + "\n"
        )
        self.report_progress("done", 1, 1)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()
