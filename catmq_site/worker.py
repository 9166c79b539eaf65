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
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.http.errors import NoMoreData
from gunicorn.http.unreader import SocketUnreader
from gunicorn.http.wsgi import Response
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


class Answer(Response):  # type: ignore[misc]
    """An answer whose head leaves in one piece with the beginning of its body.

    Another write, and the client that wakes up for it, would cost as much as reading the request.
    """

    head = b""
    headers_sent: bool

    def send_headers(self) -> None:
        """Makes the head, once."""
        if not self.headers_sent:
            lines: list[str] = self.default_headers()
            lines += [f"{name}: {value}\r\n" for name, value in self.headers]
            self.head = ("".join(lines) + "\r\n").encode("latin-1")
            self.headers_sent = True

    def default_headers(self) -> list[str]:
        """The lines of the head that are the server's."""
        if self.chunked or self.upgrade:
            lines: list[str] = super().default_headers()
            return lines
        major, minor = self.req.version
        kept = "close" if self.should_close() else "keep-alive"
        return [
            f"HTTP/{major}.{minor} {self.status}\r\nDate: {_date(int(time.time()))}\r\nConnection: {kept}\r\n"
        ]

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            self._flush()
            super()._emit_body(data)
        else:
            self._flush(data)

    def _flush(self, data: bytes = b"") -> None:
        head, self.head = self.head, b""
        if head or data:
            self.sock.sendall(head + data)

    def close(self) -> None:
        """Ends the answer, also one without a body."""
        self.send_headers()
        self._flush()
        super().close()


@lru_cache(1)
def _date(now_s: int) -> str:
    """The time of an answer: made once a second."""
    return formatdate(now_s, usegmt=True)


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

    def handle_request(self, req: Any, conn: Connection) -> bool:
        """Has a request answered; whether the connection may be kept. gunicorn's own also calls hooks, and
        writes a log of accesses, that this broker does not have."""
        answer, environ = wsgi.create(
            req, conn.sock, conn.client, conn.server, self.cfg, response_class=Answer
        )
        environ["wsgi.multithread"] = True
        if not self.alive or len(self.keepalived_conns) >= self.max_keepalived:
            answer.force_close()
        try:
            self._respond(answer, environ)
        except OSError:
            raise
        except BaseException:
            if not answer.headers_sent:
                raise
            # A second answer behind the beginning of this one would be read as part of it.
            self.log.exception("An answer broke off")
            util.close_graceful(conn.sock)
            raise StopIteration from None
        return not answer.should_close()

    def _respond(self, answer: Answer, environ: dict[str, Any]) -> None:
        pieces = self.wsgi(environ, answer.start_response)
        try:
            for piece in pieces:
                answer.write(piece)
            answer.close()
        finally:
            if hasattr(pieces, "close"):
                pieces.close()

    def notify(self) -> None:
        """Tells the master that this worker lives, twice a second instead of at every event."""
        now = time.monotonic()
        if now - self.notified >= NOTIFY_S:
            self.notified = now
            super().notify()
