"""python -m spark_tasks.jobs NAME DIRECTORY: runs a job as DIRECTORY/settings.json says; see running.py.

Needs CATMQ_URL and CATMQ_API_KEY in the environment. Exit codes: 0 done, 1 it could not be done and stderr
says why in one line, 130 cancelled.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from pyspark.errors import PySparkException

from spark_tasks.errors import JobError
from spark_tasks.jobs.running import Cancelled, Job

NAMES = ("archive", "replay", "report_volume", "report_size_and_expiry", "report_topics", "report_capacity")
_CAUSE = re.compile(r"^spark_tasks\.\S*errors\.\w+: (.*)$", re.MULTILINE)
DONE, FAILED, CANCELLED = 0, 1, 130


def main(arguments: list[str]) -> int:
    """The exit code of a job's process."""
    if len(arguments) != 2 or arguments[0] not in NAMES:
        sys.stderr.write(f"usage: python -m spark_tasks.jobs NAME DIRECTORY\nNAME: {', '.join(NAMES)}\n")
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
    """Runs a job to its end. Raises JobError and what Spark raises."""
    job = Job(name, directory)
    try:
        import_module(f"spark_tasks.jobs.{name}").run(job)
        job.finish()
    finally:
        job.stop()
    return DONE


def reason(error: Exception) -> str:
    """What went wrong, in one line; of what a task raised, the task's own words."""
    text = str(error)
    found = _CAUSE.findall(text)
    return found[-1] if found else text.strip().splitlines()[0] if text.strip() else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
