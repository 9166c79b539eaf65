"""How much may be sent just now: a token bucket that may go into debt.

A bucket holds up to a second's worth and fills evenly. What is let through when a request's worth (or, of a
larger request, all a bucket can hold) is there, is taken whole; the rest is owed and has to flow in first.
So a request of any size passes in the end, and over time no more than the rate does.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 1.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What may be sent in a second, by all brokers together; None: any number."""

    messages: int | None = None
    bytes: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.messages is None and self.bytes is None


UNLIMITED = Rates()


@dataclass(slots=True)
class Bucket:
    """How much is there, as of the time `at` in seconds; below zero it is owed."""

    level: float
    at: float


def wait_s(bucket: Bucket, *, rate: float, amount: float, now: float) -> float:
    """Seconds until `amount` may pass, 0 if it may now; brings the bucket to `now`.

    >>> wait_s(Bucket(level=0.0, at=10.0), rate=100.0, amount=50, now=10.0)
    0.5
    >>> wait_s(Bucket(level=0.0, at=10.0), rate=100.0, amount=5000, now=11.0)  # more than it can ever hold
    0.0
    """
    full = rate * BURST_S
    bucket.level = min(full, bucket.level + rate * max(0.0, now - bucket.at))
    bucket.at = now
    return max(0.0, (min(amount, full) - bucket.level) / rate)
