"""The data source `catmq`: read topics as tables and streams from their nodes, and send to
topics.

    catmq.register(spark)
    spark.read.format("catmq").option("topic", "orders").load()

The driver asks a broker for the read plan; executors connect to the nodes alone. Every read
ends at the log end offsets of the plan, so that a repeated task reads the same rows. The
schema selects the columns to read: `.schema("offset bigint, key string")` never reads a
body.
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
from pyspark.sql.types import MapType, StructType

from spark_tasks.errors import OptionError
from spark_tasks.nodes import plans
from spark_tasks.nodes.columns import MAP_SCHEMA, SCHEMA, Column, find_columns
from spark_tasks.nodes.plans import Span
from spark_tasks.reading.options import Options, parse_options
from spark_tasks.reading.ranges import narrow_by_time, plan_ranges
from spark_tasks.reading.slices import Match, plan_slices, read_slice
from spark_tasks.reading.streaming import CatmqStreamReader
from spark_tasks.reading.writing import CatmqStreamWriter, CatmqWriter

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_MAX_OFFSET = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_VALUES = 1_000  # in an SQL IN


def register(spark: SparkSession) -> None:
    """Add the format `catmq` to a session, and make Spark push filters to data sources."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(CatmqDataSource)


class CatmqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "catmq"

    def schema(self) -> str:
        """Return the columns of a read without a schema of its own."""
        return MAP_SCHEMA if parse_options(self.options).headers == "map" else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        return CatmqReader(options, choose_columns(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options)
        return CatmqStreamReader(options, choose_columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CatmqWriter(parse_options(self.options), schema, overwrite=overwrite)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return CatmqStreamWriter(parse_options(self.options), schema, overwrite=overwrite)


def choose_columns(schema: StructType, options: Options) -> list[Column]:
    """Return the columns of a schema. Raises OptionError for an unknown name, or if the
    schema has another type for `headers` than the option says.
    """
    as_map = options.headers == "map"
    for field_ in schema.fields:
        # Spark reports a wrong type only from a task, and names neither column nor option.
        if field_.name == "headers" and isinstance(field_.dataType, MapType) != as_map:
            raise OptionError(
                f"the schema has headers {field_.dataType.simpleString()}, and option "
                f"headers is {options.headers}: write 'headers string' with json, or "
                "'headers map<string,string>' with map"
            )
    return find_columns(schema.fieldNames(), headers_as_map=as_map)


@dataclass
class PushedFilters:
    """The rows that filters leave: offsets first … end - 1, times since … before (µs),
    queues, keys, tags.

    Filters on offset and queue narrow the ranges exactly. Filters on time narrow them too,
    and those on key and tag become SQL conditions, but Spark applies these again: a node
    ignores blanks at the end of texts when it compares, and stores milliseconds.
    """

    first: int = 0
    end: int = _MAX_OFFSET
    since_us: int | None = None
    before_us: int | None = None
    queues: frozenset[int] | None = None
    matches: list[Match] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Apply filters, and yield those that Spark must apply as well."""
        for condition in filters:
            column = getattr(condition, "attribute", ("",))
            value = getattr(condition, "value", None)
            values: tuple[Any, ...] = ()
            if isinstance(condition, (EqualTo, In)):
                values = tuple(condition.value) if isinstance(condition, In) else (value,)
            compared_span = _SPANS_OF_COMPARISONS.get(type(condition))
            # Offsets and queues are exact, so Spark need not apply these filters again.
            if column == ("offset",) and compared_span is not None and type(value) is int:
                first, end = compared_span(value)
                self.first, self.end = max(self.first, first), min(self.end, end)
                continue
            if column == ("queue",) and isinstance(condition, (EqualTo, In)):
                queues = frozenset(values)
                self.queues = queues if self.queues is None else self.queues & queues
                continue
            if column == ("stored_at",) and isinstance(value, datetime):
                self._narrow_times(condition, value)
            is_text = bool(values) and all(isinstance(text, str) for text in values)
            if column in (("key",), ("tag",)) and is_text and len(values) <= MAX_VALUES:
                self.matches.append(Match(column[0], values))
            yield condition

    def _narrow_times(self, condition: Filter, time: datetime) -> None:
        aware_time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        time_us = (aware_time - EPOCH) // timedelta(microseconds=1)
        if isinstance(condition, (GreaterThan, GreaterThanOrEqual, EqualTo)):
            self.since_us = (
                time_us if self.since_us is None else max(self.since_us, time_us)
            )
        if isinstance(condition, (LessThan, LessThanOrEqual, EqualTo)):
            end_us = time_us + 1
            self.before_us = (
                end_us if self.before_us is None else min(self.before_us, end_us)
            )


# Comparison → its value → the offsets first … end - 1 that it leaves.
_SPANS_OF_COMPARISONS: dict[type[Filter], Callable[[int], tuple[int, int]]] = {
    EqualTo: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, _MAX_OFFSET),
    GreaterThanOrEqual: lambda value: (value, _MAX_OFFSET),
    LessThan: lambda value: (0, value),
    LessThanOrEqual: lambda value: (0, value + 1),
}


class CatmqReader(DataSourceReader):
    """Reads ranges of queues. It is pickled, and holds no account; its partitions do."""

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = columns
        self._filters = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters on offset, queue, time, key and tag.

        Return those that Spark must apply.
        """
        return list(self._filters.push(filters))

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices of all queues, ordered by queue and offset. Raises JobError."""
        plan = plans.fetch(
            self._options.topic, url=self._options.url, queues=self._options.queues_to_plan
        )
        filters, slices = self._filters, list[InputPartition]()
        for queue, span in plan_ranges(plan, self._options).items():
            if filters.queues is not None and queue not in filters.queues:
                continue
            remaining = Span(max(span.first, filters.first), min(span.end, filters.end))
            if remaining.first < remaining.end:
                planned = plan.queue(queue)
                remaining = narrow_by_time(
                    planned, remaining, filters.since_us, filters.before_us
                )
                slices += plan_slices(
                    planned, remaining, rows=self._options.rows_per_partition
                )
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(partition, self._columns, self._options, self._filters.matches)
