"""Runs a whole server in the foreground: `catmq-server serve` and `script/server` end here.

The supervisor prepares the database, starts the broker (gunicorn) and the job runner
(django-q), prints a line when the broker answers, restarts a child that ended, and stops
everything on SIGTERM or Ctrl-C. It keeps these files in the data directory:

    server.lock       locked while the server runs: a second server on the directory is refused
    broker.pid        pid of gunicorn's master; kill it to restart the broker alone
    log/*.log         output of the children and of the preparation; moved to <name>.1 and
                      emptied above LOG_BYTES. With `--logs stderr` that of the children
                      goes to stderr instead
    credentials.env   URL, API key and administrator

The kernel sends SIGTERM to a child when this process dies, so not even kill -9 leaves
orphans.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from catmq_site import processes
from metadata import data_dir
from metadata.installation import DATA_DIR, HOME, IS_CHECKOUT, name_programs

PR_SET_PDEATHSIG = 1
STOP_S = 50  # until a child is killed: longer than gunicorn's graceful_timeout
READY_S = 120  # until the broker must have answered for the first time
LOG_BYTES = 32 << 20  # per log file; the same again is kept as <name>.1
# Pauses before the 1st, 2nd, … restart of a child that keeps failing.
RESTART_PAUSES_S = (0.2, 0.5, 1, 2, 5, 10)
STABLE_AFTER_S = 30  # a child that ran this long counts as healthy again


class StartRefused(Exception):
    """The server cannot start; the text is a line for the user."""


@dataclass
class Child:
    """A process that is restarted when it ends. It has a session of its own, so that Ctrl-C
    reaches only the supervisor.
    """

    name: str
    command: list[str]
    log: Path | None  # None: this process's stderr
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float = field(default_factory=time.monotonic)

    def ensure_running(self) -> None:
        """Notice the end of the process, and start it when its time has come."""
        if self.process is not None and self.process.poll() is not None:
            self.kill_group()
            ran_s = time.monotonic() - self.started_at
            # Status 0, such as that of a requested restart, is no failure.
            if self.process.returncode == 0 or ran_s > STABLE_AFTER_S:
                self.failures = 0
            else:
                self.failures += 1
            where = f" See {self.log}" if self.log else ""
            log_event(
                f"{self.name} ended ({self.process.returncode}) after {ran_s:.0f} s; it "
                f"starts again.{where}"
            )
            last_pause = len(RESTART_PAUSES_S) - 1
            pause_s = RESTART_PAUSES_S[min(max(self.failures - 1, 0), last_pause)]
            self.process, self.restart_at = None, time.monotonic() + pause_s
        if self.process is None and time.monotonic() >= self.restart_at:
            self.start()

    def start(self) -> None:
        with self.log.open("ab") if self.log else contextlib.nullcontext() as log:
            output = log or sys.stderr
            self.process = subprocess.Popen(  # noqa: S603  our own programs
                self.command,
                cwd=HOME,
                env=processes.environ() | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # preexec_fn is safe here: this process has a single thread.
                preexec_fn=die_with_parent(os.getpid()),
            )
        self.started_at = time.monotonic()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill_group(self) -> None:
        """Kill all remaining processes of the child's group, its own children included."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def die_with_parent(parent_pid: int) -> Callable[[], None]:
    """Return a function for the new child, which asks the kernel for SIGTERM when the
    parent dies.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def set_death_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        # The parent may have died before prctl() took effect.
        if os.getppid() != parent_pid:
            os._exit(1)

    return set_death_signal


class Supervisor:
    def __init__(
        self,
        *,
        data: Path,
        host: str,
        port: int,
        has_jobs: bool = True,
        has_log_files: bool = True,
    ) -> None:
        self.data, self.host, self.port = data, host, port
        self.url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104
        self.stopping = False
        self.kill_now = False
        self.had_credentials = (data / "credentials.env").exists()  # from an earlier start
        log = data / "log" if has_log_files else None
        broker_command = [
            *(sys.executable, "-P", "-m", "gunicorn"),
            *("--config", "python:catmq_site.server.gunicorn_conf"),
            *("--pid", str(data / "broker.pid")),
        ]
        self.broker = Child("The broker", broker_command, log and log / "broker.log")
        jobs = Child(
            "The job runner",
            processes.command("qcluster", "--skip-checks"),
            log and log / "jobs.log",
            {"CATMQ_PROCESS": "jobs"},
        )
        self.children = [self.broker, jobs] if has_jobs else [self.broker]

    def run(self) -> None:
        """Run the server from taking the lock to the end of the last child. Raises
        StartRefused.
        """
        # Every child, `prepare` included, opens its metrics files as soon as it starts.
        for name in ("log", "metrics"):
            (self.data / name).mkdir(mode=0o700, parents=True, exist_ok=True)

        def request_stop(*_: object) -> None:
            self.kill_now = self.stopping  # a second Ctrl-C does not wait
            self.stopping = True

        with self._take_lock():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, request_stop)
            # Only under the lock: another server might use the port and the database.
            self._wait_for_port()
            self._prepare()
            try:
                self._watch_children()
            finally:
                self._stop_children()

    def _sleep(self, seconds: float) -> bool:
        """Sleep, and return True if the server must stop.

        This is no threading.Event: a signal handler that sets an event while wait() holds
        its lock would hang.
        """
        if not self.stopping:
            time.sleep(seconds)
        return self.stopping

    def _take_lock(self) -> TextIO:
        file = (self.data / "server.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise StartRefused(
                f"A server (pid {file.read().strip()}) already runs on {self.data}."
            ) from None
        # The pid is for the message above; the lock itself is what counts.
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def _wait_for_port(self) -> None:
        """Return when the port is free. A broker left over from a killed server gets time
        to end. Raises StartRefused.
        """
        give_up_at = time.monotonic() + STOP_S
        while not self._port_is_free():
            if (
                not self._old_broker_runs()
                or time.monotonic() > give_up_at
                or self._sleep(0.2)
            ):
                raise StartRefused(
                    f"Port {self.port} of {self.host} is in use; choose another one with --port."
                )
        (self.data / "broker.pid").unlink(missing_ok=True)

    def _port_is_free(self) -> bool:
        try:
            addresses = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise StartRefused(
                f"{self.host} is not an address of this machine: {error.strerror}"
            ) from None
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gunicorn binds, so that connections in TIME_WAIT do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except PermissionError:
                raise StartRefused(
                    f"Port {self.port} needs root; choose one above 1023 with --port."
                ) from None
            except OSError:
                return False
        return True

    def _old_broker_runs(self) -> bool:
        # A pid may be given again: only a gunicorn counts.
        try:
            pid = int((self.data / "broker.pid").read_text())
            return b"gunicorn" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False

    def _prepare(self) -> None:
        log = self.data / "log" / "prepare.log"
        with log.open("ab") as output:
            process = subprocess.run(  # noqa: S603  our own program
                processes.command("prepare", "--url", self.url),
                cwd=HOME,
                env=processes.environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                check=False,
            )
            output.write(process.stderr)
        # A stop may have interrupted it: then its status means nothing.
        if process.returncode and not self.stopping:
            lines = process.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "no reason given"
            raise StartRefused(
                f"The database could not be prepared: {reason}\nMore in {log}"
            )

    def _watch_children(self) -> None:
        ready_by = time.monotonic() + READY_S
        ready = False
        while not self._sleep(0.25 if ready else 0.1):
            for child in self.children:
                child.ensure_running()
                if child.log:
                    truncate_log(child.log)
            if ready:
                continue
            if ready := is_ready(self.url):
                self._print_welcome()
            # Fail at the first crash instead of restarting until READY_S: it will not start
            # by itself.
            elif self.broker.failures or time.monotonic() > ready_by:
                log_end = last_lines(self.broker.log) if self.broker.log else "See above."
                raise StartRefused(f"The broker did not start:\n{log_end}")

    def _print_welcome(self) -> None:
        print(f"CatMQ is ready: {self.url}", flush=True)  # noqa: T201  the one line of our stdout
        credentials = self.data / "credentials.env"
        if "CATMQ_API_KEY=" not in credentials.read_text():
            write_stderr(
                "  The metadata has an administrator already, so this directory got "
                "neither key nor account."
            )
            write_stderr(
                name_programs(
                    "  To make a key: manage.py create_api_key NAME --right admin='*'"
                )
            )
            return
        if not self.had_credentials:
            write_stderr(
                f"  Made: an administrator and an API key that may do everything, in {credentials}"
            )
        write_stderr(f"  set -a; . {credentials}; set +a")
        if IS_CHECKOUT:
            bin_dir, client = HOME / ".venv/bin", HOME / "client"
            write_stderr(f"  {bin_dir}/pip install -q {client} && PATH={bin_dir}:$PATH")
        else:  # the client is installed with the server
            write_stderr(f"  PATH={Path(sys.executable).parent}:$PATH")
        # This happens with an external database, where no node is registered at first.
        if b"no node is registered" in get_readiness(self.url)[1]:
            write_stderr(
                "  Register a node before the next line: docs/how-to/run-on-mariadb.md, step 3"
            )
        write_stderr(
            "  catmq topic create first --queues 4 && echo hello | catmq send first && "
            "catmq peek first"
        )

    def _stop_children(self) -> None:
        """Stop all children: SIGTERM first, SIGKILL after STOP_S or a second Ctrl-C."""
        for child in self.children:
            if child.process is not None and child.is_running():
                child.process.send_signal(signal.SIGTERM)
        kill_at = time.monotonic() + STOP_S
        while (
            time.monotonic() < kill_at
            and not self.kill_now
            and any(child.is_running() for child in self.children)
        ):
            time.sleep(0.05)
        for child in self.children:
            child.kill_group()
            if child.process is not None:
                child.process.wait()


def is_ready(url: str) -> bool:
    """Return True if the broker serves, also while drained or with nodes offline."""
    status, body = get_readiness(url)
    if status == 200 or b"drained" in body:
        return True
    from metadata.config import config  # reads the settings, which `main` has set

    return config.database is not None and b"node" in body


def get_readiness(url: str) -> tuple[int, bytes]:
    """Return status and body of /readyz; 0 and b'' if the broker does not answer."""
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


def truncate_log(log: Path) -> None:
    """Keep a log file below its limit. It is emptied in place, because the children append
    to it.
    """
    if log.exists() and log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def last_lines(log: Path, lines: int = 15) -> str:
    return (
        "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
        if log.exists()
        else ""
    )


def write_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def log_event(text: str) -> None:
    """Print a line on stderr about an event, with the time, in the form of the logs."""
    # The settings are not loaded here, so that the first start, without packages, is possible.
    if os.environ.get("CATMQ_LOG_FORMAT") == "json":
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": "WARNING",
            "logger": "catmq_site.server.supervisor",
            "message": text,
            "process": os.getpid(),
        }
        write_stderr(json.dumps(entry))
        return
    write_stderr(
        f"{datetime.now().astimezone().isoformat(sep=' ', timespec='milliseconds')} {text}"
    )


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/server" if IS_CHECKOUT else "catmq-server serve",
        description="Starts a CatMQ server: broker, portal and jobs. Stop it with Ctrl-C "
        "or SIGTERM.",
        epilog=name_programs(
            "Prints `CatMQ is ready: URL` on stdout when it answers. "
            "DIR/credentials.env holds URL, API key and administrator. "
            "CATMQ_DATABASE_URL=mysql://user:password@host:port/name puts the metadata on "
            "MySQL or MariaDB; register nodes with `manage.py register_node` then. Other "
            "settings: docs/reference/settings.md."
        )
        + (
            " script/server --with-spark installs what Spark jobs need, too."
            if IS_CHECKOUT
            else ""
        ),
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on (default %(default)s)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("CATMQ_DATA_DIR") or DATA_DIR),
        metavar="DIR",
        help=f"data directory (default CATMQ_DATA_DIR, otherwise {DATA_DIR})",
    )
    parser.add_argument(
        "--without-jobs",
        action="store_true",
        help="run broker and portal only; another server runs the jobs",
    )
    parser.add_argument(
        "--logs",
        choices=("files", "stderr"),
        default="files",
        help="write the logs to DIR/log, or to stderr (default %(default)s)",
    )
    options = parser.parse_args(words)
    if not 0 < options.port < 65536:
        parser.error("--port must be from 1 to 65535")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Run a server until a signal stops it. Return the exit code."""
    options = parse_arguments(sys.argv[1:] if words is None else words)
    data: Path = options.data.expanduser().resolve()
    # Children inherit these, and metadata.config reads them below.
    os.environ |= {
        "CATMQ_DATA_DIR": str(data),
        "CATMQ_BIND": f"{options.host}:{options.port}",
        "PYTHONUNBUFFERED": "1",
    }
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(data / "metrics")
    try:
        data_dir.require_usable(data)
        from metadata import config, private  # reads and checks the settings

        private.protect_or_exit(config.config.data_dir)
        Supervisor(
            data=data,
            host=options.host,
            port=options.port,
            has_jobs=not options.without_jobs,
            has_log_files=options.logs == "files",
        ).run()
    except (StartRefused, data_dir.Unusable, ValueError, OSError) as error:
        write_stderr(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
