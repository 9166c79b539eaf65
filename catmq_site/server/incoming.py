"""A client's connection, and the part of its next request that has come while no thread waits for the rest.

The worker's loop collects requests here as they come. A thread is given a request only when its head is whole
and, if its body is small, the body too; a large body is read by the thread (catmq_site/server/channels.py).
"""

from __future__ import annotations

import errno
import select
import socket
from typing import Any

from catmq_site.server.crowds import Crowd
from metadata.config import config
from metadata.rules.membership import addresses

MOST_HEAD_BYTES = 32 << 10  # of a request's line and headers together
SMALL_BODY_BYTES = 64 << 10  # a body of this size is collected before a thread begins
READ_BYTES = 64 << 10  # of one read
END = b"\r\n\r\n"
NEXT_MS = 25  # a thread waits so long for a connection's next request before it gives it back
TRUSTED = addresses.networks(config.trusted_proxies)


class Incoming:
    __slots__ = ("_data", "_needed")

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray()
        self._needed: int | None = None  # bytes until a thread can begin; None: the head has no end yet
        self.add(data)

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        searched = max(0, len(self._data) - len(END) + 1)
        self._data += data
        if self._needed is None:
            self._needed = _needed(self._data, searched)

    def is_whole(self) -> bool:
        """Return whether a thread can begin: it finds a whole request, or one that it refuses as it is."""
        return self._needed is not None and len(self._data) >= self._needed

    def peek(self, most: int) -> bytes:
        """Return what has come, and leave it here; b'' if it is more than so many bytes."""
        return bytes(self._data) if len(self._data) <= most else b""

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data, self._needed = bytearray(), None
        return data


class Connection:
    """A client's connection; `crowd` is where it waits, None while a thread has it.

    `came_at` is the time.monotonic() at which its request came, if that has waited since.
    """

    __slots__ = ("address", "came_at", "client", "crowd", "drained", "incoming", "peer", "server", "sock")

    def __init__(self, sock: socket.socket, client: Any, server: Any) -> None:
        sock.setblocking(False)
        self.sock, self.client, self.server = sock, client, server
        self.peer = client[0] if isinstance(client, tuple) else ""
        self.address = "" if addresses.is_within(self.peer, TRUSTED) else self.peer
        self.incoming = Incoming()
        self.crowd: Crowd[Connection] | None = None
        self.drained = 0
        self.came_at: float | None = None

    def hears(self) -> bool:
        """Take what has come; whether a request is whole. Raises BlockingIOError, and ConnectionError at
        the client's end."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the client has closed the connection")
        self.incoming.add(data)
        return self.incoming.is_whole()

    def asks_again(self) -> bool:
        """Return True if the next request comes at once; then it needs no way over the loop."""
        if self.incoming.is_whole():
            return True
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(NEXT_MS)) and self.hears()


def _needed(data: bytearray, searched: int) -> int | None:
    """Return how many bytes a thread needs to begin; None while that is unknown."""
    end = data.find(END, searched)
    if end < 0:
        # The parser refuses a line that ends in a bare LF as soon as it sees it, and a head that is too long.
        wrong = len(data) > MOST_HEAD_BYTES or data.count(b"\n") != data.count(b"\r\n")
        return 0 if wrong else None
    return end + len(END) + _small_body(bytes(data[:end]).lower())


def _small_body(head: bytes) -> int:
    """Return the length of the body if it is small and comes without being asked for, else 0.

    The head is in small letters. What is ambiguous or wrong in it counts as 0: the parser refuses it.
    """
    _, found, rest = head.partition(b"\r\ncontent-length:")
    if not found or b"\r\nexpect:" in head or b"\r\ntransfer-encoding:" in head:
        return 0
    text = rest.partition(b"\r\n")[0].strip()
    length = int(text) if text.isdigit() and len(text) < 20 else 0
    return length if length <= SMALL_BODY_BYTES else 0
