"""Client connections: the part of the next request that has arrived, and the answers that
the client has not read.

The worker's loop collects requests here as they arrive. A thread gets a request when its
head is complete and, if the body is small, the body too. The thread reads large bodies
itself (catmq_site/server/channels.py).
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

from catmq_site.server.wait_lists import WaitList
from metadata.config import config
from metadata.rules.membership import addresses

MAX_HEAD_BYTES = 32 << 10  # request line and headers together
SMALL_BODY_BYTES = 64 << 10  # up to this size the loop collects the body, too
MAX_READ_BYTES = 64 << 10  # per recv()
# bytes that a client may send after its last answer, before it notices the end
MAX_DISCARDED_BYTES = 8 << 20
HEAD_END = b"\r\n\r\n"
# The kernel buffers no more of an answer than this beyond the client's receive window.
MAX_UNSENT_BYTES = 128 << 10
# The kernel ends a connection whose client acknowledges nothing for this long.
TCP_USER_TIMEOUT_MS = 30_000
TCP_CLOSE = 7  # the first byte of TCP_INFO of a connection that was reset or closed
LINGER_RESET = struct.pack(
    "ii", 1, 0
)  # SO_LINGER: close() drops unsent bytes and sends RST
UNREAD_BYTES = 16 << 10  # fewer unread bytes of a client do not count
UNREAD_S = 10.0  # in which a client must read all, or MIN_READ_BYTES
MIN_READ_BYTES = 160 << 10
MAX_UNREAD = 256  # connections per worker with unread answers after UNREAD_GRACE_S …
MAX_UNREAD_PER_ADDRESS = 64  # … and per address
HARD_LIMIT_FACTOR = 8  # times these limits, without any grace
UNREAD_GRACE_S = 2.0  # a client that reads normally may be this late
CHECK_UNREAD_EVERY_S = 1.0  # between two checks of the limits
# A thread waits this long for the next request before it returns the connection.
NEXT_REQUEST_MS = 25
TRUSTED_PROXIES = addresses.parse_networks(config.trusted_proxies)


class RequestBuffer:
    """The bytes of a request that have arrived."""

    __slots__ = ("_data", "_needed_bytes", "head_bytes")

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray()
        # bytes that a thread needs to start; None: the end of the head has not arrived
        self._needed_bytes: int | None = None
        # length of the head with the empty line after it; 0: unknown or invalid
        self.head_bytes = 0
        self.add(data)

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        # The end of the head may be split between two reads, so search again from its
        # start.
        search_from = max(0, len(self._data) - len(HEAD_END) + 1)
        self._data += data
        if self._needed_bytes is None:
            self.head_bytes, self._needed_bytes = _measure(self._data, search_from)

    def is_whole(self) -> bool:
        """Return True if a thread can start: the request is complete, or so invalid that
        the parser refuses it as it is.
        """
        return self._needed_bytes is not None and len(self._data) >= self._needed_bytes

    def peek(self, max_bytes: int) -> bytes:
        """Return the bytes without removing them, b'' if they exceed `max_bytes`."""
        return bytes(self._data) if len(self._data) <= max_bytes else b""

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data, self._needed_bytes, self.head_bytes = bytearray(), None, 0
        return data


class Connection:
    """A client's connection. `wait_list` is the list on which it waits, None while a thread
    has it.

    `held_since` is the time.monotonic() at which its repeated request arrived, None if it
    was not held.
    """

    __slots__ = (
        "address", "buffer", "client", "discarded", "has_ended", "held_since", "peer",
        "server", "sock", "unsent_before", "wait_list",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, client: Any, server: Any) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # a Unix domain socket has neither option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
            sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS
            )
        self.sock, self.client, self.server = sock, client, server
        self.peer = client[0] if isinstance(client, tuple) else ""
        # All clients of a trusted proxy share its address, so no limit per address
        # applies.
        self.address = "" if addresses.is_within(self.peer, TRUSTED_PROXIES) else self.peer
        self.buffer = RequestBuffer()
        self.wait_list: WaitList[Connection] | None = None
        self.discarded = 0
        self.has_ended = False  # the last answer is sent; nothing more is read
        self.unsent_before = 0  # bytes, at the last has_unread_answers()
        self.held_since: float | None = None

    def receive(self) -> bool:
        """Read bytes of a request. Return True if it is complete now. Raises
        BlockingIOError if there are none, and ConnectionError if the client has closed
        the connection.
        """
        data = self.sock.recv(MAX_READ_BYTES)
        if not data:
            raise ConnectionResetError(
                errno.ECONNRESET, "the client has closed the connection"
            )
        self.buffer.add(data)
        return self.buffer.is_whole()

    def discard(self) -> bool:
        """Read and drop bytes after the last answer. Return False. Raises ConnectionError
        if the client has closed the connection or sent too much.
        """
        count = len(self.sock.recv(MAX_READ_BYTES))
        self.discarded += count
        if not count or self.discarded > MAX_DISCARDED_BYTES:
            raise ConnectionResetError(errno.ECONNRESET, "the connection has ended")
        return False

    def unsent_bytes(self) -> int:
        """Return the number of answer bytes that the client has not acknowledged, 0 if it
        has reset the connection.
        """
        try:
            count = int.from_bytes(
                fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder
            )
            if (
                count
                # After a reset the kernel still reports the bytes it had queued.
                and self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                == TCP_CLOSE
            ):
                return 0
        except OSError:
            return 0
        return count

    def has_unread_answers(self) -> bool:
        """Return True if the client has more than UNREAD_BYTES to read. Sets
        `unsent_before`.
        """
        self.unsent_before = self.unsent_bytes()
        return self.unsent_before > UNREAD_BYTES

    def reset(self) -> None:
        """Let the kernel drop unsent bytes when the socket is closed."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)

    def wait_for_next_request(self) -> bool:
        """Return True if the next request is complete within NEXT_REQUEST_MS, so that the
        thread can continue without the loop.
        """
        if self.buffer.is_whole():
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(NEXT_REQUEST_MS)) and self.receive()


