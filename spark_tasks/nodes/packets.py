"""The answer to a SELECT, from the packets of the MySQL protocol to Arrow, without an
object for each value.

mysqlclient connects, logs in and sends; only the answer is read from its socket here. A
tuple and nine bytes objects a message, made into Arrow afterwards, cost Python two to three
times what this does.

An answer is packets, each a length of three bytes, a number, and as many bytes: the count
of the columns; a packet to name each; the end of the names (some servers leave it out); the
rows, each the text of every column behind its length; and the end, or an error at any
point. See "Text Resultset" and "Length-Encoded Integer" in the documentation of the
protocol.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# taken from the socket, and made into Arrow, at once; more where a row is larger
READ_BYTES = 1 << 20
HEAD = 4  # bytes before each packet
LARGEST = 0xFFFFFF  # bytes of a packet; what is longer goes on in the next one
# bytes of the packet that ends the names; that which ends an answer may have more
NAMES_END = 5
END_BYTES = 9  # at least so long is a row that begins as an end does
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF  # what a column, or a packet, may begin with
# what a long column begins with → bytes of its length that follow
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_length_and_number = Struct("<I").unpack_from

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Refused(Exception):
    """The server answered with an error: its number, and its words."""


class Broken(Exception):
    """The connection ended, or what came is no answer."""


class TooLarge(Exception):
    """A row does not fit into one packet."""


class Answer:
    """One answer. Its statement was sent by the connection that owns the socket; nobody
    read of it yet.
    """

    def __init__(self, socket: int, *, columns: int, timeout_s: float) -> None:
        self._socket = socket
        self._columns = columns
        self._timeout_s = timeout_s
        self._arrival = select.poll()
        self._arrival.register(socket, select.POLLIN)
        self._buffer = bytearray(READ_BYTES)
        # how much of the buffer was taken, and how much is in it
        self._taken = self._filled = 0
        self.received = 0  # bytes, in all

    def pieces(self) -> Iterator[list[pa.Array]]:
        """The rows, piece by piece: of each column the texts, as bytes. Raises Refused,
        Broken, TooLarge.
        """
        over = self._pass_names()
        while not over:
            places, over = self._rows()
            if len(places) > 1:
                yield texts(self._buffer, places, columns=self._columns)

    def _pass_names(self) -> bool:
        """Pass what stands before the rows; return True if the answer ends there already."""
        start, size = self._packet()
        if self._buffer[start] == _ERROR:
            raise self._refusal(start, size)
        for _ in range(self._columns):
            start, size = self._packet()
        before = self._taken
        start, size = self._packet()
        if self._buffer[start] == _END and size < END_BYTES:
            return size != NAMES_END
        self._taken = before  # the first row
        return False

    def _packet(self) -> tuple[int, int]:
        """Return where the next packet starts, and its size, when all of it is there."""
        while not self._is_whole(self._taken):
            self._receive()
        size = self._size_at(self._taken)
        start = self._taken + HEAD
        self._taken = start + size
        return start, size

    def _rows(self) -> tuple[list[int], bool]:
        """A buffer full of rows: where their packets start, and the last ends; True if the
        answer is over.
        """
        self._keep_rest()
        starts: list[int] = []
        while not (over := self._collect(starts)):
            if starts and self._filled == len(self._buffer):
                break
            self._receive()
        return [*starts, self._taken], over

    def _collect(self, starts: list[int]) -> bool:
        """Add the packets that have come whole since; return True if the answer ends behind
        them.

        Nothing follows the end, or an error: only the last packet can be either.
        """
        buffer, at, filled, last = self._buffer, self._taken, self._filled, 0
        while at + HEAD < filled:
            end = at + HEAD + (_length_and_number(buffer, at)[0] & LARGEST)
            if end > filled:
                break
            starts.append(at)
            at, last = end, at
        if at == self._taken:
            return False
        self._taken = at
        first, size = buffer[last + HEAD], at - last - HEAD
        if first == _ERROR:
            raise self._refusal(last + HEAD, size)
        if first == _END and size < END_BYTES:
            self._taken = starts.pop()
            return True
        return False

    def _receive(self) -> None:
        """Wait for more bytes and take them into the buffer, which grows for what is longer
        than it.
        """
        if self._filled == len(self._buffer):
            if self._filled - self._taken > LARGEST:
                raise TooLarge
            self._buffer = self._buffer + bytearray(len(self._buffer))
        if not self._arrival.poll(self._timeout_s * 1000):
            raise Broken(f"no answer within {self._timeout_s:g} s")
        try:
            count = os.readv(self._socket, [memoryview(self._buffer)[self._filled :]])
        except OSError as error:
            raise Broken(str(error)) from None
        if not count:
            raise Broken("the server closed the connection")
        self._filled += count
        self.received += count

    def _keep_rest(self) -> None:
        """Make room: move what was not taken yet to the beginning of the buffer."""
        rest = self._buffer[self._taken : self._filled]
        self._buffer[: len(rest)] = rest
        self._taken, self._filled = 0, len(rest)

    def _size_at(self, at: int) -> int:
        size = int(_length_and_number(self._buffer, at)[0]) & LARGEST
        if size == LARGEST:
            raise TooLarge
        return size

    def _is_whole(self, at: int) -> bool:
        return self._filled >= at + HEAD and self._filled >= at + HEAD + self._size_at(at)

    def _refusal(self, start: int, size: int) -> Refused:
        """An error: its number in two bytes, a state in six, words."""
        number = int.from_bytes(self._buffer[start + 1 : start + 3], "little")
        return Refused(
            number, self._buffer[start + 9 : start + size].decode(errors="replace")
        )


def texts(buffer: bytearray, places: Sequence[int], *, columns: int) -> list[pa.Array]:
    """The columns of rows; `places`: where their packets start, and the last one ends.
    Raises Broken.

    >>> rows = bytearray(b"head" b"\\x02ab\\xfb" b"head" b"\\x00\\x01c")
    >>> [one.to_pylist() for one in texts(rows, [0, 8, 15], columns=2)]
    [[b'ab', b''], [None, b'c']]
    """
    data = np.frombuffer(buffer, np.uint8)
    packets = np.array(places, np.int64)
    place, found = packets[:-1] + HEAD, []
    try:
        for _ in range(columns):
            place, length, null = measured(data, place)
            found.append(between(buffer, place, place + length, null))
            place = place + length
    except IndexError:
        raise Broken("a row is shorter than its columns") from None
    if not np.array_equal(place, packets[1:]):
        raise Broken("a row is not as long as its columns")
    return found


def measured(
    data: npt.NDArray[np.uint8], place: Places
) -> tuple[Places, Places, Flags | None]:
    """Of a column of some rows: where the texts begin, how long they are, and which are
    NULL, if any is.
    """
    first = data[place].astype(np.int64)
    if first.max() < _NULL:
        return place + 1, first, None
    begin, length, null = place + 1, first.copy(), first == _NULL
    length[null] = 0
    for kind, width in _WIDTHS.items():
        (where,) = np.nonzero(first == kind)
        if where.size:
            at = begin[where]
            length[where] = sum(
                data[at + byte].astype(np.int64) << (8 * byte) for byte in range(width)
            )
            begin[where] = at + width
    return begin, length, null


def between(
    buffer: bytearray, begins: Places, ends: Places, null: Flags | None
) -> pa.BinaryArray:
    """Copy the values between these places out of the buffer.

    To Arrow the whole buffer is one column whose values are, in turn, what is wanted and
    what lies between.
    """
    edges = np.empty(2 * len(begins), np.int32)
    edges[0::2], edges[1::2] = begins, ends
    count = len(edges) - 1
    whole = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(buffer)]
    )
    return whole.take(pa.array(np.arange(0, count, 2), mask=null))
