"""Rules for a message whose handler failed: retry or dead letter, when, and under which
id.
"""

from __future__ import annotations

import hashlib

from metadata.rules.groups.delivery import Delivery, retry_delay_s
from metadata.rules.topics.routing_rules import as_uuid7

# Part of the delay, in both directions, so that messages that failed together are not
# retried together.
JITTER = 0.1
MAX_ERROR_CHARS = 2_000
MAX_CLASS_CHARS = 100


def copy_id(
    *,
    stored_at_ms: int,
    subscription: int,
    queue: int,
    offset: int,
    attempt: int,
    reset_count: int,
) -> bytes:
    """Return the batch id of the copy that a failure makes: a UUIDv7 that is the same for
    every report.

    Its time is the time when the failed message was stored, not when it failed. So if
    another member gets the message after a crash and fails, too, it makes the same
    copy, and no second one. After an offset reset, or for another subscription of the
    group, the copy has another id.

    >>> where = {"stored_at_ms": 1, "subscription": 2, "queue": 3, "offset": 4, "reset_count": 0}
    >>> one = copy_id(attempt=1, **where)
    >>> one.hex()[:13], one == copy_id(attempt=2, **where)
    ('0000000000017', False)
    """
    # Without the time of the failure and the member: these differ between two reports.
    numbers = (subscription, queue, offset, attempt, reset_count)
    content = b"copy" + b"".join(number.to_bytes(8, "big") for number in numbers)
    return as_uuid7(stored_at_ms, hashlib.sha256(content).digest())


def redrive_id(*, died_at_ms: int, dead: bytes, to: str) -> bytes:
    """Return the batch id of the message that a redrive of a dead letter sends; `to` is a
    group or topic.
    """
    return as_uuid7(died_at_ms, hashlib.sha256(to.encode() + dead).digest())


def copy_queue(copy: bytes, queues: tuple[int, ...]) -> int:
    """Return the queue of a retry topic for a copy, as a function of its id."""
    return queues[int.from_bytes(copy[9:13], "big") % len(queues)]


def delay_ms(delivery: Delivery, attempt: int, copy: bytes) -> int:
    """Return the pause before retry `attempt`, with a jitter that depends only on the
    copy.

    >>> from metadata.rules.groups.delivery import Delivery
    >>> 9_000 <= delay_ms(Delivery(retry_delays_s=(10,)), 3, bytes(16)) <= 11_000
    True
    """
    # From bytes of the id, so that every broker computes the same time.
    jitter_share = int.from_bytes(copy[12:16], "big") / 0xFFFF_FFFF  # 0 to 1
    return round(
        retry_delay_s(delivery.retry_delays_s, attempt)
        * 1000
        * (1 + JITTER * (2 * jitter_share - 1))
    )


def is_dead(delivery: Delivery, attempt: int) -> bool:
    """Return True if a message that failed for the `attempt`-th time gets no further
    retry.

    Members of an ordered subscription retry in place, before they report a failure.
    """
    return delivery.ordered or attempt > delivery.retries


def error_class(error: str) -> str:
    """Return the kind of an error, to count dead letters by: its first line up to the
    first colon.

    >>> error_class("ValueError: bad 42"), error_class("timed out"), error_class("")
    ('ValueError', 'timed out', 'unknown')
    """
    first = error.strip().splitlines()[0] if error.strip() else ""
    return first.partition(":")[0].strip()[:MAX_CLASS_CHARS] or "unknown"
