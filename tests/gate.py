"""The steps of script/test: each is one command with a time it should take; all run, even after a failure.

    python -m tests.gate                 all steps
    python -m tests.gate NAME…           only these; `--list` names them
    python -m tests.gate servers         all tests of databases on all versions of servers
    python -m tests.gate --lanes 1       one step after the other, not four at a time

Steps wait half of their time for what they started, so four run at a time where there are two processors.
Acceptance tests take longest and judge how long things take, so their two steps begin first, and the others
run beside them at a lower priority. What a step prints is shown whole when it ends; until then it is in
.test/NAME.log. Temporary files lie in memory where there is room for them: tests kill processes, never the
machine, so what was written survives as on a disk, which is slower.

Tests here start servers, stop and kill them, and wait for what others do; on a machine that does something
else at the same time one may be late. So if a few tests of a step fail, these few run once more. One that
passes then is *unsteady*: the summary names it, tests/unsteady.txt counts it, and the third run in a row that
finds it so fails.

Steps that call the product in their own process measure which branches of it they take. The summary says how
many, and fewer than tests/coverage.txt says fail the gate.

Tests run on the installed MariaDB. Steps of other servers (tests/servers.py) are beside the gate; those are
downloaded before the first step. A server that cannot be had is named in the summary, with the reason, and
fails nothing.

The summary says on which Python, system and databases it ran. The last line is `N passed, N failed`: tests,
and one for each check that is not a test.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from xml.etree import ElementTree

from tests import branches, servers, unsteady
from tests.steps import GROUPS, ON_SERVERS, ROOT, STEPS, WORK, Step, everything

MEMORY = Path("/dev/shm")
MEMORY_MB = 4096  # what has to be free there before temporary files are put into it
UNSTEADY = ROOT / "tests" / "unsteady.txt"
NOTHING_COLLECTED = 5
BUDGET_S = 780  # of the whole gate on two processors; see docs/decisions/0031-time-of-the-gate.md
MOST_UNSTEADY = 3  # more failures of one step are no accident
LIMIT_S = (
    2400  # a step that takes longer hangs, and is killed; a slow machine, where one took 1,200 s, is none
)
ABORT_S = 10  # to end by itself then
LANES = min(4, 2 * (os.cpu_count() or 1))
BESIDE = ("nice", "-n", "10")  # what runs beside acceptance tests, which judge how long things take
AGAIN = ("--last-failed", "--last-failed-no-failures=none")
MARIADB = ("mariadbd", "--version")
# With it each of a few thousand processes compiles all of the product that it imports.
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_printing = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """What a step came to."""

    step: Step
    passed: int
    failed: int
    seconds: float
    used_s: float  # of processors
    unsteady: tuple[str, ...] = ()
    steady: frozenset[str] = frozenset()

    def __str__(self) -> str:
        verdict = "failed" if self.failed else "ok"
        over = "  over its budget" if self.seconds > self.step.budget_s else ""
        counts = f"{self.passed} passed, {self.failed} failed" if self.step.report else ""
        took = f"{self.seconds:6.1f} s of {self.step.budget_s:4} s, {self.used_s:5.0f} s of processors"
        unsteady = "".join(f"\n    UNSTEADY, passed at the second try: {name}" for name in self.unsteady)
        return f"{self.step.name:20} {verdict:7} {took}  {counts}{over}{unsteady}"


def run(step: Step, *, before: Sequence[str] = ()) -> Outcome:
    """Runs one step, `before` its command, and shows what it printed; tests that fail run again if few."""
    say(f"── {step.name} begins" + (f", on {servers.title(step.server)}" if step.server else ""))
    begun = time.monotonic()
    passed, failed, used_s = attempt(step, (*before, *step.measuring))
    names = failures(step)
    steady = frozenset(cases(step)) - set(names)
    shaky: tuple[str, ...] = ()
    if 0 < failed == len(names) <= MOST_UNSTEADY:
        say(f"── {step.name}: once more {', '.join(names)}")
        again, still, more_s = attempt(step, (*before, *step.command, *AGAIN))
        used_s += more_s
        if again + still == len(names):
            shaky = tuple(name for name in names if name not in failures(step))
            passed, failed = passed + again, still
    outcome = Outcome(step, passed, failed, time.monotonic() - begun, used_s, shaky, steady)
    say(step.output.read_text(errors="replace") + f"── {outcome}")
    return outcome


def say(text: str) -> None:
    """Prints at once, and whole."""
    with _printing:
        print(text, flush=True)


def attempt(step: Step, command: tuple[str, ...]) -> tuple[int, int, float]:
    """(passed, failed, seconds of processors) of one run of a step; its output is appended to the step's."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CATMQ_") and name != NO_BYTECODE
    }
    environ |= {
        "CATMQ_DATA_DIR": str(WORK / "var" / step.name),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
        **step.environ,
    }
    if step.report:
        command = (*command, f"--junitxml={step.report}")
    with scratch() as directory, step.output.open("ab") as output:
        environ["TMPDIR"] = str(directory)
        outlets = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, cwd=ROOT, env=environ, **outlets) as process:
            try:
                code, used_s = ended(process, limit_s=LIMIT_S)
            except BaseException:
                process.kill()
                raise
        if code is None:
            output.write(f"killed after {LIMIT_S} s\n".encode())
    return *counts(step, 1 if code is None else code), used_s


