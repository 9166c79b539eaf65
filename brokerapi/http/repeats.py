"""Conditions under which the same request gets the same answer, as a view tells them to the
server.

The server holds such requests back without a thread: see
docs/decisions/0030-repeated-requests.md. It reads this before the application is loaded, so
nothing of ours is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from messagestore.heads.heads import Flag

REPEAT = "catmq.repeat"  # in the environ, by the view: a Repeat
# in the environ, by the server: time.monotonic() since when the request has waited
CAME_AT = "catmq.came_at"


class Repeat(Protocol):
    """The conditions under which an answer is given again. The server's loop asks, so
    nothing may wait.
    """

    wait_s: float  # before the same answer; 0: at once

    def begins(self) -> bool:
        """Note that the request came again; False if it is to be answered in full."""

    def watch(self, flag: Flag) -> Callable[[], object]:
        """Have a flag raised at any news, and return what ends that."""

    def holds(self) -> bool:
        """Return True if there is no news, so that the answer is still right."""

    def answered(self) -> None:
        """Count the request: it got the answer again."""
