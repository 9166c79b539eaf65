"""State of this broker: in service, drained by an operator, or stopping.

A drained or stopping broker refuses what begins something (register, pull, publish) with
`draining`, so that clients go to another broker. Waiting pulls are woken and answered.
Requests in progress finish; heartbeats, acquires, commits and the rest are still served.
Draining can be undone, stopping cannot.

A worker that ends while its broker stays (gunicorn replaces it) refuses nothing. It only
ends waits and closes its connections.
"""

from __future__ import annotations

from messagestore.heads.heads import board
from metadata.errors import Draining

STOPPING = "this broker is stopping"
OUT = "this broker was drained"
RETRY_AFTER_MS = 1000

_stopping = _out = _leaving = False
# Computed when the state changes: every send reads it.
_refusal_reason = ""


def check() -> None:
    if _refusal_reason:
        raise Draining(
            f"Nothing was done: {_refusal_reason}. Use another broker.",
            retry_after_ms=RETRY_AFTER_MS,
        )


def refusal_reason() -> str:
    """Return the reason why nothing new may begin here, "" while the broker is in service."""
    return _refusal_reason


def must_not_wait() -> bool:
    return _leaving or bool(_refusal_reason)


def stop() -> None:
    """Stop the broker, for good."""
    _set(stopping=True)


def is_stopping() -> bool:
    return _stopping


def stop_worker() -> None:
    """Stop this process, for good. Its broker stays in service."""
    _set(leaving=True)


def disable() -> None:
    """Drain the broker until `enable`. Idempotent."""
    if not _out:
        _set(out=True)


def enable() -> None:
    """Take the broker into service, unless it is stopping. Idempotent."""
    if _out:
        _set(out=False)


def resume() -> None:
    # Only for tests, which share a process.
    _set(stopping=False, out=False, leaving=False)


def _set(
    *, stopping: bool | None = None, out: bool | None = None, leaving: bool | None = None
) -> None:
    global _stopping, _out, _leaving, _refusal_reason
    _stopping = _stopping if stopping is None else stopping
    _out = _out if out is None else out
    _leaving = _leaving if leaving is None else leaving
    _refusal_reason = STOPPING if _stopping else OUT if _out else ""
    # Waiting threads check the state when they wake up.
    if must_not_wait():
        board.wake_all()
