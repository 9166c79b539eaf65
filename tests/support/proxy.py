"""A proxy that forwards whole requests and cuts off answers on demand."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CuttingProxy:
    """Listens on 127.0.0.1 and passes every connection on; `cut_next(n)` drops the next n
    answers.

    A dropped answer was given: the broker has done what was asked, and the client never
    hears of it.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.cut = 0
        self._to_cut = 0
        self._guard = threading.Lock()
        self._server = _Listener(("127.0.0.1", 0), _Connection)
        self._server.proxy = self

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def cut_next(self, count: int = 1) -> None:
        """Drops the next `count` answers to sends."""
        with self._guard:
            self._to_cut = count

    def drops(self, request: bytes) -> bool:
        """Whether the answer to this request is to be dropped."""
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
        """Serves until the end of the block."""
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
        """Passes requests and answers on, one after the other, until either side closes."""
        with socket.create_connection(
            ("127.0.0.1", self.server.proxy.target_port), timeout=30
        ) as broker:
            while request := _message(self.request):
                broker.sendall(request)
                answer = _message(broker)
                if not answer or self.server.proxy.drops(request):
                    return
                self.request.sendall(answer)


def _message(source: socket.socket) -> bytes:
    """One whole HTTP message that says its Content-Length; empty when the peer closed."""
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
