"""Run the steps of script/test and print what they came to.

Steps wait half of their time for what they started, so four run at a time on two
processors. All run, even after a failure; the output of each is shown when it ends, and is
in .test/NAME.log until then. What a step leaves running is adopted by this process (a
"subreaper"), which kills it at the end. The last line is
`N passed, N failed`: tests, and one for each check that is not a test.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import platform
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests import servers
from tests.steps import BRANCHES, GROUPS, PYTHON, ROOT, STEPS, WORK, Step

# Tests kill processes, never the machine: their files may lie in memory where there is
# room. In MB:
ROOM = {"/dev/shm": 4096, tempfile.gettempdir(): 2048}
LANES = min(4, 2 * (os.cpu_count() or 1))
# A step that hangs is aborted after an hour, so that pytest prints where its threads are,
# then killed.
LIMIT = ("timeout", "--signal=ABRT", "--kill-after=10", "3600")
# Steps that the others yield to: acceptance tests look at time limits, and Spark gives a
# Python worker 10 s to connect, which no setting changes.
PROMPT = ("acceptance", "spark")
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


class Outcome(NamedTuple):
    """How many tests of a step passed and failed, and its line in the summary."""

    passed: int
    failed: int
    line: str


def run_steps(
    steps: Sequence[Step], scratch: Path, *, lanes: int, measured: bool
) -> list[Outcome]:
    """Return the outcomes of all steps as they end. Temporary files go below `scratch`."""
    waiting, outcomes = deque(steps), []
    running: dict[int, tuple[Step, float]] = {}  # by process id, with the time of the start
    while waiting or running:
        while waiting and len(running) < lanes:
            step = waiting.popleft()
            print(f"── {step.name} begins", flush=True)
            running[start(step, scratch / step.name, measured=measured)] = (
                step,
                time.monotonic(),
            )
        pid, status, usage = os.wait4(-1, 0)
        if pid not in running:  # an orphan of a step, which only had to be reaped
            continue
        step, started = running.pop(pid)
        shutil.rmtree(scratch / step.name, ignore_errors=True)
        output = (WORK / f"{step.name}.log").read_text(errors="replace")
        passed, failed = count_tests(output, os.waitstatus_to_exitcode(status))
        times = f"{time.monotonic() - started:4.0f} s, CPU {usage.ru_utime + usage.ru_stime:4.0f} s"
        line = f"{step.name:22} {times} {passed:6} passed, {failed} failed"
        verdicts = re.findall(r"^(RERUN|FAILED|ERROR) (\S+)", output, re.MULTILINE)
        unsteady = {test for _, test in verdicts} - {
            test for word, test in verdicts if word != "RERUN"
        }
        lines = [
            line,
            *(
                f"    UNSTEADY, passed at the second try: {test}"
                for test in sorted(unsteady)
            ),
        ]
        outcomes.append(Outcome(passed, failed, "\n".join(lines)))
        print(f"{output}── {outcomes[-1].line}", flush=True)
    return outcomes


def start(step: Step, scratch: Path, *, measured: bool) -> int:
    """Start the command of a step, and return its process id."""
    lower_priority = () if step.name.startswith(PROMPT) else ("nice", "-n", "10")
    command = step.command
    if measured and step.measured:
        command = (PYTHON, "-m", "coverage", "run", "--parallel-mode", *command[1:])
    # With PYTHONDONTWRITEBYTECODE a few thousand processes would each compile what they
    # import.
    unwanted = {name for name in os.environ if name.startswith("CATMQ_")} | {
        "PYTHONDONTWRITEBYTECODE"
    }
    own = {
        "CATMQ_DATA_DIR": str(WORK / "var" / step.name),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
        "TMPDIR": str(scratch),
    }
    scratch.mkdir()
    with (WORK / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen(
            (*lower_priority, *LIMIT, *command),
            cwd=ROOT,
            env={name: os.environ[name] for name in os.environ.keys() - unwanted}
            | own
            | step.environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C reaches only this process, which then kills all steps
        )
    process.returncode = 0  # os.wait4() takes the real one, so Popen must not look for it
    return process.pid


def count_tests(output: str, code: int) -> tuple[int, int]:
    """Return how many tests passed and failed, from pytest's last line; other commands are
    one check.

    >>> (count_tests("1 failed, 2 passed, 1 error in 0.12s", 1),
    ...  count_tests("no tests ran in 0.1s", 5)) ((2, 2), (0, 1))
    """
    summaries = re.findall(r"^=* ?((?:\d+ \w+,? )+)in [\d.]+s", output, re.MULTILINE)
    if not summaries:
        return (0, 1) if code else (1, 0)
    counts = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|error)", summaries[-1])
    }
    return counts.get("passed", 0), max(
        counts.get("failed", 0) + counts.get("error", 0), int(code != 0)
    )


def kill_descendants() -> None:
    """Kill everything that this process started: children of a killed child become its own."""
    while True:
        for children in Path("/proc/self/task").glob("*/children"):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def lock_checkout() -> None:
    """Lock .test until this process ends, and empty it but for the databases that
    migrated.py keeps.
    """
    WORK.mkdir(exist_ok=True)
    try:
        fcntl.flock(os.open(WORK, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(
            f"script/test: another run uses {WORK}. Wait until it ends, or take another clone."
        )
    for entry in {*WORK.iterdir()} - {WORK / "migrated"}:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def place_for_scratch() -> str:
    """Return a directory with room for temporary files."""
    for place, needed_mb in ROOM.items():
        free_mb = shutil.disk_usage(place).free >> 20
        if free_mb >= needed_mb:
            return place
    sys.exit(
        f"script/test: {place} has {free_mb} MB free, tests need {needed_mb} MB for "
        "temporary files. "
        "Make room there, or set TMPDIR to a directory that has it."
    )


def gate(steps: Sequence[Step], *, lanes: int, measured: bool) -> int:
    """Run the steps and print the summary. Return how many tests and checks failed."""
    started = time.monotonic()
    packages, missing = servers.download(step.server for step in steps if step.server)
    print(*missing.values(), sep="\n", flush=True)
    here = [step for step in steps if step.server not in missing]
    with tempfile.TemporaryDirectory(
        prefix="catmq-gate-", dir=place_for_scratch(), ignore_cleanup_errors=True
    ) as scratch:
        try:
            outcomes = run_steps(here, Path(scratch), lanes=lanes, measured=measured)
            if measured:
                outcomes += run_steps([BRANCHES], Path(scratch), lanes=1, measured=False)
        finally:
            kill_descendants()
    mariadbd = subprocess.run(
        ["mariadbd", "--version"], capture_output=True, text=True, check=True
    )
    packages[servers.INSTALLED] = (
        f"MariaDB {mariadbd.stdout.partition('Ver ')[2].partition('-')[0]}"
    )
    print("", *(outcome.line for outcome in outcomes), "", *missing.values(), sep="\n")
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    versions = (
        f"Python {platform.python_version()}",
        system,
        f"SQLite {sqlite3.sqlite_version}",
    )
    print("on", ", ".join((*versions, *packages.values())))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{time.monotonic() - started:.0f} s, CPU {used.ru_utime + used.ru_stime:.0f} s")
    failed = sum(outcome.failed for outcome in outcomes)
    print(
        f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed", flush=True
    )
    return failed


def main() -> int:
    """Run the chosen steps. Return 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        prog="script/test", description="Run checks and tests."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="steps and groups (default: everyday)"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the groups with their steps"
    )
    parser.add_argument(
        "--lanes", type=int, default=LANES, help="steps at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--branches",
        action="store_true",
        help="count the branches that the steps take, and fail below the share in "
        "pyproject.toml (for `all`; doubles the time of its longest steps)",
    )
    options = parser.parse_args()
    if options.list:
        print(
            *(f"{name}: {' '.join(step.name for step in GROUPS[name])}" for name in GROUPS),
            sep="\n",
        )
        return 0
    names = options.names or ["everyday"]
    if unknown := sorted(set(names) - GROUPS.keys() - STEPS.keys()):
        parser.error(
            f"no step or group {', '.join(unknown)}; script/test --list prints them"
        )
    # A dict, since a step that is in two groups runs once.
    steps = {
        step.name: step for name in names for step in GROUPS.get(name) or (STEPS[name],)
    }
    try:
        lock_checkout()
        return min(
            1,
            gate([*steps.values()], lanes=max(1, options.lanes), measured=options.branches),
        )
    except KeyboardInterrupt:
        print(
            "script/test: interrupted; the rest was not tested, and everything it started "
            "is stopped."
        )
        return 130


def run() -> int:
    """Return the exit code of main(), with this process as the one that adopts orphans and
    hears signals.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return main()


if __name__ == "__main__":
    sys.exit(run())
