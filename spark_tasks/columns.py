"""The columns of a message: their types, and the SQL that gives them on each engine.

Times are read as whole microseconds, so that no driver makes an object of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_tasks.errors import OptionError

# `body_bytes`, the size of a body, is there for those who name it: it costs no transfer.
SCHEMA = (
    "queue bigint, offset bigint, key string, tag string, headers string, body binary, "
    "trace_id string, producer string, attempt int, stored_at timestamp"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and Arrow type, and what to select (with {queue}) on each engine."""

    name: str
    type: pa.DataType
    mysql: str
    sqlite: str


def _same(name: str, kind: pa.DataType, stored: str) -> Column:
    return Column(name, kind, stored, stored)


_MICROSECONDS = "CAST(UNIX_TIMESTAMP(stored_at) * 1000000 AS SIGNED)"
COLUMNS = {
    one.name: one
    for one in (
        _same("queue", pa.int64(), "{queue}"),
        _same("offset", pa.int64(), "msg_offset"),
        _same("key", pa.string(), "msg_key"),
        _same("tag", pa.string(), "tag"),
        _same("headers", pa.string(), "headers"),
        _same("body", pa.binary(), "body"),
        _same("trace_id", pa.string(), "trace_id"),
        _same("producer", pa.string(), "producer"),
        _same("attempt", pa.int32(), "attempt"),
        _same("body_bytes", pa.int64(), "LENGTH(body)"),
        Column("stored_at", pa.timestamp("us", "UTC"), _MICROSECONDS, "stored_at * 1000"),
    )
}


def chosen(names: Sequence[str]) -> list[Column]:
    """The columns of these names. Raises OptionError."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        what = f"{', '.join(unknown)} is not a column of a message" if unknown else "no column is asked for"
        raise OptionError(f"{what}; there are {', '.join(COLUMNS)}")
    return [COLUMNS[name] for name in names]


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of columns, as Spark expects it."""
    return pa.schema([pa.field(one.name, one.type) for one in columns])


def batch_of(columns: Sequence[Column], values: Sequence[Sequence[object]]) -> pa.RecordBatch:
    """The rows as Arrow; `values` are the columns' values."""
    arrays = []
    for column, given in zip(columns, values, strict=True):
        if pa.types.is_timestamp(column.type):
            arrays.append(pa.array(given, pa.int64()).cast(column.type))
        else:
            arrays.append(pa.array(given, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
