"""A client's socket as a thread reads and writes it during a request.

The socket never blocks. A thread that has to wait for its client waits here, under two
limits. The client must move MIN_BYTES_PER_S on average, after GRACE_S. And only a limited
number of threads per worker may wait for clients: beyond that the oldest wait is aborted
(catmq_site/server/wait_lists.py). A long poll reads and writes nothing while it waits, so
the limits do not apply to it.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress

from gunicorn.http.errors import LimitRequestHeaders

from catmq_site.server.connections import LINGER_RESET, MAX_HEAD_BYTES
from catmq_site.server.wait_lists import WaitList

GRACE_S = 10.0  # a thread waits this long for a client that moves nothing
MIN_BYTES_PER_S = 16 << 10  # that a client must send or read beyond the grace
HEAD, BODY, NO_WAIT = "head", "body", "no wait"


class Channel:
    """A stand-in for a socket, which gunicorn uses from the head of a request to the end of
    its answer.

    `phase` is HEAD (the loop has collected all of the head, nothing may be read), BODY
    (reads and writes may wait), or NO_WAIT (an error instead of a wait). `has_read` is true
    if the thread has read bytes that the loop had not collected.
    """

    __slots__ = (
        "__weakref__", "_is_cut", "_moved_bytes", "_slow", "_sock", "_waited_s", "address",
        "has_read", "phase",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str, slow: WaitList[Channel]) -> None:
        self._sock, self.address, self._slow = sock, address, slow
        self.phase = HEAD
        self._moved_bytes, self._waited_s, self._is_cut = 0, 0.0, False
        self.has_read = False

    def recv(self, max_bytes: int) -> bytes:
        """Read at most `max_bytes` bytes; b'' at the end of the stream. Raises TimeoutError
        if the client is too slow.
        """
        if self.phase is HEAD:
            raise LimitRequestHeaders(f"the headers have more than {MAX_HEAD_BYTES} bytes")
        self.has_read = True
        while True:
            try:
                data = self._sock.recv(max_bytes)
            except BlockingIOError:
                self._wait_for_client(select.POLLIN)
            else:
                self._moved_bytes += len(data)
                return data

    def sendall(self, data: bytes) -> None:
        """Send all bytes. Raises TimeoutError if the client is too slow."""
        unsent = memoryview(data)
        while unsent:
            try:
                sent = self._sock.send(unsent)
            except BlockingIOError:
                self._wait_for_client(select.POLLOUT)
            else:
                self._moved_bytes += sent
                unsent = unsent[sent:]

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def has_ended(self) -> bool:
        """Return True if the client has closed the connection; never waits."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def abort_wait(self) -> None:
        """Abort the wait of the thread that uses this channel: its place is needed."""
        # Set before the shutdown, which wakes the thread: it checks the flag after poll().
        self._is_cut = True
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            self._sock.shutdown(socket.SHUT_RDWR)

    def _wait_for_client(self, event: int) -> None:
        # Each byte that moves earns time, so a large body may take long and a silent client
        # not.
        left_s = GRACE_S + self._moved_bytes / MIN_BYTES_PER_S - self._waited_s
        is_ready = False
        if self.phase is not NO_WAIT and left_s > 0:
            poll = select.poll()
            poll.register(self._sock, event)
            started_at = time.monotonic()
            evicted = self._slow.add(self)
            if evicted is not None:
                evicted.abort_wait()
            try:
                is_ready = bool(poll.poll(left_s * 1000))
            finally:
                self._slow.remove(self)
                self._waited_s += time.monotonic() - started_at
        if not is_ready:
            # Without the reset the kernel would keep the unread answer.
            if event == select.POLLOUT:
                with suppress(OSError):
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            raise TimeoutError("the client was too slow")
        if self._is_cut:
            raise TimeoutError("too many clients were slow at once")
