"""PGMQ on a private PostgreSQL, driven by pgbench: ten messages are read, then deleted, in
two transactions.

PGMQ is no part of this project. The caller names its SQL file: pgmq.sql of a PGMQ release.
The server has PostgreSQL's default settings, so each commit is synced.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.environment import free_port

QUEUE = "bench"
READ_AND_DELETE = f"""\
SELECT string_agg(msg_id::text, ',') AS ids FROM pgmq.read('{QUEUE}', 30, 10) \\gset
SELECT count(*) FROM pgmq.delete('{QUEUE}', ARRAY[:ids]::bigint[]);
"""
PREPARE = f"SELECT pgmq.create('{QUEUE}')"
FILL = f"""SELECT count(*) FROM pgmq.send_batch('{QUEUE}',
    ARRAY(SELECT jsonb_build_object('body', repeat('x', 200)) FROM generate_series(1, %d)))"""
TPS = re.compile(r"tps = ([\d.]+)")


def programs() -> Path:
    """The directory of PostgreSQL's programs. Raises SystemExit if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found or shutil.which("pgbench") is None:
        raise SystemExit(
            "PGMQ needs PostgreSQL and pgbench: apt-get install postgresql postgresql-contrib"
        )
    return found[-1].parent


class Pgmq:
    """A PostgreSQL server with one PGMQ queue."""

    def __init__(self, home: Path, port: int) -> None:
        self._home, self._port, self._bin = home, port, programs()
        # PostgreSQL refuses to run as root.
        self._as: Sequence[str] = (
            ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
        )

    def start(self, sql: Path) -> None:
        """Make the server and its queue."""
        data = str(self._home / "data")
        if self._as:
            shutil.chown(self._home, "postgres")
        self._run(str(self._bin / "initdb"), "-D", data, "-A", "trust", "-U", "bench")
        options = (
            f"-p {self._port} -c listen_addresses=127.0.0.1 -c "
            f"unix_socket_directories={self._home}"
        )
        log = str(self._home / "log")
        self._run(
            str(self._bin / "pg_ctl"), "-D", data, "-l", log, "-w", "-o", options, "start"
        )
        self._sql(sql.read_text())
        self._sql(PREPARE)
        (self._home / "read_and_delete.sql").write_text(READ_AND_DELETE)

    def ask(self, statement: str) -> str:
        """Run a statement and return the text of its rows."""
        words = ("psql", "-qAt", "-v", "ON_ERROR_STOP=1", *self._place(), "-d", "postgres")
        return self._run(*words, "-c", statement)

    def fill(self, count: int) -> None:
        """Send messages of 200 bytes."""
        self._sql(FILL % count)

    def rate(self, *, clients: int, seconds: float) -> float:
        """Messages read and deleted a second, by so many connections. Raises SystemExit if
        pgbench fails.
        """
        script = str(self._home / "read_and_delete.sql")
        length = str(max(1, round(seconds)))
        words = (
            "-n",
            "-c",
            str(clients),
            "-j",
            "1",
            "-T",
            length,
            "-f",
            script,
            "postgres",
        )
        told = self._run("pgbench", *self._place(), *words)
        found = TPS.search(told)
        if found is None:
            raise SystemExit(f"pgbench told no rate: {told}")
        return 10 * float(found[1])

    def stop(self) -> None:
        """Stop the server."""
        self._run(
            str(self._bin / "pg_ctl"),
            "-D",
            str(self._home / "data"),
            "-m",
            "immediate",
            "stop",
        )

    def _place(self) -> tuple[str, ...]:
        return "-h", "127.0.0.1", "-p", str(self._port), "-U", "bench"

    def _sql(self, statements: str) -> None:
        words = (
            "psql",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            *self._place(),
            "-d",
            "postgres",
            "-f",
            "-",
        )
        self._run(*words, given=statements)

    def _run(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._as, *words],
            input=given,
            capture_output=True,
            text=True,
            cwd=self._home,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"{words[0]} failed: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout


@contextmanager
def pgmq(home: Path, sql: Path) -> Iterator[Pgmq]:
    """A server for the time of a benchmark."""
    home.mkdir(mode=0o755)
    made = Pgmq(home, free_port())
    made.start(sql)
    try:
        yield made
    finally:
        made.stop()