def ended(process: subprocess.Popen[bytes], *, limit_s: float) -> tuple[int | None, float]:
    """(exit code, seconds of processors that it and its children took); None if it had to be killed.

    It is aborted first, on which pytest prints where each of its threads is.
    """
    limit, killed = time.monotonic() + limit_s, False
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return None if killed else process.returncode, used.ru_utime + used.ru_stime
        if time.monotonic() > limit:
            process.send_signal(signal.SIGKILL if killed else signal.SIGABRT)
            limit, killed = limit + ABORT_S, True
        time.sleep(0.05)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for temporary files, removed at the end; in memory, where enough of it is free."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_MB << 20
    with tempfile.TemporaryDirectory(
        prefix="catmq-gate-", dir=MEMORY if roomy else None, ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory)


def cases(step: Step) -> dict[str, bool]:
    """The tests of the last run of a step, and True for those that failed."""
    found: dict[str, bool] = {}
    if step.report is not None and step.report.exists():
        for case in ElementTree.parse(step.report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            bad = case.find("failure") is not None or case.find("error") is not None
            found[name] = bad or found.get(name, False)
    return found


def failures(step: Step) -> list[str]:
    """The tests that failed in the last run of a step."""
    return sorted(name for name, bad in cases(step).items() if bad)


def counts(step: Step, code: int) -> tuple[int, int]:
    """(passed, failed) of a step that ended with `code`; one that ends badly has at least one failure."""
    if step.report is None:
        return (0, 1) if code else (1, 0)
    if code == NOTHING_COLLECTED:
        return 0, 0
    if not step.report.exists():
        return 0, 1
    suites = list(ElementTree.parse(step.report).iter("testsuite"))
    total, skipped, failed = (
        sum(int(suite.get(name, 0)) for suite in suites for name in names)
        for names in (("tests",), ("skipped",), ("failures", "errors"))
    )
    return total - skipped - failed, max(failed, int(code != 0))


def run_all(steps: Sequence[Step], *, lanes: int) -> list[Outcome]:
    """The outcomes of the steps, so many of which run at a time."""

    def one(step: Step) -> Outcome:
        return run(step, before=BESIDE if lanes > 1 and not step.name.startswith("acceptance") else ())

    with ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(one, steps))


def surroundings(others: Iterable[str]) -> str:
    """Return what this machine runs the steps on, with versions; `others` are further servers."""
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    debian = Path("/etc/debian_version")  # the point release, which PRETTY_NAME lacks
    release = f" [{debian.read_text().strip()}]" if debian.exists() else ""
    parts = [f"Python {platform.python_version()}", system + release, f"SQLite {sqlite3.sqlite_version}"]
    for name, command in (
        ("MariaDB", MARIADB),
        ("Java", ("java", "-version")),
        ("Chromium", ("chromium", "--version")),
    ):
        parts.append(f"{name} {version_of(command)}")
    return ", ".join([*parts, *others])


