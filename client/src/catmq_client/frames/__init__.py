"""Read a topic as Arrow: for pandas, Polars, DuckDB and Parquet, without Spark.

from catmq_client import frames

orders = frames.read("orders", columns=["key", "stored_at", "body"], decode="utf-8")
orders.to_pandas()

A read joins no group and moves no committed offset. Its end is fixed when it begins: the
log end offset of each queue, so messages that are sent later are not part of it. It needs
an API key with the right `browse`, and pyarrow: `pip install './client[arrow]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Literal

from catmq_client.errors import OptionError
from catmq_client.frames.columns import (
    ArrowSchema,
    BatchBuilder,
    RecordBatch,
    RecordBatchReader,
    Table,
    make_reader,
    make_table,
)
from catmq_client.frames.missing import MissingOffsets, OffsetsMissingWarning
from catmq_client.frames.pages import TopicReader
from catmq_client.frames.progress import OnProgress, ProgressMeter, ReadProgress
from catmq_client.frames.ranges import Position, QueueRange, plan_ranges
from catmq_client.http.transport import HttpTransport, Transport

__all__ = [
    "MissingOffsets",
    "OffsetsMissingWarning",
    "Position",
    "ReadProgress",
    "batches",
    "read",
]

# A batch ends at this many rows, or at this many bytes of bodies.
BATCH_ROWS = 10_000
BATCH_BYTES = 32 * 1024 * 1024


def read(
    topic: str,
    *,
    queues: Iterable[int] | None = None,
    start: Position = "earliest",
    end: Position = "latest",
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    decode: Literal["utf-8"] | None = None,
    on_expired: Literal["raise", "warn"] = "raise",
    progress: OnProgress | None = None,
    retry_timeout_ms: int = 30_000,
    urls: str | Sequence[str] | None = None,
    api_key: str | None = None,
    transport: Transport | None = None,
) -> Table:
    """Return the messages of a topic as a pyarrow.Table, by queue and offset.

    The arguments and errors are those of `batches`. The table is held in memory: for a
    topic that does not fit, use `batches`.
    """
    schema, record_batches = _start_read(
        topic,
        queues=queues,
        span=(start, end),
        limit=limit,
        columns=columns,
        decode=decode,
        on_expired=on_expired,
        progress=progress,
        retry_timeout_ms=retry_timeout_ms,
        connection=(urls, api_key, transport),
    )
    return make_table(schema, record_batches)


def batches(
    topic: str,
    *,
    queues: Iterable[int] | None = None,
    start: Position = "earliest",
    end: Position = "latest",
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    decode: Literal["utf-8"] | None = None,
    on_expired: Literal["raise", "warn"] = "raise",
    progress: OnProgress | None = None,
    retry_timeout_ms: int = 30_000,
    urls: str | Sequence[str] | None = None,
    api_key: str | None = None,
    transport: Transport | None = None,
) -> RecordBatchReader:
    """Return the messages of a topic as a pyarrow.RecordBatchReader, by queue and offset.

    Iterating yields RecordBatches of up to 10,000 rows or 32 MiB of bodies. Two pages of at
    most 1,000 messages or 8 MiB are in memory besides the batch.

    `queues` are ids, by default all queues. `start` and `end` (excluded) are "earliest",
    "latest", an aware datetime (compared with the time a message was stored), or offsets as
    {queue: offset}; a queue that they do not name is read from its log start, or to its log
    end. `limit` is the maximum number of rows, in the order of the rows. `columns` are
    names, by default all; brokers send all columns, so fewer columns save memory, not
    transfer. `decode="utf-8"` makes `body` text instead of bytes.

    `on_expired`: "raise" OffsetsMissing if retention deleted messages of the range, or
    "warn" with OffsetsMissingWarning and continue after them. Messages that were declared
    lost with a node cannot come back, so they always warn. Offsets that are missing without
    a reason always raise.

    `progress` is called with a ReadProgress after each page. While brokers or nodes are
    unavailable, requests are repeated for `retry_timeout_ms`. `urls` and `api_key` are
    those of the brokers, by default CATMQ_URL and CATMQ_API_KEY; or pass a `transport`, which
    stays open. Own connections are closed after the last batch, or when the reader is
    deleted; pyarrow's close() does not end its source.

    The call itself raises OptionError, and NotFound or Forbidden for the topic. Iterating
    raises OffsetsMissing, BodyNotText, and what Transport.request raises.
    """
    schema, record_batches = _start_read(
        topic,
        queues=queues,
        span=(start, end),
        limit=limit,
        columns=columns,
        decode=decode,
        on_expired=on_expired,
        progress=progress,
        retry_timeout_ms=retry_timeout_ms,
        connection=(urls, api_key, transport),
    )
    return make_reader(schema, record_batches)


def _start_read(
    topic: str,
    *,
    queues: Iterable[int] | None,
    span: tuple[Position, Position],
    limit: int | None,
    columns: Sequence[str] | None,
    decode: str | None,
    on_expired: str,
    progress: OnProgress | None,
    retry_timeout_ms: int,
    connection: tuple[str | Sequence[str] | None, str | None, Transport | None],
) -> tuple[ArrowSchema, Iterator[RecordBatch]]:
    """Check the arguments, fix the range of each queue, and return schema and batches."""
    builder = BatchBuilder(topic, columns, decode)
    for name, number in (("limit", limit), ("retry_timeout_ms", retry_timeout_ms)):
        # bool is a subclass of int in Python.
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_number and number >= 1):
            raise OptionError(f"{name}={number!r}: write a whole number, at least 1")
    if on_expired not in ("raise", "warn"):
        raise OptionError(f"on_expired={on_expired!r}: write one of raise, warn")
    urls, api_key, transport = connection
    with ExitStack() as until_planned:
        if transport is None:
            transport = until_planned.enter_context(
                closing(HttpTransport(urls, api_key=api_key))
            )
        topic_reader = TopicReader(
            transport,
            topic,
            raise_expired=on_expired == "raise",
            retry_s=retry_timeout_ms / 1000,
        )
        ranges = plan_ranges(topic_reader, queues=queues, start=span[0], end=span[1])
        meter = ProgressMeter(topic, sum(r.end - r.first for r in ranges), progress)
        # From here on, the generator closes the transport.
        record_batches = build_batches(
            topic_reader, ranges, builder, meter, limit, until_planned.pop_all()
        )
    # Run it up to its first yield, which is within its `with resources`. A generator that
    # never began would close nothing when it is dropped.
    next(record_batches)
    return builder.schema, record_batches


def build_batches(  # noqa: PLR0917
    topic_reader: TopicReader,
    ranges: Sequence[QueueRange],
    builder: BatchBuilder,
    meter: ProgressMeter,
    limit: int | None,
    resources: ExitStack,
) -> Iterator[RecordBatch]:
    """Yield None, then the rows of all ranges as batches.

    Closes the resources when it ends, is closed or is dropped, once the caller has taken the
    None.
    """
    with resources:
        yield None
        for page in topic_reader.pages(ranges, limit=limit):
            builder.append(page)
            meter.add(page)
            if builder.rows >= BATCH_ROWS or builder.body_bytes >= BATCH_BYTES:
                yield builder.flush()
        if builder.rows:
            yield builder.flush()
        meter.finish()
