"""Runs the tests of tasks with a Django that has tasks itself: ours, Django's, and those of
django-tasks-db.

    python -m tests.foreign.native            or: script/test foreign-native

Needs a Python of 3.12 or later, as that Django does: CATMQ_NATIVE_PYTHON, or one on the
PATH or of pyenv. Packages go into an environment below ~/.cache/catmq/foreign: those of
requirements.txt, with this Django.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.foreign.sdists import CACHE
from tests.foreign.tasks import DJANGO

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.14", "3.13", "3.12")
WANTED = ("requirements.txt", "requirements-mysql.txt", "requirements-dev.txt")
OF_DEV = ("pytest", "pytest-django", "hypothesis")
SUITES = ("tests/unit/test_tasks*.py", "tests/integration/test_tasks*.py")
# What a later Django will no longer have is no error here: the server runs on the Django
# that it pins.
LENIENT = ("-o", "filterwarnings=default")


def main() -> int:
    """Run all three; return 0 if all went well."""
    python = environment()
    names = sorted(
        str(path.relative_to(ROOT)) for suite in SUITES for path in ROOT.glob(suite)
    )
    ours = (str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *LENIENT, *names)
    codes = [run(*ours, CATMQ_TEST_ENGINE=engine) for engine in ("sqlite", "mysql")]
    codes.append(run(str(python), "-m", "tests.foreign.tasks"))
    return max(codes)


def run(*command: str, **environ: str) -> int:
    given = {**os.environ, "PYTHONPATH": str(ROOT / "client/src"), **environ}
    return subprocess.run(command, cwd=ROOT, env=given, check=False).returncode


def environment() -> Path:
    """Return the Python of an environment with that Django, made if it is not there."""
    wanted = requirements()
    there = CACHE / f"django-{DJANGO[1]}"
    python, done = there / "bin/python", there / "installed.txt"
    if not done.exists() or done.read_text() != "\n".join(wanted):
        subprocess.run([found_python(), "-m", "venv", "--clear", str(there)], check=True)
        subprocess.run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                *wanted,
            ],
            check=True,
        )
        done.write_text("\n".join(wanted))
    return python


def requirements() -> list[str]:
    """Return what the server and its tests need, with that Django.

    >>> [one for one in requirements() if one.startswith(("django=",
    ...     "pytest="))]  # doctest: +ELLIPSIS
    ['django==6.1.3', 'pytest==...']
    """
    lines = [
        line.strip() for name in WANTED for line in (ROOT / name).read_text().splitlines()
    ]
    pinned = dict(
        line.split("==") for line in lines if re.fullmatch(r"[\w-]+==[\w.]+", line)
    )
    runtime = [
        line.partition("==")[0]
        for name in WANTED[:2]
        for line in (ROOT / name).read_text().splitlines()
    ]
    pinned["django"] = DJANGO[1]
    return [
        f"{name}=={version}"
        for name, version in pinned.items()
        if name in (*runtime, *OF_DEV)
    ]


def found_python() -> str:
    """Return a Python that this Django runs on."""
    named = os.environ.get("CATMQ_NATIVE_PYTHON")
    of_pyenv = sorted(
        (Path.home() / ".pyenv/versions").glob("3.*/bin/python"), reverse=True
    )
    for one in (
        [named]
        if named
        else [*(f"python{version}" for version in VERSIONS), *map(str, of_pyenv)]
    ):
        told = (
            subprocess.run([one, "-V"], capture_output=True, text=True, check=False)
            if shutil.which(one)
            else None
        )
        if told is not None and told.stdout.startswith(
            tuple(f"Python {version}." for version in VERSIONS)
        ):
            return one
    sys.exit(
        f"CANNOT BE HAD here: Python {VERSIONS[-1]} or later; name one in CATMQ_NATIVE_PYTHON"
    )


if __name__ == "__main__":
    sys.exit(main())
