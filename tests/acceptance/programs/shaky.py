"""shaky.py GROUP TOPIC JOURNAL [--order ORDER] [--threads N]: a member whose handler fails
at 30 %.

Which call fails is decided by the event's number and the attempt alone, so that a run
repeats. Each call that ended is a line of the journal: queue, offset, epoch, number, key,
attempt, handled. Runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import signal
import sys

from catmq_client import Consumer
from catmq_client.message import Message
from tests.support.journal import Journal

FAILS = 0.3


class Refused(Exception):
    """The handler fails this time."""


def fails(number: int, attempt: int) -> bool:
    """Whether the handler fails at an event that failed so often before."""
    digest = hashlib.sha256(f"{number}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < FAILS * (1 << 32)


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("group", "topic", "journal"):
        parser.add_argument(name)
    parser.add_argument("--order", default="key")
    parser.add_argument("--threads", type=int, default=4)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Runs until SIGTERM."""
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(message)s")
    given = arguments(argv)
    journal = Journal(given.journal)

    def handle(message: Message) -> None:
        number = message.json()["seq"]
        failed = fails(number, message.attempt)
        place = {"queue": message.queue, "offset": message.offset, "epoch": message.epoch}
        what = {**place, "number": number, "key": message.key, "attempt": message.attempt}
        journal.tell("end", handled=not failed, **what)
        if failed:
            raise Refused(f"event {number}, attempt {message.attempt}")

    with Consumer(group=given.group, topics=[given.topic]) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run(handle, threads=given.threads, order=given.order)


if __name__ == "__main__":
    main(sys.argv[1:])
