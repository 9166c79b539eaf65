"""A proxy for TCP connections that may end them when no byte has passed for a while."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GATEWAY_TIMEOUT = (
    b"HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/html\r\nContent-Length: 14\r\n"
    b"Connection: close\r\n\r\n<p>Timeout</p>"
)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    target_port: int
    idle_s: float | None
    last_words: bytes


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Pass bytes on in both directions, until a side closes or both are silent."""
        address = ("127.0.0.1", self.server.target_port)
        with socket.create_connection(address, timeout=60) as target, suppress(OSError):
            others = {self.request: target, target: self.request}
            while True:
                ready, _, _ = select.select(list(others), (), (), self.server.idle_s)
                if not ready:
                    self.request.sendall(self.server.last_words)
                    return
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    others[source].sendall(data)


@contextmanager
def relay(
    target_port: int, *, idle_s: float | None = None, last_words: bytes = b""
) -> Iterator[str]:
    """Yield the URL of a relay. After `idle_s` of silence it sends `last_words` to the client
    and closes both connections.
    """
    server = _Server(("127.0.0.1", 0), _Connection)
    server.target_port, server.idle_s = target_port, idle_s
    server.last_words = last_words
    serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
