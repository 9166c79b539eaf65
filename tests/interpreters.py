"""Run the unit tests of the client on another Python, and with a later Django.

    python -m tests.interpreters          on the newest Python of this machine
    python -m tests.interpreters --all    on each

The gate's own Python runs them in the step `unit`. Each other one gets an environment with
what the client and its tests need, at the pinned versions, below .test. Its tests run
without tests/conftest.py, which is the server's. A Python that is not on this machine is
skipped, in words.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.foreign import native

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".test" / "pythons"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PACKAGES = (
    "asgiref",
    "requests",
    "msgspec",
    "pytest",
    "pytest-rerunfailures",
    "hypothesis",
    "cryptography",
)
# They compare the client with the server, which one Python is enough for.
OF_THE_SERVER = {"test_client_types.py", "test_client_reference.py"}
# test_client_interrupts raises into every line. Python 3.12 reports the generators that this
# ends as unraisable; the gate's own Python treats such reports as errors.
UNRAISABLE = ("-W", "ignore::pytest.PytestUnraisableExceptionWarning")
NO_SERVER = ("--noconftest", "-p", "no:cacheprovider", "-q", "--reruns", "1", "-rfER")
# Later releases of Django warn of what they will drop; the server pins its Django.
LENIENT = ("-o", "filterwarnings=default")


def main() -> int:
    """Run the tests on the chosen Pythons. Return 1 if any failed."""
    failed = False
    later = [version for version in VERSIONS if version != own_version()]
    if sys.argv[1:] != ["--all"]:
        here = [version for version in later if find_python(version)]
        later = (here or later)[-1:]
    for version in later:
        python = find_python(version)
        if python is None:
            print(
                f"Python {version} is skipped: neither python{version} in PATH nor a version "
                "of pyenv",
                flush=True,
            )
            continue
        failed |= run_tests(make_environment(version, python), version)
    if any(find_python(version) for version in native.VERSIONS):
        failed |= run_with_later_django()
    else:
        print("a later Django is skipped: it needs Python 3.12, which is not here")
    return int(failed)


def own_version() -> str:
    """Return the version of this Python: "3.11"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def find_python(version: str) -> str | None:
    """Return the path of a Python of this version, or None if there is none that works."""
    of_pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for candidate in (shutil.which(f"python{version}"), *map(str, sorted(of_pyenv))):
        if candidate is None:
            continue
        # pyenv's shims are in PATH for versions that it refuses to run.
        done = subprocess.run(
            [candidate, "-V"], capture_output=True, text=True, check=False
        )
        if done.stdout.startswith(f"Python {version}."):
            return candidate
    return None


def pinned() -> list[str]:
    """Return the packages at the versions of the lock of the tests.

    The lock has `name==version ; marker \\\\` and then hashes.
    """
    lock = (ROOT / "requirements-dev.lock").read_text() + (
        ROOT / "requirements.lock"
    ).read_text()
    versions = dict(re.findall(r"^([\w-]+)==([\w.]+)", lock, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in PACKAGES]


def make_environment(version: str, python: str) -> Path:
    """Return the Python of a new environment with the packages."""
    environment = WORK / version
    subprocess.run([python, "-m", "venv", "--clear", environment], check=True)
    own = environment / "bin" / "python"
    pip = (own, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    subprocess.run([*pip, *pinned()], check=True)
    return own


def run_tests(python: Path, version: str) -> bool:
    """Run the client's unit tests. Return True if any failed."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.glob("tests/unit/test_client_*.py"))
        if path.name not in OF_THE_SERVER
    ]
    print(f"── Python {version}", flush=True)
    # CI makes hypothesis accept slow examples: the machine does other things, too.
    environ = {**os.environ, "CI": "true", "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}"}
    done = subprocess.run(
        [python, "-m", "pytest", *NO_SERVER, *UNRAISABLE, *files],
        cwd=ROOT,
        env=environ,
        check=False,
    )
    return done.returncode != 0


def run_with_later_django() -> bool:
    """Run the unit tests of the adapters to Django with the Django that has tasks itself.

    Return True if any failed.
    """
    print(f"── Django {native.DJANGO[1]}", flush=True)
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/unit/test_tasks*.py")]
    command = (str(native.environment()), "-m", "pytest", "-q", "-p", "no:cacheprovider")
    return native.run(*command, *LENIENT, *sorted(files), CATMQ_TEST_ENGINE="sqlite") != 0


if __name__ == "__main__":
    sys.exit(main())
