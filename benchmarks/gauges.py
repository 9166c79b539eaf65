"""What a run costs: processor time, memory, threads and sockets from /proc, counters of the
database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
ESTABLISHED = "01"  # in /proc/net/tcp
COUNTERS = ("Questions", "Com_select", "Com_update", "Com_insert", "Com_commit")


@dataclass(frozen=True, slots=True)
class Machine:
    """Whom to watch: gunicorn's master; if the database is a server, its process and a
    connection to it.
    """

    master: int
    database_pid: int | None = None
    database: Any = None

    def workers(self) -> list[int]:
        """The broker's worker processes."""
        listed = Path(f"/proc/{self.master}/task/{self.master}/children").read_text()
        return sorted(int(child) for child in listed.split())

    def sample(self) -> Sample:
        """All counters now."""
        return Sample(
            at=time.monotonic(),
            workers_s=tuple(processor_s(pid) for pid in self.workers()),
            database_s=processor_s(self.database_pid) if self.database_pid else 0.0,
            generator_s=time.process_time(),
            machine_s=_machine_s(),
            counters=_counters(self.database) if self.database else {},
        )

    def clients(self, port: int) -> dict[int, frozenset[str]]:
        """Of each worker: the sockets on which clients are connected with it, through that
        port.
        """
        connected = _connected(port)
        return {pid: frozenset(_sockets(pid)) & connected for pid in self.workers()}

    def workers_now(self) -> dict[str, list[float]]:
        """Of each worker: resident memory in MB, threads, sockets."""
        pids = self.workers()
        return {
            "memory of a worker, MB": [_status(pid, "VmRSS") / 1024 for pid in pids],
            "threads of a worker": [_status(pid, "Threads") for pid in pids],
            "sockets of a worker": [float(len(_sockets(pid))) for pid in pids],
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one moment; processor times in seconds."""

    at: float
    workers_s: Sequence[float]
    database_s: float
    generator_s: float
    machine_s: float  # of all processes
    counters: Mapping[str, int]

    def since(self, before: Sample) -> dict[str, float]:
        """Rates between two samples: processors in % of one core, counters a second."""
        seconds = self.at - before.at
        counted = {
            name: self.counters[name] - before.counters[name] for name in self.counters
        }
        return {
            f"CPU of {name}, %": share for name, share in self.cores(before).items()
        } | {f"{name} a second": count / seconds for name, count in counted.items()}

    def cores(self, before: Sample) -> dict[str, float]:
        """Who used how much of one core between two samples, in %."""
        spent = {
            "workers": sum(self.workers_s) - sum(before.workers_s),
            "database": self.database_s - before.database_s,
            "generator": self.generator_s - before.generator_s,
        }
        spent["others"] = max(0.0, self.machine_s - before.machine_s - sum(spent.values()))
        return {
            name: 100 * seconds / (self.at - before.at) for name, seconds in spent.items()
        }


def processor_s(pid: int) -> float:
    """Processor time of a process since its start, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _machine_s() -> float:
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) * TICK_S


def _status(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _sockets(pid: int) -> list[str]:
    """The numbers of a process's sockets."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            kind, _, number = os.readlink(entry).partition(":")
            found += [number.strip("[]")] if kind == "socket" else []
    return found


def _connected(port: int) -> frozenset[str]:
    """The numbers of the sockets at this end of all IPv4 connections to a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return frozenset(
        row[9]
        for row in rows
        if int(row[1].rpartition(":")[2], 16) == port and row[3] == ESTABLISHED
    )


def _counters(connection: Any) -> dict[str, int]:
    cursor = connection.cursor()
    cursor.execute("SHOW GLOBAL STATUS")
    found = dict(cursor.fetchall())
    return {name: int(found[name]) for name in COUNTERS}
