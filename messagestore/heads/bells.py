"""Wake-ups between the workers of a broker: a worker that raised a head rings the others.

The master creates the bells before it forks. Each place has an eventfd, and a byte with its
state (SILENT, LISTENS, RUNG). So a sender makes no system call for a worker that does not
listen or was rung already. A worker takes a free place. The lock on a place ends with the
process, also if that is killed, so the next worker can take it.

The bytes are written without a lock, so a ring may be lost. Therefore listeners wait for a
limited time only, and then look for new heads in any case.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
from contextlib import suppress

PLACES = 64
SILENT, LISTENS, RUNG = range(3)


class Bells:
    """The bells of all workers of a broker. Created before the fork."""

    def __init__(self, places: int = PLACES) -> None:
        self.states = mmap.mmap(-1, places)
        self.files = [
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(places)
        ]
        self._locks = os.memfd_create("catmq-bells")
        # POSIX locks do not exclude their own process, so the places that it took are
        # remembered.
        self._taken_places: set[int] = set()

    def take(self) -> Bell:
        """Return a bell for this process. It has no place if all places are taken."""
        for index in range(len(self.files)):
            if index not in self._taken_places:
                with suppress(OSError):  # another process holds the lock
                    fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
                    self._taken_places.add(index)
                    return Bell(self, index)
        return Bell(self, None)


class Bell:
    """The bell of a process. A single thread listens; any thread may ring."""

    def __init__(self, bells: Bells, place: int | None) -> None:
        self._states, self._files = bells.states, bells.files
        self.place = place
        self._heard = select.poll()
        if place is not None:
            # The process that had the place before may have left another state.
            self._states[place] = SILENT
            self._heard.register(self._files[place], select.POLLIN)

    def listen(self) -> None:
        """Let other processes ring from now on. The caller must look for heads raised
        before.
        """
        if self.place is not None:
            self._states[self.place] = LISTENS

    def wait(self, seconds: float) -> None:
        """Wait until another thread or process rings, at most `seconds`. Then stop
        listening.

        Without a place, return at once.
        """
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
        index = -1
        # RUNG is set before the write: other senders then skip the place, and the listener
        # wakes once.
        while (index := self._states.find(bytes((LISTENS,)), index + 1)) >= 0:
            if index != self.place:
                self._states[index] = RUNG
                os.eventfd_write(self._files[index], 1)
