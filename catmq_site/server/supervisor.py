"""Runs a whole server in the foreground: `script/server` ends here.

It prepares the database, starts the broker (gunicorn) and the jobs (django-q), says when
they answer, starts again what died, and stops everything on SIGTERM or Ctrl-C. In the data
directory it keeps

    server.lock       held while it runs: a second server on the directory is refused
    broker.pid        gunicorn's master; kill it in whatever way to restart the broker alone
    log/*.log         what the children and the preparation say, cut back when a file exceeds
                      LOG_BYTES
    credentials.env   URL, API key and administrator

A child gets SIGTERM from the kernel when this process dies, so that not even kill -9 leaves
orphans.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TextIO

HOME = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
STOP_S = 50  # of a child to stop by itself: more than gunicorn's graceful time
READY_S = 120  # from the start of the broker to its first answer
LOG_BYTES = 32 << 20  # of one log file; as much again is kept as <name>.1
# before the 1st, 2nd, … restart of a child that keeps dying
PAUSES_S = (0.2, 0.5, 1, 2, 5, 10)
STEADY_S = 30  # a child that ran so long starts again without delay


class Refused(Exception):
    """Reason why the server does not start, in one line for the user."""


@dataclass
class Child:
    """One process to keep alive, in a session of its own so that Ctrl-C reaches only the
    supervisor.
    """

    name: str
    command: list[str]
    log: Path
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    due: float = field(default_factory=time.monotonic)

    def tend(self) -> None:
        """Start the child if its time has come, or notice its end."""
        if self.process is not None and self.process.poll() is not None:
            self._ended(self.process)
        if self.process is None and time.monotonic() >= self.due:
            self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603  our own programs
                self.command,
                cwd=HOME,
                env=os.environ | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # safe here: this process has one thread
                preexec_fn=die_with_parent(os.getpid()),
            )
        self.started = time.monotonic()

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        self.sweep()
        lasted = time.monotonic() - self.started
        asked_to = process.returncode == 0  # a polite restart is no failure
        self.failures = 0 if asked_to or lasted > STEADY_S else self.failures + 1
        pause = PAUSES_S[min(max(self.failures - 1, 0), len(PAUSES_S) - 1)]
        note(
            f"{self.name} ended ({process.returncode}) after {lasted:.0f} s; it starts "
            f"again. See {self.log}"
        )
        self.process, self.due = None, time.monotonic() + pause

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def sweep(self) -> None:
        """Kill what is left of the child's own children."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a new child runs before its program: SIGTERM when the parent ends, in
    whatever way.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


