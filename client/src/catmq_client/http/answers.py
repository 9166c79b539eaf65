"""Reads the answers of brokers from their connections (HTTP/1.1: RFC 9112).

http.client reads headers as those of an e-mail, and urllib3 copies them. Together that
costs as much as everything else the client does for a request: with them, a send of 1 KB
took 1.3 times as long and 1.7 times the CPU. An answer of a broker has few headers, and a
body of known length that mostly arrives together with them.

Everything a peer sends is bounded: the length of an answer, its size after decompression,
the number of headers and of interim answers, and the time until it is complete.
"""

from __future__ import annotations

import string
import time
import zlib
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from socket import socket
from typing import Any

RECEIVE_BYTES = 64 << 10
MAX_HEAD_BYTES = 64 << 10
# in the head, and in the trailer after the last chunk
MAX_HEADERS = 200
# answers 1xx before the final answer
MAX_INTERIM = 20
# As received, and after decompression. Brokers send a few megabytes at most.
MAX_BODY_BYTES = 256 << 20
# The time limit of an answer grows by the time its bytes need at this rate: 4 MiB may take
# half a minute longer.
MIN_BYTES_PER_S = 128 << 10
# Digits of a length that are read. More would exceed the memory of any machine.
MAX_DIGITS = 20
# Statuses whose answers have no body, whatever their headers claim.
_BODILESS = (204, 304)


class Headers(dict[str, str]):
    """Header fields by their names in lower case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class Answer:
    """A complete answer. `stays_open` is True if the connection can be used again."""

    # urllib3 reads these attributes of an answer in its pools.
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


def read_answer(
    sock: socket, *, method: str, timeout_s: float | None = None, takes_gzip: bool = True
) -> Answer:
    """Read the answer to a request that was sent.

    It must be complete within `timeout_s`, extended at MIN_BYTES_PER_S for its bytes. With
    None the socket's own timeout limits each read. Raises HTTPException for an invalid or
    incomplete answer, and OSError.
    """
    stream = _Stream(sock, timeout_s)
    for _ in range(MAX_INTERIM + 1):
        status, headers, keep_alive = _read_head(stream)
        # Below 200 it is an interim answer, as 100 Continue or 102 Processing.
        if status >= 200:
            break
    else:
        raise HTTPException(f"more than {MAX_INTERIM} interim answers")
    if method == "HEAD" or status in _BODILESS:
        data: bytes | bytearray = b""
    elif "transfer-encoding" in headers:
        # With both headers, or another encoding, a proxy and the client could see different
        # ends of the answer (request smuggling).
        if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
            raise HTTPException("it is not clear where the answer ends")
        data = _read_chunks(stream)
    elif "content-length" in headers:
        data = stream.read_exactly(_parse_length(headers["content-length"], 10))
    else:
        # Without a length the body ends where the broker closes the connection.
        data, keep_alive = stream.read_to_end(), False
    if data and headers.get("content-encoding", "").lower() in ("gzip", "x-gzip"):
        if not takes_gzip:
            raise HTTPException("gzip that nobody asked for")
        data = _decompress(data)
    # Bytes after the answer belong to no request, so the connection is not used again.
    return Answer(status, headers, data, stays_open=keep_alive and not stream.has_more())


class _Stream:
    """Reads from a socket up to a separator or a length, within the time limit of an
    answer.
    """

    def __init__(self, sock: socket, timeout_s: float | None) -> None:
        self._sock = sock
        # received and not returned yet
        self.buffered = b""
        self._head_received = False
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def has_more(self) -> bool:
        """Return True if more bytes were received, in this buffer or in that of TLS.

        urllib3 looks at the socket only and would not notice bytes that TLS has decrypted.
        """
        return bool(self.buffered) or getattr(self._sock, "pending", int)() > 0

    def read_until(self, end: bytes, *, max_bytes: int) -> bytes:
        """Return the bytes before `end`. They and `end` are removed from the stream."""
        position = self.buffered.find(end)
        while position < 0:
            if len(self.buffered) > max_bytes:
                raise BadStatusLine(f"more than {max_bytes} bytes without an end")
            received = self._receive(RECEIVE_BYTES)
            if not received:
                # A broken answer and no answer at all have different texts in the log.
                has_begun = self._head_received or self.buffered
                raise (
                    IncompleteRead(self.buffered)
                    if has_begun
                    else RemoteDisconnected("no answer came")
                )
            self.buffered += received
            position = self.buffered.find(end)
        self._head_received = True
        data, self.buffered = self.buffered[:position], self.buffered[position + len(end) :]
        return data

    def read_exactly(self, count: int) -> bytes | bytearray:
        if len(self.buffered) >= count:
            start, self.buffered = self.buffered[:count], self.buffered[count:]
            return start
        if count > MAX_BODY_BYTES:
            raise HTTPException(f"an answer of more than {MAX_BODY_BYTES} bytes")
        # The buffer at most doubles with each round. A peer that announces a large body and
        # sends little does not make the client allocate it.
        data = bytearray(self.buffered)
        self.buffered = b""
        while len(data) < count:
            filled = len(data)
            data += bytes(min(count - filled, max(RECEIVE_BYTES, filled)))
            with memoryview(data) as view:
                while filled < len(view):
                    self._limit_time()
                    received = self._sock.recv_into(view[filled:])
                    if not received:
                        raise IncompleteRead(bytes(view[:filled]), count - filled)
                    filled += received
                    self._extend_time(received)
        return data

    def read_to_end(self) -> bytes:
        """Return all bytes until the peer closes the connection."""
        pieces, size = [self.buffered], len(self.buffered)
        while received := self._receive(RECEIVE_BYTES):
            pieces.append(received)
            size += len(received)
            if size > MAX_BODY_BYTES:
                raise HTTPException(f"an answer of more than {MAX_BODY_BYTES} bytes")
        self.buffered = b""
        return b"".join(pieces)

    def _receive(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes` bytes, b"" if the peer closed the connection."""
        self._limit_time()
        received = self._sock.recv(max_bytes)
        self._extend_time(len(received))
        return received

    def _limit_time(self) -> None:
        """Set the socket's timeout to the time that is left for the answer."""
        if self._deadline is not None:
            remaining_s = self._deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError("the answer takes too long")
            self._sock.settimeout(remaining_s)

    def _extend_time(self, received: int) -> None:
        """Extend the deadline by the time that these bytes may take."""
        # The head must come within the limit itself: only a body may be large.
        if self._deadline is not None and self._head_received:
            self._deadline += received / MIN_BYTES_PER_S


