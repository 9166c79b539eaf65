"""Reads the answers of brokers from their connections (HTTP/1.1: RFC 9112).

http.client reads headers as those of an e-mail, and urllib3 copies them: together that
costs as much as all else the client does for a request: a send of 1 KB took 1.3 times as
long with them, and 1.7 times the CPU. An answer of ours has few headers, and a body of
known length that mostly arrives together with them.

Nothing that the other side says of itself is believed beyond a bound: how long an answer
is, how many headers and interim answers come before it, how large it is unpacked, or that
it goes on.
"""

from __future__ import annotations

import string
import time
import zlib
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from socket import socket
from typing import Any

PIECE_BYTES = 64 << 10
MOST_HEAD_BYTES = 64 << 10
MOST_LINES = 200  # of a head, and behind the last chunk
MOST_INTERIM = 20  # answers 1xx before the one that counts
# as it comes, and unpacked; brokers send no more than some megabytes
MOST_BODY_BYTES = 256 << 20
# A body is given as much more time as it needs at this rate: 4 MiB may take half a minute
# longer.
LEAST_BYTES_PER_S = 128 << 10
MOST_DIGITS = 20  # of a length; more than any machine has memory for
_BODILESS = (204, 304)


class Headers(dict[str, str]):
    """Header fields by their names in lower case."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, whatever the case of its name."""
        return super().get(name.lower(), default)


class Answer:
    """An answer, read to its end; `stays_open`: the connection can be used again."""

    # this and what follows is what urllib3 wants of an answer in its pools
    version_string = "HTTP/1.1"
    length_remaining = 0
    retries: object = None
    _connection: object = None
    _pool: object = None

    def __init__(
        self, status: int, headers: Headers, data: bytes | bytearray, *, stays_open: bool
    ) -> None:
        self.status = status
        self.headers = headers
        self.data = data
        self.stays_open = stays_open


def read(
    sock: socket, *, method: str, timeout_s: float | None = None, takes_gzip: bool = True
) -> Answer:
    """The answer to a request that was sent.

    It must come whole within `timeout_s`, and what LEAST_BYTES_PER_S adds for its bytes;
    None: the socket's own limit for each piece. Raises HTTPException for what is no such
    answer or ends early, and OSError.
    """
    source = _Source(sock, timeout_s)
    status, headers, keeps = _read_final_head(source)
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
        if not takes_gzip:
            raise HTTPException("gzip that nobody asked for")
        data = _unpacked(data)
    # What nobody asked for is not the answer to the next request either.
    return Answer(status, headers, data, stays_open=keeps and not source.has_more())