class UnreadAnswers(WaitList[Connection]):
    """Connections whose clients have yet to read answers that the kernel buffers."""

    def __init__(self) -> None:
        max_size, max_per_address = (
            HARD_LIMIT_FACTOR * MAX_UNREAD,
            HARD_LIMIT_FACTOR * MAX_UNREAD_PER_ADDRESS,
        )
        super().__init__(
            limit_s=UNREAD_S, max_size=max_size, max_per_address=max_per_address
        )
        self._checked_at = float("-inf")  # time.monotonic()

    def pop_due(self) -> list[tuple[Connection, bool]]:
        """Remove and return the connections that have waited long enough, and the oldest
        connections over a limit.

        Each is returned with True if it must be ended because its client has read too
        little.
        """
        due_connections = []
        for connection in self.pop_overdue():
            unsent_before = connection.unsent_before
            is_slow = (
                connection.has_unread_answers()
                and unsent_before - connection.unsent_before < MIN_READ_BYTES
            )
            due_connections.append((connection, is_slow))
        now = time.monotonic()
        if now - self._checked_at >= CHECK_UNREAD_EVERY_S:
            self._checked_at = now
            due_connections += [
                (connection, connection.has_unread_answers())
                for connection in self._list_surplus()
                if self.remove(connection)
            ]
        return due_connections

    def _list_surplus(self) -> list[Connection]:
        """Return the oldest connections over the limits of the list and of an address,
        without those within UNREAD_GRACE_S.
        """
        old_connections = self.older_than(UNREAD_GRACE_S)
        remaining, per_address = (
            len(old_connections),
            Counter(connection.address for connection in old_connections),
        )
        surplus = []
        for connection in old_connections:
            same_address = per_address[connection.address] if connection.address else 0
            if remaining > MAX_UNREAD or same_address > MAX_UNREAD_PER_ADDRESS:
                surplus.append(connection)
                remaining -= 1
                per_address[connection.address] -= 1
        return surplus


def _measure(data: bytearray, search_from: int) -> tuple[int, int | None]:
    """Return the length of the head, and the number of bytes that a thread needs to start.

    (0, None) while they are unknown, (0, 0) if the head is invalid.
    """
    head_end = data.find(HEAD_END, search_from)
    if head_end < 0:
        # The parser refuses a line that ends in a bare LF as soon as it sees it, and a head
        # that is too long.
        is_invalid = len(data) > MAX_HEAD_BYTES or data.count(b"\n") != data.count(b"\r\n")
        return 0, 0 if is_invalid else None
    head_bytes = head_end + len(HEAD_END)
    return head_bytes, head_bytes + _small_body_length(bytes(data[:head_end]).lower())


def _small_body_length(head: bytes) -> int:
    """Return the length of a body that is small and sent without `Expect`, otherwise 0.

    `head` is in lower case. An ambiguous or invalid length counts as 0: the parser refuses
    it.
    """
    _, header, rest = head.partition(b"\r\ncontent-length:")
    if not header or b"\r\nexpect:" in head or b"\r\ntransfer-encoding:" in head:
        return 0
    text = rest.partition(b"\r\n")[0].strip()
    length = int(text) if text.isdigit() and len(text) < 20 else 0
    return length if length <= SMALL_BODY_BYTES else 0