def _read_head(stream: _Stream) -> tuple[int, Headers, bool]:
    """Read a head. Return (status, headers, whether the connection stays open)."""
    status_line, *lines = (
        stream.read_until(b"\r\n\r\n", max_bytes=MAX_HEAD_BYTES)
        .decode("latin-1")
        .split("\r\n")
    )
    version, _, read_to_end = status_line.partition(" ")
    status = read_to_end.partition(" ")[0]
    is_number = status.isdecimal() and len(status) == 3 and status >= "100"
    if not version.startswith("HTTP/1.") or not is_number:
        raise BadStatusLine(status_line[:100])
    if len(lines) > MAX_HEADERS:
        raise HTTPException(f"more than {MAX_HEADERS} headers")
    headers = Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise HTTPException(f"no header: {line[:100]!r}")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection and (
        version == "HTTP/1.1" or "keep-alive" in connection
    )
    return int(status), headers, keep_alive


def _read_chunks(stream: _Stream) -> bytes:
    pieces, total = [], 0
    while size := _parse_length(
        stream.read_until(b"\r\n", max_bytes=MAX_HEAD_BYTES)
        .partition(b";")[0]
        .decode("latin-1"),
        16,
    ):
        total += size
        if total > MAX_BODY_BYTES:
            raise HTTPException(f"an answer of more than {MAX_BODY_BYTES} bytes")
        pieces.append(stream.read_exactly(size))
        if stream.read_exactly(2) != b"\r\n":
            raise HTTPException("a chunk is longer than it says")
    for _ in range(MAX_HEADERS):
        if not stream.read_until(b"\r\n", max_bytes=MAX_HEAD_BYTES):
            # The fields of the trailer are not needed.
            return b"".join(pieces)
    raise HTTPException(f"more than {MAX_HEADERS} headers behind the answer")


def _parse_length(text: str, base: int) -> int:
    """Return a length in a header or chunk. Raises HTTPException if it is no number."""
    digits = text.strip()
    # int() also accepts signs, underscores and digits of other scripts.
    if not digits or digits.strip(string.hexdigits if base == 16 else string.digits):
        raise HTTPException(f"no length: {text[:30]!r}")
    return int(digits[:MAX_DIGITS], base)


def _decompress(data: bytes | bytearray) -> bytes:
    """Decompress gzip data, which may have several members, up to MAX_BODY_BYTES."""
    pieces, remaining, room = [], bytes(data), MAX_BODY_BYTES
    try:
        while remaining:
            member = zlib.decompressobj(wbits=31)
            piece = member.decompress(remaining, room + 1)
            room -= len(piece)
            if room < 0:
                raise HTTPException(
                    f"an answer of more than {MAX_BODY_BYTES} bytes, unpacked"
                )
            if not member.eof:
                raise HTTPException("no gzip: it ends early")
            pieces.append(piece)
            remaining = member.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise HTTPException(f"no gzip: {error}") from error
    return b"".join(pieces)
