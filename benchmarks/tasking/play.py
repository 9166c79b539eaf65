"""One part of the benchmark, as an application's process: prints its figures as JSON.

play.py one COUNT               enqueues tasks one by one: tasks a second
play.py many COUNT              enqueues tasks at once: tasks a second
play.py await COUNT             times at which tasks had ended, until so many have
play.py paced COUNT EVERY FILE  enqueues tasks that write their delay into a file, and waits
for them
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import django

django.setup()

from benchmarks.tasking.systems import SYSTEMS  # noqa: E402

SYSTEM = SYSTEMS[os.environ["BENCH_SYSTEM"]]()
LOOK_EVERY_S = 0.2
MOST_S = 900.0


def enqueue(verb: str, count: int) -> dict[str, float]:
    """Return tasks a second. The first task is not counted: it connects."""
    SYSTEM.one(-1)
    begun = time.perf_counter()
    if verb == "many":
        SYSTEM.many(count - 1)
    else:
        for number in range(count - 1):
            SYSTEM.one(number)
    return {"rate": (count - 1) / (time.perf_counter() - begun)}


def await_all(count: int) -> dict[str, list[tuple[float, int]]]:
    """Return (time, number of tasks that have ended) until all have."""
    found: list[tuple[float, int]] = []
    give_up_at = time.monotonic() + MOST_S
    while (not found or found[-1][1] < count) and time.monotonic() < give_up_at:
        found.append((time.monotonic(), SYSTEM.ended()))
        time.sleep(LOOK_EVERY_S)
    return {"ended": found}


def paced(count: int, every_s: float, path: Path) -> dict[str, list[float]]:
    """Return the seconds from the call that enqueues a task to its beginning."""
    for _ in range(count):
        SYSTEM.stamp(str(path), time.time())
        time.sleep(every_s)
    give_up_at = time.monotonic() + MOST_S
    lines: list[str] = []
    while len(lines) < count and time.monotonic() < give_up_at:
        time.sleep(LOOK_EVERY_S)
        lines = path.read_text().splitlines() if path.exists() else []
    return {"delays": [float(line) for line in lines]}


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb in ("one", "many"):
        told: object = enqueue(verb, int(words[0]))
    elif verb == "await":
        told = await_all(int(words[0]))
    else:
        told = paced(int(words[0]), float(words[1]), Path(words[2]))
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
