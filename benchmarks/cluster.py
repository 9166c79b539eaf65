"""`script/bench cluster`: a node on a single server, on replicas and on clusters, in one run.

    MariaDB       one server without a binary log, as script/mariadb starts it
    replica       MariaDB with a synced binary log and an asynchronous replica
    semi-sync     the same, and the primary waits for its replica (AFTER_SYNC)
    Galera        three servers of MariaDB
    MySQL         one server with a synced binary log
    group         three servers of MySQL in Group Replication

All servers run at the same time. A broker has a node and a topic of four queues on each of
them, and the lines are measured in turn, so that noise hits all of them. Ratios are those of
a round: of MariaDB's to `MariaDB`, of MySQL's to `MySQL`. All members of a cluster share the
cores of this machine, so rates are lower than with a machine for each, and CPU counts all
members. The last three lines send single messages to one queue through
`messagestore.produce.publish` in one process: they show what group commit saves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench, measures
from benchmarks.figures import Spread, machine, ratios
from benchmarks.measures import BODY, Measured, Setting, Work
from benchmarks.processes import end_by_signals
from tests.support import clusters, mariadb, replication
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB

QUEUES = 4
SENDERS = 16  # of the lines with many senders
SEMI_SYNC = (
    "--rpl-semi-sync-master-enabled=ON",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-slave-enabled=ON",
)
# The members of clusters have as small a buffer pool.
BUFFER_POOL = "--innodb-buffer-pool-size=64M"


@dataclass(frozen=True)
class Servers:
    """What a node is on: its addresses, and the process ids of all its servers."""

    host: str
    password: str
    pids: tuple[int, ...]
    execute: Callable[[str], object]  # a statement on the server that is written to


@dataclass(frozen=True)
class System:
    """A line of the docstring. Ratios are to the system named `reference`."""

    name: str
    run: Callable[[Path], Any]  # a context manager of Servers
    reference: str


@dataclass(frozen=True)
class Line:
    """A measured loop."""

    name: str
    work: Work
    batch: int = 1
    processes: int = 1
    threads: int = 1


def one_queue(setting: Setting, worker: int) -> Callable[[], int]:
    """Return a function that stores a message in the first queue, through
    `messagestore.produce.publish`, and returns 1.
    """
    import django

    django.setup()
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.publish import publish
    from metadata.actors import command

    actor, queue = command("bench"), setting.queues[0]

    def once() -> int:
        message = NewMessage(body=BODY, queue=queue)
        publish(topic=setting.topic, messages=[message], batch_id=None, actor=actor)
        return 1

    return once


def one_queue_alone(setting: Setting, worker: int) -> Callable[[], int]:
    """Do the same without group commit: a transaction for each message."""
    once = one_queue(setting, worker)
    from messagestore.produce.group_commit import BatchWrite

    # Every thread of the process comes here, and only the first replaces the method.
    if BatchWrite.store.__name__ != "store_alone":
        store = BatchWrite.store

        def store_alone(write: BatchWrite, node: Any, queue: int, *, alone: bool) -> Any:
            return store(write, node, queue, alone=True)

        BatchWrite.store = store_alone  # type: ignore[method-assign]
    return once


LINES = (
    Line("publish 100, 4 processes", measures.http_publish, 100, 4),
    Line("single sends, 1 sender", measures.http_single),
    Line(f"single sends, {SENDERS} senders", measures.http_single, threads=SENDERS),
    Line("consume 100 + commit, 2", measures.http_consume_committed, 100, 2),
    Line("one queue, 1 sender", one_queue),
    Line(f"one queue, {SENDERS}, alone", one_queue_alone, threads=SENDERS),
    Line(f"one queue, {SENDERS}, together", one_queue, threads=SENDERS),
)
ALONE, TOGETHER = LINES[-2].name, LINES[-1].name


def of_server(server: MariaDB, *others: MariaDB) -> Servers:
    """Return a single server, or a primary and its replicas."""
    return Servers(
        host=f"127.0.0.1:{server.port}",
        password=server.password,
        pids=tuple(one.pid for one in (server, *others)),
        execute=server.execute,
    )


@contextmanager
def single(home: Path) -> Iterator[Servers]:
    server = mariadb.start(home, port=free_port(), options=["--skip-log-bin", BUFFER_POOL])
    try:
        yield of_server(server)
    finally:
        server.stop()


@contextmanager
def replicated(home: Path, *more: str) -> Iterator[Servers]:
    """Run a primary and a replica, which waits for none of them if there are no more options."""
    with ExitStack() as stack:
        primary = mariadb.start(
            home / "primary",
            port=free_port(),
            options=[*replication.options(1), BUFFER_POOL, *more],
        )
        stack.callback(primary.stop)
        replica = mariadb.start(
            home / "replica",
            port=free_port(),
            password=primary.password,
            options=[*replication.options(2), BUFFER_POOL, *more],
        )
        stack.callback(replica.stop)
        replication.follow(replica, primary)
        yield of_server(primary, replica)


def semi_synchronous(home: Path) -> Any:
    return replicated(home, *SEMI_SYNC)


@contextmanager
def single_mysql(home: Path) -> Iterator[Servers]:
    with bench.database(home, binlog=True, version="9.7") as url:
        account = bench.account(url)
        yield Servers(
            host=f"127.0.0.1:{account['port']}",
            password=account["password"],
            pids=(int((home / "server.pid").read_text()),),
            execute=lambda statement: bench.execute(account, statement),
        )


@contextmanager
def clustered(home: Path, kind: str) -> Iterator[Servers]:
    with clusters.running(kind, home) as cluster:
        yield Servers(
            host=cluster.addresses,
            password=cluster.password,
            pids=tuple(member.pid or 0 for member in cluster.members.values()),
            execute=cluster.execute,
        )


SYSTEMS = (
    System("MariaDB", single, "MariaDB"),
    System("replica", replicated, "MariaDB"),
    System("semi-sync", semi_synchronous, "MariaDB"),
    System("Galera", lambda home: clustered(home, "galera"), "MariaDB"),
    System("MySQL", single_mysql, "MySQL"),
    System("group", lambda home: clustered(home, "group"), "MySQL"),
)


def prepare(
    servers: Mapping[str, Servers], credentials: Mapping[str, str]
) -> dict[str, Setting]:
    """Register a node with a topic on each system; return where its loops send."""
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
    # Senders that do not share transactions need a session each. The broker runs already.
    os.environ["CATMQ_POOL_SIZE"] = str(2 * SENDERS)
    django.setup()
    from messagestore.nodes import registry
    from messagestore.topology import topics
    from metadata.actors import command

    settings = {}
    for name, place in servers.items():
        node = name.lower()
        place.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        registry.register(
            name=node,
            engine="mysql",
            host=place.host,
            database="bench",
            username="catmq",
            password=place.password,
            actor=command("bench"),
        )
        state = topics.create(name=node, queues=QUEUES, node=node, actor=command("bench"))
        settings[name] = Setting(
            url=credentials["CATMQ_URL"],
            api_key=credentials["CATMQ_API_KEY"],
            database={},  # only for loops that bypass CatMQ
            topic=node,
            queues=tuple(queue.queue.queue for queue in state.queues),
            batch=1,
        )
    return settings


def measure(
    settings: Mapping[str, Setting],
    sides: Mapping[str, Mapping[str, Sequence[int]]],
    *,
    rounds: int,
    seconds: float,
) -> dict[str, dict[str, list[Measured]]]:
    """Measure every line of every system once a round. Return {line: {system: rounds}}."""
    results: dict[str, dict[str, list[Measured]]] = {
        line.name: {name: [] for name in settings} for line in LINES
    }
    for number in range(rounds):
        for line in LINES:
            for name, setting in settings.items():
                result = measures.run(
                    line.work,
                    replace(setting, batch=line.batch),
                    processes=line.processes,
                    seconds=seconds,
                    threads=line.threads,
                    sides=sides[name],
                )
                results[line.name][name].append(result)
                print(
                    f"  round {number + 1}/{rounds}  {line.name:26}{name:10}"
                    f"{result.rate:10,.0f} msg/s",
                    file=sys.stderr,
                    flush=True,
                )
    return results


def print_rates(results: Mapping[str, Mapping[str, Sequence[Measured]]]) -> None:
    """Print medians as a table in Markdown, with the ratios to the reference of each system."""
    names = list(next(iter(results.values())))
    references = {system.name: system.reference for system in SYSTEMS}
    print(
        f"| messages a second (ratio) | {' | '.join(names)} |\n|---{'|---' * len(names)}|"
    )
    for line, of_line in results.items():
        rates = {name: [one.rate for one in rounds] for name, rounds in of_line.items()}
        cells = []
        for name in names:
            cell = f"{statistics.median(rates[name]):,.0f}"
            if (reference := references[name]) != name and reference in rates:
                spread = Spread.of(ratios(rates[name], rates[reference]))
                cell += f" ({spread.median:.2f}, {spread.least:.2f} to {spread.most:.2f})"
            cells.append(cell)
        print(f"| {line} | {' | '.join(cells)} |")


def print_costs(results: Mapping[str, Mapping[str, Sequence[Measured]]]) -> None:
    """Print the medians of CPU time a message, in microseconds, as a table in Markdown."""
    names = list(next(iter(results.values())))
    print(
        f"| client + broker + servers, µs | {' | '.join(names)} |\n|---{'|---' * len(names)}|"
    )
    for line, of_line in results.items():
        # What does not go over HTTP is work of the client's process.
        sides = ["client", *(() if "queue" in line else ("broker",)), "servers"]
        cells = []
        for name in names:
            costs = [
                statistics.median(
                    1e6 * one.cpu_s[side] / max(one.messages, 1) for one in of_line[name]
                )
                for side in sides
            ]
            cells.append(" + ".join(f"{cost:.1f}" for cost in costs))
        print(f"| {line} | {' | '.join(cells)} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/bench cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: shows that everything runs"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of one measure (default: %(default)s)"
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=[system.name for system in SYSTEMS],
        default=[system.name for system in SYSTEMS],
        help="default: all",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    end_by_signals()
    rounds, seconds = (1, 0.5) if chosen.quick else (chosen.rounds, chosen.seconds)
    facts = machine()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        metadata_url = stack.enter_context(bench.database(home / "metadata"))
        credentials = stack.enter_context(bench.server(home / "var", metadata_url))
        servers: dict[str, Servers] = {}
        for system in SYSTEMS:
            if system.name in chosen.systems:
                try:
                    servers[system.name] = stack.enter_context(
                        system.run(home / system.name)
                    )
                except (pytest.skip.Exception, subprocess.CalledProcessError) as reason:
                    print(f"{system.name} is left out: {reason}", file=sys.stderr)
        settings = prepare(servers, credentials)
        broker = int((home / "var/broker.pid").read_text())
        sides = {
            name: {"broker": [broker], "servers": place.pids}
            for name, place in servers.items()
        }
        results = measure(settings, sides, rounds=rounds, seconds=seconds)
    print_rates(results)
    print()
    print_costs(results)
    for name in servers:
        together, alone = (
            [one.rate for one in results[line][name]] for line in (TOGETHER, ALONE)
        )
        saved = Spread.of(ratios(together, alone))
        print(
            f"{name}: group commit sends {saved.median:.1f} times as many messages to one "
            f"queue ({saved.least:.1f} to {saved.most:.1f})"
        )
    print(f"load average {facts['load']} before, {machine()['load']} after")
    if chosen.json:
        rows = {
            line: {name: [one._asdict() for one in rounds] for name, rounds in row.items()}
            for line, row in results.items()
        }
        chosen.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
