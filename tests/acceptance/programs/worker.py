"""worker.py GROUP TOPIC LOG SEED MAX_MS: handles in eight threads, each message for a
random time.

Writes a line at the begin and at the end of each handling; whole lines, also when it is
killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading

from catmq_client import Consumer
from catmq_client.message import Message


class Work:
    """The handler and where it tells of itself."""

    def __init__(self, path: str, seed: str, max_ms: str) -> None:
        self.log = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.rng = random.Random(seed)
        self.max_s = float(max_ms) / 1000
        self.never = threading.Event()

    def handle(self, message: Message) -> None:
        """Works for a while."""
        self.tell("begin", message)
        self.never.wait(self.rng.random() * self.max_s)
        self.tell("end", message)

    def tell(self, at: str, message: Message) -> None:
        """One line; `pid` tells workers apart."""
        place = {"queue": message.queue, "offset": message.offset, "epoch": message.epoch}
        line = json.dumps({"at": at, "pid": os.getpid(), **place, "body": message.text})
        os.write(self.log, line.encode() + b"\n")


def main() -> None:
    """Runs until SIGTERM."""
    group, topic, path, seed, max_ms = sys.argv[1:]
    work = Work(path, seed, max_ms)
    with Consumer(group=group, topics=[topic]) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run(work.handle, threads=8)


if __name__ == "__main__":
    main()
