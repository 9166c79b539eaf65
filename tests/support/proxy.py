"""A proxy that forwards whole requests and drops answers on demand."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CuttingProxy:
    """A proxy on 127.0.0.1. `cut_next(n)` drops the next n answers to sends.

    The broker has processed a request whose answer is dropped, but the client never learns
    it.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.cut = 0
        self._to_cut = 0
        # Each connection has a thread, and all of them count down the same number.
        self._guard = threading.Lock()
        self._server = _Listener(("127.0.0.1", 0), _Connection)
        self._server.proxy = self

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def cut_next(self, count: int = 1) -> None:
        """Drop the next `count` answers to sends."""
        with self._guard:
            self._to_cut = count

    def drops(self, request: bytes) -> bool:
        """Return True if the answer to this request shall be dropped."""
        if not (
            request.startswith(b"POST") and b"/messages " in request.split(b"\r\n", 1)[0]
        ):
            return False
        with self._guard:
            if not self._to_cut:
                return False
            self._to_cut -= 1
            self.cut += 1
            return True

    @contextmanager
    def running(self) -> Iterator[CuttingProxy]:
        """Serve during the block."""
        serving = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        serving.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    proxy: CuttingProxy


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        """Pass requests and answers on in turn, until either side closes."""
        with socket.create_connection(
            ("127.0.0.1", self.server.proxy.target_port), timeout=30
        ) as broker:
            while request := _message(self.request):
                broker.sendall(request)
                # The whole answer is awaited even if it is dropped: the broker has then
                # stored the messages.
                answer = _message(broker)
                if not answer or self.server.proxy.drops(request):
                    return
                self.request.sendall(answer)


def _message(source: socket.socket) -> bytes:
    """Return a whole HTTP message with a Content-Length; b'' if the peer closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = source.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1]
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    missing = (int(lengths[0]) if lengths else 0) - len(body)
    while missing > 0 and (piece := source.recv(65536)):
        data += piece
        missing -= len(piece)
    return data
