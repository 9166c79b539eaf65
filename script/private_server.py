"""A private database server in a directory, as script/mariadb and script/mysql start it.

It listens on 127.0.0.1 only, runs as the user who starts it (root included), and has a user
catmq with all rights, a database catmq and one for a node, catmq_node1. The directory has
its data, port, password, process id and log.
"""

from __future__ import annotations

import argparse
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_S, STOP_S = 60, 120
# The defaults of a server without configuration are too small for load.
COMMON = (
    "--character-set-server=utf8mb4",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=512M",
    "--max-connections=1000",
    "--max-allowed-packet=64M",
    "--innodb-flush-log-at-trx-commit=1",
)
# Its charset is latin1 by default.
MARIADB_OPTIONS = (
    *COMMON,
    "--collation-server=utf8mb4_general_ci",
    "--innodb-log-file-size=512M",
)
MARIADB_INSTALL = ("--auth-root-authentication-method=normal", "--skip-test-db")
MARIADB_CLOSED = (
    "DELETE FROM mysql.global_priv WHERE User='' OR (User='root' AND Host<>'localhost');",
    "FLUSH PRIVILEGES;",
    "ALTER USER root@localhost IDENTIFIED VIA unix_socket;",
)


class Refused(Exception):
    """The reason why nothing was started or stopped, in words for the user, and the exit
    code.
    """

    code = 1


@dataclass(frozen=True)
class Programs:
    """A server program, the command that makes its own tables, and what both are started
    with.
    """

    server: str
    install: tuple[str, ...]
    options: tuple[str, ...] = MARIADB_OPTIONS
    # statements that close what an installation leaves open
    closed: tuple[str, ...] = MARIADB_CLOSED
    environ: Mapping[str, str] = field(default_factory=dict)


def start(
    directory: Path, port: int | None, extra: Sequence[str], find: Callable[[], Programs]
) -> str:
    """Start the server of `directory` unless it runs; return its URL. `find` is called if
    it does not run.
    """
    running = pid_of(directory)
    if running is not None:
        current = int((directory / "port").read_text())
        if port not in (None, current):
            raise Refused(f"The server of {directory} runs already, on port {current}.")
        return url(directory)
    programs = find()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    choose_port(directory, port)
    keep(directory / "password", secrets.token_hex(16))
    if not (directory / "data" / "mysql").exists():
        install(directory, programs)
    launch(directory, programs, extra)
    return url(directory)


def stop(directory: Path) -> None:
    """End the server of `directory` and wait for its end; nothing to do if none runs."""
    pid = pid_of(directory)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    if not wait_until(lambda: pid_of(directory) is None, STOP_S):
        raise Refused(
            f"The server (pid {pid}) did not stop within {STOP_S} s; see {directory}/error.log."
        )


def url(directory: Path) -> str:
    """The URL that clients take."""
    password, port = (directory / "password").read_text(), (directory / "port").read_text()
    return f"mysql://catmq:{password}@127.0.0.1:{port}/catmq"


