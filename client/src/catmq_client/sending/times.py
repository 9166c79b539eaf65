"""Due time of a delayed message, as it goes on the wire."""

from __future__ import annotations

from datetime import datetime

from catmq_client.errors import OptionError


def waits(delay_ms: int | None, deliver_at: datetime | None) -> dict[str, int]:
    """The field of a message that says until when it waits. Raises OptionError.

    >>> waits(1500, None)
    {'delay_ms': 1500}
    """
    if delay_ms is not None and deliver_at is not None:
        raise OptionError("give either delay_ms or deliver_at, not both")
    if delay_ms is not None:
        if isinstance(delay_ms, bool) or not isinstance(delay_ms, int) or delay_ms < 0:
            raise OptionError(f"delay_ms={delay_ms!r}: give whole milliseconds from 0")
        return {"delay_ms": delay_ms}
    if not isinstance(deliver_at, datetime) or deliver_at.tzinfo is None:
        raise OptionError(f"deliver_at={deliver_at!r}: give a datetime with a time zone")
    return {"deliver_at_ms": int(deliver_at.timestamp() * 1000)}
