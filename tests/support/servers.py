"""Whole servers as processes of their own: what `script/server` starts, in a directory, on a free port."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.environment import ROOT, free_port
from tests.support.waiting import until

READY_S = 180  # of a start, on a machine that does other things too
STOP_S = 90
MARK = "SERVER_UNDER_TEST"  # in the environment of every process of a server: its data directory


def clean_environment() -> dict[str, str]:
    """The caller's environment without any setting of CatMQ."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CATMQ_", "DJANGO_"))}


class Server:
    """One server: start, stop, kill it or its broker, and what clients need to reach it."""

    def __init__(self, directory: Path, *, environ: Mapping[str, str] | None = None) -> None:
        self.data = directory / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.out, self.err = directory / "server.out", directory / "server.err"
        self.environ = {
            **clean_environment(),
            "PYTHONPATH": str(ROOT),
            MARK: str(self.data),
            **(environ or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def command(self, **changed: object) -> list[str]:
        """What starts the server; `changed` are other values for its options, e.g. port=80."""
        options = {"port": self.port, "data": self.data, **changed}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return [sys.executable, "-P", "-m", "catmq_site.supervisor", *words]

    def start(self, command: list[str] | None = None) -> Server:
        """Starts it and waits until it says that it is ready."""
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command or self.command(),
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        until(self._ready_or_ended, limit_s=READY_S)
        assert self.process.poll() is None, f"the server did not start:\n{self.err.read_text()}"
        return self

    def refusal(self, command: list[str]) -> str:
        """What a start says that must be refused."""
        done = subprocess.run(
            command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=READY_S, check=False
        )
        assert done.returncode == 1, done
        assert done.stdout == ""
        return done.stderr

    def manage(self, *arguments: str) -> str:
        """What a management command prints, run beside the server."""
        environ = {**self.environ, "CATMQ_DATA_DIR": str(self.data)}
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=READY_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def credentials(self) -> dict[str, str]:
        """What credentials.env holds."""
        lines = (self.data / "credentials.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))

    def credentials_mode(self) -> int:
        """The permissions of credentials.env."""
        return stat.S_IMODE((self.data / "credentials.env").stat().st_mode)

    def serves(self) -> bool:
        """Whether sends and pulls are served now."""
        try:
            with urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def broker_pid(self) -> int | None:
        """The process id of gunicorn's master; None between a broker's end and the next one's start."""
        try:
            return int((self.data / "broker.pid").read_text())
        except (OSError, ValueError):
            return None

    def worker_pids(self) -> list[int]:
        """The broker's worker processes."""
        master = self.broker_pid()
        return [pid for pid in self.pids() if pid != master and parent_of(pid) == master]

    def restart_broker(self, number: signal.Signals) -> float:
        """Ends the broker by a signal and waits until the next one serves; how long that took, in s."""
        before = until(self.broker_pid, limit_s=READY_S)
        begun = time.monotonic()
        os.kill(before, number)
        until(lambda: self.broker_pid() not in (None, before) and self.serves(), limit_s=READY_S)
        return time.monotonic() - begun

    def kill_worker(self, index: int = 0) -> float:
        """kill -9 of one worker process; returns when another has taken its place."""
        before = until(self.worker_pids, limit_s=READY_S)
        victim = before[index % len(before)]
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        until(
            lambda: victim not in self.worker_pids() and len(self.worker_pids()) >= len(before),
            limit_s=READY_S,
        )
        until(self.serves, limit_s=READY_S)
        return time.monotonic() - begun

    def pids(self) -> list[int]:
        """Every living process that belongs to this server."""
        return [pid for pid in all_pids() if marked(pid, str(self.data))]

    def signal(self, number: signal.Signals) -> int:
        """Sends a signal to the server itself and waits for its end; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=STOP_S)

    def stop(self) -> None:
        """Ends it politely; at the end nothing of it is left, whatever happened to it before."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)

    def complaints(self) -> str:
        """The log of the broker, for the message of a failed test."""
        log = self.data / "log" / "broker.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def _ready_or_ended(self) -> bool:
        assert self.process is not None
        return f"CatMQ is ready: {self.url}\n" in self.out.read_text() or self.process.poll() is not None


def all_pids() -> list[int]:
    """Every process of this machine that we may see."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def marked(pid: int, directory: str) -> bool:
    """Whether a living process carries the mark of this data directory."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"{MARK}={directory}".encode() in environ
    except OSError:
        return False


def parent_of(pid: int) -> int | None:
    """The parent's process id."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
