"""Parts of every job: a directory to work in, settings, progress that others follow,
results with a manifest.

DIRECTORY/settings.json   what to do, written by whoever starts the job
DIRECTORY/inputs.json     what the server knows and the job does not, if the job asks for it
DIRECTORY/progress.json   where the job is: {"stage", "done", "total"}; replaced in one rename
DIRECTORY/cancel          made by whoever wants the job to stop
DIRECTORY/<name>.jsonl    a result, one object a line
DIRECTORY/manifest.json   written last: the results with their rows and SHA-256; without it
                          there are none
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
from spark_tasks.archives import sha256_of, write_atomically
from spark_tasks.errors import JobError, OptionError

LOOK_EVERY_S = 0.5


class Cancelled(JobError):
    """Somebody asked the job to stop."""


class Job:
    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self._settings: Mapping[str, Any] = self._json("settings.json")
        self._results: list[dict[str, Any]] = []
        self._spark: SparkSession | None = None

    def _json(self, name: str) -> Any:
        path = self.directory / name
        try:
            return json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise OptionError(f"{path} is no JSON: {error}") from None

    @property
    def spark(self) -> SparkSession:
        """The job's session, started at first use."""
        if self._spark is None:
            self.tell("starting Spark", 0, 0)
            master, memory = (
                str(self.setting("master", "local[*]")),
                str(self.setting("memory", "1g")),
            )
            self._spark = sessions.start(f"catmq {self.name}", master=master, memory=memory)
        return self._spark

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting, or its default. Raises OptionError for one that is needed: its default
        is None.
        """
        value = self._settings.get(name)
        if value is None and default is None:
            raise OptionError(f"setting {name} is missing")
        return default if value is None else value

    def number(self, name: str, default: int) -> int:
        """A setting that is a whole number, 0 or more."""
        value = self.setting(name, default)
        if type(value) is not int or value < 0:
            raise OptionError(f"setting {name} must be a whole number, not {value!r}")
        return value

    def inputs(self) -> Any:
        return self._json("inputs.json")

    def tell(self, stage: str, done: int, total: int) -> None:
        """Say where the job is. Raises Cancelled when it is to stop."""
        value = {"stage": stage, "done": done, "total": total}
        write_atomically(self.directory / "progress.json", json.dumps(value))
        if (self.directory / "cancel").exists():
            raise Cancelled(f"{self.name} was cancelled: {stage}")

    @contextmanager
    def watched(self, stage: str) -> Iterator[None]:
        """While Spark works: its tasks are told as progress, and it is stopped when the job
        is to stop.
        """
        context = self.spark.sparkContext  # started here: two threads must not
        self.tell(stage, 0, 0)
        over, stopped = threading.Event(), threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(context, stage, over, stopped), daemon=True
        )
        watcher.start()
        try:
            yield
        except Exception:
            if stopped.is_set():
                raise Cancelled(f"{self.name} was cancelled: {stage}") from None
            raise
        finally:
            over.set()
            watcher.join()

    def _watch(
        self,
        context: SparkContext,
        stage: str,
        over: threading.Event,
        stopped: threading.Event,
    ) -> None:
        while not over.wait(LOOK_EVERY_S):
            tracker = context.statusTracker()
            known = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
            stages = [one for one in known if one is not None]
            done, total = (
                sum(one.numCompletedTasks for one in stages),
                sum(one.numTasks for one in stages),
            )
            try:
                self.tell(stage, done, total)
            except Cancelled:
                stopped.set()
                context.cancelAllJobs()

    def result(self, name: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write a result; return its number of rows."""
        path = self.directory / f"{name}.jsonl"
        count = 0
        with path.open("w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                count += 1
        self._results.append({"name": name, "rows": count, "sha256": sha256_of(path)})
        return count

    def finish(self) -> None:
        """Write the manifest: from now on the results count."""
        value = {"job": self.name, "results": self._results}
        write_atomically(
            self.directory / "manifest.json", json.dumps(value, indent=1) + "\n"
        )
        self.tell("done", 1, 1)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()
