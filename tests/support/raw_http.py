"""A client that chooses the bytes of its requests, and a strict reader of answers.

Pieces of a request arrive one by one: the next piece is sent when the kernel says that the
server has read the one before. So a test decides where the server's reads end.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from tests.support.waiting import until

LIMIT_S = 15.0
HOST = "127.0.0.1"
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) [ -~]+\r\n")
HEADER_LINE = re.compile(rb"([A-Za-z-]+): ([ -~]*)\r\n")
LINGER_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST
# Linux' include/uapi/linux/sock_diag.h and inet_diag.h
SOCK_DIAG_BY_FAMILY = 20
REQUEST_FLAG = 1
ALL_STATES = NO_COOKIE = 0xFFFFFFFF


@dataclass(frozen=True)
class Answer:
    """A final answer. `interim` has the statuses of the informational answers before it."""

    status: int
    headers: dict[str, str]
    body: bytes
    interim: tuple[int, ...] = ()

    @property
    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)

    @property
    def ends_connection(self) -> bool:
        """True if the server serves no further request on this connection."""
        return self.headers["connection"] == "close"

    def check_problem(self) -> tuple[int, str]:
        """Return status and code of an error answer, after checking that it names both."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status and problem["detail"], self
        return self.status, problem["code"]


class RawClient:
    """A connection to a server of this machine."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._sock = socket.socket()
        if receive_buffer is not None:  # before connect(), which announces the window
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._sock.settimeout(LIMIT_S)
        self._sock.connect((HOST, port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._sock.makefile("rb")
        self._ports = (port, self._sock.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Send pieces, each in a read of its own at the server."""
        first, *rest = filter(None, pieces)
        self.send(first)
        for piece in rest:
            until(self.is_read, every_s=0.0002)
            self.send(piece)

    def is_read(self) -> bool:
        """Return True if the server has read all bytes that were sent."""
        return not unread_bytes(*self._ports)

    def half_close(self) -> None:
        """Send nothing more. Answers can still be read."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End the connection as a crashed client does."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._sock.close()

    def read_until_end(self) -> bytes:
        """Return what the server sends until it ends the connection."""
        return self._reader.read()

    def answer(self, method: str = "POST") -> Answer:
        """Read an answer to a request with this method. Raises AssertionError if it is not
        complete, or not valid HTTP.
        """
        interim: list[int] = []
        while (status := self._read_status()) < 200:
            interim.append(status)
            assert self._read_headers() == {}
        headers = self._read_headers()
        return Answer(
            status, headers, self._read_body(method, status, headers), (*interim,)
        )

    def wait_for_interim(self, status: int) -> None:
        """Read an informational answer that must come before any other bytes."""
        assert self._read_status() == status
        assert self._read_headers() == {}

    def _read_status(self) -> int:
        line = self._reader.readline(1000)
        match = STATUS_LINE.fullmatch(line)
        assert match, line
        return int(match[1])

    def _read_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while (line := self._reader.readline(10_000)) != b"\r\n":
            match = HEADER_LINE.fullmatch(line)
            assert match, line
            name = match[1].decode().lower()
            assert name not in headers, line
            headers[name] = match[2].decode()
        return headers

    def _read_body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if method == "HEAD" or status in (204, 304):
            return b""
        if "transfer-encoding" in headers:
            assert (
                headers["transfer-encoding"] == "chunked"
                and "content-length" not in headers
            )
            body = b""
            while size := int(self._reader.readline(100).rstrip(b"\r\n"), 16):
                body += self._read_exactly(size)
                assert self._read_exactly(2) == b"\r\n"
            assert self._read_exactly(2) == b"\r\n"
            return body
        return self._read_exactly(int(headers["content-length"]))

    def _read_exactly(self, size: int) -> bytes:
        data = self._reader.read(size)
        assert len(data) == size, data
        return data


def unread_bytes(server_port: int, client_port: int) -> int:
    """Return the number of bytes that have arrived on the server's side of a connection and
    were not read, 0 if the server has closed its side.
    """
    address = socket.inet_aton(HOST) + bytes(12)
    connection = struct.pack("!HH16s16s", server_port, client_port, address, address)
    connection += struct.pack("=III", 0, NO_COOKIE, NO_COOKIE)
    query = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ALL_STATES)
    message = query + connection
    head = struct.pack("=IHHII", 16 + len(message), SOCK_DIAG_BY_FAMILY, REQUEST_FLAG, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as netlink:
        netlink.send(head + message)
        reply = netlink.recv(4096)
    (kind,) = struct.unpack_from("=H", reply, 4)
    if kind != SOCK_DIAG_BY_FAMILY:  # an error: there is no such socket
        return 0
    # After the head: family, state, timer, retransmits; the connection; expiry.
    (unread,) = struct.unpack_from("=I", reply, 16 + 4 + 48 + 4)
    return int(unread)
