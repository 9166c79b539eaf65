"""member.py GROUP TOPIC JOURNAL [--threads N] [--each] [--handler-ms MS]: a member that
tells all.

It handles with run(), in order per queue; with --each it iterates and commits every message
by hand. Runs until SIGTERM; see tests/support/journal.py for what it writes.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from typing import Any

from catmq_client import Consumer
from catmq_client.errors import CatmqError, CommitFailed
from catmq_client.message import Message
from tests.support import fixed
from tests.support.journal import Journal


class Work:
    """The handler, and what it tells."""

    def __init__(self, journal: Journal, handler_ms: float) -> None:
        self.journal = journal
        self.handler_s = handler_ms / 1000
        self.never = threading.Event()
        self.known_as: str | None = None
        self.consumer: Consumer | None = None

    def gained(self, queues: list[Any]) -> None:
        """on_assigned."""
        self.name()
        for one in queues:
            self.journal.tell("gained", queue=one.queue, epoch=one.epoch)

    def handle(self, message: Message) -> None:
        """Works for a while."""
        begun, wall = time.monotonic(), time.time()
        place = {"queue": message.queue, "offset": message.offset, "epoch": message.epoch}
        place["number"] = int(message.body)
        self.journal.tell("begin", at=begun, wall=wall, **place)
        if self.handler_s:
            self.never.wait(self.handler_s)
        self.journal.tell("end", wall=time.time(), **place)

    def name(self) -> None:
        """Tells the consumer id when it is another one."""
        now = self.consumer._state.consumer_id if self.consumer else None
        if now != self.known_as:
            self.known_as = now
            self.journal.tell("joined", consumer=now)

    def one_by_one(self, consumer: Consumer) -> None:
        """Handles and commits each message by itself; a commit that is refused is told, and
        work goes on.
        """
        for message in consumer:
            self.handle(message)
            error = None
            try:
                consumer.commit()
            except CommitFailed as refused:
                error = str(refused)
            self.journal.tell(
                "commit", queue=message.queue, offset=message.offset, error=error
            )


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("group", "topic", "journal"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--handler-ms", type=float, default=0.0)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Runs until SIGTERM."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(relativeCreated)d %(message)s"
    )
    given = arguments(argv)
    work = Work(Journal(given.journal), given.handler_ms)
    consumer = Consumer(
        group=given.group,
        topics=[given.topic],
        on_assigned=work.gained,
        transport=fixed.transport(),
    )
    work.consumer = consumer
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    work.journal.tell("up")
    try:
        with consumer:
            if given.each:
                work.one_by_one(consumer)
            else:
                consumer.run(work.handle, threads=given.threads, order="queue")
    except CatmqError as error:
        work.journal.tell("error", error=repr(error))
        raise
    work.journal.tell("left")


if __name__ == "__main__":
    main(sys.argv[1:])
