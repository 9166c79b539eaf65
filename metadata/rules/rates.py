"""Rate limit of sends: a token bucket that may go into debt.

A bucket holds up to a second's worth of the rate and fills evenly. A request passes as
soon as the bucket has its amount, or is full for a larger amount. Then the whole amount
is taken, which may leave a debt that must be refilled first. So a request of any size
passes in the end, and over time no more than the rate passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

BURST_S = 1.0


class Rates(Struct, frozen=True):
    """Limits on sends per second, for all brokers together; None: no limit."""

    messages: int | None = None
    bytes: int | None = None

    @property
    def unlimited(self) -> bool:
        return self.messages is None and self.bytes is None


UNLIMITED = Rates()


@dataclass(slots=True)
class Bucket:
    """Level of a bucket at the time `at` in seconds; below zero it is a debt."""

    level: float
    at: float


# Part of the limit that is shared evenly: the amount a process may send before the other
# processes know its demand.
RESERVE = 0.1


def share_of_limit(*, mine: float, others: float, processes: int) -> float:
    """Return the share of a limit that a process may use.

    `mine` is the demand of the process, `others` that of all other processes.

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
    # Without any demand, every process may begin with an even share.
    if mine + others <= 0:
        return 1 / processes
    return RESERVE / processes + (1 - RESERVE) * mine / (mine + others)


def wait_s(bucket: Bucket, *, rate: float, amount: float, now: float) -> float:
    """Return the seconds until `amount` may pass, 0 if it may pass now. Refills the bucket
    up to `now`.

    >>> wait_s(Bucket(level=0.0, at=10.0), rate=100.0, amount=50, now=10.0)
    0.5
    >>> wait_s(Bucket(level=0.0, at=10.0), rate=100.0, amount=5000,
    ...     now=11.0)  # more than it can ever hold
    0.0
    """
    capacity = rate * BURST_S
    # A clock that was set back adds nothing.
    bucket.level = min(capacity, bucket.level + rate * max(0.0, now - bucket.at))
    bucket.at = now
    return max(0.0, (min(amount, capacity) - bucket.level) / rate)