def pid_of(directory: Path) -> int | None:
    """The process id of the running server of `directory`."""
    try:
        pid = int((directory / "server.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return pid if f"--datadir={directory}/data\0" in command and state != "Z" else None


def choose_port(directory: Path, wanted: int | None) -> None:
    """Write the port to use: the wanted one, else the one used before, else any free one."""
    file = directory / "port"
    if wanted is None and file.exists():
        wanted = int(file.read_text())
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError:
            raise Refused(
                f"Port {wanted} is in use; give another one with --port."
            ) from None
        file.write_text(str(probe.getsockname()[1]))


def keep(path: Path, text: str) -> None:
    """Write a secret once, readable by its owner only."""
    if not path.exists():
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as file:
            file.write(text)


def install(directory: Path, programs: Programs) -> None:
    """Make the server's own tables."""
    command = [
        programs.install[0],
        "--no-defaults",
        *places(directory),
        *programs.install[1:],
    ]
    environment = {**os.environ, **programs.environ}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        # or the next start takes it for finished
        shutil.rmtree(directory / "data", ignore_errors=True)
        name = Path(command[0]).name
        raise Refused(f"{name} failed: {done.stderr.strip() or done.stdout.strip()}")


def launch(directory: Path, programs: Programs, extra: Sequence[str]) -> None:
    """Start the process, detached, and wait until it answers."""
    init = directory / "init.sql"
    init.unlink(missing_ok=True)
    keep(init, init_statements(programs, (directory / "password").read_text()))
    port = int((directory / "port").read_text())
    unix_socket = socket_path(directory)
    # MySQL takes a server that was killed for a running one while its process is a zombie.
    Path(f"{unix_socket}.lock").unlink(missing_ok=True)
    command = [
        programs.server,
        "--no-defaults",
        *places(directory),
        f"--socket={unix_socket}",
        f"--pid-file={directory}/server.pid",
        f"--log-error={directory}/error.log",
        f"--init-file={init}",
        f"--port={port}",
        *programs.options,
        *extra,
    ]
    nowhere = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    process = subprocess.Popen(command, start_new_session=True, cwd="/", **nowhere)
    wait_until(lambda: process.poll() is not None or answers(port), START_S)
    if process.poll() is not None or not answers(port):
        tail = (directory / "error.log").read_text(errors="replace").splitlines()[-5:]
        raise Refused("The server did not start:\n  " + "\n  ".join(tail))


def places(directory: Path) -> list[str]:
    """Options that say where the data is, and who owns it; root must say so."""
    # A server that starts deletes the temporary tables of others in a shared place.
    (directory / "tmp").mkdir(exist_ok=True)
    return [
        f"--user={getpass.getuser()}",
        f"--datadir={directory}/data",
        f"--tmpdir={directory}/tmp",
    ]


def socket_path(directory: Path) -> str:
    """A path for the server's socket; the kernel allows 107 characters."""
    path = f"{directory}/server.sock"
    return (
        path
        if len(path) < 100
        else f"/tmp/catmq-{os.getuid()}-{zlib.crc32(path.encode()):x}.sock"
    )


def init_statements(programs: Programs, password: str) -> str:
    """Statements run at each start, before the server listens: one user, one database, no
    open door.
    """
    return "\n".join(
        (
            *programs.closed,
            f"CREATE USER IF NOT EXISTS catmq@'127.0.0.1' IDENTIFIED BY '{password}';",
            "GRANT ALL ON *.* TO catmq@'127.0.0.1' WITH GRANT OPTION;",
            "CREATE DATABASE IF NOT EXISTS catmq CHARACTER SET utf8mb4;",
            "CREATE DATABASE IF NOT EXISTS catmq_node1 CHARACTER SET utf8mb4;",
        )
    )


def answers(port: int) -> bool:
    """True if a MySQL greeting comes from the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return len(connection.recv(5)) == 5
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """True if the condition came true within the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser with `start DIR [--port N]` and `stop DIR`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    starting = verbs.add_parser("start", help="start the server and print its URL")
    starting.add_argument(
        "--port", type=int, help="default: the one used before, else any free one"
    )
    for verb in (starting, verbs.add_parser("stop", help="stop the server")):
        verb.add_argument(
            "directory", metavar="DIR", type=lambda text: Path(text).resolve()
        )
    return parser


def run(
    parser: argparse.ArgumentParser, act: Callable[[argparse.Namespace, list[str]], None]
) -> int:
    """Stop, or call `act` with what was given and the options behind `--`; the exit code."""
    given = sys.argv[1:]
    extra = given[given.index("--") + 1 :] if "--" in given else []
    chosen = parser.parse_args(given[: len(given) - len(extra) - ("--" in given)])
    try:
        if chosen.verb == "stop":
            stop(chosen.directory)
        else:
            act(chosen, extra)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return refusal.code
    return 0
