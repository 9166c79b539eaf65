"""`script/bench [--quick]`: the product beside the limits of its database, in one run.

Starts a private database server and a whole server on it in a temporary directory, runs the
loops of
`measures` one after the other, interleaved and repeated, and prints medians with their
spread and the ratios. Absolute figures belong to the machine; the ratios inside one run are
what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import measures
from benchmarks.figures import Spread, machine, plain, ratios
from benchmarks.measures import Measured, Setting, Work
from tests.support.environment import free_port

HOME = Path(__file__).resolve().parent.parent
PROCESSES = 4
BINLOG = ("--log-bin", "--sync-binlog=1", "--loose-binlog-format=ROW", "--server-id=1")
NO_BINLOG = ("--skip-log-bin",)  # MySQL has one unless told otherwise


@dataclass(frozen=True)
class Line:
    """One measured line of the table; `limit` names the line it is a ratio of, `target` the
    least ratio.
    """

    name: str
    work: Work
    batch: int
    limit: str = ""
    target: float = 0.0
    processes: int = 4
    threads: int = 1

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that work for this line, by the names of `measures.Measured.cpu_s`."""
        if self.work is measures.drf_single:
            return ("client",)
        # What does not go over HTTP is Python in the client's process.
        return ("client", *(("broker",) if "HTTP" in self.name else ()), "database")


LINES = (
    Line("raw INSERT, 100 rows", measures.raw_insert, 100),
    Line("store publish, 100", measures.store_publish, 100, "raw INSERT, 100 rows", 0.72),
    Line("HTTP publish, 100", measures.http_publish, 100, "raw INSERT, 100 rows", 0.45),
    Line(
        "HTTP publish, 100, named",
        measures.http_publish_named,
        100,
        "raw INSERT, 100 rows",
    ),
    Line("raw, one table, 100 rows", measures.raw_insert_together, 100),
    Line(
        "store, one queue, 100",
        measures.store_publish_together,
        100,
        "raw, one table, 100 rows",
        0.60,
    ),
    Line("raw INSERT, 500 rows", measures.raw_insert, 500),
    Line("store publish, 500", measures.store_publish, 500, "raw INSERT, 500 rows", 0.80),
    Line("HTTP publish, 500", measures.http_publish, 500, "raw INSERT, 500 rows", 0.55),
    Line("raw SELECT, 500 rows", measures.raw_select, 500),
    Line("HTTP pull, 500", measures.http_pull, 500, "raw SELECT, 500 rows"),
    Line("HTTP consume, 500", measures.http_consume, 500, "raw SELECT, 500 rows", 0.50),
    Line(
        "HTTP consume, 100, commit",
        measures.http_consume_committed,
        100,
        "raw SELECT, 500 rows",
    ),
    Line(
        "HTTP consume, 100, pulls",
        measures.http_consume_with_pulls,
        100,
        "raw SELECT, 500 rows",
    ),
    Line("DRF, parses, no store", measures.drf_single, 1, processes=1, threads=8),
    Line("HTTP single sends", measures.http_single, 1, "DRF, parses, no store", 0.50, 1, 8),
)


@contextmanager
def database(directory: Path, *, binlog: bool = False, version: str = "") -> Iterator[str]:
    """The URL of a private database server with durable settings; `binlog`: with a binary
    log, synced, too.

    `version` is one that script/mysql knows; without it, the installed MariaDB.
    """
    script = HOME / "script" / ("mysql" if version else "mariadb")
    chosen = ("--version", version) if version else ()
    command = [
        script,
        "start",
        directory,
        *chosen,
        "--",
        *(BINLOG if binlog else NO_BINLOG),
    ]
    started = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    try:
        yield started.stdout.strip()
    finally:
        subprocess.run([script, "stop", directory], check=True)


