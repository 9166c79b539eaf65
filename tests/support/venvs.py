"""Virtualenvs with libraries that are no requirement of the project, below the user's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "catmq"
LIMIT_S = 600


def python_with(requirements: Path) -> str:
    """Return the Python of a virtualenv with these pinned libraries, made at the first use.

    It is named after the folder of the file, and stays for the next run. It sees the packages
    of the test session, too. Skips the test if the libraries cannot be had.
    """
    venv = CACHES / requirements.parent.name
    interpreter, installed = venv / "bin/python", venv / "installed.txt"
    CACHES.mkdir(parents=True, exist_ok=True)
    # Steps of the gate run at the same time, and may want the same virtualenv.
    with (CACHES / f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != requirements.read_text():
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", venv],
                check=True,
                timeout=LIMIT_S,
            )
            pip = subprocess.run(
                [interpreter, "-m", "pip", "install", "-q", "-r", requirements],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            if pip.returncode:
                pytest.skip(f"{requirements.name} cannot be installed: {pip.stderr[-500:]}")
            installed.write_text(requirements.read_text())
        (library,) = (venv / "lib").glob("python*/site-packages")
        session_packages = next(path for path in sys.path if path.endswith("site-packages"))
        # A plain line adds a directory to sys.path, behind the packages of the virtualenv.
        (library / "outer.pth").write_text(f"{session_packages}\n")
    return str(interpreter)
