"""gunicorn's threaded worker, with limits for clients that stop in the middle of something.

gunicorn waits for ever for the rest of a request that has begun, and a thread with it; and its main thread,
which accepts all connections, waits 2 s for a client to close one. Here a client has READ_S seconds for each
piece and REQUEST_S for a whole request, and connections are closed by the threads that served them. A long
poll reads nothing while it waits, so no limit touches it.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from typing import Any

from gunicorn.http.errors import NoMoreData
from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers.gthread import TConn, ThreadWorker

from catmq_site import master

READ_S = 30.0  # without a byte from the client, or without it taking one
NEXT_MS = 25  # a thread waits so long for a connection's next request before it gives it back
NOTIFY_S = 0.5
REQUEST_S = 120.0  # for one request with its body, however steadily it comes


class Reader(SocketUnreader):  # type: ignore[misc]
    """What a client sends; its end when the client takes too long."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.begun = time.monotonic()

    def chunk(self, size_hint: int | None = None) -> bytes:
        """The next bytes. Raises NoMoreData."""
        if time.monotonic() - self.begun > REQUEST_S:
            raise NoMoreData(b"")
        try:
            data: bytes = super().chunk(size_hint)
        except BlockingIOError:  # how SO_RCVTIMEO ends a read
            raise NoMoreData(b"") from None
        return data


class Connection(TConn):  # type: ignore[misc]
    """A client's connection."""

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any) -> None:
        super().__init__(cfg, sock, client, server)
        limit = struct.pack("ll", int(READ_S), int(READ_S % 1 * 1e6))
        # Not settimeout(): gunicorn resets it, and it would count for a large answer as a whole.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.closed = False

    def init(self) -> None:
        """Called by a thread before it reads a request."""
        fresh = not self.initialized
        super().init()
        if fresh:
            self.parser.unreader = Reader(self.sock)
        self.parser.unreader.begun = time.monotonic()

    def asks_again(self) -> bool:
        """Whether the next request comes at once; then it needs no way over the main thread."""
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(NEXT_MS))

    def close(self, graceful: bool = False) -> None:
        """Closes the connection, once."""
        if not self.closed:
            self.closed = True
            super().close(graceful)


class Worker(ThreadWorker):  # type: ignore[misc]
    """The worker class of gunicorn_conf.py."""

    notified = float("-inf")  # time.monotonic() of the last sign of life

    def accept(self, listener: socket.socket) -> None:
        """Gives a new connection to a thread; gunicorn's own method with our class of connections."""
        try:
            sock, client = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                raise
            return
        self.nr_conns += 1
        self.enqueue_req(Connection(self.cfg, sock, client, listener.getsockname()))

    def set_accept_enabled(self, enabled: bool) -> None:
        """Begins or ends to accept connections.

        At the end of the worker the listening socket is closed at once: gunicorn would keep it until the
        last request has finished, and clients would connect, send, and learn nothing for so long. Those that
        have connected are served; a client that is refused knows that nothing was done.
        """
        super().set_accept_enabled(enabled)
        if self.alive:
            return
        for listener in self.sockets:
            if master.stopping():  # else the other workers take them
                self.accept_waiting(listener)
            listener.close()

    def accept_waiting(self, listener: socket.socket) -> None:
        """Accepts all that have connected so far."""
        before = -1
        while before != self.nr_conns:
            before = self.nr_conns
            self.accept(listener)

    def handle(self, conn: Connection) -> object:
        """Serves one request; whether the connection is kept. One that is not is closed here."""
        kept: object = super().handle(conn)
        while kept is True and self.alive and conn.asks_again():
            kept = super().handle(conn)
        if kept is False:
            conn.close(graceful=True)
        return kept

    def notify(self) -> None:
        """Tells the master that this worker lives, twice a second instead of at every event."""
        now = time.monotonic()
        if now - self.notified >= NOTIFY_S:
            self.notified = now
            super().notify()
