"""Starts Spark jobs as processes of their own, follows them, and takes in what they found.

Nothing here imports Spark: a job is `python -m spark_tasks.jobs NAME DIRECTORY`, and speaks
through files in its directory (spark_tasks/jobs/running.py names them). A job that dies
leaves no manifest, so nothing of it counts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from catmq_site import credentials
from metadata.config import HOME, config
from metadata.errors import CatmqError, Code, Invalid
from metadata.jobs import runs
from metadata.jobs.runs import Cancelled, Run

LOOK_EVERY_S = 0.5
TELL_EVERY_S = 5.0  # that the job lives, and the end of its log
LOG_BYTES = 20_000
PATIENCE_S = 20.0  # for a job that was asked to stop
CANCELLED = 130
# Spark logs this every 15 s while its cluster has no executor for the job.
NO_RESOURCES = "Initial job has not accepted any resources"
WAITING = "waiting for executors"
Say = Callable[[str], None]
Row = Mapping[str, Any]


class JobFailed(CatmqError):
    """A job could not do its work; the text is its own."""

    code = Code.BUSY


def run(
    name: str,
    *,
    settings: Row,
    inputs: object = None,
    say: Say | None = None,
    record: Run | None = None,
) -> tuple[int, Path]:
    """Run a job to its end, recorded as a run of `spark_<name>`; (id of the run, the job's
    directory).

    With `record` it is part of that run, whose end whoever gives it writes. Raises Invalid
    if what Spark needs is not installed, JobFailed, runs.Cancelled.
    """
    environ = _environ()
    directory = config.data_dir / "jobs" / f"{name}-{uuid.uuid4().hex[:12]}"
    directory.mkdir(mode=0o700, parents=True)
    given = {
        "master": config.spark_master,
        "memory": config.spark_memory,
        **settings,
        "parent": os.getpid(),
    }
    (directory / "settings.json").write_text(json.dumps(given))
    if inputs is not None:
        (directory / "inputs.json").write_text(json.dumps(inputs))
    with _recorded(name, directory, record) as made:
        _Process(name, directory, made, say or (lambda text: None)).follow(environ)
        made.count = sum(len(rows) for rows in results(directory).values())
    return made.id, directory


@contextmanager
def _recorded(name: str, directory: Path, record: Run | None) -> Iterator[Run]:
    """The run that a job is, or that it is part of."""
    if record is None:
        with runs.record_run(f"spark_{name}", directory=str(directory)) as made:
            yield made
    else:
        record.set_directory(str(directory))
        yield record


def blocked_by() -> str:
    """Return what Spark lacks on this machine, with the remedy; '' if jobs can run."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed: run script/setup --with-spark."
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        return (
            "Spark needs Java 17 or 21: apt-get install -y default-jre-headless, as root."
        )
    return ""


def results(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of a job that is done, by name. Raises JobFailed if they are not as it
    left them.
    """
    manifest = json.loads((directory / "manifest.json").read_text())
    found = {}
    for one in manifest["results"]:
        data = (directory / f"{one['name']}.jsonl").read_bytes()
        if hashlib.sha256(data).hexdigest() != one["sha256"]:
            raise JobFailed(
                f"The result {one['name']} in {directory} was changed after the job ended."
            )
        found[one["name"]] = [json.loads(line) for line in data.splitlines()]
    return found


def _environ() -> dict[str, str]:
    """The environment of jobs: where a broker is and with which key. Raises Invalid."""
    if importlib.util.find_spec("pyspark") is None:
        raise Invalid(
            "Spark is not installed: run script/setup --with-spark. Or use --engine direct."
        )
    known = {**credentials.known(), **os.environ}
    missing = [name for name in ("CATMQ_URL", "CATMQ_API_KEY") if not known.get(name)]
    if missing:
        raise Invalid(
            f"Set {' and '.join(missing)}: a job asks a broker where the messages are."
        )
    paths = [str(HOME), str(HOME / "client" / "src"), os.environ.get("PYTHONPATH", "")]
    ours = {name: known[name] for name in ("CATMQ_URL", "CATMQ_API_KEY")}
    return {**os.environ, **ours, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class _Process:
    def __init__(self, name: str, directory: Path, record: Run, say: Say) -> None:
        self._name, self._directory, self._record, self._say = name, directory, record, say
        self._asked_at: float | None = None
        self._told: tuple[str, int, int] | None = None
        self._waits = False
        self._lived_at = 0.0

    def follow(self, environ: Mapping[str, str]) -> None:
        """Run it to its end. Raises JobFailed, Cancelled."""
        command = [
            sys.executable,
            "-m",
            "spark_tasks.jobs",
            self._name,
            str(self._directory),
        ]
        with (self._directory / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program
                command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            while process.poll() is None and not self._is_late():
                self._look()
                time.sleep(LOOK_EVERY_S)
        finally:
            _end(process)
        self._record.record_alive(log=_log_end(self._directory))
        if process.returncode == 0:
            return
        if self._asked_at is not None and process.returncode < 0:
            raise Cancelled(
                f"{self._name} was cancelled; it did not stop, so its processes were killed."
            )
        words = _last_words(self._directory)
        if self._asked_at is not None or process.returncode == CANCELLED:
            raise Cancelled(words)
        raise JobFailed(f"{words} (log: {self._directory / 'log'})")

    def _is_late(self) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at > PATIENCE_S

    def _look(self) -> None:
        if time.monotonic() - self._lived_at > TELL_EVERY_S:
            self._lived_at = time.monotonic()
            text = _log_end(self._directory)
            self._record.record_alive(log=text)
            self._tell_waiting(text)
        with suppress(OSError, ValueError, KeyError):
            value = json.loads((self._directory / "progress.json").read_text())
            stage, done, total = value["stage"], value["done"], value["total"]
            if (stage, done, total) != self._told and not self._waits:
                self._told = stage, done, total
                self._record.report_progress(stage, done, total)
                self._say(f"{stage} {done:,} of {total:,}" if total else stage)
        if self._asked_at is None and self._record.cancel_asked():
            (self._directory / "cancel").touch()
            self._asked_at = time.monotonic()

    def _tell_waiting(self, log: str) -> None:
        """Show that the job gets no executors, until its log goes on."""
        waits = waits_for_executors(log)
        if waits and not self._waits:
            self._told = None  # the job's own progress is shown again afterwards
            self._record.report_progress(WAITING, 0, 0)
            self._say(WAITING)
        self._waits = waits


def waits_for_executors(log: str) -> bool:
    """Return True if the last thing that Spark logged is that it gets no resources.

    >>> waits_for_executors("TaskSchedulerImpl: Initial job has not accepted any resources; …\\n")
    True
    """
    lines = log.rstrip().splitlines()
    return bool(lines) and NO_RESOURCES in lines[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a job: Java and the Python workers are in its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _log_end(directory: Path) -> str:
    with (directory / "log").open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read().decode(errors="replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def _last_words(directory: Path) -> str:
    """Return the last line that the job itself logged, else Spark's last error, else the
    last line.
    """
    log = (directory / "log").read_text(errors="replace")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if " failed: " in line or " was cancelled: " in line]
    # A job whose application the cluster removed ends without a line of its own.
    errors = [line for line in lines if " ERROR " in line]
    telling_lines = own or errors or lines
    return telling_lines[-1] if telling_lines else "The job ended without a word."
