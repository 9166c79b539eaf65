"""Connections that send a request in one piece.

http.client writes head and body one after the other: the broker wakes up for the head, reads it, and waits
for the rest. That costs both sides more than what is in most requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    _Base = HTTPConnection
else:
    _Base = object


class _Whole(_Base):
    """Holds what belongs to a request until all of it is there."""

    _held: list[bytes] | None = None

    def request(self, *given: Any, **named: Any) -> None:
        """Sends a request; its body is at hand, so it is no larger than memory."""
        pieces = self._held = []
        try:
            super().request(*given, **named)
        finally:
            self._held = None
        self.send(b"".join(pieces))

    def send(self, data: Any) -> None:
        """Sends data; connects first, if there is no connection."""
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _Plain(_Whole, HTTPConnection):
    pass


class _Tls(_Whole, HTTPSConnection):
    pass


def send_whole(pool: HTTPConnectionPool) -> None:
    """Makes the connections that a pool will open send each request in one piece."""
    pool.ConnectionCls = _Tls if isinstance(pool, HTTPSConnectionPool) else _Plain
