"""Programs of Debian packages, downloaded and unpacked without an installation."""

from __future__ import annotations

import fcntl
import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache/catmq/debian"
LIMIT_S = 300


def program(name: str, *, package: str) -> str:
    """Return the path of a program that is installed, or unpacked from its package.

    Its libraries must be on this machine: only the package itself is downloaded. Skips the
    test with the reason if the program cannot be had.
    """
    path, reason = _find(name, package)
    if not path:
        pytest.skip(f"{name} of the package {package} cannot be had: {reason}")
    return path


@functools.cache
def _find(name: str, package: str) -> tuple[str, str]:
    """Return the program's path, and the reason if it is ''."""
    installed = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    if installed:
        return installed, ""
    CACHE.mkdir(parents=True, exist_ok=True)
    # Test processes run at the same time; the second finds what the first unpacked.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = CACHE / package
        if not root.is_dir() and (reason := _unpack(package, root)):
            return "", reason
    paths = [root / folder / name for folder in ("usr/bin", "usr/sbin")]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return "", f"the package has no {name}"
    linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    if missing := re.findall(r"(\S+) => not found", linked.stdout):
        return "", f"this machine lacks {', '.join(missing)}"
    return str(path), ""


def _unpack(package: str, root: Path) -> str:
    """Download a package and unpack it into `root`, whole or not at all. Return the reason
    if that failed.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "this is no Debian"
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        # A machine without package lists, as a new one, needs the update first.
        for command in (
            ["apt-get", "-qq", "download", package],
            ["apt-get", "-qq", "update"],
            ["apt-get", "-qq", "download", package],
        ):
            try:
                done = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, check=False,
                    timeout=LIMIT_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"{' '.join(command)} took more than {LIMIT_S} s"
            files = list(Path(scratch).glob("*.deb"))
            if files:
                unpacked = Path(scratch) / "root"
                subprocess.run(["dpkg-deb", "-x", files[0], unpacked], check=True)
                unpacked.rename(root)
                return ""
        return (done.stderr.strip() or "no download").splitlines()[-1]
