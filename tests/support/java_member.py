"""`python -m tests.support.java_member URL GROUP TOPIC`: a Java client that prints each message it handled.

A line has the queue, the epoch under which the client had it, and the body.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from tests.support.java_client import JavaClient, Timing

QUEUE = (1 << 31) - 1  # of the id that a client gets


def handle(message: dict[str, Any], queue: dict[str, Any]) -> bool:
    sys.stdout.write(f"{queue['queueId'] & QUEUE} {queue['offsetVersion']} {message['body']}\n")
    sys.stdout.flush()
    return True


def main() -> None:
    url, group, topic = sys.argv[1:]
    timing = Timing(commit=0.2, first_beat=0.2, beat=1.0)
    JavaClient(url, {group: [topic]}, handle, timing=timing).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
