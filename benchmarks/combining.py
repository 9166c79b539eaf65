"""`script/bench combining`: what senders of one queue gain, or lose, by sharing
transactions.

One process stands for a worker: its threads send single messages to one queue through
`messagestore.produce.publish`, with sharing and without (each batch in a transaction of its
own), and through plain connections that run a multi-row INSERT into an AUTO_INCREMENT
table, one row each (`raw`). The three alternate. Two servers: one as it comes, and one with
a synced binary log whose syncs take 2 ms longer; a table for each. Sharing must win on the
second, and cost nothing on the first; it says where it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, plain
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB, start
from tests.support.slowsync import slow_sync

ROW = """INSERT INTO raw (msg_key, body, producer, stored_at)
    VALUES (NULL, %s, 'bench', '2026-01-01 00:00:00.000')"""
RAW = """CREATE TABLE raw (
    msg_offset BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, msg_key VARCHAR(200), tag VARCHAR(100),
    headers MEDIUMTEXT, body MEDIUMBLOB NOT NULL, trace_id VARCHAR(100),
    producer VARCHAR(100) NOT NULL,
    stored_at DATETIME(3) NOT NULL, attempt SMALLINT NOT NULL DEFAULT 0, origin TEXT
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"""
BODY = bytes(range(200))
SLOWER_MS = 2
TITLES = {
    "fast": "A fast commit: no binary log",
    "slow": f"A slow commit: binary log, synced, and each sync takes {SLOWER_MS} ms longer",
}
HEADS = (
    f"{'single sends to one queue':21}{'median/s':>9}{'min':>9}{'max':>9}"
    f"{'to raw':>9}{'to alone':>9}"
)
Once = Callable[[], object]


def rate(works: Sequence[Once], seconds: float) -> float:
    """Calls a second of threads that each repeat their own."""
    done = [0] * len(works)
    end = time.monotonic() + seconds

    def loop(number: int, work: Once) -> None:
        while time.monotonic() < end:
            work()
            done[number] += 1

    begun = time.monotonic()
    threads = [threading.Thread(target=loop, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - begun)


def prepare(home: Path) -> None:
    """Metadata of its own, embedded."""
    os.environ |= {"CATMQ_DATA_DIR": str(home), "CATMQ_POOL_SIZE": "64"}
    os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def topic_on(server: MariaDB, name: str) -> None:
    """A topic of one queue on a node of its own."""
    from messagestore.nodes import registry
    from messagestore.topology import topics
    from metadata.actors import command
    from metadata.cache import snapshot

    server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    account = {
        "host": "127.0.0.1",
        "port": server.port,
        "username": "catmq",
        "password": server.password,
    }
    registry.register(
        name=name, engine="mysql", database=name, actor=command("bench"), **account
    )
    snapshot.refresh()
    topics.create(name=name, queues=1, node=name, actor=command("bench"))
    snapshot.refresh()
    server.execute(RAW.replace("TABLE raw", f"TABLE {name}.raw"))


def senders(name: str, threads: int, *, together: bool) -> list[Once]:
    """One call that sends a message, for each thread."""
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.group_commit import BatchWrite
    from messagestore.produce.publish import publish
    from metadata.actors import command

    actor, real = command("bench"), STORE.setdefault("real", BatchWrite.store)

    def store_alone(write: BatchWrite, node: Any, queue: int, *, alone: bool) -> Any:
        return real(write, node, queue, alone=True)

    BatchWrite.store = real if together else store_alone  # type: ignore[method-assign]

    def once() -> object:
        return publish(
            topic=name, messages=[NewMessage(body=BODY)], batch_id=None, actor=actor
        )

    return [once] * threads


STORE: dict[str, Any] = {}


def raw(server: MariaDB, name: str, threads: int) -> list[Once]:
    """One call that inserts a row, for each thread, on connections of their own."""
    cursors = [server.connect(db=name).cursor() for _ in range(threads)]
    return [lambda cursor=cursor: cursor.execute(ROW, (BODY,)) for cursor in cursors]  # type: ignore[misc]


def compare(
    server: MariaDB, name: str, *, threads: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Prints the three rates for a number of threads, calls a second; returns those of all
    rounds.
    """
    rates: dict[str, list[float]] = {"raw": [], "alone": [], "together": []}
    inserts = raw(server, name, threads)
    for _ in range(rounds):
        rates["raw"].append(rate(inserts, seconds))
        for way in ("alone", "together"):
            rates[way].append(
                rate(senders(name, threads, together=way == "together"), seconds)
            )
    for way, values in rates.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        to_raw, to_alone = (
            middle / statistics.median(rates[one]) for one in ("raw", "alone")
        )
        line = (
            f"{threads:3} threads  "
            f"{way:9}{middle:9,.0f}{low:9,.0f}{high:9,.0f}{to_raw:9.2f}{to_alone:9.2f}"
        )
        print(line, flush=True)
    return rates


def lost(rates: dict[str, list[float]]) -> bool:
    """Whether sharing was slower than sending alone in every round, by more than a
    twentieth.

    >>> lost({"alone": [100.0, 90.0], "together": [90.0, 80.0]})
    True
    >>> lost({"alone": [100.0, 90.0], "together": [90.0, 88.0]})
    False
    """
    pairs = zip(rates["together"], rates["alone"], strict=True)
    return all(together < 0.95 * alone for together, alone in pairs)


def won(rates: dict[str, list[float]]) -> bool:
    """Whether sharing was twice as fast as sending alone, or faster, in some round."""
    pairs = zip(rates["together"], rates["alone"], strict=True)
    return any(together >= 2 * alone for together, alone in pairs)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/bench combining", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round: shows that everything runs"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds; medians are printed (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of one measure (default 2)"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 8, 32], help="default 1 8 32"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    return parser.parse_args()


def main() -> int:
    """Runs the benchmark; 1 if sharing lost on the fast server, or did not win on the slow
    one.
    """
    chosen = arguments()
    rounds, seconds = (1, 0.3) if chosen.quick else (chosen.rounds, chosen.seconds)
    facts = machine()
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="catmq-bench-") as directory:
        home = Path(directory)
        prepare(home / "var")
        disk = slow_sync(home)
        synced = ["--log-bin", "--sync-binlog=1", "--server-id=1", "--binlog-format=ROW"]
        servers = {
            "fast": start(home / "fast", port=free_port()),
            "slow": start(
                home / "slow", port=free_port(), options=synced, environ=disk.environ
            ),
        }
        try:
            disk.set(SLOWER_MS)
            for name, server in servers.items():
                topic_on(server, name)
                print(f"{TITLES[name]}\n{HEADS}", flush=True)
                found[name] = {
                    threads: compare(
                        server, name, threads=threads, rounds=rounds, seconds=seconds
                    )
                    for threads in chosen.threads
                }
        finally:
            disk.set(0)
            for server in servers.values():
                server.stop()
    print(f"load average {facts['load']} before, {machine()['load']} after")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"machine": facts, "rates": plain(found)}, indent=1)
        )
    missed = [
        f"{threads} threads, fast: lost"
        for threads, rates in found["fast"].items()
        if lost(rates)
    ]
    missed += [
        f"{threads} threads, slow: did not win"
        for threads, rates in found["slow"].items()
        if threads > 1 and not won(rates)
    ]
    if missed:
        print("; ".join(missed))
    return int(bool(missed) and not chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