@contextmanager
def server(directory: Path, database_url: str) -> Iterator[dict[str, str]]:
    """A running server with its metadata on that database; its credentials."""
    os.environ["CATMQ_DATABASE_URL"] = database_url
    os.environ["CATMQ_DATA_DIR"] = str(directory)
    command = [HOME / "script" / "server", "--port", str(free_port()), "--data", directory]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("CatMQ is ready"):
            raise SystemExit("The server did not start; see above.")
        lines = (directory / "credentials.env").read_text().splitlines()
        pairs = [
            line.partition("=")
            for line in lines
            if "=" in line and not line.startswith("#")
        ]
        yield {name: value.strip("'\"") for name, _, value in pairs}
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def drf_server() -> Iterator[str]:
    """The URL of the DRF view that stores nothing, run like the broker."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    gunicorn = [
        Path(sys.executable).with_name("gunicorn"),
        "--bind",
        address,
        "--workers",
        "2",
    ]
    process = subprocess.Popen(
        [*gunicorn, "--threads", "64", "--keep-alive", "75", "benchmarks.drf_app"]
    )
    try:
        for _ in range(200):
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            time.sleep(0.05)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


def prepare(database_url: str, credentials: dict[str, str], drf_url: str) -> Setting:
    """A node of its own, and a topic of four queues on it."""
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
    django.setup()
    from messagestore.nodes import registry
    from messagestore.topology import topics
    from metadata.actors import command

    parts = urlsplit(database_url)
    node = {"host": "127.0.0.1", "port": parts.port, "password": parts.password}
    execute({**node, "user": parts.username}, "CREATE DATABASE bench CHARACTER SET utf8mb4")
    registry.register(
        name="bench", engine="mysql", database="bench", username=str(parts.username),
        host="127.0.0.1", port=parts.port, password=str(parts.password), actor=command("bench"),
    )  # fmt: skip
    state = topics.create(name="bench", queues=PROCESSES, actor=command("bench"))
    return Setting(
        url=credentials["CATMQ_URL"],
        api_key=credentials["CATMQ_API_KEY"],
        database={**node, "user": parts.username, "database": "bench"},
        topic="bench",
        queues=tuple(queue.queue.queue for queue in state.queues),
        batch=100,
        drf_url=drf_url,
    )


def account(url: str) -> dict[str, Any]:
    """Return the account in a database's URL, as `connect` takes it."""
    parts = urlsplit(url)
    named = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password,
    }
    return named | ({"database": parts.path[1:]} if parts.path[1:] else {})


def connect(account: dict[str, Any]) -> Any:
    """A connection to the database."""
    import MySQLdb

    return MySQLdb.connect(**account, autocommit=True)


def execute(account: dict[str, Any], statement: str) -> None:
    """Runs one statement on a connection of its own."""
    connection = connect(account)
    connection.cursor().execute(statement)
    connection.close()


def add_server(parser: argparse.ArgumentParser) -> None:
    """The option that chooses the database server."""
    parser.add_argument(
        "--server",
        default="",
        metavar="VERSION",
        help="version of the database server, as script/mysql takes it (default: the "
        "installed MariaDB)",
    )


