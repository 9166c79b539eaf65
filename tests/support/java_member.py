"""`python -m tests.support.java_member URL GROUP TOPIC`: a Java client that prints handled
messages.

A line has the queue, the epoch under which the client owned it, and the body; for a failed
message, `failed` and the body. A message whose body begins with `bad` fails at its first
attempt.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from tests.support.java_client import JavaClient, Timing

QUEUE = (1 << 31) - 1  # bits of a Java queue id that hold the queue


def handled(queue: int, epoch: int, body: str) -> None:
    sys.stdout.write(f"{queue} {epoch} {body}\n")
    sys.stdout.flush()


def failed(body: str) -> None:
    sys.stdout.write(f"failed {body}\n")
    sys.stdout.flush()


def handle(message: dict[str, Any], queue: dict[str, Any]) -> bool:
    if message["retryCount"] == 0 and message["body"].startswith("bad"):
        failed(message["body"])
        return False
    handled(queue["queueId"] & QUEUE, queue["offsetVersion"], message["body"])
    return True


def main() -> None:
    url, group, topic = sys.argv[1:]
    timing = Timing(commit=0.2, first_beat=0.2, beat=1.0)
    JavaClient(url, {group: [topic]}, handle, timing=timing).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
