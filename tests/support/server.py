"""A whole server, started by script/server like everybody's, in a directory of its own."""

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

READY_S = 180  # of a start, on a machine that does other things too
STOP_S = 90
NEW = ("CATMQ_JAVA_NETWORKS",)  # settings that the previous release would refuse
TAIL_BYTES = 20_000  # of each log, in the report of a failed test
started: list[Server] = []  # servers that are not cleared away yet


@dataclass
class Server:
    """A server of `data`; `environ` adds settings, e.g. CATMQ_DATABASE_URL.

    On the embedded engine it finds its databases migrated, unless `from_nothing`. `root` is
    where its code lies; that of another release runs with our packages.
    """

    data: Path
    port: int = field(default_factory=free_port)
    environ: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    from_nothing: bool = False
    root: Path = ROOT

    @property
    def url(self) -> str:
        """Where the broker answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """What credentials.env holds."""
        lines = (self.data / "credentials.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def api_key(self) -> str:
        """The key that may do everything."""
        return self.credentials["CATMQ_API_KEY"]

    @property
    def broker_pid(self) -> int:
        """gunicorn's master."""
        return int((self.data / "broker.pid").read_text())

    def command(self) -> list[str]:
        """How the server is started."""
        where = ["--port", str(self.port), "--data", str(self.data)]
        if self.root != ROOT:  # script/server would install that release's requirements
            return [sys.executable, "-P", "-m", "catmq_site.server.supervisor", *where]
        return [str(ROOT / "script/server"), *where]

    def environment(self) -> dict[str, str]:
        """The environment without the test session's own settings; the directory marks our
        processes.
        """
        own = {"CATMQ_DATA_DIR": str(self.data), **self.environ}
        if self.root != ROOT:
            own = {name: value for name, value in own.items() if name not in NEW}
            own["PYTHONPATH"] = str(self.root)
        return clean_environment() | own

    def start(self) -> Server:
        """Starts and waits for the line on stdout."""
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
        """Copies files of another server's directory, which its metadata goes with; by
        default the key.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        for name in files or ("credentials.env",):
            shutil.copy(other.data / name, self.data / name)
        return self

    def refused(self) -> tuple[int, str]:
        """(exit code, stderr) of a start that is expected to fail."""
        done = subprocess.run(
            self.command(),
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stderr

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signals the server and waits for its end; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=STOP_S)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def restart_broker(self, number: int = signal.SIGTERM) -> None:
        """Ends the broker alone and waits until the next one answers."""
        before = self.broker_pid
        os.kill(before, number)
        until(lambda: self.serves() and self.broker_pid != before, limit_s=READY_S)

    def kill_worker(self, index: int = 0) -> None:
        """kill -9 of one worker of the broker; returns when another has taken its place."""
        before = until(self.workers, limit_s=READY_S)
        os.kill(before[index % len(before)], signal.SIGKILL)
        until(
            lambda: (
                len(set(self.workers()) & set(before)) < len(before) == len(self.workers())
            ),
            limit_s=READY_S,
        )
        until(self.serves, limit_s=READY_S)

    @contextlib.contextmanager
    def untended(self) -> Iterator[None]:
        """For the length of a block what is killed stays dead: the supervisor is stopped by
        SIGSTOP.

        Afterwards everything is started again; it serves when the block is over.
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
        """kill -9 of gunicorn's master; its workers end with it."""
        workers = self.workers()
        os.kill(self.broker_pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in workers))

    def kill_job_runners(self) -> None:
        """kill -9 of every process of django-q's cluster."""
        for pid in self.job_runners():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def job_runners(self) -> set[int]:
        """The processes of django-q's cluster."""
        return {pid for pid in self.processes() if b"qcluster" in command_of(pid)}

    def workers(self) -> list[int]:
        """The broker's worker processes."""
        return [pid for pid in self.processes() if parent_of(pid) == self.broker_pid]

    def serves(self) -> bool:
        """Whether sends and pulls are served."""
        try:
            return self.call("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def manage(self, *arguments: str) -> str:
        """What a management command prints, run beside the server."""
        command = [sys.executable, str(self.root / "manage.py"), *arguments]
        done = subprocess.run(
            command,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_S,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        return done.stdout

    def clear_away(self) -> None:
        """Ends it, and kills whatever of it is left."""
        started[:] = [server for server in started if server is not self]
        if self.process is not None:
            self.end()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """(status, decoded body) of one request with the server's own key."""
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
        """Every process that works on this server's directory, the supervisor included."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry):
                found.append(int(entry.name))
        return found

    def _is_ours(self, entry: Path) -> bool:
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            environ = (entry / "environ").read_bytes()
        except OSError:
            return False
        return state != "Z" and f"CATMQ_DATA_DIR={self.data}\0".encode() in environ


def log_tails() -> list[tuple[str, str]]:
    """Return the ends of the logs of all started servers, as (title, text), for the report
    of a failure.
    """
    sections = []
    for server in started:
        for path in (server.data / "stderr", *sorted((server.data / "log").glob("*.log"))):
            # not written, or the directory is gone
            with contextlib.suppress(FileNotFoundError):
                text = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
                sections += [(f"end of {path}", text)] if text.strip() else []
    return sections


def clean_environment() -> dict[str, str]:
    """The caller's environment without any setting of CatMQ."""
    ours = ("CATMQ_", "DJANGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def command_of(pid: int) -> bytes:
    """A process's command line, b'' when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Whether the process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stopped(pid: int) -> bool:
    """Return True if each thread of a process is stopped; False if it is gone."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return bool(stats) and all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def parent_of(pid: int) -> int | None:
    """The parent of a process; None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line of a process's stdout, '' when it ends without one."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    output = process.stdout
    threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    return lines.get(timeout=READY_S)
