"""Offsets of a range that have no messages: the warning, and the error's parts."""

from __future__ import annotations

from typing import NamedTuple


class OffsetsMissingWarning(UserWarning):
    """A read skipped offsets that have no messages; the text names queue and offsets."""


class MissingOffsets(NamedTuple):
    """Offsets first … end - 1 of a queue, which have no messages.

    `reason` is `expired` (deleted by retention), `lost` (declared when a node was lost) or
    `unexplained`.
    """

    queue: int
    first: int
    end: int
    reason: str

    def describe(self, topic: str) -> str:
        """Return the sentence for an error or a warning.

        >>> MissingOffsets(4, 0, 1500, "expired").describe("orders")
        'orders, queue 4: offsets 0 … 1,499 (1,500 messages) were deleted by retention'
        """
        count = self.end - self.first
        messages = "1 message" if count == 1 else f"{count:,} messages"
        return (
            f"{topic}, queue {self.queue}: offsets {self.first:,} … {self.end - 1:,} "
            f"({messages}) {_REASONS[self.reason]}"
        )


_REASONS = {
    "expired": "were deleted by retention",
    "lost": "were lost with a node; a promotion declared them lost",
    "unexplained": "are missing, and neither retention nor a declared loss explains it",
}
