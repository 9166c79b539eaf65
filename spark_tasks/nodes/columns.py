"""The columns of a message: their types, and the SQL that selects them on each engine.

MySQL sends every value as text. Arrow parses the numbers and times of a whole column at
once, without a Python object for each value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from spark_tasks.errors import OptionError

# Without `body_bytes`: a schema may name it, to get sizes of bodies without reading bodies.
SCHEMA = (
    "queue bigint, offset bigint, key string, tag string, headers string, body binary, "
    "trace_id string, producer string, attempt int, stored_at timestamp"
)


# The same with headers as a map, by option.
MAP_SCHEMA = SCHEMA.replace("headers string", "headers map<string,string>")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, Arrow type and SQL expression. The queue is known without SQL:
    ''.
    """

    name: str
    type: pa.DataType
    expression: str


COLUMNS = {
    column.name: column
    for column in (
        Column("queue", pa.int64(), ""),
        Column("offset", pa.int64(), "msg_offset"),
        Column("key", pa.string(), "msg_key"),
        Column("tag", pa.string(), "tag"),
        Column("headers", pa.string(), "headers"),
        Column("body", pa.binary(), "body"),
        Column("trace_id", pa.string(), "trace_id"),
        Column("producer", pa.string(), "producer"),
        Column("attempt", pa.int32(), "attempt"),
        Column("body_bytes", pa.int64(), "LENGTH(body)"),
        Column("stored_at", pa.timestamp("us", "UTC"), "stored_at"),
    )
}
# Takes the place of `headers`, by option.
HEADERS_MAP = Column("headers", pa.map_(pa.string(), pa.string()), "headers")
_NAIVE_TIME = pa.timestamp("us")  # a time without a zone, as MySQL prints it
# the values of a column: texts from MySQL, Python objects from SQLite
Values: TypeAlias = pa.Array | Sequence[object]


def find_columns(names: Sequence[str], *, headers_as_map: bool = False) -> list[Column]:
    """Return the columns with these names. Raises OptionError if a name is unknown or none
    is given.
    """
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        problem = (
            f"{', '.join(unknown)} is not a column of a message"
            if unknown
            else "no column is asked for"
        )
        raise OptionError(f"{problem}; there are {', '.join(COLUMNS)}")
    columns = COLUMNS | ({"headers": HEADERS_MAP} if headers_as_map else {})
    return [columns[name] for name in names]


def select_expressions(columns: Sequence[Column]) -> list[str]:
    """Return the SQL expressions to select. Never empty: a SELECT needs a column."""
    return [column.expression for column in columns if column.expression] or ["msg_offset"]


def build_batch(
    columns: Sequence[Column], values: Sequence[Values], *, queue: int, rows: int
) -> pa.RecordBatch:
    """Return rows of a queue as Arrow. `values` are those of the columns with an
    expression.
    """
    remaining_values = iter(values)
    arrays = [
        to_arrow(column, next(remaining_values))
        if column.expression
        else pa.repeat(pa.scalar(queue, column.type), rows)
        for column in columns
    ]
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_arrow(column: Column, values: Values) -> pa.Array:
    """Return the values of a column as Arrow: texts from MySQL, or objects from SQLite."""
    if pa.types.is_map(column.type):
        return parse_headers(values)
    is_time = pa.types.is_timestamp(column.type)
    if not isinstance(values, pa.Array):
        # SQLite stores times as whole ms since 1970.
        stored_type = pa.timestamp("ms", "UTC") if is_time else column.type
        return pa.array(values, stored_type).cast(column.type)
    if pa.types.is_binary(column.type):
        return values
    texts = values.cast(pa.string())
    # MySQL prints times as 2026-11-22 05:19:19.123, and the session's time zone is UTC.
    return (texts.cast(_NAIVE_TIME) if is_time else texts).cast(column.type)


def parse_headers(values: Values) -> pa.Array:
    """Return headers, which are stored as JSON objects of texts, as a column of maps.

    A message without headers has null.
    """
    texts: Sequence[Any] = values.to_pylist() if isinstance(values, pa.Array) else values
    pairs = [None if text is None else list(json.loads(text).items()) for text in texts]
    return pa.array(pairs, HEADERS_MAP.type)
