"""Reads the answers of brokers from their connections (HTTP/1.1: RFC 9112).

http.client reads headers as those of an e-mail, and urllib3 copies them: together that costs as much as all
else the client does for a request. An answer of ours has few headers, and a body of known length that mostly
arrives together with them.
"""

from __future__ import annotations

import gzip
import string
import zlib
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from socket import socket
from typing import Any

PIECE_BYTES = 64 << 10
MOST_HEAD_BYTES = 64 << 10
MOST_DIGITS = 20  # of a length; more than any machine has memory for
_BODILESS = (204, 304)


class Headers(dict[str, str]):
    """Header fields by their names in lower case."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, whatever the case of its name."""
        return super().get(name.lower(), default)


class Answer:
    """An answer, read to its end; `stays_open`: the connection can be used again."""

    version_string = "HTTP/1.1"  # this and what follows is what urllib3 wants of an answer in its pools
    length_remaining = 0
    retries: object = None
    _connection: object = None
    _pool: object = None

    def __init__(self, status: int, headers: Headers, data: bytes | bytearray, *, stays_open: bool) -> None:
        self.status = status
        self.headers = headers
        self.data = data
        self.stays_open = stays_open


def read(sock: socket, *, method: str) -> Answer:
    """The answer to a request that was sent.

    Raises HTTPException for what is no such answer or ends early, and OSError.
    """
    source = _Source(sock)
    status, headers, keeps = _read_head(source)
    while status < 200:  # it says that it is at work, or goes on
        status, headers, keeps = _read_head(source)
    if method == "HEAD" or status in _BODILESS:
        data: bytes | bytearray = b""
    elif "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
            raise HTTPException("it is not clear where the answer ends")
        data = _read_chunks(source)
    elif "content-length" in headers:
        data = source.exactly(_number(headers["content-length"], 10))
    else:
        data, keeps = source.rest(), False
    if data and headers.get("content-encoding", "").lower() in ("gzip", "x-gzip"):
        data = _unpacked(data)
    # What nobody asked for is not the answer to the next request either.
    return Answer(status, headers, data, stays_open=keeps and not source.has_more())


class _Source:
    """What comes from a socket."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self.held = b""  # received, and not taken
        self._has_begun = False

    def has_more(self) -> bool:
        """Whether more has been received; what TLS holds ready, the pool of connections would not see."""
        return bool(self.held) or getattr(self._sock, "pending", int)() > 0

    def until(self, end: bytes, *, most: int) -> bytes:
        """What comes before `end`, which is taken, too."""
        at = self.held.find(end)
        while at < 0:
            if len(self.held) > most:
                raise BadStatusLine(f"more than {most} bytes without an end")
            piece = self._sock.recv(PIECE_BYTES)
            if not piece:
                has_begun = self._has_begun or self.held
                raise IncompleteRead(self.held) if has_begun else RemoteDisconnected("no answer came")
            self.held += piece
            at = self.held.find(end)
        self._has_begun = True
        found, self.held = self.held[:at], self.held[at + len(end) :]
        return found

    def exactly(self, count: int) -> bytes | bytearray:
        """So many bytes."""
        if len(self.held) >= count:
            found, self.held = self.held[:count], self.held[count:]
            return found
        try:
            data = bytearray(count)
        except (MemoryError, OverflowError) as error:
            raise HTTPException("an answer too large for this machine's memory") from error
        data[: len(self.held)] = self.held
        missing = memoryview(data)[len(self.held) :]
        self.held = b""
        while missing:
            got = self._sock.recv_into(missing)
            if not got:
                raise IncompleteRead(bytes(data[: count - len(missing)]), len(missing))
            missing = missing[got:]
        return data

    def rest(self) -> bytes:
        """All that comes until the other side closes the connection."""
        pieces = [self.held]
        while piece := self._sock.recv(PIECE_BYTES):
            pieces.append(piece)
        self.held = b""
        return b"".join(pieces)


def _read_head(source: _Source) -> tuple[int, Headers, bool]:
    """(status, headers, whether the connection is kept)."""
    first, *lines = source.until(b"\r\n\r\n", most=MOST_HEAD_BYTES).decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    is_number = status.isdecimal() and len(status) == 3 and status >= "100"
    if not version.startswith("HTTP/1.") or not is_number:
        raise BadStatusLine(first[:100])
    headers = Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise HTTPException(f"no header: {line[:100]!r}")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    wish = headers.get("connection", "").lower()
    keeps = "close" not in wish and (version == "HTTP/1.1" or "keep-alive" in wish)
    return int(status), headers, keeps


def _read_chunks(source: _Source) -> bytes:
    pieces = []
    while size := _number(
        source.until(b"\r\n", most=MOST_HEAD_BYTES).partition(b";")[0].decode("latin-1"), 16
    ):
        pieces.append(source.exactly(size))
        if source.exactly(2) != b"\r\n":
            raise HTTPException("a chunk is longer than it says")
    while source.until(b"\r\n", most=MOST_HEAD_BYTES):
        continue  # a trailer: nothing in it that we use
    return b"".join(pieces)


def _number(text: str, base: int) -> int:
    digits = text.strip()
    if not digits or digits.strip(string.hexdigits if base == 16 else string.digits):  # int() takes more
        raise HTTPException(f"no length: {text[:30]!r}")
    return int(digits[:MOST_DIGITS], base)


def _unpacked(data: bytes | bytearray) -> bytes:
    try:
        return gzip.decompress(data)
    except (zlib.error, OSError, EOFError) as error:
        raise HTTPException(f"no gzip: {error}") from error
