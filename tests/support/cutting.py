"""A proxy for a MySQL or MariaDB server that cuts an answer between two packets."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

HEAD = 4  # bytes before each packet: 3 bytes of length, 1 of sequence number


class AnswerCutter:
    """A proxy on 127.0.0.1. `packets` counts the answer packets passed since `watch()`."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.packets = 0
        self._allowed_packets: int | None = None
        # Each connection has a thread; they share the counts.
        self._guard = threading.Lock()
        self._server = _Listener(("127.0.0.1", 0), _Connection)
        self._server.proxy = self

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    def watch(self) -> None:
        """Start counting from 0, and cut nothing."""
        with self._guard:
            self.packets, self._allowed_packets = 0, None

    def cut_after(self, packets: int) -> None:
        """End the connection of the next answer that has more than this number of packets."""
        with self._guard:
            self.packets, self._allowed_packets = 0, packets

    def lets_through(self) -> bool:
        """Return True if another packet may pass. Cuts only once."""
        with self._guard:
            if self._allowed_packets == self.packets:
                # Only once: the connection that the driver opens next must work.
                self._allowed_packets = None
                return False
            self.packets += 1
            return True

    @contextmanager
    def running(self) -> Iterator[AnswerCutter]:
        """Serve during the block."""
        serving = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
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
    proxy: AnswerCutter


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        """Pass bytes to the server and whole packets back, until either side closes."""
        with socket.create_connection(
            ("127.0.0.1", self.server.proxy.target_port), timeout=60
        ) as server:
            asking = threading.Thread(
                target=_pump, args=(self.request, server), daemon=True
            )
            asking.start()
            with suppress(OSError), server.makefile("rb") as answers:
                while packet := _packet(answers):
                    if not self.server.proxy.lets_through():
                        break
                    self.request.sendall(packet)
            _end(self.request)
            _end(server)
            asking.join(10)


def _packet(source: BinaryIO) -> bytes:
    """Return a whole packet; b'' if the peer closed."""
    head = source.read(HEAD)
    return (
        head + source.read(int.from_bytes(head[:3], "little")) if len(head) == HEAD else b""
    )


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _end(target)


def _end(peer: socket.socket) -> None:
    with suppress(OSError):
        # shutdown() wakes the thread that reads the socket; close() would not.
        peer.shutdown(socket.SHUT_RDWR)
