"""Answers as gunicorn writes them: in as few pieces as there can be."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache

from gunicorn.http.wsgi import Response

from brokerapi.http.repeats import Repeat

LARGE_BYTES = 64 << 10  # of a piece of a body that is not copied to leave with the head


class Answer(Response):  # type: ignore[misc]
    """An answer whose head leaves in one piece with the beginning of its body.

    Another write, and the client that wakes up for it, would cost as much as reading the
    request.
    """

    head = b""
    whole = b""  # the answer as it was sent, if it was sent in one piece
    repeat: Repeat | None = None  # what the view says of the same request
    is_last = False  # it said that the connection ends
    headers_sent: bool

    def send_headers(self) -> None:
        if not self.headers_sent:
            lines: list[str] = self.default_headers()
            lines += [f"{name}: {value}\r\n" for name, value in self.headers]
            self.head = ("".join(lines) + "\r\n").encode("latin-1")
            self.headers_sent = True

    def default_headers(self) -> list[str]:
        if self.chunked or self.upgrade:
            lines: list[str] = super().default_headers()
            return lines
        major, minor = self.req.version
        self.is_last = self.should_close() or self._is_unread()
        kept = "close" if self.is_last else "keep-alive"
        return [
            f"HTTP/{major}.{minor} {self.status}\r\nDate: "
            f"{_date(int(time.time()))}\r\nConnection: {kept}\r\n"
        ]

    def _is_unread(self) -> bool:
        """Return True if a part of the request's body has not arrived: it is not waited
        for.
        """
        reader = self.req.body.reader
        if hasattr(reader, "length"):
            return bool(reader.length > len(self.req.unreader.buf.getbuffer()))
        return getattr(reader, "parser", None) is not None

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            self._flush()
            super()._emit_body(data)
        else:
            self._flush(data)

    def _flush(self, data: bytes = b"") -> None:
        head, self.head = self.head, b""
        if len(data) > LARGE_BYTES:
            # To copy it in order to send one piece less would cost more than the piece.
            self.whole = b""
            self.sock.sendall(head)
            self.sock.sendall(data)
        elif head or data:
            self.whole = head + data if head and not self.chunked else b""
            self.sock.sendall(head + data)

    def close(self) -> None:
        self.send_headers()
        self._flush()
        super().close()


def again(status: bytes, rest: bytes) -> bytes:
    """Return an answer that was sent before, with a new date between its two parts."""
    return b"%b\r\nDate: %b%b" % (status, date().encode(), rest)


def date() -> str:
    """Return the time of an answer, as its header has it."""
    return _date(int(time.time()))


@lru_cache(1)
def _date(now_s: int) -> str:
    """The time of an answer: made once a second."""
    return formatdate(now_s, usegmt=True)
