"""A client's connection: the part of its next request that has come, and of its answers
that it has not read.

The worker's loop collects requests here as they come. A thread is given a request only when
its head is whole and, if its body is small, the body too; a large body is read by the
thread (catmq_site/server/channels.py).
"""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import struct
import sys
import termios
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from catmq_site.server.crowds import Crowd
from metadata.config import config
from metadata.rules.membership import addresses

MOST_HEAD_BYTES = 32 << 10  # of a request's line and headers together
SMALL_BODY_BYTES = 64 << 10  # a body of this size is collected before a thread begins
READ_BYTES = 64 << 10  # of one read
# bytes that a client may send after its last answer, until it hears of the end
MOST_DRAINED = 8 << 20
END = b"\r\n\r\n"
# The kernel takes no more of an answer than this beyond what the client's window has room
# for.
MOST_UNSENT_BYTES = 128 << 10
# the kernel ends a connection whose client takes nothing of what it was sent for so long
SILENT_MS = 30_000
TCP_CLOSE = 7  # the first byte of TCP_INFO, of a connection that is no more
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what was not sent is dropped
UNREAD_BYTES = 16 << 10  # of answers that a client has not taken and that count as none
UNREAD_S = 10.0  # in which a client takes all of its last answers, or LEAST_READ of them
LEAST_READ = 160 << 10  # bytes
MOST_UNREAD = 256  # connections of a worker with more than UNREAD_BYTES, beyond YOUNG_S; …
MOST_UNREAD_OF_ONE = 64  # … of one address
HARD_LIMIT = 8  # times as many are not even let in
YOUNG_S = 2.0  # a client that reads may be that late
LOOK_S = 1.0  # between two looks for too many
# a thread waits so long for a connection's next request before it gives it back
NEXT_MS = 25
TRUSTED = addresses.parse_networks(config.trusted_proxies)


class Incoming:
    __slots__ = ("_data", "_needed")

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray()
        # bytes until a thread can begin; None: the head has no end yet
        self._needed: int | None = None
        self.add(data)

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        searched = max(0, len(self._data) - len(END) + 1)
        self._data += data
        if self._needed is None:
            self._needed = _needed(self._data, searched)

    def is_whole(self) -> bool:
        """Return whether a thread can begin: it finds a whole request, or one that it
        refuses as it is.
        """
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

    __slots__ = (
        "address", "came_at", "client", "crowd", "drained", "has_ended", "incoming", "peer",
        "server", "sock",
        "unsent_before",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, client: Any, server: Any) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # a socket of a file system has neither
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS)
        self.sock, self.client, self.server = sock, client, server
        self.peer = client[0] if isinstance(client, tuple) else ""
        self.address = "" if addresses.is_within(self.peer, TRUSTED) else self.peer
        self.incoming = Incoming()
        self.crowd: Crowd[Connection] | None = None
        self.drained = 0
        self.has_ended = False  # nothing more is read from it
        self.unsent_before = 0  # bytes, when it began to wait for its client to read
        self.came_at: float | None = None

    def hears(self) -> bool:
        """Take what has come; whether a request is whole. Raises BlockingIOError, and
        ConnectionError at the client's end."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError(
                errno.ECONNRESET, "the client has closed the connection"
            )
        self.incoming.add(data)
        return self.incoming.is_whole()

    def drains(self) -> bool:
        """Take what the client sends after its last answer; False. Raises ConnectionError
        at its end.
        """
        got = len(self.sock.recv(READ_BYTES))
        self.drained += got
        if not got or self.drained > MOST_DRAINED:
            raise ConnectionResetError(errno.ECONNRESET, "the connection has ended")
        return False

    def unsent(self) -> int:
        """Return the bytes of answers that the client has not taken yet, 0 if it has reset
        the connection.
        """
        try:
            count = int.from_bytes(
                fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder
            )
            if (
                count
                and self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                == TCP_CLOSE
            ):
                return 0
        except OSError:
            return 0
        return count

    def is_unread(self) -> bool:
        """Return True if the client has more to read than counts as nothing, and remember
        how much.
        """
        self.unsent_before = self.unsent()
        return self.unsent_before > UNREAD_BYTES

    def reset(self) -> None:
        """Have the kernel drop what was not sent when the socket is closed."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def asks_again(self) -> bool:
        """Return True if the next request comes at once; then it needs no way over the
        loop.
        """
        if self.incoming.is_whole():
            return True
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(NEXT_MS)) and self.hears()


class Unread(Crowd[Connection]):
    """Connections whose clients have yet to take the answers that the kernel keeps for
    them.
    """

    def __init__(self) -> None:
        most, most_of_one = HARD_LIMIT * MOST_UNREAD, HARD_LIMIT * MOST_UNREAD_OF_ONE
        super().__init__(limit_s=UNREAD_S, most=most, most_of_one=most_of_one)
        self._looked_at = float("-inf")  # time.monotonic()

    def due(self) -> list[tuple[Connection, bool]]:
        """Take out those that have waited long enough, and the oldest of too many.

        Each comes with True if it is to be ended: its client has not read what it must.
        """
        overdue = []
        for connection in self.overdue():
            before = connection.unsent_before
            overdue.append(
                (
                    connection,
                    connection.is_unread()
                    and before - connection.unsent_before < LEAST_READ,
                )
            )
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            surplus = [
                connection
                for connection in self._surplus_of_old()
                if self.remove(connection)
            ]
            overdue += [(connection, connection.is_unread()) for connection in surplus]
        return overdue

    def _surplus_of_old(self) -> list[Connection]:
        """Return the oldest beyond the limits of all and of an address."""
        old = self.older_than(YOUNG_S)
        left, of_address = len(old), Counter(connection.address for connection in old)
        surplus = []
        for connection in old:
            of_this = of_address[connection.address] if connection.address else 0
            if left > MOST_UNREAD or of_this > MOST_UNREAD_OF_ONE:
                surplus.append(connection)
                left -= 1
                of_address[connection.address] -= 1
        return surplus


def _needed(data: bytearray, searched: int) -> int | None:
    """Return how many bytes a thread needs to begin; None while that is unknown."""
    end = data.find(END, searched)
    if end < 0:
        # The parser refuses a line that ends in a bare LF as soon as it sees it, and a head
        # that is too long.
        wrong = len(data) > MOST_HEAD_BYTES or data.count(b"\n") != data.count(b"\r\n")
        return 0 if wrong else None
    return end + len(END) + _small_body(bytes(data[:end]).lower())


def _small_body(head: bytes) -> int:
    """Return the length of the body if it is small and comes without being asked for, else
    0.

    The head is in small letters. What is ambiguous or wrong in it counts as 0: the parser
    refuses it.
    """
    _, found, rest = head.partition(b"\r\ncontent-length:")
    if not found or b"\r\nexpect:" in head or b"\r\ntransfer-encoding:" in head:
        return 0
    text = rest.partition(b"\r\n")[0].strip()
    length = int(text) if text.isdigit() and len(text) < 20 else 0
    return length if length <= SMALL_BODY_BYTES else 0
