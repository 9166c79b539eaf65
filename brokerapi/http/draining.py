"""State of this broker: it serves, was drained by an operator, or stops.

Out or stopping, it refuses what begins something (register, pull, publish) with `draining`,
so clients go to another broker; waiting pulls are woken and answered, requests under way
finish, and heartbeats, acquires, commits and the rest go on. Out can be undone, stopping
cannot.

A worker that leaves while its broker goes on (gunicorn replaces it) refuses nothing; it
only lets nobody wait any longer, and closes its connections.
"""

from __future__ import annotations

from messagestore.heads.heads import board
from metadata.errors import Draining

STOPPING = "this broker is stopping"
OUT = "this broker was drained"
RETRY_AFTER_MS = 1000

_stopping = _out = _leaving = False
_because = ""  # all that a send looks at


def check() -> None:
    """Raises Draining if nothing new may begin here."""
    if _because:
        raise Draining(
            f"Nothing was done: {_because}. Use another broker.",
            retry_after_ms=RETRY_AFTER_MS,
        )


def refusal_reason() -> str:
    """Return the reason why nothing new may begin here, '' while the broker serves."""
    return _because


def must_not_wait() -> bool:
    """Return True if no pull may wait."""
    return _leaving or bool(_because)


def stop() -> None:
    """The broker stops, for good."""
    _set(stopping=True)


def is_stopping() -> bool:
    """Return True if `drain` was called."""
    return _stopping


def stop_worker() -> None:
    """Only this process stops, for good; its broker goes on."""
    _set(leaving=True)


def disable() -> None:
    """The broker serves no longer, until `enable`. Harmless when repeated."""
    if not _out:
        _set(out=True)


def enable() -> None:
    """The broker serves again, unless it stops. Harmless when repeated."""
    if _out:
        _set(out=False)


def resume() -> None:
    """Undoes everything, for tests that share a process."""
    _set(stopping=False, out=False, leaving=False)


def _set(
    *, stopping: bool | None = None, out: bool | None = None, leaving: bool | None = None
) -> None:
    global _stopping, _out, _leaving, _because
    _stopping = _stopping if stopping is None else stopping
    _out = _out if out is None else out
    _leaving = _leaving if leaving is None else leaving
    _because = STOPPING if _stopping else OUT if _out else ""
    if must_not_wait():
        board.wake_all()