class Supervisor:
    def __init__(self, *, data: Path, host: str, port: int) -> None:
        self.data, self.host, self.port = data, host, port
        self.url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104
        self.stopping = False
        self.hurry = False
        self.known = (data / "credentials.env").exists()  # before this start
        logs = data / "log"
        python = sys.executable
        pid_file = str(data / "broker.pid")
        serve = [
            python,
            "-m",
            "gunicorn",
            "--config",
            "catmq_site/server/gunicorn_conf.py",
            "--pid",
            pid_file,
        ]
        self.broker = Child("The broker", serve, logs / "broker.log")
        work = [python, "manage.py", "qcluster", "--skip-checks"]
        self.jobs = Child(
            "The job runner", work, logs / "jobs.log", {"CATMQ_PROCESS": "jobs"}
        )
        self.children = [self.broker, self.jobs]

    def run(self) -> None:
        """Everything from the lock to the last child's end. Raises Refused."""
        (self.data / "log").mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda *_: self._stop())
            self._wait_for_port()
            self._prepare()
            try:
                self._serve()
            finally:
                self._end()

    def _stop(self) -> None:
        self.hurry = self.stopping  # the second Ctrl-C does not wait
        self.stopping = True

    def _rest(self, seconds: float) -> bool:
        """Wait so long; True if the server is to stop. An event hangs if a signal sets it
        inside wait().
        """
        if not self.stopping:
            time.sleep(seconds)
        return self.stopping

    def _lock(self) -> TextIO:
        file = (self.data / "server.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise Refused(
                f"A server (pid {file.read().strip()}) already runs on {self.data}."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def _wait_for_port(self) -> None:
        """Return when the port is free; a broker that a killed server left is given time to
        end.
        """
        end = time.monotonic() + STOP_S
        while not self._port_is_free():
            if not self._left_broker() or time.monotonic() > end or self._rest(0.2):
                raise Refused(
                    f"Port {self.port} of {self.host} is in use; choose another one with --port."
                )
        (self.data / "broker.pid").unlink(missing_ok=True)

    def _port_is_free(self) -> bool:
        try:
            found = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise Refused(
                f"{self.host} is not an address of this machine: {error.strerror}"
            ) from None
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except PermissionError:
                raise Refused(
                    f"Port {self.port} needs root; choose one above 1023 with --port."
                ) from None
            except OSError:
                return False
        return True

    def _left_broker(self) -> bool:
        try:
            pid = int((self.data / "broker.pid").read_text())
            return b"gunicorn" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False

    def _prepare(self) -> None:
        log = self.data / "log" / "prepare.log"
        with log.open("ab") as output:
            command = [sys.executable, "manage.py", "prepare", "--url", self.url]
            done = subprocess.Popen(  # noqa: S603  our own program
                command,
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
            )
            _, complaints = done.communicate()
            output.write(complaints)
        if done.returncode and not self.stopping:
            last = complaints.decode(errors="replace").strip().splitlines()[-1:] or [
                "no reason given"
            ]
            raise Refused(f"The database could not be prepared: {last[0]}\nMore in {log}")

    def _serve(self) -> None:
        limit = time.monotonic() + READY_S
        ready = False
        while not self._rest(0.1 if not ready else 0.25):
            for child in self.children:
                child.tend()
                cut(child.log)
            if ready:
                continue
            ready = answers(self.url)
            if ready:
                self._greet()
            elif self.broker.failures or time.monotonic() > limit:
                raise Refused(f"The broker did not start:\n{tail(self.broker.log)}")

    def _greet(self) -> None:
        print(f"CatMQ is ready: {self.url}", flush=True)  # noqa: T201  the one line of our stdout
        client, credentials = HOME / "client", self.data / "credentials.env"
        if "CATMQ_API_KEY=" not in credentials.read_text():
            say(
                "  The metadata has an administrator already, so this directory got "
                "neither key nor account."
            )
            say("  To make a key: manage.py create_api_key NAME --right admin='*'")
            return
        if not self.known:
            say(
                f"  Made: an administrator and an API key that may do everything, in {credentials}"
            )
        say(f"  set -a; . {credentials}; set +a")
        say(
            f"  {HOME / '.venv/bin/pip'} install -q {client} && PATH={HOME / '.venv/bin'}:$PATH"
        )
        # as with a database of one's own
        if b"no node is registered" in readiness(self.url)[1]:
            say(
                "  Register a node before the next line: docs/how-to/run-on-mariadb.md, step 3"
            )
        say(
            "  catmq topic create first --queues 4 && echo hello | catmq send first && "
            "catmq peek first"
        )

    def _end(self) -> None:
        """Stop all children: politely, then not."""
        for child in self.children:
            child.signal(signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and not self.hurry and any(map(_runs, self.children)):
            time.sleep(0.05)
        for child in self.children:
            child.sweep()
            if child.process is not None:
                child.process.wait()


def _runs(child: Child) -> bool:
    return child.process is not None and child.process.poll() is None


def answers(url: str) -> bool:
    """Return True if the broker serves: by /readyz, or with nodes offline, or drained."""
    status, text = readiness(url)
    if status == 200 or b"drained" in text:
        return True
    return bool(os.environ.get("CATMQ_DATABASE_URL")) and b"node" in text


def readiness(url: str) -> tuple[int, bytes]:
    """Return status and text of /readyz; 0 and nothing from a broker that does not answer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=5)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def cut(log: Path) -> None:
    """Keep a log file below its limit; the children append, so it is emptied in place."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def tail(log: Path, lines: int = 15) -> str:
    return (
        "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
        if log.exists()
        else ""
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def note(text: str) -> None:
    """One line on stderr about something that happened, with the time."""
    say(f"{datetime.now().astimezone().isoformat(sep=' ', timespec='milliseconds')} {text}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/server",
        description="Starts a CatMQ server: broker, portal and jobs. Stop it with Ctrl-C "
        "or SIGTERM.",
        epilog="Prints `CatMQ is ready: URL` on stdout when it answers. "
        "DIR/credentials.env holds URL, API "
        "key and administrator. CATMQ_DATABASE_URL=mysql://user:password@host:port/name "
        "puts the metadata "
        "on MySQL or MariaDB; register nodes with `manage.py register_node` then. Other settings: "
        "docs/reference/settings.md. script/server --with-spark installs what Spark jobs "
        "need, too.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on (default %(default)s)"
    )
    data = Path(os.environ.get("CATMQ_DATA_DIR") or HOME / "var")
    parser.add_argument(
        "--data",
        type=Path,
        default=data,
        metavar="DIR",
        help="data directory (default var)",
    )
    chosen = parser.parse_args()
    if not 0 < chosen.port < 65536:
        parser.error("--port must be from 1 to 65535")
    return chosen


def make_usable(data: Path) -> None:
    """Make the data directory. Raises Refused if there is none afterwards that can be
    written to.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = "" if os.access(data, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise Refused(
            f"The data directory {data} cannot be used: {problem}. Give another one with --data."
        )


def main() -> int:
    chosen = arguments()
    data: Path = chosen.data.expanduser().resolve()
    os.environ |= {
        "CATMQ_DATA_DIR": str(data),
        "CATMQ_BIND": f"{chosen.host}:{chosen.port}",
        "PYTHONUNBUFFERED": "1",
    }
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(data / "metrics")
    try:
        make_usable(data)
        from metadata import config, private  # reads and checks the settings

        private.protect_or_exit(config.config.data_dir)
        Supervisor(data=data, host=chosen.host, port=chosen.port).run()
    except (Refused, ValueError, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
