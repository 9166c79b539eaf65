"""Rate limit of sends: a token bucket that may go into debt.

A bucket holds up to a second's worth and fills evenly. What is let through when a request's
worth (or, of a larger request, all a bucket can hold) is there, is taken whole; the rest is
owed and has to flow in first. So a request of any size passes in the end, and over time no
more than the rate does.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 1.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Limits on sends in a second, by all brokers together; None: any number."""

    messages: int | None = None
    bytes: int | None = None

    @property
    def unlimited(self) -> bool:
        return self.messages is None and self.bytes is None


UNLIMITED = Rates()


@dataclass(slots=True)
class Bucket:
    """Level of a bucket, as of the time `at` in seconds; below zero it is owed."""

    level: float
    at: float


# of a limit, shared evenly: what a process may send before the others know that it is asked
RESERVE = 0.1


def share_of_limit(*, mine: float, others: float, processes: int) -> float:
    """Return which part of a limit a process may use, by what it and the others are asked
    to send.

    >>> share_of_limit(mine=0, others=0, processes=4)
    0.25
    >>> share_of_limit(mine=50, others=0, processes=1)
    1.0
    >>> shares = [share_of_limit(mine=n, others=100 - n, processes=4) for n in (100, 50, 0)]
    >>> [round(share, 3) for share in shares]
    [0.925, 0.475, 0.025]
    """
    if processes <= 1:
        return 1.0
    if mine + others <= 0:
        return 1 / processes
    return RESERVE / processes + (1 - RESERVE) * mine / (mine + others)


def wait_s(bucket: Bucket, *, rate: float, amount: float, now: float) -> float:
    """Seconds until `amount` may pass, 0 if it may now; brings the bucket to `now`.

    >>> wait_s(Bucket(level=0.0, at=10.0), rate=100.0, amount=50, now=10.0)
    0.5
    >>> wait_s(Bucket(level=0.0, at=10.0), rate=100.0, amount=5000,
    ...     now=11.0)  # more than it can ever hold
    0.0
    """
    full = rate * BURST_S
    bucket.level = min(full, bucket.level + rate * max(0.0, now - bucket.at))
    bucket.at = now
    return max(0.0, (min(amount, full) - bucket.level) / rate)
