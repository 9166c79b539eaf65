"""What script/bench tasks compares with: packages in an environment of its own, and a
private Redis.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.environment import ROOT, free_port

NAMES = ("catmq", "django-tasks-db", "django-q2", "celery")
WANTED = ROOT / "benchmarks/tasking/requirements.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "catmq/bench-tasks"
PYTHON = CACHE / "venv/bin/python"
# Debian's packages of Redis with the libraries that a system may lack; nothing is
# installed.
PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")
START_S = 10.0


class CannotBeHad(Exception):
    """A program cannot be downloaded, or does not run here."""


def install() -> None:
    """Make the environment with the pinned packages, unless it is there."""
    done = CACHE / "installed.txt"
    if done.exists() and done.read_text() == WANTED.read_text():
        return
    venv = CACHE / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    words = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(WANTED))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PYTHON, *words], check=True, env=environ)
    done.write_text(WANTED.read_text())


def redis_directory() -> Path:
    """Return the directory of Debian's packages of Redis, downloaded once; apt checks their
    signatures.
    """
    there = CACHE / "redis"
    if not (there / "usr/bin/redis-server").exists():
        there.mkdir(parents=True, exist_ok=True)
        try:
            run("apt-get", "download", *PACKAGES, at=there)
            for package in sorted(there.glob("*.deb")):
                run("dpkg-deb", "-x", str(package), str(there), at=there)
        except OSError as error:
            raise CannotBeHad(f"Redis: {error}") from error
    return there


def run(*command: str, at: Path) -> None:
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBeHad(f"{command[0]}: {done.stderr.strip()[-300:]}")


def redis_program(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of the Redis in a directory, and the environment it needs."""
    libraries = ":".join(str(path) for path in directory.glob("usr/lib/*-linux-gnu"))
    environ = {**os.environ, "LD_LIBRARY_PATH": libraries}
    return [str(directory / "usr/bin/redis-server")], environ


@contextmanager
def redis(home: Path) -> Iterator[str]:
    """The URL of a private Redis with Debian's settings: snapshots, and no log of each
    write.
    """
    port = free_port()
    program, environ = redis_program(redis_directory())
    home.mkdir()
    command = [*program, "--port", str(port), "--bind", "127.0.0.1"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--dir", str(home)],
            env=environ,
            stdout=log,
            stderr=log,
        )
    try:
        give_up_at = time.monotonic() + START_S
        while b"Ready to accept connections" not in (home / "log").read_bytes():
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise CannotBeHad(
                    f"Redis does not start: {(home / 'log').read_text()[-300:]}"
                )
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
