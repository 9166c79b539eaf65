"""Plant faults in a copy of this checkout, one at a time, and report whether a test fails.

    python -m tests.faults                  run each fault against the test that caught it last time
    python -m tests.faults NAME…            the same for these faults only
    python -m tests.faults --search NAME…   run steps, the cheapest first, until a test fails
    python -m tests.faults --list           print the faults without running anything

The faults are in tests/faults.toml. The text to replace must occur exactly once in its
file, so a fault whose code was rewritten is reported by name and needs a new place. The
copy lies in a temporary directory that is removed at the end; the checkout itself is never
changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from tests import servers, steps

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".toml")
LEFT_OUT = (".git", ".venv", ".test", "var", "__pycache__", ".*_cache")
# Databases that tests/support/migrated.py made; it makes others if they do not fit the
# copy.
MIGRATED = ".test/migrated"
TEST_LIMIT_S = 300  # of tests that are named; a fault may make a test wait without an end
STEP_LIMIT_S = 1_800  # of a whole step
FAILED = re.compile(r"^(?:FAILED|ERROR) (\w+/.+?)(?: - .*)?$", re.MULTILINE)


class Step(NamedTuple):
    """Tests that run together on one engine. `everyday`: script/test without arguments has
    them.
    """

    engine: str
    paths: tuple[str, ...]
    everyday: bool = True


STEPS = {  # the cheapest first; acceptance tests take minutes
    "unit": Step("sqlite", ("tests/unit", "metadata/rules")),
    "architecture": Step("sqlite", ("tests/architecture",)),
    "contract": Step("sqlite", ("tests/contract", *steps.ignoring(steps.OF_OTHER_CLIENTS))),
    "integration": Step("sqlite", steps.BELOW_SITE),
    "core": Step("mysql", servers.CORE),
    "main-job": Step("sqlite", ("tests/acceptance/test_main_job.py", "-m", "everyday")),
    "integration-mysql": Step(
        "mysql", ("tests/integration", "-m", "not one_engine"), everyday=False
    ),
    "contract-others": Step("sqlite", steps.OF_OTHER_CLIENTS, everyday=False),
    "acceptance": Step("sqlite", ("tests/acceptance",), everyday=False),
}
EVERYDAY = [name for name, step in STEPS.items() if step.everyday]


class FaultError(Exception):
    """A fault of the table cannot be planted, or its test cannot be run."""


@dataclass(frozen=True)
class Fault:
    """A mistake in one file.

    `caught_by` is a step and a test of it, "" if no test fails; `note` says where the fault
    shows.
    """

    name: str
    room: str
    file: str
    old: str
    new: str
    caught_by: str = ""
    note: str = ""

    def plant(self, text: str) -> str:
        """Return the text of the file with the mistake in it. Raises FaultError."""
        if (count := text.count(self.old)) != 1:
            raise FaultError(
                f"{self.name}: its `old` text occurs {count} times in {self.file}, not once. "
                f"Give the fault a new place in {TABLE.relative_to(ROOT)}."
            )
        return text.replace(self.old, self.new)


def read_faults(names: Sequence[str]) -> list[Fault]:
    """Return the faults with these names, or all. Raises FaultError if one cannot be
    planted.
    """
    faults = [Fault(**entry) for entry in tomllib.loads(TABLE.read_text())["fault"]]
    if unknown := sorted(set(names) - {fault.name for fault in faults}):
        raise FaultError(f"There is no fault {unknown[0]}: --list prints the names.")
    for fault in faults:
        fault.plant((ROOT / fault.file).read_text())
    return [fault for fault in faults if not names or fault.name in names]


@contextmanager
def copied_checkout() -> Iterator[Path]:
    """Copy the checkout, with uncommitted changes, to a directory that is removed at the
    end.
    """
    with tempfile.TemporaryDirectory(prefix="catmq-faults-") as directory:
        copy = Path(directory) / "checkout"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        (copy / ".venv").symlink_to(ROOT / ".venv")
        if (ROOT / MIGRATED).exists():
            shutil.copytree(ROOT / MIGRATED, copy / MIGRATED)
        yield copy


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """Change the copy's file for the length of a block."""
    path = copy / fault.file
    before = path.read_text()
    # Python compares times of files in whole seconds: bytecode of the text before could be
    # taken.
    bytecode = Path(cache_from_source(str(path)))
    try:
        path.write_text(fault.plant(before))
        bytecode.unlink(missing_ok=True)
        yield
    finally:
        path.write_text(before)
        bytecode.unlink(missing_ok=True)


