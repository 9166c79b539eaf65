"""first_message.py TOPIC GROUP…: per group, the ms from a lone consumer to its first
message.
"""

from __future__ import annotations

import sys
import time

from catmq_client import Consumer


def main() -> None:
    """One consumer after the other."""
    topic, *groups = sys.argv[1:]
    for group in groups:
        begun = time.monotonic()
        with Consumer(group=group, topics=[topic]) as consumer:
            assert len(consumer.poll(max_messages=1, timeout_s=30)) == 1
            sys.stdout.write(f"{round((time.monotonic() - begun) * 1000)}\n")


if __name__ == "__main__":
    main()
