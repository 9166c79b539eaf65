"""Runs Spark jobs as processes of their own, follows their progress, and reads their
results.

Nothing here imports Spark: a job is `python -m spark_tasks.jobs NAME DIRECTORY` and
communicates through files in its directory (named in spark_tasks/jobs/running.py). A job
that dies leaves no manifest, so none of its results count.
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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from catmq_site import credentials, processes
from metadata.config import config
from metadata.errors import CatmqError, Code, Invalid
from metadata.installation import name_programs
from metadata.jobs import runs
from metadata.jobs.runs import Cancelled, Run

POLL_EVERY_S = 0.5
REPORT_EVERY_S = 5.0  # between two records that the job is alive, with the end of its log
LOG_BYTES = 20_000
CANCEL_GRACE_S = 20.0  # until a cancelled job is killed
CANCELLED_STATUS = 130
# Spark logs this every 15 s while its cluster has no executor for the job.
NO_RESOURCES = "Initial job has not accepted any resources"
WAITING_STAGE = "waiting for executors"
OnProgress = Callable[[str], None]
Row = Mapping[str, Any]


class JobFailed(CatmqError):
    """A job failed. The text is the job's own message."""

    code = Code.BUSY


def run_job(
    name: str,
    *,
    settings: Row,
    inputs: object = None,
    on_progress: OnProgress | None = None,
    parent_run: Run | None = None,
) -> tuple[int, Path]:
    """Run a job to its end. Return (run id, directory of the job).

    The job is recorded as a run `spark_<name>`; with `parent_run` it is a part of that run,
    whose end the caller records. Raises Invalid if Spark's requirements are not installed,
    JobFailed, runs.Cancelled.
    """
    # Checked before the directory exists, so that a refusal leaves no files.
    environ = _environ()
    directory = config.data_dir / "jobs" / f"{name}-{uuid.uuid4().hex[:12]}"
    directory.mkdir(mode=0o700, parents=True)
    job_settings = {
        "master": config.spark_master,
        "memory": config.spark_memory,
        **settings,
        "parent": os.getpid(),
    }
    # `parent` lets the job end itself when this process dies.
    (directory / "settings.json").write_text(json.dumps(job_settings))
    if inputs is not None:
        (directory / "inputs.json").write_text(json.dumps(inputs))
    if parent_run is None:
        recording: AbstractContextManager[Run] = runs.record_run(
            f"spark_{name}", directory=str(directory)
        )
    else:
        parent_run.set_directory(str(directory))
        recording = nullcontext(parent_run)
    with recording as run:
        _Process(name, directory, run, on_progress or (lambda text: None)).follow(environ)
        run.count = sum(len(rows) for rows in read_results(directory).values())
    return run.id, directory


def blocked_by() -> str:
    """Return what Spark lacks on this machine, with the remedy; '' if jobs can run."""
    if importlib.util.find_spec("pyspark") is None:
        return name_programs("Spark is not installed: run script/setup --with-spark.")
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        return (
            "Spark needs Java 17 or 21: apt-get install -y default-jre-headless, as root."
        )
    return ""


