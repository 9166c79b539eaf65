"""Detects sends that a Java client repeats.

Its HTTP library repeats a request when the connection breaks before the answer, and the
client does after 503 and time-outs. A repeat has the same bytes and no number. A request
counts as a repeat if the request before it, with the same bytes and from the same address,
got no answer: its client hung up, or got 503. Then it gets the batch id of that request,
and the store recognizes the messages that it has.

The memory belongs to this process. So a repeat that reaches another process or broker is
stored a second time; so is a repeat whose first answer was written and lost on the way.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from messagestore.engine import batch_ids

KEEP_S = 60.0
MAX_ATTEMPTS = 10_000


@dataclass(slots=True)
class Attempt:
    """A request in progress, or a request that got no answer."""

    batch_id: UUID
    has_hung_up: Callable[[], bool]
    at: float  # time.monotonic()
    failed: bool = False


_guard = threading.Lock()
_attempts: dict[bytes, Attempt] = {}


def request_key(address: str, body: bytes) -> bytes:
    return hashlib.sha256(address.encode() + b"\0" + body).digest()


def begin(key: bytes, has_hung_up: Callable[[], bool]) -> Attempt:
    """Return the attempt for a request: with the batch id of the request it repeats, or
    with a new batch id.
    """
    now = time.monotonic()
    with _guard:
        if len(_attempts) >= MAX_ATTEMPTS:
            # Old attempts go, and the oldest half in any case, so that this is rare.
            newest = sorted(_attempts.items(), key=lambda entry: entry[1].at)
            newest = newest[len(_attempts) // 2 :]
            _attempts.clear()
            _attempts.update((k, entry) for k, entry in newest if now - entry.at < KEEP_S)
        earlier = _attempts.get(key)
        # Otherwise the earlier request is in progress or answered: the new request is
        # another send.
        repeats = (
            earlier is not None
            and now - earlier.at < KEEP_S
            and (earlier.failed or earlier.has_hung_up())
        )
        batch_id = earlier.batch_id if earlier is not None and repeats else batch_ids.new()
        _attempts[key] = Attempt(batch_id, has_hung_up, now)
        return _attempts[key]


def end(key: bytes, attempt: Attempt, *, failed: bool) -> None:
    """Record the outcome. An attempt whose client got an answer is forgotten."""
    with _guard:
        # A client that hung up has no answer, so its attempt stays for a repeat.
        attempt.failed = failed or attempt.has_hung_up()
        if not attempt.failed and _attempts.get(key) is attempt:
            del _attempts[key]
