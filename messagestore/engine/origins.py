"""Origin of a copy of a failed message, as it is stored with the copy."""

from __future__ import annotations

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """The message that failed: where it was sent and when it failed first; `error` is the
    last one.

    Copies that others wrote may leave parts out.
    """

    topic: str = ""
    queue: int = 0
    offset: int = 0
    first_failed_at_ms: int = 0
    error: str = ""
