"""Read a range of offsets of a queue in chunks, and prove that no message is skipped.

As for a pull, every chunk must be dense: each offset of it has a row or lies in a declared
gap. Where the node filters the rows, an additional count without the filter proves it.
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
from spark_tasks.nodes.columns import Column, build_batch, select_expressions
from spark_tasks.nodes.connection import ConnectionLost, Node, connect, read_gaps, read_low
from spark_tasks.nodes.plans import Address, PlannedQueue, Span
from spark_tasks.reading.options import Options

TRIES = 4  # for a chunk
RETRY_PAUSE_S = 0.5  # before the second try, doubled for each later try
MIN_CHUNK_ROWS = 16  # so few rows are read without a limit of their size


@dataclass(frozen=True)
class Match:
    """A filter: the key, or the tag, is among the values."""

    column: str
    values: tuple[str, ...]

    def sql(self, node: Node) -> str:
        column = {"key": "msg_key", "tag": "tag"}[self.column]
        return f"{column} IN ({', '.join(node.literal(value) for value in self.values)})"


@dataclass(frozen=True)
class Slice(InputPartition):
    """A range of a queue that a single task reads.

    It is pickled to the executors. Nothing else of a read carries the account of a node.
    """

    address: Address = field(repr=False)
    queue: int
    table: str
    first: int
    end: int

    def __repr__(self) -> str:
        return f"queue {self.queue}: {self.first} … {self.end - 1}"


def plan_slices(queue: PlannedQueue, span: Span, *, rows: int) -> list[Slice]:
    """Return the slices of a span of a queue, around its gaps, of about `rows` offsets
    each.
    """
    return [
        Slice(queue.node, queue.queue, queue.table, first, end)
        for piece in subtract_gaps(span, queue.gaps)
        for first, end in split_span(piece, rows)
    ]


def subtract_gaps(span: Span, gaps: Sequence[Span]) -> list[Span]:
    """Return the parts of a span outside of all gaps. Gaps are in ascending order.

    >>> subtract_gaps(Span(0, 10), [Span(2, 4), Span(8, 20)])
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


def split_span(span: Span, rows: int) -> list[Span]:
    """Split a span into parts of equal size, of at most `rows` offsets.

    >>> split_span(Span(0, 10), 4)
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
        slice_: Slice,
        columns: Sequence[Column],
        matches: Sequence[Match] = (),
        *,
        chunk_rows: int,
        rows_per_second: int = 0,
    ) -> None:
        self._slice = slice_
        self._columns = list(columns)
        self._matches = matches
        self._max_rows = chunk_rows
        self._rows_per_second = rows_per_second
        self._expressions = select_expressions(columns)
        self._body_column = (
            self._expressions.index("body") if "body" in self._expressions else None
        )
        self._node: Node | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises NodeError, HoleError, RangeError.

        After an error, batches yielded before must be discarded.
        """
        # Rows with bodies may be large, so the first chunk has few; later chunks double.
        chunk_rows = (
            self._max_rows if self._body_column is None else min(self._max_rows, 1_000)
        )
        position = self._slice.first
        started = time.monotonic()
        try:
            while position < self._slice.end:
                end = min(position + chunk_rows, self._slice.end)
                batches, complete = self._read_with_retries(position, end)
                if not complete:
                    # The result was too large, and the rest of it is still on the
                    # connection. Ask for fewer rows on another connection.
                    self._close()
                    chunk_rows = max(MIN_CHUNK_ROWS, (end - position) // 4)
                    continue
                yield from batches
                position, chunk_rows = end, min(self._max_rows, chunk_rows * 2)
                if self._rows_per_second:
                    rows = position - self._slice.first
                    next_read_at = started + rows / self._rows_per_second
                    time.sleep(max(0.0, next_read_at - time.monotonic()))
        finally:
            self._close()

    def _read_with_retries(self, first: int, end: int) -> tuple[list[pa.RecordBatch], bool]:
        """Read a chunk. Connects again a few times if the connection is lost."""
        for attempt in range(TRIES):
            try:
                if self._node is None:
                    self._node = connect(self._slice.address)
                return self._read_chunk(self._node, first, end)
            except ConnectionLost as fault:
                self._close()
                if attempt == TRIES - 1:
                    raise NodeError(
                        f"node {self._slice.address.name} was lost: {fault}"
                    ) from None
            # Random, so that tasks that lost the same node do not connect at the same
            # moment.
            time.sleep(RETRY_PAUSE_S * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("the last try returns or raises")

    def _read_chunk(
        self, node: Node, first: int, end: int
    ) -> tuple[list[pa.RecordBatch], bool]:
        """Return the rows of a range, and False if it exceeds the size limit of a chunk.

        Raises HoleError, RangeError.
        """
        table, queue = self._slice.table, self._slice.queue
        where = f"msg_offset >= {first} AND msg_offset < {end}"
        conditions = " AND ".join([where, *(match.sql(node) for match in self._matches)])
        select = f"SELECT {', '.join(self._expressions)} FROM {table}"  # noqa: S608
        batches, within_limit = node.read_pieces(
            f"{select} WHERE {conditions} ORDER BY msg_offset",
            lambda values, rows: build_batch(self._columns, values, queue=queue, rows=rows),
            column_count=len(self._expressions),
            body_column=self._body_column,
            bounded=end - first > MIN_CHUNK_ROWS,
        )
        if not within_limit:
            return batches, False
        # Offsets are the primary key: as many rows as offsets means that none is missing.
        count = sum(batch.num_rows for batch in batches)
        # The filtered rows prove nothing about the others, so all rows are counted.
        if self._matches:
            count = int(node.read_row(f"SELECT COUNT(*) FROM {table} WHERE {where}")[0])  # noqa: S608
        if count != end - first:
            self._check_missing(node, first, end)
        return batches, True

    def _check_missing(self, node: Node, first: int, end: int) -> None:
        """Raise HoleError or RangeError unless each missing offset lies in a gap."""
        slice_ = self._slice
        select = (
            f"SELECT msg_offset FROM {slice_.table} WHERE msg_offset >= {first} "  # noqa: S608
            f"AND msg_offset < {end}"
        )
        # The log start offset and the gaps are read after the rows: offsets that were deleted
        # or declared lost between the statements are then explained, not reported as a hole.
        rows = node.read_rows(select)
        low, gaps = read_low(node, slice_.queue), read_gaps(node, slice_.queue)
        missing = sorted(set(range(first, end)) - {int(row[0]) for row in rows})
        for offset in missing:
            if offset < low:
                raise RangeError(
                    f"queue {slice_.queue}: offset {offset} was cleaned while it was read; "
                    f"it is kept from {low} on"
                )
            if not any(gap.first <= offset < gap.end for gap in gaps):
                raise HoleError(
                    f"queue {slice_.queue} on node {slice_.address.name}: offset {offset} is "
                    "missing and nobody "
                    f"declared it lost; run manage.py verify"
                )

    def _close(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None


def read_slice(
    partition: InputPartition,
    columns: Sequence[Column],
    options: Options,
    matches: Sequence[Match] = (),
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a slice.

    Spark makes an empty partition for a read without any; it has no rows.
    """
    if not isinstance(partition, Slice):
        return iter(())
    return SliceReader(
        partition,
        columns,
        matches,
        chunk_rows=options.chunk_rows,
        rows_per_second=options.max_rows_per_second,
    ).batches()
