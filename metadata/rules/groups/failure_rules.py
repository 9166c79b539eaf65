"""Rules for a message whose handler failed: once or dead, when again, under which id."""

from __future__ import annotations

import hashlib

from metadata.rules.groups.delivery import Delivery, retry_delay_s
from metadata.rules.topics.routing_rules import as_uuid7

# of the delay, to either side: what failed together need not come back together
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
    """The batch id of the copy that a failure makes: the shape of UUIDv7, the same for
    every report of it.

    Its time is when the failing message was stored, not when it failed: another member that
    gets the message after a crash, and fails at it again, makes the same copy, and not a
    second one. After a reset of the position, or under another subscription of the group,
    it is another copy.

    >>> where = {"stored_at_ms": 1, "subscription": 2, "queue": 3, "offset": 4, "reset_count": 0}
    >>> one = copy_id(attempt=1, **where)
    >>> one.hex()[:13], one == copy_id(attempt=2, **where)
    ('0000000000017', False)
    """
    numbers = (subscription, queue, offset, attempt, reset_count)
    content = b"copy" + b"".join(number.to_bytes(8, "big") for number in numbers)
    return as_uuid7(stored_at_ms, hashlib.sha256(content).digest())


def redrive_id(*, died_at_ms: int, dead: bytes, to: str) -> bytes:
    """The batch id of what a redrive stores of a dead message; `to` is group or topic."""
    return as_uuid7(died_at_ms, hashlib.sha256(to.encode() + dead).digest())


def copy_queue(copy: bytes, queues: tuple[int, ...]) -> int:
    """Return the queue of a failure topic that a copy goes to: a pure function of its id."""
    return queues[int.from_bytes(copy[9:13], "big") % len(queues)]


def delay_ms(delivery: Delivery, attempt: int, copy: bytes) -> int:
    """The pause before retry `attempt`, with a jitter that is the copy's own.

    >>> from metadata.rules.groups.delivery import Delivery
    >>> 9_000 <= delay_ms(Delivery(retry_delays_s=(10,)), 3, bytes(16)) <= 11_000
    True
    """
    share = int.from_bytes(copy[12:16], "big") / 0xFFFF_FFFF  # 0 to 1
    return round(
        retry_delay_s(delivery.retry_delays_s, attempt)
        * 1000
        * (1 + JITTER * (2 * share - 1))
    )


def is_dead(delivery: Delivery, attempt: int) -> bool:
    """Return True if a message that failed for the `attempt`-th time gets no further retry.

    Members of an ordered subscription have used the retries up in place before they report.
    """
    return delivery.ordered or attempt > delivery.retries


def error_class(error: str) -> str:
    """The kind of an error, by which dead messages are counted: its first line up to the
    first colon.

    >>> error_class("ValueError: bad 42"), error_class("timed out"), error_class("")
    ('ValueError', 'timed out', 'unknown')
    """
    first = error.strip().splitlines()[0] if error.strip() else ""
    return first.partition(":")[0].strip()[:MAX_CLASS_CHARS] or "unknown"
