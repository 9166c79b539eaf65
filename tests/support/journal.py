"""The journals of members and senders of a scenario, which are the only evidence of judge.py.

Each process writes a file with a line of JSON for each event: `at` is CLOCK_MONOTONIC in
seconds, which is the same for all processes of a machine; `n` counts the lines of the file
from 1; `what` is the kind of the event:

    up          the program is ready for a stop signal
    joined      consumer (its id)                     a member has a new consumer id
    gained      queue, epoch                          a member owns a queue and has acquired it
    begin, end  queue, offset, epoch, wall, number    a handler starts, returns; wall is the
                                                      wall clock, number is in the body
    commit      queue, offset, error                  a commit by hand; error is null if it was
                                                      stored
    sent        queue, offset, number, asked, due, took_s
                                                      a receipt: when the send was called, when
                                                      it was scheduled, and how long the call
                                                      blocked the sender
    asked       batch, queue, numbers                 a send is about to be attempted; queue is
                                                      null if the broker chooses
    again       queue, offset, number                 the receipt of a repeat of an acknowledged
                                                      send
    refused     batch, error                          such a repeat was refused
    delayed     number, id                            the receipt of a delayed message
    dead        queue, offset                         the broker reported the message as dead
    position    queue, epoch, committed, head         the reader and head rows at that time
    left        numbers                               the process ends and its journal is
                                                      complete; a sender's numbers are
                                                      [first, end)
    error       error, waited_s                       an error that the application got; for a
                                                      send, how long after its call
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Journal:
    """The writing end. Lines are whole, also if the process is killed. Thread-safe."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._guard = threading.Lock()
        self._lines = 0

    def tell(self, what: str, *, at: float | None = None, **more: object) -> None:
        """Write a line. `at` defaults to now."""
        line = {"at": time.monotonic() if at is None else at, "what": what, **more}
        # The number and the line must be written in the same order.
        with self._guard:
            self._lines += 1
            os.write(self._file, json.dumps({"n": self._lines, **line}).encode() + b"\n")


@dataclass
class Read:
    """A complete journal. `wrong`: (line number, what is wrong with the file)."""

    name: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[tuple[int, str]] = field(default_factory=list)


def read(path: Path, *, killed: bool = False) -> Read:
    """Read the journal of a process that has ended. If it was `killed`, the last line may
    be missing.

    Torn lines, missing lines and a missing end are all reported, because a judge that
    relies on journals must know whether they are complete.
    """
    journal = Read(path.stem)
    number = 0
    for number, raw in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        journal.wrong += ((number, fault) for fault in _add_line(journal.lines, raw))
    last = journal.lines[-1]["what"] if journal.lines else "nothing"
    if not killed and last != "left":
        journal.wrong.append(
            (number, f"the journal ends with {last!r}: its process has not told everything")
        )
    return journal


def _add_line(lines: list[dict[str, Any]], raw: bytes) -> Iterator[str]:
    """Append a line, and yield what is wrong with it."""
    try:
        line = json.loads(raw)
    except ValueError:
        yield f"the line is torn: {raw[-40:]!r}"
        return
    if not raw.endswith(b"\n"):
        yield "the last line has no end"
    last_number = lines[-1]["n"] if lines else 0
    if line["n"] != last_number + 1:
        yield f"line {line['n']} follows line {last_number}: what lay between is missing"
    lines.append(line)
