"""Steady work for a while: what the brokers, their clients and the databases hold must not
grow.

A sender sends at a fixed rate and three members of a group handle everything, through two
brokers. Memory, threads, sockets and open files of every process, and connections,
statements and tables of the databases are sampled. Of each the trend over the second half
of the time must be flat (tests/support/trends.py); the first half is for caches and pools
to fill. On a slow machine they fill for longer: what rose is looked at again, in a window
half as much later, and what grows rises in each of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.scenarios.crowd import Crowd
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.trends import Limit, Trend, rising, trend
from tests.support.waiting import until

QUEUES = 4
EVERY_MS = 50  # a message to each queue
SESSION_MS = 15_000
MEMBERS = 3
# By how much a value may rise while the second half lasts. Memory: of one process, on
# average; Python's own caches fill for minutes, so a short soak sees more of it than a long
# one. Statements come in beats.
LIMITS = {
    "memory of a worker, MB": Limit(2.0, 0.02),
    "threads of a worker": Limit(2.0),
    "sockets of a worker": Limit(2.0),
    "files of a worker": Limit(3.0),
    "memory of a job runner, MB": Limit(2.0, 0.02),
    "memory of a client, MB": Limit(2.0, 0.03),
    "threads of a client": Limit(1.0),
    "files of a client": Limit(1.0),
    "connections to databases": Limit(3.0, 0.15),  # pools fill up to their bounds
    "statements a second": Limit(10.0, 0.15),
    "writes a second": Limit(5.0, 0.15),
    "tables": Limit(0.0),
}
WINDOWS = 4
WRITES = ("Com_insert", "Com_update", "Com_delete", "Com_replace")


@dataclass
class Soak:
    """One soak; `seen` has the samples of everything."""

    stage: Stage
    pair: Pair
    seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def run(self, *, seconds: float, every_s: float) -> None:
        """Plays and judges."""
        crowd = Crowd(self.stage, QUEUES, SESSION_MS, name="soak")
        members = [crowd.join() for _ in range(MEMBERS)]
        crowd.await_shared(members)
        sender = crowd.send(EVERY_MS)
        until(lambda: crowd.handled() > 10 * QUEUES, limit_s=60)
        clients = [sender.process.popen.pid, *(one.pid for one in members)]
        with ExitStack() as stack:
            gauges = [
                stack.enter_context(closing(Gauge(one)))
                for one in (self.pair.metadata, self.pair.nodes)
            ]
            begin = time.monotonic()
            self.watch(clients, gauges, until_s=begin + seconds, every_s=every_s)
            trends = self.trends(seconds)
            grown = set(rising(trends, LIMITS))
            for more in range(1, WINDOWS):
                if grown:
                    self.stage.say(f"Rose, looked at again: {', '.join(sorted(grown))}")
                    self.watch(
                        clients,
                        gauges,
                        until_s=begin + (1 + more / 2) * seconds,
                        every_s=every_s,
                    )
                    trends = self.trends(seconds)
                    grown &= set(rising(trends, LIMITS))
            lasted = time.monotonic() - begin
        told = crowd.finish(stall_s=60)
        judge.no_errors(told)
        judge.one_owner(told)
        count = judge.all_handled(told)
        for name, found in trends.items():
            self.stage.say(
                f"{name:28} {found}, may rise by {LIMITS[name].of(found.median):.2f}"
            )
        assert not grown, (
            f"not flat in any of {WINDOWS} windows: {', '.join(sorted(grown))}"
        )
        self.stage.say(
            f"{count} acknowledged messages were handled in {lasted:.0f} s, and nothing grew"
        )

    def watch(
        self, clients: list[int], gauges: list[Gauge], *, until_s: float, every_s: float
    ) -> None:
        """Samples every so often until then, monotonic."""
        while time.monotonic() < until_s:
            due = time.monotonic() + every_s
            self.sample(clients, gauges)
            until(
                lambda due=due: time.monotonic() >= due,
                limit_s=every_s + 60,
                every_s=every_s / 10,
            )

    def trends(self, seconds: float) -> dict[str, Trend]:
        """Of everything, over the last so many seconds of samples."""
        since = max(points[-1][0] for points in self.seen.values()) - seconds
        return {
            name: trend([one for one in points if one[0] >= since])
            for name, points in self.seen.items()
        }

    def sample(self, clients: list[int], gauges: list[Gauge]) -> None:
        """One sample of everything."""
        now = time.monotonic()
        servers = self.pair.servers
        workers = [pid for server in servers for pid in server.workers()]
        runners = [pid for server in servers for pid in server.job_runners()]
        found = {
            "memory of a worker, MB": mean(memory_mb, workers),
            "threads of a worker": mean(threads, workers),
            "sockets of a worker": mean(sockets, workers),
            "files of a worker": mean(files, workers),
            "memory of a job runner, MB": mean(memory_mb, runners),
            "memory of a client, MB": mean(memory_mb, clients),
            "threads of a client": mean(threads, clients),
            "files of a client": mean(files, clients),
        }
        for gauge in gauges:
            for name, value in gauge.read().items():
                found[name] = found.get(name, 0.0) + value
        for name, value in found.items():
            self.seen.setdefault(name, []).append((now, value))


class Gauge:
    """Counters of a database server, over a connection of its own."""

    def __init__(self, server: MariaDB) -> None:
        self._connection = server.connect()
        self._before: tuple[float, dict[str, int]] | None = None

    def read(self) -> dict[str, float]:
        """What it holds, and since the last reading its rates; no rates at the first one."""
        now = time.monotonic()
        status = {
            name: int(value)
            for name, value in self._rows("SHOW GLOBAL STATUS")
            if value.isdigit()
        }
        (tables,) = self._rows("SELECT COUNT(*) FROM information_schema.tables")[0]
        before, self._before = self._before, (now, status)
        found = {
            "connections to databases": float(status["Threads_connected"]),
            "tables": float(tables),
        }
        if before is None:
            return found
        then, counted = before
        rates = {
            name: (status[name] - counted[name]) / (now - then)
            for name in ("Questions", *WRITES)
        }
        found["statements a second"] = rates["Questions"]
        found["writes a second"] = sum(rates[name] for name in WRITES)
        return found

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())


def mean(measure: Callable[[int], float], pids: Iterable[int]) -> float:
    """Of the processes that are there; 0 if there is none."""
    found = []
    for pid in pids:
        with suppress(OSError, StopIteration):
            found.append(measure(pid))
    return sum(found) / len(found) if found else 0.0


def memory_mb(pid: int) -> float:
    """What a process has to itself, resident."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return (
        sum(float(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    )


def threads(pid: int) -> float:
    """How many threads a process has."""
    return float(len(list(Path(f"/proc/{pid}/task").iterdir())))


def files(pid: int) -> float:
    """How many descriptors a process has open."""
    return float(len(list(Path(f"/proc/{pid}/fd").iterdir())))


def sockets(pid: int) -> float:
    """How many of them are sockets."""
    return float(sum(target.startswith("socket:") for target in _targets(pid)))


def _targets(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            yield os.readlink(entry)


def run(stage: Stage, pair: Pair, *, seconds: float, every_s: float) -> None:
    """A soak of so many seconds with a sample every so often."""
    Soak(stage, pair).run(seconds=seconds, every_s=every_s)
