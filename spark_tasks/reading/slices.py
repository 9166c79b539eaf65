"""Input of one task: a range of offsets of one queue, in chunks, with the proof that
nothing is skipped.

As a pull does, every chunk proves that its offsets are dense: each one that was asked for
is there, or lies in a declared gap. Where rows are filtered by the node, the rows of the
range are counted beside.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_tasks.errors import HoleError, NodeError, RangeError
from spark_tasks.nodes.columns import Column, Values, batch_of, selected
from spark_tasks.nodes.connection import Lost, Node, connect, gaps_of, low_of
from spark_tasks.nodes.plans import Address, PlannedQueue, Span
from spark_tasks.reading.options import Options

TRIES = 4
PAUSE_S = 0.5  # before the second try, doubled for each further one
LEAST_CHUNK = 16  # rows, which are taken whatever they weigh


@dataclass(frozen=True)
class Match:
    """Condition on rows: a key, or tag, that is one of these."""

    column: str
    values: tuple[str, ...]

    def sql(self, node: Node) -> str:
        column = {"key": "msg_key", "tag": "tag"}[self.column]
        return f"{column} IN ({', '.join(node.literal(value) for value in self.values)})"


@dataclass(frozen=True)
class Slice(InputPartition):
    """A part of a queue; the only thing of a read that carries a node's account to the
    executors.
    """

    address: Address = field(repr=False)
    queue: int
    table: str
    first: int
    end: int

    def __repr__(self) -> str:
        return f"queue {self.queue}: {self.first} … {self.end - 1}"


def slices(queue: PlannedQueue, span: Span, *, rows: int) -> list[Slice]:
    """The slices of a span of a queue, of about so many rows each, around its gaps."""
    return [
        Slice(queue.node, queue.queue, queue.table, first, end)
        for piece in without(span, queue.gaps)
        for first, end in cut(piece, rows)
    ]


def without(span: Span, gaps: Sequence[Span]) -> list[Span]:
    """Return the parts of a span that lie in no gap; gaps rise.

    >>> without(Span(0, 10), [Span(2, 4), Span(8, 20)])
    [Span(first=0, end=2), Span(first=4, end=8)]
    """
    pieces, first = [], span.first
    for gap in gaps:
        if gap.end <= first or gap.first >= span.end:
            continue
        pieces.append(Span(first, gap.first))
        first = gap.end
    pieces.append(Span(first, span.end))
    return [piece for piece in pieces if piece.first < piece.end]


def cut(span: Span, rows: int) -> list[Span]:
    """A span in pieces of equal size, of at most so many offsets.

    >>> cut(Span(0, 10), 4)
    [Span(first=0, end=4), Span(first=4, end=7), Span(first=7, end=10)]
    """
    size = span.end - span.first
    count = max(1, -(-size // rows))
    edges = [
        span.first + (size * number + count - 1) // count for number in range(count + 1)
    ]
    return [Span(first, end) for first, end in pairwise(edges)]


class SliceReader:
    def __init__(
        self,
        part: Slice,
        columns: Sequence[Column],
        matches: Sequence[Match] = (),
        *,
        chunk_rows: int,
        rows_per_second: int = 0,
    ) -> None:
        self._part = part
        self._columns = list(columns)
        self._matches = matches
        self._most = chunk_rows
        self._rate = rows_per_second
        self._selected = selected(columns)
        self._body = self._selected.index("body") if "body" in self._selected else None
        self._node: Node | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises NodeError, HoleError, RangeError; what was given before is
        worthless then.
        """
        position, chunk = (
            self._part.first,
            min(self._most, 1_000 if self._body is not None else self._most),
        )
        begun = time.monotonic()
        try:
            while position < self._part.end:
                end = min(position + chunk, self._part.end)
                batches, whole = self._tried(position, end)
                if not whole:
                    self._close()
                    chunk = max(LEAST_CHUNK, (end - position) // 4)
                    continue
                yield from batches
                position, chunk = end, min(self._most, chunk * 2)
                self._pause(position, begun)
        finally:
            self._close()

    def _pause(self, position: int, begun: float) -> None:
        if self._rate:
            due = begun + (position - self._part.first) / self._rate
            time.sleep(max(0.0, due - time.monotonic()))

    def _tried(self, first: int, end: int) -> tuple[list[pa.RecordBatch], bool]:
        """A chunk; a connection that breaks is made anew, a few times."""
        for attempt in range(TRIES):
            try:
                if self._node is None:
                    self._node = connect(self._part.address)
                return self._chunk(self._node, first, end)
            except Lost as fault:
                self._close()
                if attempt == TRIES - 1:
                    raise NodeError(
                        f"node {self._part.address.name} was lost: {fault}"
                    ) from None
            time.sleep(PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("the last try returns or raises")

    def _chunk(self, node: Node, first: int, end: int) -> tuple[list[pa.RecordBatch], bool]:
        """The rows of a range. Offsets are the primary key: if as many came as can be, none
        lacks.
        """
        table, queue = self._part.table, self._part.queue

        def made(values: Sequence[Values], rows: int) -> pa.RecordBatch:
            return batch_of(self._columns, values, queue=queue, rows=rows)

        where = f"msg_offset >= {first} AND msg_offset < {end}"
        conditions = " AND ".join([where, *(one.sql(node) for one in self._matches)])
        select = f"SELECT {', '.join(self._selected)} FROM {table}"  # noqa: S608
        batches, whole = node.pieces(
            f"{select} WHERE {conditions} ORDER BY msg_offset",
            made,
            columns=len(self._selected),
            body=self._body,
            bounded=end - first > LEAST_CHUNK,
        )
        if not whole:
            return batches, False
        if self._matches:
            found = int(node.one(f"SELECT COUNT(*) FROM {table} WHERE {where}")[0])  # noqa: S608
            complete = found == end - first
        else:
            complete = sum(one.num_rows for one in batches) == end - first
        if not complete:
            self._explain(node, first, end)
        return batches, True

    def _explain(self, node: Node, first: int, end: int) -> None:
        """Raise unless every missing offset lies in a gap. `low` and gaps are read after
        the rows.
        """
        part = self._part
        select = (
            f"SELECT msg_offset FROM {part.table} WHERE msg_offset >= {first} "  # noqa: S608
            f"AND msg_offset < {end}"
        )
        there = node.rows(select)
        low, gaps = low_of(node, part.queue), gaps_of(node, part.queue)
        missing = sorted(set(range(first, end)) - {int(row[0]) for row in there})
        for offset in missing:
            if offset < low:
                raise RangeError(
                    f"queue {part.queue}: offset {offset} was cleaned while it was read; "
                    f"it is kept from {low} on"
                )
            if not any(gap.first <= offset < gap.end for gap in gaps):
                raise HoleError(
                    f"queue {part.queue} on node {part.address.name}: offset {offset} is "
                    "missing and nobody "
                    f"declared it lost; run manage.py verify"
                )

    def _close(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None


def read(
    partition: InputPartition,
    columns: Sequence[Column],
    options: Options,
    matches: Sequence[Match] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice; of the empty partition that Spark makes up for a read without
    any, none.
    """
    if not isinstance(partition, Slice):
        return iter(())
    chunk, rate = options.chunk_rows, options.max_rows_per_second
    return SliceReader(
        partition, columns, matches, chunk_rows=chunk, rows_per_second=rate
    ).batches()
