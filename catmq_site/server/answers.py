"""Answers as gunicorn sends them, in as few writes as possible."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache

from gunicorn.http.wsgi import Response

from brokerapi.http.repeats import Repeat

MAX_COPIED_BYTES = 64 << 10  # a larger chunk is sent on its own, without copying it
MAX_CHECKED_HEADERS = 1024
# Headers of answers that gunicorn has checked: what it keeps of them, and the length they declare.
_checked_headers: dict[
    tuple[tuple[str, str], ...], tuple[tuple[tuple[str, str], ...], int | None]
] = {}


class Answer(Response):  # type: ignore[misc]
    """An answer whose head is sent in a single write together with the start of its body.

    Another write, which wakes the client a second time, would cost as much as reading the
    request.
    """

    head = b""
    sent_bytes = b""  # the whole answer if a single write sent it, to be sent again
    repeat: Repeat | None = None  # the condition for giving the same answer again
    is_last = False  # its head has `Connection: close`
    headers_sent: bool
    headers: list[tuple[str, str]]
    response_length: int | None  # as the headers declare it

    def process_headers(self, headers: list[tuple[str, str]]) -> None:
        # Most answers have the headers of an earlier one; checking them costs more than
        # looking them up. Cookies are secrets, and differ.
        header_tuple = tuple(headers)
        checked = _checked_headers.get(header_tuple)
        if checked is None:
            super().process_headers(headers)
            if not self.upgrade and "Set-Cookie" not in dict(headers):
                if len(_checked_headers) >= MAX_CHECKED_HEADERS:
                    _checked_headers.clear()
                _checked_headers[header_tuple] = (
                    tuple(self.headers),
                    self.response_length,
                )
        else:
            # A copy: gunicorn may change the list of an answer.
            self.headers, self.response_length = [*checked[0]], checked[1]

    def send_headers(self) -> None:
        if not self.headers_sent:
            lines = [
                *self.default_headers(),
                *(f"{name}: {value}\r\n" for name, value in self.headers),
            ]
            # Not sent yet: _send_with_head() joins it to the first bytes of the body.
            self.head = ("".join(lines) + "\r\n").encode("latin-1")
            self.headers_sent = True

    def default_headers(self) -> list[str]:
        if self.chunked or self.upgrade:
            lines: list[str] = super().default_headers()
            return lines
        major, minor = self.req.version
        self.is_last = self.should_close() or self._has_unread_body()
        connection = "close" if self.is_last else "keep-alive"
        return [
            f"HTTP/{major}.{minor} {self.status}\r\nDate: {current_date()}\r\n"
            f"Connection: {connection}\r\n"
        ]

    def _has_unread_body(self) -> bool:
        """Return True if a part of the request's body has not arrived. The connection ends
        then, without waiting for it.
        """
        if self.req.body is None:
            return False
        reader = self.req.body.reader
        if hasattr(reader, "length"):
            return bool(reader.length > len(self.req.unreader.buf.getbuffer()))
        return getattr(reader, "parser", None) is not None

    def _emit_body(self, data: bytes) -> None:
        self._send_with_head(b"" if self.chunked else data)
        if self.chunked:
            super()._emit_body(data)

    def _send_with_head(self, data: bytes = b"") -> None:
        head, self.head = self.head, b""
        if len(data) > MAX_COPIED_BYTES:
            # A copy that joins it to the head would cost more than the extra write.
            self.sent_bytes = b""
            self.sock.sendall(head)
            self.sock.sendall(data)
        elif head or data:
            self.sent_bytes = head + data if head and not self.chunked else b""
            self.sock.sendall(head + data)

    def close(self) -> None:
        self.send_headers()
        self._send_with_head()
        super().close()


def build_repeated_answer(before_date: bytes, after_date: bytes) -> bytes:
    """Return an answer that was sent before, with a new date between its two parts."""
    return b"%b\r\nDate: %b%b" % (before_date, current_date().encode(), after_date)


def current_date() -> str:
    """Return the current time in the format of a Date header."""
    return _format_date(int(time.time()))


@lru_cache(1)
def _format_date(now_s: int) -> str:
    """Format a time in seconds; once a second, thanks to the cache."""
    return formatdate(now_s, usegmt=True)
