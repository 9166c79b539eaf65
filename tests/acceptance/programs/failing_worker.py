"""failing_worker.py GROUP TOPIC LOG PERCENT: handles in eight threads, and fails at a share
of the messages.

Whether it fails is decided by a hash of the event and the attempt, so a run repeats. Writes
a line for each message that it could handle; whole lines, also when it is killed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import zlib

from catmq_client import Consumer
from catmq_client.message import Message


class Work:
    """The handler and where it tells of itself."""

    def __init__(self, path: str, percent: str) -> None:
        self.log = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.percent = int(percent)

    def handle(self, message: Message) -> None:
        """Tells that it handled a message, or raises."""
        seq = message.json()["seq"]
        if zlib.crc32(b"%d-%d" % (seq, message.attempt)) % 100 < self.percent:
            raise ValueError(f"event {seq} fails at attempt {message.attempt}")
        place = {"queue": message.queue, "offset": message.offset}
        line = json.dumps(
            {"pid": os.getpid(), "seq": seq, "attempt": message.attempt, **place}
        )
        os.write(self.log, line.encode() + b"\n")


def main() -> None:
    """Runs until SIGTERM."""
    group, topic, path, percent = sys.argv[1:]
    work = Work(path, percent)
    logging.getLogger("catmq.consumer").setLevel(logging.CRITICAL)  # it fails on purpose
    with Consumer(group=group, topics=[topic]) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run(work.handle, threads=8)


if __name__ == "__main__":
    main()
