"""What members and senders of a scenario write down while they work: all that judge.py
believes.

One file for each process, a line of JSON for each event: `at` is CLOCK_MONOTONIC in
seconds, which is the same for all processes of a machine, `n` counts the lines of the file
from 1, `what` is

    up          the program is ready to be told to stop
    joined      consumer (its id)                     a member has a new consumer id
    gained      queue, epoch                          a member owns a queue and has acquired it
    begin, end  queue, offset, epoch, wall, number    a handler starts, returns; wall is the
                                                      wall clock,
                                                      number what the sender wrote into the
                                                      body
    commit      queue, offset, error                  a commit by hand; error is null if it was
                                                      stored
    sent        queue, offset, number, asked, due, took_s
                                                      a receipt: when the send was asked
                                                      for, when it should
                                                      have been, and how long the asking
                                                      kept the sender
    asked       batch, queue, numbers                 a send is about to be tried; queue is null
                                                      if the broker
                                                      chooses
    again       queue, offset, number                 a receipt that a repeat of what was
                                                      acknowledged got
    refused     batch, error                          such a repeat was refused
    delayed     number, id                            a receipt of a message that waits for its time
    dead        queue, offset                         the broker said that the message is dead
    position    queue, epoch, committed, head         what the reader and head rows said at that
                                                      time
    left        numbers                               the process ends, and has told everything;
                                                      what a
                                                      sender numbered lies in this range,
                                                      [first, end)
    error       error, waited_s                       what the application got to see; for a
                                                      send, how long
                                                      after it was asked for
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
    """The writer's end. Whole lines, also when the process is killed; safe for threads."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._guard = threading.Lock()
        self._lines = 0

    def tell(self, what: str, *, at: float | None = None, **more: object) -> None:
        """One line; `at` is now unless given."""
        line = {"at": time.monotonic() if at is None else at, "what": what, **more}
        with self._guard:  # or numbers would not rise
            self._lines += 1
            os.write(self._file, json.dumps({"n": self._lines, **line}).encode() + b"\n")


@dataclass
class Read:
    """A journal, read to its end. `wrong`: (line number, what is wrong with the file
    there).
    """

    name: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[tuple[int, str]] = field(default_factory=list)


def read(path: Path, *, killed: bool = False) -> Read:
    """Reads the journal of a process that has ended; one that was `killed` may lack its
    last word.

    Nothing is swallowed: a torn line, a line that is missing, and an end that is missing
    are all named, because a judge that believes journals must know when one does not tell
    everything.
    """
    found = Read(path.stem)
    number = 0
    for number, raw in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        found.wrong += ((number, what) for what in _take(found.lines, raw))
    last = found.lines[-1]["what"] if found.lines else "nothing"
    if not killed and last != "left":
        found.wrong.append(
            (number, f"the journal ends with {last!r}: its process has not told everything")
        )
    return found


def _take(lines: list[dict[str, Any]], raw: bytes) -> Iterator[str]:
    """Adds a line; what is wrong with it."""
    try:
        line = json.loads(raw)
    except ValueError:
        yield f"the line is torn: {raw[-40:]!r}"
        return
    if not raw.endswith(b"\n"):
        yield "the last line has no end"
    before = lines[-1]["n"] if lines else 0
    if line["n"] != before + 1:
        yield f"line {line['n']} follows line {before}: what lay between is missing"
    lines.append(line)
