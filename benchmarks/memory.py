"""A data source whose rows nobody fetches: what Spark itself takes for the rows of any in
Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_tasks.nodes.columns import SCHEMA, build_batch, find_columns, select_expressions

BATCH = 4_000  # rows, about as many of 200 bytes as the data source `catmq` gives at once
PARTITION = 250_000  # rows
VALUES: Mapping[str, object] = {
    "msg_offset": b"1234567",
    "msg_key": b"key-123",
    "tag": b"tag",
    "headers": b'{"a": "b"}',
    "body": b"b" * 200,
    "trace_id": b"trace",
    "producer": b"bench",
    "attempt": b"0",
    "stored_at": b"2026-11-22 05:19:19.123",
}


class Memory(DataSource):
    """The format `memory`; option `rows`."""

    @classmethod
    def name(cls) -> str:
        """What stands in `.format()`."""
        return "memory"

    def schema(self) -> str:
        """All columns of a message."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return MemoryReader(schema.fieldNames(), int(self.options["rows"]))


class Rows(InputPartition):
    """So many rows."""

    value: int


class MemoryReader(DataSourceReader):
    """Gives one batch again and again."""

    def __init__(self, names: list[str], rows: int) -> None:
        self._names = names
        self._rows = rows

    def partitions(self) -> list[Any]:
        """As many as a read of a topic has."""
        return [
            Rows(min(PARTITION, self._rows - first))
            for first in range(0, self._rows, PARTITION)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows."""
        columns = find_columns(self._names)
        values = [
            pa.array([VALUES[name]] * BATCH, pa.binary())
            for name in select_expressions(columns)
        ]
        batch = build_batch(columns, values, queue=1, rows=BATCH)
        for first in range(0, partition.value, BATCH):
            yield batch.slice(0, min(BATCH, partition.value - first))
