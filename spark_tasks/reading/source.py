"""The data source `catmq`: topics as tables and streams, read straight from their nodes;
sends as writes.

    catmq.register(spark)
    spark.read.format("catmq").option("topic", "orders").load()

The driver asks a broker for the read plan; executors speak to the nodes alone. Every read
is bounded by the heads when it was planned, so a retried task reads the same rows. Which
columns are read the schema says:
`.schema("offset bigint, key string")` never fetches a body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from spark_tasks.nodes import plans
from spark_tasks.nodes.columns import SCHEMA, Column, chosen
from spark_tasks.nodes.plans import Span
from spark_tasks.reading.options import Options, parsed
from spark_tasks.reading.ranges import by_time, ranges
from spark_tasks.reading.slices import Match, read, slices
from spark_tasks.reading.streaming import CatmqStreamReader
from spark_tasks.reading.writing import CatmqStreamWriter, CatmqWriter

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_END = 2**63 - 1
MOST_VALUES = 1_000  # in one IN


def register(spark: SparkSession) -> None:
    """Make the format `catmq` known to a session, and have Spark hand filters down to it."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(CatmqDataSource)


class CatmqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "catmq"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return CatmqReader(parsed(self.options), chosen(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CatmqStreamReader(parsed(self.options), chosen(schema.fieldNames()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CatmqWriter(parsed(self.options), schema, overwrite=overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return CatmqStreamWriter(parsed(self.options), schema, overwrite=overwrite)


@dataclass
class Narrowed:
    """Rows that filters leave: offsets first … end - 1, times since … before (µs), queues,
    keys and tags.

    Filters on offset and queue narrow the ranges, and are done with. Those on time narrow
    them too, those on key and tag go into the node's SQL; Spark applies both again, because
    a node compares texts a little differently (it ignores blanks at their end) and keeps
    milliseconds.
    """

    first: int = 0
    end: int = _END
    since_us: int | None = None
    before_us: int | None = None
    queues: frozenset[int] | None = None
    matches: list[Match] = field(default_factory=list)

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take in what it can, and give back what Spark has to apply all the same."""
        for one in filters:
            if not self._took(one):
                yield one

    def _took(self, one: Filter) -> bool:
        """Take a filter; return True if Spark need not apply it any more."""
        column = getattr(one, "attribute", ("",))
        if column == ("offset",):
            return self._offset(one)
        if column == ("queue",):
            return self._queue(one)
        if column == ("stored_at",):
            self._time(one)
        if column in (("key",), ("tag",)):
            self._match(column[0], one)
        return False

    def _offset(self, one: Filter) -> bool:
        span = _span(one)
        if span is None:
            return False
        self.first, self.end = max(self.first, span[0]), min(self.end, span[1])
        return True

    def _queue(self, one: Filter) -> bool:
        if isinstance(one, EqualTo):
            wanted = frozenset([one.value])
        elif isinstance(one, In):
            wanted = frozenset(one.value)
        else:
            return False
        self.queues = wanted if self.queues is None else self.queues & wanted
        return True

    def _time(self, one: Filter) -> None:
        if not isinstance(getattr(one, "value", None), datetime):
            return
        at_us = _microseconds(one.value)  # type: ignore[attr-defined]
        if isinstance(one, (GreaterThan, GreaterThanOrEqual, EqualTo)):
            self.since_us = at_us if self.since_us is None else max(self.since_us, at_us)
        if isinstance(one, (LessThan, LessThanOrEqual, EqualTo)):
            limit = at_us + 1
            self.before_us = limit if self.before_us is None else min(self.before_us, limit)

    def _match(self, column: str, one: Filter) -> None:
        values: tuple[Any, ...] = ()
        if isinstance(one, EqualTo):
            values = (one.value,)
        elif isinstance(one, In):
            values = tuple(one.value)
        if (
            values
            and len(values) <= MOST_VALUES
            and all(isinstance(value, str) for value in values)
        ):
            self.matches.append(Match(column, values))


_SPANS: dict[type[Filter], Callable[[int], tuple[int, int]]] = {
    EqualTo: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, _END),
    GreaterThanOrEqual: lambda value: (value, _END),
    LessThan: lambda value: (0, value),
    LessThanOrEqual: lambda value: (0, value + 1),
}


def _span(one: Filter) -> tuple[int, int] | None:
    """The offsets first … end - 1 that a comparison leaves; None if it is none."""
    value, span = getattr(one, "value", None), _SPANS.get(type(one))
    return span(value) if span is not None and type(value) is int else None


def _microseconds(at: datetime) -> int:
    since = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (since - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class CatmqReader(DataSourceReader):
    """Reads ranges of queues; it holds no account, only its partitions do."""

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = columns
        self._narrowed = Narrowed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters on offset and queue, and use those on time, key and tag."""
        return list(self._narrowed.take(filters))

    def partitions(self) -> Sequence[InputPartition]:
        """The slices of all queues, in order of queue and offset. Raises JobError."""
        plan = plans.fetch(
            self._options.topic, url=self._options.url, queues=self._options.planned
        )
        narrowed, found = self._narrowed, list[InputPartition]()
        for queue, span in ranges(plan, self._options).items():
            if narrowed.queues is not None and queue not in narrowed.queues:
                continue
            left = Span(max(span.first, narrowed.first), min(span.end, narrowed.end))
            if left.first < left.end:
                planned = plan.queue(queue)
                left = by_time(planned, left, narrowed.since_us, narrowed.before_us)
                found += slices(planned, left, rows=self._options.rows_per_partition)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._columns, self._options, self._narrowed.matches)
