"""The data source `catmq`: topics as tables and streams, read straight from their nodes; sends as writes.

    catmq.register(spark)
    spark.read.format("catmq").option("topic", "orders").load()

The driver asks a broker for the read plan; executors speak to the nodes alone. Every read is bounded by the
heads when it was planned, so a retried task reads the same rows. Which columns are read the schema says:
`.schema("offset bigint, key string")` never fetches a body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from spark_tasks.nodes import plans
from spark_tasks.nodes.columns import SCHEMA, Column, chosen
from spark_tasks.nodes.plans import Span
from spark_tasks.reading.filters import Narrowed
from spark_tasks.reading.options import Options, parsed
from spark_tasks.reading.ranges import by_time, ranges
from spark_tasks.reading.slices import read, slices
from spark_tasks.reading.streaming import CatmqStreamReader
from spark_tasks.reading.writing import CatmqStreamWriter, CatmqWriter

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


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

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return CatmqStreamWriter(parsed(self.options), schema, overwrite=overwrite)


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
        plan = plans.fetch(self._options.topic, url=self._options.url, queues=self._options.planned)
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
