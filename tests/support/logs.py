"""The messages that consumers have printed: the only evidence in tests of delivery."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.waiting import until


class Place(NamedTuple):
    """Where a message is stored."""

    queue: int
    offset: int


class Tail:
    """The lines of a file that another process is writing. An incomplete last line does not
    count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._read = 0

    def follow(self) -> list[dict[str, Any]]:
        """Return all lines so far."""
        if self.path.exists() and self.path.stat().st_size > self._read:
            with self.path.open("rb") as file:
                file.seek(self._read)
                # The writer may be within a line; the rest is read next time.
                whole = file.read().rpartition(b"\n")
            self._read += len(whole[0]) + len(whole[1])
            new = [json.loads(line) for line in whole[0].splitlines() if whole[1]]
            self.lines += new
            self.note(new)
        return self.lines

    def note(self, new: list[dict[str, Any]]) -> None:
        """Process lines that were just read."""


class Log(Tail):
    """A file whose lines are each about a message."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.seen_places: set[Place] = set()

    def note(self, new: list[dict[str, Any]]) -> None:
        """Collect the messages."""
        self.seen_places.update(Place(line["queue"], line["offset"]) for line in new)

    def places(self) -> list[Place]:
        """Return the messages in the order in which they were printed."""
        return [Place(line["queue"], line["offset"]) for line in self.follow()]

    def first_offsets(self) -> dict[int, int]:
        """Return the first printed offset of each queue."""
        return {place.queue: place.offset for place in reversed(self.places())}

    def next_offsets(self) -> dict[int, int]:
        """Return the offset after the last printed offset of each queue."""
        return {place.queue: place.offset + 1 for place in self.places()}

    def wait_for(self, count: int, *, stall_s: float = 60.0) -> None:
        """Wait until there are `count` lines."""
        await_count(lambda: len(self.follow()), count, stall_s=stall_s)


def distinct(logs: Iterable[Log]) -> int:
    """Return the number of different messages in the logs."""
    places: set[Place] = set()
    for log in logs:
        log.follow()
        places |= log.seen_places
    return len(places)


def await_count(counted: Callable[[], int], count: int, *, stall_s: float = 60.0) -> None:
    """Wait until `counted()` is at least `count`. Fails if it does not change for `stall_s`
    seconds.
    """
    state = [-1.0, time.monotonic()]

    def reached() -> bool:
        now = counted()
        if now != state[0]:
            # Progress renews the limit: a slow machine may take long, but must not stand
            # still.
            state[:] = now, time.monotonic()
        standing_s = time.monotonic() - state[1]
        assert standing_s < stall_s, (
            f"stands still at {now} of {count} for {standing_s:.0f} s"
        )
        return bool(now >= count)

    until(reached, limit_s=3600, every_s=0.05)


def await_messages(logs: Iterable[Log], count: int, *, stall_s: float = 60.0) -> None:
    """Wait until the logs together contain `count` different messages."""
    all_logs = list(logs)
    await_count(lambda: distinct(all_logs), count, stall_s=stall_s)
