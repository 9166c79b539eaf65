"""The columns of a message: their types, and the SQL that gives them on each engine.

Values come from MySQL as the texts that the server sent, a column at once: Arrow reads
numbers and times from them in one go, where Python would make an object of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from spark_tasks.errors import OptionError

# `body_bytes`, the size of a body, is there for those who name it: it costs no transfer.
SCHEMA = (
    "queue bigint, offset bigint, key string, tag string, headers string, body binary, "
    "trace_id string, producer string, attempt int, stored_at timestamp"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and Arrow type, and what to select for it; '' for the queue, which
    is known.
    """

    name: str
    type: pa.DataType
    stored: str


COLUMNS = {
    one.name: one
    for one in (
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
_ISO = pa.timestamp("us")  # what a time without its zone is read as
# of a column: texts from MySQL, or what SQLite gives
Values: TypeAlias = pa.Array | Sequence[object]


def chosen(names: Sequence[str]) -> list[Column]:
    """The columns of these names. Raises OptionError."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        what = (
            f"{', '.join(unknown)} is not a column of a message"
            if unknown
            else "no column is asked for"
        )
        raise OptionError(f"{what}; there are {', '.join(COLUMNS)}")
    return [COLUMNS[name] for name in names]


def selected(columns: Sequence[Column]) -> list[str]:
    """Return the expressions to select for columns; at least one, so that there are rows."""
    return [one.stored for one in columns if one.stored] or ["msg_offset"]


def batch_of(
    columns: Sequence[Column], values: Sequence[Values], *, queue: int, rows: int
) -> pa.RecordBatch:
    """Rows of a queue as Arrow: `values` are those of each column that `selected` names."""
    given = iter(values)
    arrays = [
        typed(one, next(given))
        if one.stored
        else pa.repeat(pa.scalar(queue, one.type), rows)
        for one in columns
    ]
    schema = pa.schema([pa.field(one.name, one.type) for one in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def typed(column: Column, values: Values) -> pa.Array:
    """Values of a column: texts as MySQL sends them, or what SQLite gives."""
    return (
        _parsed(column, values) if isinstance(values, pa.Array) else _plain(column, values)
    )


def _parsed(column: Column, texts: pa.Array) -> pa.Array:
    """Texts as MySQL sends them: times as 2026-11-22 05:19:19.123, in UTC."""
    if pa.types.is_binary(column.type):
        return texts
    texts = texts.cast(pa.string())
    if pa.types.is_timestamp(column.type):
        texts = texts.cast(_ISO)
    return texts.cast(column.type)


def _plain(column: Column, values: Sequence[object]) -> pa.Array:
    """Convert values that SQLite gives: times as whole ms since 1970."""
    if pa.types.is_timestamp(column.type):
        return pa.array(values, pa.timestamp("ms", "UTC")).cast(column.type)
    return pa.array(values, column.type)
