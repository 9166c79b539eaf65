"""A server that sends given bytes as an answer, including some that no HTTP library would
write.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LIMIT_S = 10.0


class Verbatim:
    """Answers each request with `answer(request)`. Closes the connection for None, and
    after a bytearray.

    `tunnels`: CONNECT is answered, and TLS follows. `tls`: all connections use TLS.
    `pause_s`: before reading each 64 KB of a body; the receive buffer holds no more.
    """

    pause_s = 0.0

    def __init__(self, *, tls: ssl.SSLContext | None = None, tunnels: bool = False) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.answer: Callable[[bytes], bytes | bytearray | None] = lambda request: (
            b"HTTP/1.1 204 No Content\r\n\r\n"
        )
        self._tls, self._tunnels = tls, tunnels
        self._listener = socket.create_server(("127.0.0.1", 0))
        # A small buffer, so that a client that sends a large body is slowed down by a slow
        # reader.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls and not tunnels else ''}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._listen)

    def _start(self, act: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop listening and break all connections.

        Each thread closes its own connection. If another thread closed it, TLS would keep
        reading from its file descriptor and take bytes of the next connection with that
        number.
        """
        for open_socket in (self._listener, *self._open):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _listen(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(LIMIT_S)
                self.connections += 1
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        self._open.append(connection)
        with suppress(OSError):
            if self._tls is not None and not self._tunnels:
                connection = self._start_tls(connection, self._tls)
            while request := _request(connection, self.pause_s):
                self.requests.append(request)
                if self._tls is not None and request.startswith(b"CONNECT "):
                    connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                    connection = self._start_tls(connection, self._tls)
                    continue
                answer = self.answer(request)
                if answer is None:
                    break
                connection.sendall(answer)
                # A bytearray means: the connection ends after the answer.
                if isinstance(answer, bytearray):
                    break
        with suppress(OSError):
            connection.close()

    def _start_tls(self, connection: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        secured = tls.wrap_socket(connection, server_side=True)
        self._open.append(secured)
        return secured


@contextmanager
def verbatim(
    *, tls: ssl.SSLContext | None = None, tunnels: bool = False
) -> Iterator[Verbatim]:
    """Run a server during the block."""
    server = Verbatim(tls=tls, tunnels=tunnels)
    try:
        yield server
    finally:
        server.close()


def _request(source: socket.socket, pause_s: float) -> bytes:
    """Return a whole request; b'' if the peer closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = source.recv(65_536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        line[15:]
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < int(lengths[0] if lengths else 0):
        time.sleep(pause_s)
        piece = source.recv(65_536)
        if not piece:
            return b""
        body += piece
    return head + b"\r\n\r\n" + body
