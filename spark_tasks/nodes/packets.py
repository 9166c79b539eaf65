"""Read the result of a SELECT from MySQL protocol packets into Arrow, without an object for
each value.

mysqlclient connects, logs in and sends the statement; only the result is read from its
socket here. Creating a tuple and nine bytes objects for each message and converting them to
Arrow takes Python two to three times as long.

A result consists of packets. Each has a length of three bytes, a sequence number of 1 byte,
and its content. In order: the number of columns; a packet for each column's name; the end
of the names, which some servers leave out; the rows, with a length before the text of each
column; and the end. An error packet may come at any point. See "Text Resultset" and
"Length-Encoded Integer" in the documentation of the protocol.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# size of the buffer for a read and a conversion; it grows for a larger row
READ_BYTES = 1 << 20
HEADER_BYTES = 4  # length and sequence number before the content of a packet
MAX_PACKET_BYTES = 0xFFFFFF  # longer content is split over several packets
# An end-of-names packet has exactly this size; the end of a result may be longer.
NAMES_END_BYTES = 5
MIN_ROW_BYTES = 9  # of a row that starts with _END; a shorter packet is an end
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF  # first bytes of columns or packets
# first byte of a long column → number of bytes of its length that follow
_LENGTH_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_read_header = Struct("<I").unpack_from

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class ServerError(Exception):
    """The server answered with an error: its number and its text."""


class BrokenResult(Exception):
    """The connection ended, or the bytes are not a valid result."""


class PacketTooLarge(Exception):
    """A row does not fit into a single packet."""


class ResultSet:
    """The result of a statement.

    The connection that owns the socket has sent the statement and has read nothing of the
    result.
    """

    def __init__(self, socket: int, *, columns: int, timeout_s: float) -> None:
        self._socket = socket
        self._columns = columns
        self._timeout_s = timeout_s
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self._buffer = bytearray(READ_BYTES)
        # Bytes of the buffer that were parsed, and bytes that are filled.
        self._parsed = self._filled = 0
        self.received = 0  # bytes in total

    def pieces(self) -> Iterator[list[pa.Array]]:
        """Yield the rows piece by piece, each as an array of texts for each column.

        Raises ServerError, BrokenResult, PacketTooLarge.
        """
        finished = self._skip_names()
        while not finished:
            # Make room: move bytes not parsed yet to the beginning of the buffer.
            rest = self._buffer[self._parsed : self._filled]
            self._buffer[: len(rest)] = rest
            self._parsed, self._filled = 0, len(rest)
            starts: list[int] = []
            while not (finished := self._collect_packets(starts)):
                # A full buffer of complete rows is a piece. A row that is larger than the
                # buffer makes it grow instead.
                if starts and self._filled == len(self._buffer):
                    break
                self._receive()
            if starts:
                offsets = [*starts, self._parsed]
                yield parse_columns(self._buffer, offsets, columns=self._columns)

    def _skip_names(self) -> bool:
        """Skip the packets before the rows. Return True if the result ends there, without
        rows.
        """
        start, size = self._next_packet()
        if self._buffer[start] == _ERROR:
            raise self._parse_error(start, size)
        for _ in range(self._columns):
            start, size = self._next_packet()
        # Servers that leave out the end of the names send the first row or the end here.
        before = self._parsed
        start, size = self._next_packet()
        if self._buffer[start] == _END and size < MIN_ROW_BYTES:
            return size != NAMES_END_BYTES
        self._parsed = before  # the first row
        return False

    def _next_packet(self) -> tuple[int, int]:
        """Wait for the next packet. Return where its content starts, and its size."""
        start = self._parsed + HEADER_BYTES
        while self._filled < start or self._filled < start + self._packet_size():
            self._receive()
        size = self._packet_size()
        self._parsed = start + size
        return start, size

    def _collect_packets(self, starts: list[int]) -> bool:
        """Append the starts of packets that have arrived completely.

        Return True if the last of them is the end of the result. Raises ServerError.
        """
        buffer, position, filled, last = self._buffer, self._parsed, self._filled, 0
        while position + HEADER_BYTES < filled:
            end = (
                position
                + HEADER_BYTES
                + (_read_header(buffer, position)[0] & MAX_PACKET_BYTES)
            )
            if end > filled:
                break
            starts.append(position)
            position, last = end, position
        if position == self._parsed:
            return False
        self._parsed = position
        # Nothing follows an end or an error, so only the last packet can be either.
        first, size = buffer[last + HEADER_BYTES], position - last - HEADER_BYTES
        if first == _ERROR:
            raise self._parse_error(last + HEADER_BYTES, size)
        if first == _END and size < MIN_ROW_BYTES:
            self._parsed = starts.pop()
            return True
        return False

    def _receive(self) -> None:
        """Wait for more bytes. A full buffer grows, up to the largest packet. Raises
        BrokenResult.
        """
        if self._filled == len(self._buffer):
            if self._filled - self._parsed > MAX_PACKET_BYTES:
                raise PacketTooLarge
            self._buffer = self._buffer + bytearray(len(self._buffer))
        if not self._poll.poll(self._timeout_s * 1000):
            raise BrokenResult(f"no answer within {self._timeout_s:g} s")
        try:
            count = os.readv(self._socket, [memoryview(self._buffer)[self._filled :]])
        except OSError as error:
            raise BrokenResult(str(error)) from None
        if not count:
            raise BrokenResult("the server closed the connection")
        self._filled += count
        self.received += count

    def _packet_size(self) -> int:
        size = int(_read_header(self._buffer, self._parsed)[0]) & MAX_PACKET_BYTES
        if size == MAX_PACKET_BYTES:
            raise PacketTooLarge
        return size

    def _parse_error(self, start: int, size: int) -> ServerError:
        """Parse an error packet: number in bytes 1 and 2, SQL state in 3 to 8, then the
        text.
        """
        number = int.from_bytes(self._buffer[start + 1 : start + 3], "little")
        return ServerError(
            number, self._buffer[start + 9 : start + size].decode(errors="replace")
        )


def parse_columns(
    buffer: bytearray, offsets: Sequence[int], *, columns: int
) -> list[pa.Array]:
    """Return the columns of rows in a buffer. Raises BrokenResult.

    `offsets` are where the packets of the rows start, and where the last packet ends.

    >>> rows = bytearray(b"head" b"\\x02ab\\xfb" b"head" b"\\x00\\x01c")
    >>> [column.to_pylist() for column in parse_columns(rows, [0, 8, 15], columns=2)]
    [[b'ab', b''], [None, b'c']]
    """
    data = np.frombuffer(buffer, np.uint8)
    packet_starts = np.array(offsets, np.int64)
    position, arrays = packet_starts[:-1] + HEADER_BYTES, []
    try:
        for _ in range(columns):
            position, length, null = measure_texts(data, position)
            arrays.append(copy_texts(buffer, position, position + length, null))
            position = position + length
    except IndexError:
        raise BrokenResult("a row is shorter than its columns") from None
    if not np.array_equal(position, packet_starts[1:]):
        raise BrokenResult("a row is not as long as its columns")
    return arrays


def measure_texts(
    data: npt.NDArray[np.uint8], positions: Positions
) -> tuple[Positions, Positions, Flags | None]:
    """Return where the texts of a column begin, their lengths, and which are NULL.

    The flags are None if no text is NULL.
    """
    # Vectorized over all rows: numpy reads the first byte of the column in every row.
    first = data[positions].astype(np.int64)
    if first.max() < _NULL:
        return positions + 1, first, None
    begin, length, is_null = positions + 1, first.copy(), first == _NULL
    length[is_null] = 0
    for kind, width in _LENGTH_WIDTHS.items():
        (rows,) = np.nonzero(first == kind)
        if rows.size:
            length_start = begin[rows]
            length[rows] = sum(
                data[length_start + byte].astype(np.int64) << (8 * byte)
                for byte in range(width)
            )
            begin[rows] = length_start + width
    return begin, length, is_null


def copy_texts(
    buffer: bytearray, starts: Positions, ends: Positions, is_null: Flags | None
) -> pa.BinaryArray:
    """Copy the texts between starts and ends out of the buffer."""
    # Arrow sees the whole buffer as a single column that alternates between texts and the
    # bytes between two texts. Taking every second value copies all texts at once.
    boundaries = np.empty(2 * len(starts), np.int32)
    boundaries[0::2], boundaries[1::2] = starts, ends
    count = len(boundaries) - 1
    alternating = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(boundaries), pa.py_buffer(buffer)]
    )
    return alternating.take(pa.array(np.arange(0, count, 2), mask=is_null))
