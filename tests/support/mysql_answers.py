"""Find the end of each result in the bytes of a MySQL server, so that a link can be cut
exactly there.

The classic protocol with text results, as mysqlclient uses it, without TLS and compression.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MORE_RESULTS = 0x0008  # status flag: another result of the same statements follows
OK, LOCAL_INFILE, EOF, ERR = 0x00, 0xFB, 0xFE, 0xFF
SHORT = 9  # a longer packet that begins with 0xFE is a row
HEADER = 4
# State of the server: before it confirmed the login; before a result; in its columns; in its
# rows.
LOGIN, RESULT, COLUMNS, ROWS = range(4)


class End(NamedTuple):
    """The end of a result, in bytes from the start of the piece. `more`: another result of
    the answer follows.
    """

    at: int
    more: bool


class MySqlAnswers:
    """Parses the bytes that a server sends on a connection, from its greeting on, in
    pieces of any length.
    """

    def __init__(self) -> None:
        self._state = LOGIN
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[End]:
        """Yield the ends of results in this piece."""
        whole, offset = self._rest + data, 0
        skipped = len(self._rest)
        while len(whole) - offset >= HEADER:
            end = offset + HEADER + int.from_bytes(whole[offset : offset + 3], "little")
            if len(whole) < end:
                break
            more = self._packet(whole[offset + HEADER : end])
            offset = end
            if more is not None:
                yield End(end - skipped, more)
        self._rest = whole[offset:]

    def _packet(self, payload: bytes) -> bool | None:
        """Return True or False for the end of a result (more follow or not), None within a
        result.
        """
        first = payload[0] if payload else OK
        if self._state == LOGIN:
            if first in (OK, ERR):
                self._state = RESULT
            return None
        if first == ERR and self._state != COLUMNS:
            self._state = RESULT
            return False
        ends = first == EOF and len(payload) < SHORT
        if self._state == RESULT:
            return self._begin_result(payload, first, ends)
        if ends and self._state == ROWS:
            self._state = RESULT
            return bool(int.from_bytes(payload[3:5], "little") & MORE_RESULTS)
        if ends:
            self._state = ROWS
        return None

    def _begin_result(self, payload: bytes, first: int, ends: bool) -> bool | None:
        if first == OK:
            return bool(_status_flags(payload) & MORE_RESULTS)
        if ends:
            return False
        if first != LOCAL_INFILE:
            self._state = COLUMNS
        return None


def _status_flags(payload: bytes) -> int:
    """Return the status flags of an OK packet, which follow two numbers of variable length.

    >>> _status_flags(bytes([0, 1, 0xFC, 1, 2, 0x0A, 0, 0, 0]))
    10
    """
    offset = 1
    for _ in range(2):
        offset += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(payload[offset], 1)
    return int.from_bytes(payload[offset : offset + 2], "little")
