"""Run a job: `python -m spark_tasks.jobs NAME DIRECTORY`.

DIRECTORY/settings.json holds its settings; running.py describes the other files. Needs
CATMQ_URL and CATMQ_API_KEY in the environment. Exit codes: 0 done, 1 failed with the cause
in a single line on stderr, 130 cancelled.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.errors import PySparkException

from spark_tasks.errors import JobError
from spark_tasks.jobs import archive, replay, report_latency, reports
from spark_tasks.jobs.running import POLL_INTERVAL_S, Cancelled, Job

RUNS = {
    "archive": archive.run,
    "replay": replay.run,
    "report_capacity": reports.capacity,
    "report_departments": reports.departments,
    "report_latency": report_latency.run,
    "report_size_and_expiry": reports.size_and_expiry,
    "report_topics": reports.topics,
    "report_volume": reports.volume,
}
_JOB_ERROR = re.compile(r"^spark_tasks\.\S*errors\.\w+: (.*)$", re.MULTILINE)
DONE, FAILED, CANCELLED = 0, 1, 130


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in RUNS:
        sys.stderr.write(
            f"usage: python -m spark_tasks.jobs NAME DIRECTORY\nNAME: {', '.join(RUNS)}\n"
        )
        return FAILED
    name, directory = arguments[0], Path(arguments[1])
    try:
        run(name, directory)
        return DONE
    except Cancelled as stop:
        sys.stderr.write(f"{stop}\n")
        return CANCELLED
    except (JobError, PySparkException, OSError) as error:
        sys.stderr.write(f"{name} failed: {describe_error(error)}\n")
        return FAILED


def run(name: str, directory: Path) -> None:
    """Run a job to its end. Raises JobError and Spark's errors."""
    job = Job(name, directory)
    if parent := job.number("parent", 0):
        threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()
    try:
        RUNS[name](job)
        job.finish()
    finally:
        job.stop()


def exit_with_parent(parent: int) -> None:
    """Kill this process group, including its Java process, when the parent process is gone."""
    while os.getppid() == parent:
        time.sleep(POLL_INTERVAL_S)
    # Only SIGKILL is sure to end Java in the middle of a task.
    os.killpg(os.getpgid(0), signal.SIGKILL)


def describe_error(error: Exception) -> str:
    """Return the cause of an error in a single line.

    If a Spark task raised a JobError, Java's stack trace contains Python's. The text of the
    last JobError in it is returned.
    """
    text = str(error)
    task_errors = _JOB_ERROR.findall(text)
    if task_errors:
        return str(task_errors[-1])
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
