"""Number of offsets in a new partition of a message table."""

from __future__ import annotations

SMALLEST, LARGEST = 10_000, 100_000_000
# Partitions per retention time. A message is deleted late by at most this part of it,
# apart from bursts.
PARTS_OF_RETENTION = 50
MAX_GROWTH = 10  # times the last size at most: a burst must not decide for weeks
MIN_DURATION_S = 20.0  # shortest duration of a partition at the current rate,
MIN_PARTS_OF_LIMIT = 10  # unless it exceeds this part of the size limit
CROWDED = 150  # from this number of partitions on, new partitions get larger
MAX_PARTITIONS = 200  # more make inserts expensive


def partition_size(
    *,
    per_s: float,
    retention_s: float,
    last: int,
    count: int,
    fitting: int | None = None,
    now_per_s: float = 0.0,
) -> int:
    """Return the number of offsets of the next partition, from the message rate and the
    last size.

    `count` is the number of partitions of the table, `fitting` the number of messages
    within the size limit. `per_s` is the rate over hours, `now_per_s` that of the
    newest messages: partitions must not be created too often, because that delays
    sends.

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
    target, minimum = per_s * retention_s / PARTS_OF_RETENTION, now_per_s * MIN_DURATION_S
    if fitting is not None:
        target, minimum = (
            min(target, fitting / PARTS_OF_RETENTION),
            min(minimum, fitting / MIN_PARTS_OF_LIMIT),
        )
    target = min(max(target, minimum, SMALLEST), MAX_GROWTH * last)
    if count >= CROWDED:
        target = max(target, MAX_GROWTH * last)
    # Two significant digits, so that the bounds of partitions are readable.
    return int(min(max(float(f"{target:.1e}"), SMALLEST), LARGEST))
