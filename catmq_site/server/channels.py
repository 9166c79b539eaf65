"""A client's socket as a thread reads and writes it during one request.

The socket never blocks. Who waits for the client does so here, under two limits: the client
must move LEAST_BYTES_S, counted from GRACE_S on, and so many threads of a worker wait for
clients at most: beyond that the oldest wait ends (catmq_site/server/crowds.py). A long poll
reads and writes nothing while it waits, so no limit touches it.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress

from gunicorn.http.errors import LimitRequestHeaders

from catmq_site.server.crowds import Crowd
from catmq_site.server.incoming import MOST_HEAD_BYTES, RESET

GRACE_S = 10.0  # a thread waits so long for a client that moves nothing
LEAST_BYTES_S = 16 << 10  # bytes a second that a client must send, or take, beyond it
HEAD, BODY, REST = "head", "body", "rest"


class Channel:
    """The stand-in that gunicorn takes for a socket, from the head of one request to the
    end of its answer.

    `phase` is HEAD (all of it is here: nothing may be read), BODY, or REST (nothing is
    waited for).
    `has_read` tells that more was read than the loop had collected.
    """

    __slots__ = (
        "__weakref__", "_is_cut", "_moved", "_slow", "_sock", "_waited_s", "address",
        "has_read", "phase",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str, slow: Crowd[Channel]) -> None:
        self._sock, self.address, self._slow = sock, address, slow
        self.phase = HEAD
        self._moved, self._waited_s, self._is_cut = 0, 0.0, False
        self.has_read = False

    def recv(self, size: int) -> bytes:
        """Return at most so many bytes, b'' at the end. Raises TimeoutError."""
        if self.phase is HEAD:
            raise LimitRequestHeaders(f"the headers have more than {MOST_HEAD_BYTES} bytes")
        self.has_read = True
        while True:
            try:
                data = self._sock.recv(size)
            except BlockingIOError:
                self._wait(select.POLLIN)
            else:
                self._moved += len(data)
                return data

    def sendall(self, data: bytes) -> None:
        """Send everything. Raises TimeoutError."""
        left = memoryview(data)
        while left:
            try:
                sent = self._sock.send(left)
            except BlockingIOError:
                self._wait(select.POLLOUT)
            else:
                self._moved += sent
                left = left[sent:]

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

    def cut(self) -> None:
        """End the wait of the thread that is here: its place is needed."""
        self._is_cut = True
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._sock.shutdown(socket.SHUT_RDWR)

    def _wait(self, event: int) -> None:
        left_s = GRACE_S + self._moved / LEAST_BYTES_S - self._waited_s
        if self.phase is REST or left_s <= 0 or not self._has_come(event, left_s):
            # or the kernel would keep what the client does not take
            if event == select.POLLOUT:
                with suppress(OSError):
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            raise TimeoutError("the client was too slow")
        if self._is_cut:
            raise TimeoutError("too many clients were slow at once")

    def _has_come(self, event: int, limit_s: float) -> bool:
        waiting = select.poll()
        waiting.register(self._sock, event)
        begun = time.monotonic()
        surplus = self._slow.add(self)
        if surplus is not None:
            surplus.cut()
        try:
            return bool(waiting.poll(limit_s * 1000))
        finally:
            self._slow.remove(self)
            self._waited_s += time.monotonic() - begun
