"""sharer.py GROUP TOPIC LOG THREADS WORK_MS [LETHAL]: handles messages of a share group
until SIGTERM.

Writes a line at the begin and at the end of each handling; whole lines, also when it is
killed; `t` is on the clock that all processes of the machine share. The process dies, as by
kill -9, in the middle of the message whose body is LETHAL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from catmq_client import ShareConsumer, ShareMessage


class Work:
    """The handler and where it tells of itself."""

    def __init__(self, path: str, work_ms: str, lethal: str) -> None:
        self.log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.work_s = float(work_ms) / 1000
        self.lethal = lethal

    def handle(self, message: ShareMessage) -> None:
        """Works for a while; for so many seconds at a message "hold SECONDS"."""
        self.tell("begin", message)
        time.sleep(
            float(message.text.split()[1])
            if message.text.startswith("hold ")
            else self.work_s
        )
        if message.text == self.lethal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.tell("end", message)

    def tell(self, at: str, message: ShareMessage) -> None:
        """One line; `pid` tells members apart."""
        place = {
            "queue": message.queue,
            "offset": message.offset,
            "grant": message.run.grant,
        }
        line = json.dumps(
            {
                "at": at,
                "t": time.monotonic(),
                "pid": os.getpid(),
                **place,
                "body": message.text,
            }
        )
        os.write(self.log, line.encode() + b"\n")


def main() -> None:
    """Runs until SIGTERM."""
    group, topic, path, threads, work_ms, *lethal = sys.argv[1:]
    work = Work(path, work_ms, lethal[0] if lethal else "")
    with ShareConsumer(
        group=group, topics=[topic], lease_ms=5_000, session_timeout_ms=6_000
    ) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run(work.handle, threads=int(threads))


if __name__ == "__main__":
    main()
