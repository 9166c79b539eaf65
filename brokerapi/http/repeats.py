"""The conditions under which a repeated request gets the same answer, passed from a view to
the server.

The server holds such requests back without a thread: see
docs/decisions/0030-repeated-requests.md. The server reads this module before the
application is loaded, so it imports nothing of the application.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from messagestore.heads.heads import Flag

# In the environ, by the view: a Repeat.
REPEAT = "catmq.repeat"
# In the environ, by the server: the time.monotonic() when the request arrived.
CAME_AT = "catmq.came_at"


class Repeat(Protocol):
    """The conditions under which an answer is given again. The server's event loop calls
    it, so nothing may block.
    """

    wait_s: float  # before the same answer; 0: at once

    def begins(self) -> bool:
        """Note that the request was repeated. Return False if it needs a full answer."""

    def watch(self, flag: Flag) -> Callable[[], object]:
        """Raise the flag at any news. Return a function that ends the watch."""

    def is_still_valid(self) -> bool:
        """Return True if there is no news since the answer, so it may be given again."""

    def answered(self) -> None:
        """Count the request: the same answer was given again."""
