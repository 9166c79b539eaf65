"""python -m spark_tasks.jobs NAME DIRECTORY: runs a job as DIRECTORY/settings.json says;
see running.py.

Needs CATMQ_URL and CATMQ_API_KEY in the environment. Exit codes: 0 done, 1 it could not be
done and stderr says why in one line, 130 cancelled.
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
from spark_tasks.jobs.running import LOOK_EVERY_S, Cancelled, Job

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
_CAUSE = re.compile(r"^spark_tasks\.\S*errors\.\w+: (.*)$", re.MULTILINE)
DONE, FAILED, CANCELLED = 0, 1, 130


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in RUNS:
        sys.stderr.write(
            f"usage: python -m spark_tasks.jobs NAME DIRECTORY\nNAME: {', '.join(RUNS)}\n"
        )
        return FAILED
    name, directory = arguments[0], Path(arguments[1])
    try:
        return run(name, directory)
    except Cancelled as stop:
        sys.stderr.write(f"{stop}\n")
        return CANCELLED
    except (JobError, PySparkException, OSError) as error:
        sys.stderr.write(f"{name} failed: {reason(error)}\n")
        return FAILED


def run(name: str, directory: Path) -> int:
    """Run a job to its end. Raises JobError and what Spark raises."""
    job = Job(name, directory)
    parent = job.number("parent", 0)
    if parent:
        threading.Thread(target=outlive_nobody, args=(parent,), daemon=True).start()
    try:
        RUNS[name](job)
        job.finish()
    finally:
        job.stop()
    return DONE


def outlive_nobody(parent: int) -> None:
    """End this job, Java and all, when the process that follows it is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def reason(error: Exception) -> str:
    """Return the error's cause in one line; of what a task raised, the task's own words."""
    text = str(error)
    found = _CAUSE.findall(text)
    return (
        found[-1]
        if found
        else text.strip().splitlines()[0]
        if text.strip()
        else type(error).__name__
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
