"""A whole server, started by script/server as users start it, in a directory of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import migrated
from tests.support.environment import ROOT, free_port
from tests.support.waiting import until

READY_S = 180  # for a start on a busy machine
STOP_S = 90
NEW_SETTINGS = ("CATMQ_JAVA_NETWORKS",)  # settings that the previous release refuses
TAIL_BYTES = 20_000  # of each log, in the report of a failed test
started: list[Server] = []  # servers that were not cleared away yet


@dataclass
class Server:
    """A server of the directory `data`. `environ` adds settings, e.g. CATMQ_DATABASE_URL.

    On the embedded engine its databases are migrated already, unless `from_nothing`. `root`
    is the directory of its code; another release runs with our packages.
    """

    data: Path
    port: int = field(default_factory=free_port)
    environ: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    from_nothing: bool = False
    root: Path = ROOT

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The content of credentials.env."""
        lines = (self.data / "credentials.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def api_key(self) -> str:
        """The API key with all rights."""
        return self.credentials["CATMQ_API_KEY"]

    @property
    def broker_pid(self) -> int:
        """The process id of gunicorn's master."""
        return int((self.data / "broker.pid").read_text())

    def command(self) -> list[str]:
        """Return the command that starts the server."""
        options = ["--port", str(self.port), "--data", str(self.data)]
        if self.root != ROOT:  # script/server would install that release's requirements
            return [sys.executable, "-P", "-m", "catmq_site.server.supervisor", *options]
        return [str(ROOT / "script/server"), *options]

    def environment(self) -> dict[str, str]:
        """Return the environment without the settings of the test session.

        The data directory marks the processes of this server.
        """
        settings = {"CATMQ_DATA_DIR": str(self.data), **self.environ}
        if self.root != ROOT:
            settings = {
                name: value for name, value in settings.items() if name not in NEW_SETTINGS
            }
            settings["PYTHONPATH"] = str(self.root)
        return clean_environment() | settings

    def start(self) -> Server:
        """Start and wait for the line on stdout."""
        # The report of a failed test has the ends of the logs of all servers in this list.
        if not any(server is self for server in started):
            started.append(self)
        self.data.mkdir(parents=True, exist_ok=True)
        embedded = "CATMQ_DATABASE_URL" not in self.environ
        if (
            embedded
            and not self.from_nothing
            and not (self.data / "metadata.sqlite3").exists()
        ):
            migrated.copy_to(self.data)
        # stderr goes to a file: a pipe that is not read would block the server when it is
        # full.
        with (self.data / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        line = first_line(self.process)
        assert line == f"CatMQ is ready: {self.url}\n", (
            line,
            (self.data / "stderr").read_text(),
        )
        return self

    def join(self, other: Server, *files: str) -> Server:
        """Copy files of another server with the same metadata; by default the key."""
        self.data.mkdir(parents=True, exist_ok=True)
        for name in files or ("credentials.env",):
            shutil.copy(other.data / name, self.data / name)
        return self

    def refused(self) -> tuple[int, str]:
        """Return (exit code, stderr) of a start that must fail."""
        process = subprocess.run(
            self.command(),
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return process.returncode, process.stderr

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=STOP_S)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def restart_broker(self, number: int = signal.SIGTERM) -> None:
        """Stop only the broker, and wait until the next broker answers."""
        former_pid = self.broker_pid
        os.kill(former_pid, number)
        until(lambda: self.serves() and self.broker_pid != former_pid, limit_s=READY_S)

    def kill_worker(self, index: int = 0) -> None:
        """Kill a worker of the broker with SIGKILL, and wait until another has replaced it."""
        # After a restart the workers may not have been forked yet.
        former_workers = until(self.workers, limit_s=READY_S)
        os.kill(former_workers[index % len(former_workers)], signal.SIGKILL)
        until(
            lambda: (
                len(set(self.workers()) & set(former_workers))
                < len(former_workers)
                == len(self.workers())
            ),
            limit_s=READY_S,
        )
        until(self.serves, limit_s=READY_S)

    @contextlib.contextmanager
    def untended(self) -> Iterator[None]:
        """Stop the supervisor with SIGSTOP during the block, so that killed processes stay
        dead.

        Afterwards it starts them again; the server is ready when the block is left.
        """
        assert self.process is not None
        # script/server has become the supervisor by exec.
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)
            until(
                lambda: self.serves() and self.job_runners(), limit_s=READY_S, every_s=0.1
            )

    def kill_broker(self) -> None:
        """Kill gunicorn's master with SIGKILL. Its workers end with it."""
        # Listed before the kill: orphans get another parent.
        workers = self.workers()
        os.kill(self.broker_pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in workers))

    def kill_job_runners(self) -> None:
        """Kill every process of django-q's cluster with SIGKILL."""
        for pid in self.job_runners():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def job_runners(self) -> set[int]:
        """Return the processes of django-q's cluster."""
        return {pid for pid in self.processes() if b"qcluster" in command_of(pid)}

    def workers(self) -> list[int]:
        """Return the broker's worker processes."""
        return [pid for pid in self.processes() if parent_of(pid) == self.broker_pid]

    def serves(self) -> bool:
        """Return True if sends and pulls are served."""
        try:
            return self.call("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def manage(self, *arguments: str) -> str:
        """Run a management command while the server runs, and return its output."""
        command = [sys.executable, str(self.root / "manage.py"), *arguments]
        process = subprocess.run(
            command,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_S,
        )
        assert process.returncode == 0, process.stdout[-4000:] + process.stderr
        return process.stdout

    def clear_away(self) -> None:
        """Stop the server, and kill all its remaining processes."""
        started[:] = [server for server in started if server is not self]
        if self.process is not None:
            self.end()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request with the server's own key. Return (status, decoded body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {
                "Authorization": f"Bearer {self.api_key}",
                "Content-Type": "application/json",
            }
            connection.request(
                method, path, json.dumps(body) if body is not None else None, headers
            )
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return response.status, json.loads(text) if is_json and text else text.decode()

    def processes(self) -> list[int]:
        """Return every process that uses this server's directory, including the supervisor."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry):
                pids.append(int(entry.name))
        return pids

    def _is_ours(self, entry: Path) -> bool:
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            # Children inherit the variable, so orphans are listed as well.
            environ = (entry / "environ").read_bytes()
        except OSError:
            return False
        # The final NUL keeps a directory apart from others whose names begin with its name.
        return state != "Z" and f"CATMQ_DATA_DIR={self.data}\0".encode() in environ


def log_tails() -> list[tuple[str, str]]:
    """Return the ends of the logs of all started servers as (title, text), for the report
    of a failure.
    """
    sections = []
    for server in started:
        for path in (server.data / "stderr", *sorted((server.data / "log").glob("*.log"))):
            # The log was not written, or its directory was removed.
            with contextlib.suppress(FileNotFoundError):
                text = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
                sections += [(f"end of {path}", text)] if text.strip() else []
    return sections


def clean_environment() -> dict[str, str]:
    """Return the caller's environment without settings of CatMQ and Django."""
    prefixes = ("CATMQ_", "DJANGO_")
    return {
        name: value for name, value in os.environ.items() if not name.startswith(prefixes)
    }


def command_of(pid: int) -> bytes:
    """Return the command line of a process; b'' if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Return True if the process has not ended."""
    try:
        # The name in parentheses may hold blanks and parentheses, so the fields begin after
        # the last.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stopped(pid: int) -> bool:
    """Return True if all threads of a process are stopped; False if it has ended."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return bool(stats) and all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line of a process's stdout; '' if it ends without a line."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    output = process.stdout
    # readline() has no timeout, so a thread reads and the caller waits for the queue.
    threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    return lines.get(timeout=READY_S)
