"""What members and senders of a scenario write down while they work: all that judge.py believes.

One file for each process, a line of JSON for each event: `at` is CLOCK_MONOTONIC in seconds, which is the
same for all processes of a machine, `what` is

    up          the program is ready to be told to stop
    joined      consumer (its id)                     a member has a new consumer id
    gained      queue, epoch                          a member owns a queue and has acquired it
    begin, end  queue, offset, epoch, wall, number    a handler starts, returns; wall is the wall clock,
                                                      number what the sender wrote into the body
    commit      queue, offset, error                  a commit by hand; error is null if it was stored
    sent        queue, offset, number, asked, due, took_s
                                                      a receipt: when the send was asked for, when it should
                                                      have been, and how long the asking kept the sender
    left                                              the member has left and ends
    error       error                                 what the application got to see
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Journal:
    """The writer's end. Whole lines, also when the process is killed; safe for threads."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(self, what: str, *, at: float | None = None, **more: object) -> None:
        """One line; `at` is now unless given."""
        line = {"at": time.monotonic() if at is None else at, "what": what, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")
