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
DRAINED = "this broker was drained"
RETRY_AFTER_MS = 1000

_is_broker_stopping = False
_is_drained = False
_is_worker_stopping = False  # this process alone
# Text of Draining, "" while the broker is in service. Computed when the state changes, because
# every send reads it.
_refusal_reason = ""


def check() -> None:
    """Raise Draining if the broker is drained or stopping."""
    if _refusal_reason:
        raise Draining(
            f"Nothing was done: {_refusal_reason}. Use another broker.",
            retry_after_ms=RETRY_AFTER_MS,
        )


def refusal_reason() -> str:
    """Return the reason why nothing new may begin here, "" while the broker is in service."""
    return _refusal_reason


def must_not_wait() -> bool:
    """Return True if this process must answer waiting requests now."""
    return _is_worker_stopping or bool(_refusal_reason)


def stop() -> None:
    """Stop the broker, for good."""
    _set(broker_stopping=True)


def is_stopping() -> bool:
    return _is_broker_stopping


def stop_worker() -> None:
    """Stop this process, for good. Its broker stays in service."""
    _set(worker_stopping=True)


def disable() -> None:
    """Drain the broker until `enable`. Idempotent."""
    if not _is_drained:
        _set(drained=True)


def enable() -> None:
    """Take the broker into service, unless it is stopping. Idempotent."""
    if _is_drained:
        _set(drained=False)


def resume() -> None:
    # Only for tests, which share a process.
    _set(broker_stopping=False, drained=False, worker_stopping=False)


def _set(
    *,
    broker_stopping: bool | None = None,
    drained: bool | None = None,
    worker_stopping: bool | None = None,
) -> None:
    global _is_broker_stopping, _is_drained, _is_worker_stopping, _refusal_reason
    _is_broker_stopping = (
        _is_broker_stopping if broker_stopping is None else broker_stopping
    )
    _is_drained = _is_drained if drained is None else drained
    _is_worker_stopping = (
        _is_worker_stopping if worker_stopping is None else worker_stopping
    )
    _refusal_reason = STOPPING if _is_broker_stopping else DRAINED if _is_drained else ""
    # Waiting threads check the state when they wake up.
    if must_not_wait():
        board.wake_all()
