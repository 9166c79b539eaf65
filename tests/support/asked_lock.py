"""A lock that counts the threads that asked for it, so that a test can wait for them."""

from __future__ import annotations

import threading


class AskedLock:
    """Use it in the place of a threading.Lock."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock, self._guard = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._guard:
            self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()