class _Source:
    def __init__(self, sock: socket, timeout_s: float | None) -> None:
        self._sock = sock
        self.held = b""  # received, and not taken
        self._has_begun = False
        self._ends_at = None if timeout_s is None else time.monotonic() + timeout_s

    def has_more(self) -> bool:
        """Return True if more has been received; the pool of connections would not see what
        TLS holds.
        """
        return bool(self.held) or getattr(self._sock, "pending", int)() > 0

    def until(self, end: bytes, *, most: int) -> bytes:
        """Read up to `end`, which is taken but not returned."""
        at = self.held.find(end)
        while at < 0:
            if len(self.held) > most:
                raise BadStatusLine(f"more than {most} bytes without an end")
            piece = self._received(PIECE_BYTES)
            if not piece:
                has_begun = self._has_begun or self.held
                raise (
                    IncompleteRead(self.held)
                    if has_begun
                    else RemoteDisconnected("no answer came")
                )
            self.held += piece
            at = self.held.find(end)
        self._has_begun = True
        found, self.held = self.held[:at], self.held[at + len(end) :]
        return found

    def exactly(self, count: int) -> bytes | bytearray:
        if len(self.held) >= count:
            found, self.held = self.held[:count], self.held[count:]
            return found
        if count > MOST_BODY_BYTES:
            raise HTTPException(f"an answer of more than {MOST_BODY_BYTES} bytes")
        # Memory follows what has come, not what was announced.
        data = bytearray(self.held)
        self.held = b""
        while len(data) < count:
            had = len(data)
            data += bytes(min(count - had, max(PIECE_BYTES, had)))
            self._fill(data, had, count)
        return data

    def rest(self) -> bytes:
        """All that comes until the other side closes the connection."""
        pieces, size = [self.held], len(self.held)
        while piece := self._received(PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BODY_BYTES:
                raise HTTPException(f"an answer of more than {MOST_BODY_BYTES} bytes")
        self.held = b""
        return b"".join(pieces)

    def _fill(self, data: bytearray, had: int, count: int) -> None:
        with memoryview(data) as whole:
            while had < len(whole):
                self._limit()
                got = self._sock.recv_into(whole[had:])
                if not got:
                    raise IncompleteRead(bytes(whole[:had]), count - had)
                had += got
                self._count(got)

    def _received(self, most: int) -> bytes:
        self._limit()
        piece = self._sock.recv(most)
        self._count(len(piece))
        return piece

    def _limit(self) -> None:
        """Let the next piece take no longer than the whole answer may."""
        if self._ends_at is not None:
            left_s = self._ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the answer takes too long")
            self._sock.settimeout(left_s)

    def _count(self, received: int) -> None:
        if self._ends_at is not None and self._has_begun:
            self._ends_at += received / LEAST_BYTES_PER_S


def _read_final_head(source: _Source) -> tuple[int, Headers, bool]:
    """The first one that does not only say that the broker is at work, or that the request
    may go on.
    """
    for _ in range(MOST_INTERIM + 1):
        head = _read_head(source)
        if head[0] >= 200:
            return head
    raise HTTPException(f"more than {MOST_INTERIM} interim answers")


def _read_head(source: _Source) -> tuple[int, Headers, bool]:
    """(status, headers, whether the connection is kept)."""
    first, *lines = (
        source.until(b"\r\n\r\n", most=MOST_HEAD_BYTES).decode("latin-1").split("\r\n")
    )
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    is_number = status.isdecimal() and len(status) == 3 and status >= "100"
    if not version.startswith("HTTP/1.") or not is_number:
        raise BadStatusLine(first[:100])
    if len(lines) > MOST_LINES:
        raise HTTPException(f"more than {MOST_LINES} headers")
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
    pieces, whole = [], 0
    while size := _number(
        source.until(b"\r\n", most=MOST_HEAD_BYTES).partition(b";")[0].decode("latin-1"), 16
    ):
        whole += size
        if whole > MOST_BODY_BYTES:
            raise HTTPException(f"an answer of more than {MOST_BODY_BYTES} bytes")
        pieces.append(source.exactly(size))
        if source.exactly(2) != b"\r\n":
            raise HTTPException("a chunk is longer than it says")
    for _ in range(MOST_LINES):
        if not source.until(b"\r\n", most=MOST_HEAD_BYTES):
            return b"".join(pieces)  # nothing of the trailer is of use
    raise HTTPException(f"more than {MOST_LINES} headers behind the answer")


def _number(text: str, base: int) -> int:
    digits = text.strip()
    # int() takes more
    if not digits or digits.strip(string.hexdigits if base == 16 else string.digits):
        raise HTTPException(f"no length: {text[:30]!r}")
    return int(digits[:MOST_DIGITS], base)


def _unpacked(data: bytes | bytearray) -> bytes:
    pieces, left, room = [], bytes(data), MOST_BODY_BYTES
    try:
        while left:
            member = zlib.decompressobj(wbits=31)
            piece = member.decompress(left, room + 1)
            room -= len(piece)
            if room < 0:
                raise HTTPException(
                    f"an answer of more than {MOST_BODY_BYTES} bytes, unpacked"
                )
            if not member.eof:
                raise HTTPException("no gzip: it ends early")
            pieces.append(piece)
            left = member.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise HTTPException(f"no gzip: {error}") from error
    return b"".join(pieces)
