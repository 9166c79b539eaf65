"""Sends that a Java client repeats, told from sends of the same messages.

Its HTTP library sends a request again when the connection breaks before the answer, and the
client does after 503 and time-outs. A repeat has the same bytes and no number. It is one if
the request before it, with these bytes and from this address, got no answer: its client
hung up, or it was told 503. Then it gets the id of that batch, and the store knows what it
has. The memory is this process's. So a repeat that comes to another process or broker is
stored a second time; so is one whose first answer was written and lost on the way.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from messagestore.engine import batch_ids

KEPT_S = 60.0
MOST_KEPT = 10_000


@dataclass(slots=True)
class Try:
    """A request on its way, or one that got no answer."""

    batch_id: UUID
    has_hung_up: Callable[[], bool]
    at: float  # time.monotonic()
    failed: bool = False


_guard = threading.Lock()
_tries: dict[bytes, Try] = {}


def request_key(address: str, body: bytes) -> bytes:
    return hashlib.sha256(address.encode() + b"\0" + body).digest()


def begin(key: bytes, has_hung_up: Callable[[], bool]) -> Try:
    """Return the try for a request: with the batch id of the request that it repeats, or
    with a new one.
    """
    now = time.monotonic()
    with _guard:
        if len(_tries) >= MOST_KEPT:
            _drop_old(now)
        before = _tries.get(key)
        repeats = (
            before is not None
            and now - before.at < KEPT_S
            and (before.failed or before.has_hung_up())
        )
        batch_id = before.batch_id if before is not None and repeats else batch_ids.new()
        _tries[key] = Try(batch_id, has_hung_up, now)
        return _tries[key]


def end(key: bytes, mine: Try, *, failed: bool) -> None:
    """Note the outcome; what is answered to a client that still listens is forgotten."""
    with _guard:
        mine.failed = failed or mine.has_hung_up()
        if not mine.failed and _tries.get(key) is mine:
            del _tries[key]


def _drop_old(now: float) -> None:
    """Drop what is old, else the oldest half. The caller holds the guard."""
    kept = sorted(_tries.items(), key=lambda one: one[1].at)[len(_tries) // 2 :]
    _tries.clear()
    _tries.update((key, one) for key, one in kept if now - one.at < KEPT_S)
