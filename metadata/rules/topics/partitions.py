"""Number of offsets that a new partition of a message table holds."""

from __future__ import annotations

SMALLEST, LARGEST = 10_000, 100_000_000
# of the retention: so much later than necessary a message is dropped, but for bursts
PARTS = 50
GROWTH = 10  # times the last one at most: a burst must not decide for weeks
LEAST_S = 20.0  # a new one lasts at least so long at the speed of the newest messages,
SHARE = 10  # unless it were more than such a part of what the limit by size allows
CROWDED = 150  # partitions of one table, from which on new ones become larger
MOST = 200  # more make inserts dear


def partition_size(
    *,
    per_s: float,
    retention_s: float,
    last: int,
    count: int,
    fitting: int | None = None,
    now_per_s: float = 0.0,
) -> int:
    """The offsets of the next partition, from the rate of messages and the size of the last
    partition.

    `count` is how many partitions the table has; `fitting` how many messages the limit by
    size allows. The rate is one over hours; `now_per_s` is that of the newest messages:
    making a partition holds up senders.

    >>> partition_size(per_s=1000, retention_s=7 * 86_400, last=10_000_000, count=9)
    12000000
    >>> partition_size(per_s=1000, retention_s=7 * 86_400, last=100_000, count=9)
    1000000
    >>> partition_size(per_s=0, retention_s=7 * 86_400, last=100_000, count=9)
    10000
    >>> partition_size(per_s=0, retention_s=7 * 86_400, last=100_000, count=160)
    1000000
    >>> partition_size(per_s=1, retention_s=7 * 86_400, last=100_000, count=9, now_per_s=5_000)
    100000
    >>> partition_size(per_s=1, retention_s=7 * 86_400, last=100_000, count=9, now_per_s=5_000,
    ...     fitting=200_000)
    20000
    """
    wanted, least = per_s * retention_s / PARTS, now_per_s * LEAST_S
    if fitting is not None:
        wanted, least = min(wanted, fitting / PARTS), min(least, fitting / SHARE)
    wanted = min(max(wanted, least, SMALLEST), GROWTH * last)
    if count >= CROWDED:
        wanted = max(wanted, GROWTH * last)
    return int(min(max(float(f"{wanted:.1e}"), SMALLEST), LARGEST))
