"""A connection to a MySQL server that records all bytes, and can hide the server's offer of
TLS.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from metadata.rules.tls import CLIENT_SSL
from tests.support.certificates import VERIFIED_HOST

PIECE = 1 << 16
HEAD = 4  # bytes of a packet's header
# connection id, eight bytes of the challenge, a filler
BEFORE_CAPABILITIES = 4 + 8 + 1


@dataclass
class Wire:
    """Clients connect to `host` and `port`. `heard` is all that passed. `strips`: hide the
    offer of TLS.
    """

    server_port: int
    host: str = VERIFIED_HOST
    strips: bool = False
    heard: bytearray = field(default_factory=bytearray)
    _listener: socket.socket = field(default_factory=socket.socket)

    @property
    def port(self) -> int:
        """The port for clients."""
        return int(self._listener.getsockname()[1])

    @contextmanager
    def running(self) -> Iterator[Wire]:
        """Listen during the block."""
        self._listener.bind((self.host, 0))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.server_port)) as server:
            greeting = server.recv(PIECE)
            client.sendall(_without_tls(greeting) if self.strips else greeting)
            other = threading.Thread(target=self._pass, args=(client, server), daemon=True)
            other.start()
            self._pass(server, client)
            other.join()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # the other side closed first
            while piece := source.recv(PIECE):
                self.heard += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_RDWR)


def _without_tls(greeting: bytes) -> bytes:
    """Return a server's greeting without the offer of TLS."""
    version_end = greeting.index(b"\0", HEAD + 1)
    at = version_end + 1 + BEFORE_CAPABILITIES
    lower = int.from_bytes(greeting[at : at + 2], "little") & ~CLIENT_SSL
    return greeting[:at] + lower.to_bytes(2, "little") + greeting[at + 2 :]
