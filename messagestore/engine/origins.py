"""Origin of a copy of a failed message, stored with the copy."""

from __future__ import annotations

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """The message that failed: where it was sent, and when it failed first.

    `error` is the error of its latest failure. Copies that other programs wrote may lack
    fields.
    """

    topic: str = ""
    queue: int = 0
    offset: int = 0
    first_failed_at_ms: int = 0
    error: str = ""
