"""A Redis for results of Celery: the installed one, or that of the system's packages,
unpacked in a cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.foreign.sdists import CACHE
from tests.support.environment import free_port
from tests.support.waiting import until

PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")


@contextmanager
def running(place: Path) -> Iterator[int]:
    """Run a server that keeps nothing; its port."""
    program, environ, port = found(), dict(os.environ), free_port()
    libraries = [str(one) for one in (CACHE / "redis/usr/lib").glob("*-linux-gnu")]
    environ["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    words = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    log = place / "redis.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, *words], cwd=place, env=environ, stdout=out, stderr=out
        )
    try:
        until(
            lambda: (
                "Ready to accept connections" in log.read_text()
                or process.poll() is not None
            )
        )
        if process.poll() is not None:
            raise SystemExit(f"Redis does not start: {log.read_text()}")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def found() -> str:
    """Return the program; downloaded by apt-get, and not installed, if there is none."""
    installed = shutil.which("redis-server")
    unpacked = CACHE / "redis/usr/bin/redis-server"
    if installed is None and not unpacked.exists():
        fetch(unpacked.parents[2])
    return installed or str(unpacked)


def fetch(target: Path) -> None:
    if shutil.which("apt-get") is None:
        raise SystemExit("CANNOT BE HAD here: redis-server; install it")
    made = target.with_suffix(".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    if subprocess.run(
        ["apt-get", "download", "-qq", *PACKAGES], cwd=made, check=False
    ).returncode:
        raise SystemExit("CANNOT BE HAD here: redis-server, see above")
    for package in made.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, made], check=True)
        package.unlink()
    made.rename(target)
