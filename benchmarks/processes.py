"""Processes of a benchmark: how it is stopped, the memory of those below it, and the CPU of
them and of the database.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
LOOK_EVERY_S = 0.3


def end_by_signals() -> None:
    """Let SIGTERM end the run like Ctrl-C, so that all servers are stopped.

    In the background of a script Ctrl-C would be ignored, so it is set, too.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


class Process(NamedTuple):
    """A process: its parent, its name, CPU seconds of its own, and those of children that
    have ended.
    """

    parent: int
    name: str
    cpu_s: float
    ended_s: float


def processes() -> dict[int, Process]:
    """All processes of this machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = tail.split()
            own, ended = (
                sum(map(int, fields[first : first + 2])) / TICKS for first in (11, 13)
            )
            found[int(entry.name)] = Process(
                int(fields[1]), head.partition("(")[2], own, ended
            )
    return found


def below(pid: int, running: dict[int, Process]) -> list[int]:
    """Return the ids of all processes below a process."""
    pids = [pid]
    for parent in pids:
        pids += [child for child, process in running.items() if process.parent == parent]
    return pids[1:]


def tree_cpu_s(roots: Iterable[int]) -> float:
    """Return the CPU seconds, user and system, of processes and of all processes below them.

    A process that has ended counts from the moment its parent waited for it.
    """
    running = processes()
    pids = {
        pid for root in roots for pid in (root, *below(root, running)) if pid in running
    }
    return sum(running[pid].cpu_s + running[pid].ended_s for pid in pids)


def kind(process: Process) -> str:
    """Java or Python; else its name."""
    return "python" if process.name.startswith("python") else process.name


def cpu_s(database: int) -> dict[str, float]:
    """CPU seconds so far: of the database, whose process id is given, of Java and of Python
    from here on.
    """
    running = processes()
    found = {"database": running[database].cpu_s, "java": 0.0, "python": 0.0}
    for pid in (os.getpid(), *below(os.getpid(), running)):
        name = kind(running[pid])
        if name in found:
            found[name] += running[pid].cpu_s
        if name == "python":
            found["python"] += running[pid].ended_s
    return found


@contextmanager
def highest_memory() -> Iterator[dict[str, float]]:
    """Measures while the block runs: MB of Java and of Python below this process, at their
    highest.
    """
    found = {"java": 0.0, "python": 0.0}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            now, running = dict.fromkeys(found, 0.0), processes()
            for pid in below(os.getpid(), running):
                name = kind(running[pid])
                if name in now:
                    now[name] += resident_mb(pid)
            for name, size in now.items():
                found[name] = max(found[name], size)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


def resident_mb(pid: int) -> float:
    """MB that only this process holds, with its share of what it holds with others; 0 of
    one that ended.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
