"""keyed.py TOPIC JOURNAL PER_SECOND FIRST KEYS: sends messages with KEYS keys, evenly spread.

The client chooses the queue of a key. The bodies are numbers, from FIRST on. Runs until
SIGTERM and then waits for all receipts; see tests/support/journal.py for what it writes.
"""

from __future__ import annotations

import sys
import time

from catmq_client import Producer
from tests.acceptance.programs.steady import Steady
from tests.support.journal import Journal
from tests.support.terminated import Terminated

TICK_S = 0.02  # messages that are due within a tick are sent together, to save CPU


def run(steady: Steady, per_s: int, keys: int, terminated: Terminated) -> None:
    """Send until stopped. Messages that are late are sent at once."""
    started_at, number = time.monotonic(), 0
    while not terminated.wait(TICK_S):
        now = time.monotonic()
        while (due := started_at + number / per_s) <= now:
            steady.send(steady.first + number, due, key=f"k{number % keys}")
            number += 1


def main() -> None:
    topic, path, per_s, first, keys = sys.argv[1:]
    journal, terminated = Journal(path), Terminated()
    with Producer() as producer:
        steady = Steady(producer, journal, topic, int(first))
        journal.tell("up")
        run(steady, int(per_s), int(keys), terminated)
    steady.leave()


if __name__ == "__main__":
    main()