def version_of(account: dict[str, Any]) -> str:
    """What a database server says of itself, e.g. "MySQL 9.7.4"."""
    with closing(connect(account)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT VERSION()")
        told = str(cursor.fetchone()[0])
    return f"{'MariaDB' if 'MariaDB' in told else 'MySQL'} {told.partition('-')[0]}"


def measure(
    setting: Setting, sides: Mapping[str, Sequence[int]], *, rounds: int, seconds: float
) -> dict[str, list[Measured]]:
    """Measure every line once a round. The lines alternate, so that noise hits all of them.

    `sides` names the process ids of the broker and of the database.
    """
    results: dict[str, list[Measured]] = {line.name: [] for line in LINES}
    for number in range(rounds):
        for line in LINES:
            given = Setting(**{**vars(setting), "batch": line.batch})
            result = measures.run(
                line.work,
                given,
                processes=line.processes,
                seconds=seconds,
                threads=line.threads,
                sides=sides,
            )
            results[line.name].append(result)
            print(
                f"  round {number + 1}/{rounds}  {line.name:26} {result.rate:10,.0f} msg/s",
                file=sys.stderr,
            )
    return results


def cpu_us(line: Line, results: Sequence[Measured]) -> dict[str, float]:
    """Return the median CPU time of each side of a line, in microseconds a message."""
    return {
        side: statistics.median(
            1e6 * result.cpu_s[side] / max(result.messages, 1) for result in results
        )
        for side in line.sides
    }


def table(
    results: Mapping[str, Sequence[Measured]], memory: list[float]
) -> list[dict[str, Any]]:
    """Print the results for people; return them for machines."""
    rows = []
    rates = {name: [one.rate for one in measured] for name, measured in results.items()}
    print(
        f"{'':26}{'median/s':>12}{'min':>12}{'max':>12}{'ratio':>8}{'of rounds':>13}{'target':>8}"
        f"{'CPU, us a message: client, broker, database':>46}"
    )
    for line in LINES:
        values, cpu = rates[line.name], cpu_us(line, results[line.name])
        median = statistics.median(values)
        spread = Spread.of(ratios(values, rates[line.limit])) if line.limit else None
        shown = (
            f"{spread.median:8.2f}  {spread.least:.2f} - {spread.most:.2f}"
            if spread
            else " " * 21
        )
        target = f"{line.target:8.2f}" if line.target else " " * 8
        costs = "".join(
            f"{cpu[side]:10.1f}" if side in cpu else f"{'-':>10}"
            for side in ("client", "broker", "database")
        )
        print(
            f"{line.name:26}{median:12,.0f}{min(values):12,.0f}{max(values):12,.0f}{shown}{target}"
            f"{'':16}{costs}"
        )
        rows.append(
            {
                "name": line.name,
                "rates": values,
                "cpu_us": cpu,
                "ratio": plain(spread),
                "target": line.target or None,
            }
        )
    resident = ", ".join(f"{size:.0f}" for size in memory)
    print(f"resident memory of the broker's workers: {resident} MB (target below 150)")
    return rows


def workers_resident_mb(data: Path) -> list[float]:
    """Resident memory of every worker of the broker, in MB."""
    master = (data / "broker.pid").read_text().strip()
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    statuses = [Path(f"/proc/{child}/status").read_text() for child in children]
    return [
        int(line.split()[1]) / 1024
        for status in statuses
        for line in status.splitlines()
        if line.startswith("VmRSS")
    ]


def main() -> int:
    """Runs the benchmark; 1 if a ratio is below its target in every round."""
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round: shows that everything runs"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds; medians are printed (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of one measure (default 4)"
    )
    parser.add_argument(
        "--binlog", action="store_true", help="with a binary log, synced at each commit"
    )
    add_server(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    facts = machine() | {"binary log": chosen.binlog}
    rounds, seconds = (1, 0.5) if chosen.quick else (chosen.rounds, chosen.seconds)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        database_url = stack.enter_context(
            database(home / "database", binlog=chosen.binlog, version=chosen.server)
        )
        credentials = stack.enter_context(server(home / "var", database_url))
        setting = prepare(database_url, credentials, stack.enter_context(drf_server()))
        sides = {
            "broker": [int((home / "var/broker.pid").read_text())],
            "database": [int((home / "database/server.pid").read_text())],
        }
        results = measure(setting, sides, rounds=rounds, seconds=seconds)
        memory = workers_resident_mb(home / "var")
        facts["database"] = version_of(setting.database)
    print(f"on {facts['database']}, {'with' if chosen.binlog else 'without'} a binary log")
    rows = table(results, memory)
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"machine": facts, "rows": rows, "workers_mb": memory}, indent=1)
        )
    missed = [
        row["name"]
        for row in rows
        if row["target"] and row["ratio"]["most"] < row["target"]
    ]
    if missed and not chosen.quick:
        print(f"below target in every round: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
