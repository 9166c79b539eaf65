"""Whether this process is about to stop: it then answers what it has and lets nobody wait."""

from __future__ import annotations

import threading

from messagestore.heads import board

_stopping = threading.Event()


def drain() -> None:
    """Readiness goes red, waiting pulls are answered at once, none waits again. For good."""
    _stopping.set()
    board.wake_all()


def draining() -> bool:
    """Whether `drain` was called."""
    return _stopping.is_set()


def resume() -> None:
    """Undoes `drain`, for tests that share a process."""
    _stopping.clear()
