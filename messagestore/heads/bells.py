"""Bells of the workers of one broker: who raised a head rings those of the others where somebody waits.

The master makes them before it forks: for each place an eventfd, and a byte that says whether to ring it. So
a sender makes no system call where nobody listens, or where it has rung already. A worker takes a free place.
The lock on it ends with the process, however that ends, and the next worker takes the place again.

Bytes are written without a lock, so a ring may be lost: who listens also looks from time to time.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select

PLACES = 64
SILENT, LISTENS, RUNG = range(3)


class Bells:
    """All bells of a broker; inherited by its workers."""

    def __init__(self, places: int = PLACES) -> None:
        self.states = mmap.mmap(-1, places)
        self.files = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(places)]
        self._locks = os.memfd_create("catmq-bells")
        self._taken: set[int] = set()  # by this process, whom its own locks would not stop

    def take(self) -> Bell:
        """A bell for this process; without a place if there are more processes than places."""
        return Bell(self, next((place for place in range(len(self.files)) if self._lock(place)), None))

    def _lock(self, place: int) -> bool:
        if place in self._taken:
            return False
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        self._taken.add(place)
        return True


class Bell:
    """The bell of one process: one thread listens, any thread rings."""

    def __init__(self, bells: Bells, place: int | None) -> None:
        self._states, self._files = bells.states, bells.files
        self.place = place
        self._heard = select.poll()
        if place is not None:
            self._states[place] = SILENT  # of an earlier process
            self._heard.register(self._files[place], select.POLLIN)

    def listen(self) -> None:
        """Let the others ring from now on. What they raised before is to be looked for after this."""
        if self.place is not None:
            self._states[self.place] = LISTENS

    def wait(self, seconds: float) -> None:
        """Wait until somebody rings, at most so long; nobody does after this. Without a place do not wait."""
        if self.place is None:
            return
        if self._heard.poll(1000 * seconds):
            os.eventfd_read(self._files[self.place])
        self._states[self.place] = SILENT

    def ring(self) -> None:
        """End the wait of this process."""
        if self.place is not None:
            os.eventfd_write(self._files[self.place], 1)

    def ring_others(self) -> None:
        """End the waits of all other processes."""
        place = -1
        while (place := self._states.find(bytes((LISTENS,)), place + 1)) >= 0:
            if place != self.place:
                self._states[place] = RUNG
                os.eventfd_write(self._files[place], 1)
