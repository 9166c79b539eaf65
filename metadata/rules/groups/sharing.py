"""Rules of share groups: leases of runs, the share of a member, and which messages are
finished.

A run is a range of offsets of a queue. Offsets that are finished are bits of a number;
the first offset of the run is the lowest bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# From this delivery on, a message is leased alone, so that it cannot block others.
ALONE_FROM = 3
_GRANT_PATTERN = re.compile(
    r"([0-9a-z]{1,13})\.([0-9a-z]{1,13})\.([0-9a-z]{1,13})\.([0-9a-z]{1,7})", re.ASCII
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_NUMBER = (1 << 63) - 1
MAX_RUN_MESSAGES = 1_000  # of a run
Span = tuple[int, int]  # first, end


class Grant(NamedTuple):
    """A lease of a run. Its text is opaque to clients.

    >>> Grant(7000000001, 40, 50, 2).text
    '37rmakh.14.1e.2'
    >>> Grant.parse("37rmakh.14.1e.2"), Grant.parse("no grant")
    (Grant(epoch=7000000001, first=40, end=50, number=2), None)
    """

    epoch: int
    first: int
    end: int
    number: int

    @property
    def text(self) -> str:
        return ".".join(map(_base36, self))

    @classmethod
    def parse(cls, text: str) -> Grant | None:
        """Return the grant of a text, None if it is no text of a grant."""
        match = _GRANT_PATTERN.fullmatch(text)
        if match is None:
            return None
        grant = cls(*(int(digits, 36) for digits in match.groups()))
        # A forged text could name a run that no statement or bit field can hold.
        return (
            grant
            if max(grant) <= _MAX_NUMBER and 0 < grant.end - grant.first <= MAX_RUN_MESSAGES
            else None
        )


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"


def fair_share(*, backlog: int, members: int, asked: int) -> int:
    """Return how many messages of a backlog a member gets: its share, at most the
    requested number.

    >>> fair_share(backlog=2000, members=300, asked=500), fair_share(backlog=3, members=8, asked=10)
    (7, 1)
    """
    # Rounded up, so that no message of the backlog is left over.
    share = -(-backlog // max(1, members))
    return max(0, min(backlog, asked, max(1, share)))


def run_lengths(count: int, *, run_messages: int) -> list[int]:
    """Return the lengths of the runs for a number of messages.

    >>> run_lengths(25, run_messages=10), run_lengths(0, run_messages=10)
    ([10, 10, 5], [])
    """
    full_runs, rest = divmod(count, run_messages)
    return [run_messages] * full_runs + ([rest] if rest else [])


def must_lease_alone(delivery: int, *, max_deliveries: int) -> bool:
    """Return True if a message must be leased alone at its n-th delivery.

    >>> [must_lease_alone(n, max_deliveries=5) for n in (1, 2, 3)]
    [False, False, True]
    >>> must_lease_alone(2, max_deliveries=2)
    True
    """
    return delivery >= (min(ALONE_FROM, max_deliveries) if max_deliveries else ALONE_FROM)


def is_exhausted(deliveries: int, *, max_deliveries: int) -> bool:
    return bool(max_deliveries) and deliveries >= max_deliveries


def all_bits(length: int) -> int:
    """Return the bits of a run whose offsets are all finished."""
    return (1 << length) - 1


def bits_from_bytes(stored: bytes | None) -> int:
    """Return the finished offsets from the bytes in the row of a run."""
    return int.from_bytes(stored or b"", "little")


def bytes_from_bits(bits: int, *, length: int) -> bytes | None:
    """Return the bytes for the row of a run, always in the same form, so that values can
    be compared.

    >>> bytes_from_bits(0, length=9), bytes_from_bits(257, length=9)
    (None, b'\\x01\\x01')
    >>> bits_from_bytes(bytes_from_bits(257, length=9))
    257
    """
    return bits.to_bytes((length + 7) // 8, "little") if bits else None


def bits_in(spans: Iterable[Span], *, run: Span) -> int | None:
    """Return the bits of ranges of a run, None if a range is empty or not inside the run.

    >>> bits_in([(10, 12), (11, 13)], run=(10, 20)), bits_in([(5, 11)], run=(10, 20))
    (7, None)
    """
    bits = 0
    for first, end in spans:
        if not run[0] <= first < end <= run[1]:
            return None
        bits |= all_bits(end - first) << (first - run[0])
    return bits


def bits_within(spans: Iterable[Span], *, run: Span) -> int:
    """Return the bits of those offsets of a run that lie in some ranges.

    >>> bits_within([(0, 12), (18, 99)], run=(10, 20)), bits_within([(0, 10)], run=(10, 20))
    (771, 0)
    """
    bits = 0
    for first, end in spans:
        inside = max(first, run[0]), min(end, run[1])
        if inside[0] < inside[1]:
            bits |= all_bits(inside[1] - inside[0]) << (inside[0] - run[0])
    return bits


def spans_of(bits: int, *, first: int) -> Iterator[Span]:
    """Yield the ranges that the bits of a run stand for, in order.

    >>> list(spans_of(0b1101, first=10))
    [(10, 11), (12, 14)]
    """
    offset = first
    while bits:
        # Skip the zeros at the low end, then count the set bits.
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        yield offset + skipped, offset + skipped + length
        offset += skipped + length
        bits >>= length


def lowest_unfinished(
    position: int, runs: Sequence[tuple[int, int, int]], *, all_read: bool
) -> int:
    """Return the lowest unfinished offset of a queue, or an offset below it.

    `position` is the first offset that was never leased. `runs` are (first, end, bits)
    in order; unless `all_read`, only the lowest.

    >>> lowest_unfinished(30, [(0, 10, 0b11), (10, 20, 0)], all_read=True)
    2
    >>> lowest_unfinished(30, [], all_read=True)
    30
    >>> lowest_unfinished(30, [(0, 10, 1023), (10, 20, 1023)], all_read=False)
    10
    """
    lowest = position
    for first, end, bits in runs:
        unfinished = all_bits(end - first) & ~bits
        # The lowest set bit is the first unfinished offset.
        if unfinished:
            lowest = min(lowest, first + (unfinished & -unfinished).bit_length() - 1)
    # Runs that were not read may begin right after the last one that was.
    return lowest if all_read or not runs else min(lowest, runs[-1][0])


def lease_lost_error(deliveries: int) -> str:
    return f"LeaseLost: {deliveries} leases ended without a result"
