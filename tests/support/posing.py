"""A TCP proxy for a MySQL or MariaDB server that behaves like ProxySQL and similar proxies.

    with Posing(port, version="8.0.30", shift=1000) as proxy:
        … connect to proxy.port

It changes the greeting (version, connection id) and answers some statements itself;
everything else passes.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HEADER = 4
COM_QUERY = 0x03
DEPRECATE_EOF, SSL = 1 << 24, 1 << 11
VAR_STRING = 0xFD


@dataclass
class Posing:
    """A proxy. `version` replaces that of the greeting unless ''; `shift` is added to the
    connection id.

    `answers` maps the beginning of a statement to the answer.
    """

    target: int
    version: str = ""
    shift: int = 0
    answers: Mapping[bytes, bytes] = field(default_factory=dict)

    def __enter__(self) -> Posing:
        self._server = _Listener(("127.0.0.1", 0), _Connection)
        self._server.posing = self
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def greeting(self, payload: bytes) -> bytes:
        """Return the changed greeting of the server.

        It offers no TLS, and results only in their oldest form.
        """
        end = payload.index(b"\0", 1)
        version, rest = payload[1:end], payload[end:]
        thread = int.from_bytes(rest[1:5], "little") + self.shift
        low = int.from_bytes(rest[14:16], "little") & ~SSL
        high = int.from_bytes(rest[19:21], "little") & ~(DEPRECATE_EOF >> 16)
        shown_version = self.version.encode() or version
        changed = (
            rest[:1] + thread.to_bytes(4, "little") + rest[5:14] + low.to_bytes(2, "little")
        )
        return (
            payload[:1]
            + shown_version
            + changed
            + rest[16:19]
            + high.to_bytes(2, "little")
            + rest[21:28]
            + bytes(4)
            + rest[32:]
        )

    def answer(self, packet: bytes) -> bytes | None:
        """Return the proxy's own answer to a request; None if the server must answer."""
        if packet[HEADER] != COM_QUERY:
            return None
        for beginning, text in self.answers.items():
            if packet[HEADER + 1 :].startswith(beginning):
                return result(text)
        return None


def result(text: bytes) -> bytes:
    """Return a result of a single row with a single text."""
    kind = bytes([12, 45, 0, 255, 0, 0, 0, VAR_STRING, 0, 0, 0, 0, 0])
    column = b"".join(map(lenenc, (b"def", b"", b"", b"", b"x", b""))) + kind
    eof = b"\xfe\0\0\2\0"
    packets = (b"\1", column, eof, lenenc(text), eof)
    return b"".join(packed(packet, number) for number, packet in enumerate(packets, 1))


def lenenc(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def packed(payload: bytes, number: int) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    posing: Posing


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        """Answer packets of the client or pass them on; pass back the server's bytes."""
        posing: Posing = self.server.posing
        with socket.create_connection(("127.0.0.1", posing.target), timeout=30) as server:
            first = read_packet(server)
            self.request.sendall(packed(posing.greeting(first[HEADER:]), 0))
            threading.Thread(target=self._pass_back, args=(server,), daemon=True).start()
            while packet := read_packet(self.request):
                # Sequence number 0 begins a command; other packets continue the handshake.
                own_answer = posing.answer(packet) if packet[3] == 0 else None
                (self.request if own_answer else server).sendall(own_answer or packet)

    def _pass_back(self, server: socket.socket) -> None:
        try:
            while piece := server.recv(65_536):
                self.request.sendall(piece)
        except OSError:
            return


def read_packet(source: Any) -> bytes:
    """Return a whole packet with its header; b'' if the peer closed."""
    data = b""
    while len(data) < HEADER or len(data) < HEADER + int.from_bytes(data[:3], "little"):
        missing = (
            HEADER - len(data)
            if len(data) < HEADER
            else HEADER + int.from_bytes(data[:3], "little") - len(data)
        )
        piece = source.recv(missing)
        if not piece:
            return b""
        data += piece
    return data
