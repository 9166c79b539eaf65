"""The steps of script/test: each is one command with a time it should take; all run, even after a failure.

Tests here start servers, stop and kill them, and wait for what others do; on a machine that does something
else at the same time one may be late. So if a few tests of a step fail, these few run once more. One that
passes then is *unsteady*: it does not fail the gate, and the summary names it, because somebody has to look.

The last line is `N passed, N failed`: tests, and one for each check that is not a test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".test"  # reports and the checks' own data directory
BIN = Path(sys.executable).parent
NOTHING_COLLECTED = 5
MOST_UNSTEADY = 3  # more failures of one step are no accident
HARD_LIMIT = 5  # times the budget; a step that takes longer hangs, and is killed


@dataclass(frozen=True)
class Step:
    """One command; `budget_s` is what it should take, printed beside what it took."""

    name: str
    command: tuple[str, ...]
    budget_s: int
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def report(self) -> Path | None:
        """Where pytest writes its counts, None for other commands."""
        return WORK / f"{self.name}.xml" if "pytest" in self.command else None


def tests(name: str, *paths: str, budget_s: int, **environ: str) -> Step:
    """A pytest run."""
    return Step(name, (str(BIN / "python"), "-m", "pytest", *paths), budget_s, environ)


def manage(name: str, *arguments: str, budget_s: int = 30) -> Step:
    """A management command."""
    return Step(name, (str(BIN / "python"), "manage.py", *arguments), budget_s)


STEPS = (
    Step("ruff", (str(BIN / "ruff"), "check"), 10),
    Step("format", (str(BIN / "ruff"), "format", "--check"), 10),
    Step("mypy", (str(BIN / "mypy"),), 120),
    Step("imports", (str(BIN / "lint-imports"),), 30),
    manage("migrations", "makemigrations", "--check", "--dry-run"),
    manage("schema", "spectacular", "--validate", "--fail-on-warn", "--file", "/dev/null"),
    tests("unit", "tests/unit", "metadata/rules", budget_s=60),
    tests("architecture", "tests/architecture", budget_s=60),
    tests("integration-sqlite", "tests/integration", budget_s=240, CATMQ_TEST_ENGINE="sqlite"),
    tests("integration-mysql", "tests/integration", budget_s=300, CATMQ_TEST_ENGINE="mysql"),
    tests("contract", "tests/contract", budget_s=240),
    tests("spark", "tests/spark", "spark_tasks", budget_s=150),
    tests("browser", "tests/browser", budget_s=150),
    tests("acceptance", "tests/acceptance", budget_s=600),
)


@dataclass(frozen=True)
class Outcome:
    """What a step came to."""

    step: Step
    passed: int
    failed: int
    seconds: float
    unsteady: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = "failed" if self.failed else "ok"
        over = "  over its budget" if self.seconds > self.step.budget_s else ""
        counts = f"{self.passed} passed, {self.failed} failed" if self.step.report else ""
        took = f"{self.seconds:6.1f} s of {self.step.budget_s:4} s"
        unsteady = "".join(f"\n    UNSTEADY, passed at the second try: {name}" for name in self.unsteady)
        return f"{self.step.name:20} {verdict:7} {took}  {counts}{over}{unsteady}"


def run(step: Step) -> Outcome:
    """Runs one step; tests that fail are run again if they are few."""
    print(f"── {step.name}", flush=True)
    begun = time.monotonic()
    passed, failed = attempt(step, step.command)
    names = failures(step)
    unsteady: tuple[str, ...] = ()
    if 0 < failed == len(names) <= MOST_UNSTEADY:
        print(f"── {step.name}: once more {', '.join(names)}", flush=True)
        again, still = attempt(step, (*step.command, "--last-failed", "--last-failed-no-failures=none"))
        if again + still == len(names):
            unsteady = tuple(name for name in names if name not in failures(step))
            passed, failed = passed + again, still
    return Outcome(step, passed, failed, time.monotonic() - begun, unsteady)


def attempt(step: Step, command: tuple[str, ...]) -> tuple[int, int]:
    """(passed, failed) of one run of a step, with its output shown."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CATMQ_")}
    environ |= {
        "CATMQ_DATA_DIR": str(WORK / "var"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
        **step.environ,
    }
    if step.report:
        command = (*command, f"--junitxml={step.report}")
    limit_s = max(60, HARD_LIMIT * step.budget_s)
    code = 1
    try:
        code = subprocess.run(command, cwd=ROOT, env=environ, check=False, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        print(f"killed after {limit_s} s")
    return counts(step, code)


def failures(step: Step) -> list[str]:
    """The tests that failed in the last run of a step."""
    if step.report is None or not step.report.exists():
        return []
    cases = ElementTree.parse(step.report).iter("testcase")
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return sorted({f"{case.get('classname')}::{case.get('name')}" for case in bad})


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


def main() -> int:
    """Runs the chosen steps; 0 if nothing failed."""
    names = [step.name for step in STEPS]
    wanted = sys.argv[1:] or names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        print(*names, sep="\n")
        return 0 if unknown == ["--list"] else 2
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    outcomes = [run(step) for step in STEPS if step.name in wanted]
    print("", *outcomes, "", sep="\n")
    failed = sum(outcome.failed for outcome in outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
