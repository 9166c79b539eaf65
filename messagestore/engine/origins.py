"""Origin of a copy of a failed message, stored with the copy."""

from __future__ import annotations

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """Origin of a retried message; `error` is the last error of its handler."""

    # Defaults: copies that other programs wrote may lack fields.
    topic: str = ""
    queue: int = 0
    offset: int = 0
    first_failed_at_ms: int = 0
    error: str = ""