def first_failure(copy: Path, step: Step, tests: Sequence[str], limit_s: float) -> str:
    """Run tests in the copy until one fails; return its id, "" if all pass. Raises
    FaultError.
    """
    # The packages are installed with the path of the checkout: the copy must come before
    # it.
    imports = f"{copy}:{copy / 'client/src'}"
    environ = os.environ | {"CATMQ_TEST_ENGINE": step.engine, "PYTHONPATH": imports}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(
        command, cwd=copy, env=environ, start_new_session=True, **streams
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (no end within {limit_s:.0f} s)"
    finally:
        if process.poll() is None:  # an interrupted pytest stops its database server
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return ""
    if failed := FAILED.search(output):
        return failed[1]
    what = f"pytest ended with {process.returncode} for {' '.join(tests)}"
    raise FaultError(f"{what}:\n{output[-2_000:]}")


def require_passing(faults: Sequence[Fault], copy: Path) -> None:
    """Raise FaultError if a test that caught a fault last time fails without any."""
    tests: dict[str, list[str]] = {}
    for fault in faults:
        step, _, test = fault.caught_by.partition(" ")
        if test and test not in tests.setdefault(step, []):
            tests[step].append(test)
    for step, names in tests.items():
        progress(f"{step}: {len(names)} tests without a fault …")
        if failed := first_failure(copy, STEPS[step], names, STEP_LIMIT_S):
            raise FaultError(f"{failed} fails without a fault, so it proves nothing.")


def run_known(fault: Fault, copy: Path) -> str:
    """Return the step and test that caught a fault last time, "" if there is none or it
    passes.
    """
    step, _, test = fault.caught_by.partition(" ")
    if not test:
        return ""
    with planted(fault, copy):
        failed = first_failure(copy, STEPS[step], [test], TEST_LIMIT_S)
    return f"{step} {failed}" if failed else ""


def search(fault: Fault, copy: Path, *, names: Sequence[str], tests: Sequence[str]) -> str:
    """Return the first step and test that catch a fault, "" if none does.

    With `tests`, only these run in each step.
    """
    for name in names:
        progress(f"  {fault.name}: {name} …")
        with planted(fault, copy):
            limit_s = TEST_LIMIT_S if tests else STEP_LIMIT_S
            failed = first_failure(copy, STEPS[name], tests or STEPS[name].paths, limit_s)
        test = failed.partition(" (no end")[0]
        if failed and not first_failure(copy, STEPS[name], [test], TEST_LIMIT_S):
            return f"{name} {failed}"
        if failed:
            progress(f"  {test} fails without the fault, too: it does not count")
    return ""


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def as_row(fault: Fault, caught_by: str) -> str:
    """Return the line of a fault in the table of results."""
    step, _, test = caught_by.partition(" ")
    command = (
        "" if not step else "script/test" if STEPS[step].everyday else "script/test all"
    )
    cells = (
        fault.name,
        fault.room,
        fault.file,
        command or "**none**",
        step,
        test,
        fault.note,
    )
    return f"| {' | '.join(cells)} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="faults; without a name all"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the faults, and run nothing"
    )
    parser.add_argument(
        "--search", action="store_true", help="run steps, not only known tests"
    )
    steps_help = f"steps of --search, in this order; without it {', '.join(EVERYDAY)}"
    parser.add_argument(
        "--steps", nargs="+", choices=STEPS, default=EVERYDAY, help=steps_help
    )
    parser.add_argument("--tests", nargs="+", default=(), help="run these tests only")
    return parser.parse_args()


def run(faults: Sequence[Fault], asked: argparse.Namespace) -> int:
    """Run faults and print what caught each; return 1 if one that was caught last time is
    not.
    """
    rows, lost = [], False
    catch = (
        partial(search, names=asked.steps, tests=asked.tests) if asked.search else run_known
    )
    with copied_checkout() as copy:
        if not asked.search:
            require_passing(faults, copy)
        for number, fault in enumerate(faults, 1):
            begun = time.monotonic()
            caught = catch(fault, copy)
            lost |= bool(fault.caught_by and not caught)
            result = caught or ("NO LONGER CAUGHT" if fault.caught_by else "not caught")
            took_s = time.monotonic() - begun
            progress(f"{number}/{len(faults)} {fault.name}: {result}, {took_s:.0f} s")
            rows.append(as_row(fault, caught))
    print("| fault | room | file | caught by | step | test | note |")
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")
    return int(lost)


def main() -> int:
    asked = arguments()
    # Both end a run in order. In the background a shell ignores SIGINT, which pytest would
    # inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        faults = read_faults(asked.names)
        if not asked.list:
            return run(faults, asked)
        for fault in faults:
            print(f"{fault.room:13} {fault.name:52} {fault.caught_by or '-'}")
        return 0
    except KeyboardInterrupt:
        progress("Stopped.")
        return 130
    except FaultError as error:
        progress(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
