"""Sample of messages whose handling is traced: the same for all members and all attempts."""

from __future__ import annotations

from zlib import crc32


def is_traced(queue: int, offset: int, percent: int) -> bool:
    """Return True if a message is in a sample of `percent`. A larger sample contains every
    smaller one.

    The client has the same function (catmq_client.telemetry.traces).

    >>> [offset for offset in range(60) if is_traced(7, offset, 5)]
    [1, 14, 23, 29, 37]
    >>> is_traced(7, 29, 0), is_traced(7, 0, 100)
    (False, True)
    """
    return crc32(b"%d-%d" % (queue, offset)) % 100 < percent
