"""Offsets of a range that have no messages: the warning, and the error's parts."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
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


def warn_of_missing(text: str) -> None:
    """Emit an OffsetsMissingWarning that names the line which called into this package.

    That is the caller of `read`, `batches` or `plan_ranges`, or the code that iterates a
    RecordBatchReader.
    """
    # Computed, because the depth of the stack differs between these callers. (The argument
    # skip_file_prefixes of warn() exists only from Python 3.12 on.)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_own_module(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, OffsetsMissingWarning, stacklevel=level)


def _is_own_module(frame: FrameType) -> bool:
    # Code in exec() may have no name.
    name = str(frame.f_globals.get("__name__"))
    return name == __package__ or name.startswith(f"{__package__}.")


_REASONS = {
    "expired": "were deleted by retention",
    "lost": "were lost with a node; a promotion declared them lost",
    "unexplained": "are missing, and neither retention nor a declared loss explains it",
}