def read_results(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the results of a finished job, by name. Raises JobFailed if a file was changed
    since.
    """
    # The manifest is the job's last file, so its results are complete.
    manifest = json.loads((directory / "manifest.json").read_text())
    results = {}
    for result in manifest["results"]:
        data = (directory / f"{result['name']}.jsonl").read_bytes()
        if hashlib.sha256(data).hexdigest() != result["sha256"]:
            raise JobFailed(
                f"The result {result['name']} in {directory} was changed after the job ended."
            )
        results[result["name"]] = [json.loads(line) for line in data.splitlines()]
    return results


def _environ() -> dict[str, str]:
    """Return the environment of a job: URL and API key of a broker. Raises Invalid."""
    if importlib.util.find_spec("pyspark") is None:
        raise Invalid(
            "Spark is not installed: run script/setup --with-spark. Or use --engine direct."
        )
    environ = {**credentials.read_credentials(), **os.environ}
    missing = [name for name in ("CATMQ_URL", "CATMQ_API_KEY") if not environ.get(name)]
    if missing:
        raise Invalid(
            f"Set {' and '.join(missing)}: a job asks a broker where the messages are."
        )
    credentials_environ = {name: environ[name] for name in ("CATMQ_URL", "CATMQ_API_KEY")}
    return {**processes.environ(), **credentials_environ}


class _Process:
    def __init__(
        self, name: str, directory: Path, run: Run, on_progress: OnProgress
    ) -> None:
        self._name, self._directory = name, directory
        self._run, self._on_progress = run, on_progress
        self._cancelled_at: float | None = None
        self._reported: tuple[str, int, int] | None = None
        self._is_waiting = False
        self._reported_alive_at = 0.0

    def follow(self, environ: Mapping[str, str]) -> None:
        """Run the job to its end. Raises JobFailed, Cancelled."""
        command = [
            sys.executable,
            "-P",
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
            kill_at = float("inf")
            while process.poll() is None and time.monotonic() <= kill_at:
                self._check_files()
                if self._cancelled_at is not None:
                    kill_at = self._cancelled_at + CANCEL_GRACE_S
                time.sleep(POLL_EVERY_S)
        finally:
            # Java and the Python workers may outlive the job, but are in its process group.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._run.record_alive(log=_log_end(self._directory))
        if process.returncode == 0:
            return
        # A negative status is a signal: the job did not stop within CANCEL_GRACE_S.
        if self._cancelled_at is not None and process.returncode < 0:
            raise Cancelled(
                f"{self._name} was cancelled; it did not stop, so its processes were killed."
            )
        message = _last_message(self._directory)
        if self._cancelled_at is not None or process.returncode == CANCELLED_STATUS:
            raise Cancelled(message)
        raise JobFailed(f"{message} (log: {self._directory / 'log'})")

    def _check_files(self) -> None:
        if time.monotonic() - self._reported_alive_at > REPORT_EVERY_S:
            self._reported_alive_at = time.monotonic()
            log_end = _log_end(self._directory)
            self._run.record_alive(log=log_end)
            # Without executors the job makes no progress; the log shows that until it
            # continues.
            is_waiting = waits_for_executors(log_end)
            if is_waiting and not self._is_waiting:
                self._reported = None  # reports the job's own progress again afterwards
                self._run.report_progress(WAITING_STAGE, 0, 0)
                self._on_progress(WAITING_STAGE)
            self._is_waiting = is_waiting
        # The job may be writing the file at this moment; the next poll reads it.
        with suppress(OSError, ValueError, KeyError):
            progress = json.loads((self._directory / "progress.json").read_text())
            stage, done, total = progress["stage"], progress["done"], progress["total"]
            if (stage, done, total) != self._reported and not self._is_waiting:
                self._reported = stage, done, total
                self._run.report_progress(stage, done, total)
                self._on_progress(f"{stage} {done:,} of {total:,}" if total else stage)
        if self._cancelled_at is None and self._run.cancel_asked():
            (self._directory / "cancel").touch()
            self._cancelled_at = time.monotonic()


def waits_for_executors(log: str) -> bool:
    """Return True if Spark's last log line reports that it gets no resources.

    >>> waits_for_executors("TaskSchedulerImpl: Initial job has not accepted any resources; …\\n")
    True
    """
    lines = log.rstrip().splitlines()
    return bool(lines) and NO_RESOURCES in lines[-1]


def _log_end(directory: Path) -> str:
    with (directory / "log").open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read().decode(errors="replace")
    # The first line may be cut, so drop it.
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def _last_message(directory: Path) -> str:
    """Return the last line that the job itself logged, otherwise Spark's last error,
    otherwise the last line.
    """
    log = (directory / "log").read_text(errors="replace")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own_lines = [
        line for line in lines if " failed: " in line or " was cancelled: " in line
    ]
    # If the cluster removed its application, a job ends without a line of its own.
    errors = [line for line in lines if " ERROR " in line]
    candidates = own_lines or errors or lines
    return candidates[-1] if candidates else "The job ended without a word."