def machine_s() -> float:
    """Seconds of processors that were used since the machine started.

    Database servers and Spark's Java are no children of a step when they end: only these figures have them.
    """
    user, nice, system, _idle, _waiting, *interrupts = (
        Path("/proc/stat").read_text().split("\n")[0].split()[1:8]
    )
    ticks = sum(map(int, (user, nice, system, *interrupts)))
    return ticks / os.sysconf("SC_CLK_TCK")


def version_of(command: tuple[str, ...]) -> str:
    """The first version that a program tells of itself, "missing" without one."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "missing"
    found = re.search(r"\d+\.\d+[\w.+-]*", told.stdout + told.stderr)
    return found[0] if found else "unknown"


def main() -> int:
    """Runs the chosen steps; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="script/test", description="Runs checks and tests: all, or some.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a step or a group; default: gate")
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"steps that run at a time (here: {LANES})")
    chosen = parser.parse_args()
    plan = {name: (step,) for name, step in {step.name: step for step in everything()}.items()} | GROUPS
    unknown = sorted(set(chosen.names) - plan.keys())
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; there are: {' '.join(plan)}")
    if chosen.list:
        print(*plan, sep="\n")
        return 0
    wanted = {step.name for name in chosen.names or ["gate"] for step in plan[name]}
    return gate([step for step in everything() if step.name in wanted], lanes=max(1, chosen.lanes))


def gate(steps: Sequence[Step], *, lanes: int) -> int:
    """Runs the steps and prints the summary; 0 if nothing failed."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    begun, before_s = time.monotonic(), machine_s()
    there, missing = servers.prepare(step.server for step in steps if step.server)
    print(*missing.values(), sep="\n")
    outcomes = run_all([step for step in steps if step.server not in missing], lanes=lanes)
    print("", *outcomes, "", sep="\n")
    print(*missing.values(), sep="\n")
    print(f"on {surroundings(there.values())}")
    note_servers(outcomes, there)
    used = getrusage(RUSAGE_CHILDREN)
    took_s, machine = time.monotonic() - begun, machine_s() - before_s
    own = f"{used.ru_utime + used.ru_stime:.0f} s of processors"
    print(f"{took_s:.0f} s, {own}, {machine:.0f} s by the whole machine")
    if [step.name for step in steps] == [step.name for step in STEPS]:
        print(budget(took_s, machine, processors=os.cpu_count() or 1))
    failed = sum(outcome.failed for outcome in outcomes) + conclusions(outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def budget(took_s: float, machine: float, *, processors: int) -> str:
    """Return how long the whole gate took of its time, and the least that so many processors need for it.

    >>> budget(1566.2, 2924, processors=2)
    'the gate took 1566 s of 780 s; 2 processors need 1462 s at least'
    """
    least = f"{processors} processors need {machine / processors:.0f} s at least"
    return f"the gate took {took_s:.0f} s of {BUDGET_S} s; {least}"


def note_servers(outcomes: Sequence[Outcome], there: Mapping[str, str]) -> None:
    """Keep what whole suites came to on each server."""
    suites = {step.name: suite for (suite, _), step in ON_SERVERS.items()}
    names = {version: servers.short(whole) for version, whole in there.items()}
    names[servers.INSTALLED] = servers.short(f"MariaDB {version_of(MARIADB)}")
    told = [one for one in outcomes if one.step.name in suites and one.passed + one.failed]
    if told:
        servers.record({(names[one.step.server], suites[one.step.name]): not one.failed for one in told})


def conclusions(outcomes: Sequence[Outcome]) -> int:
    """Prints what only all steps together show; how many failures that is."""
    shaky = [name for outcome in outcomes for name in outcome.unsteady]
    steady = {name for outcome in outcomes for name in outcome.steady}
    too_often = unsteady.count(shaky, steady, UNSTEADY)
    for one in too_often:
        print(f"unsteady in {one.runs} runs in a row: {one.test} ({one.cause})")
    reports = [outcome.step.coverage for outcome in outcomes if outcome.step.measured]
    if len(reports) < sum(step.measured for step in STEPS):
        return len(too_often)
    line, few = branches.judge(reports)
    print(line)
    return len(too_often) + few


if __name__ == "__main__":
    sys.exit(main())
