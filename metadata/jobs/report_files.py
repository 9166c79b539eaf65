"""Reports as Parquet files. This needs pyarrow, which is installed together with Spark."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from metadata.errors import Conflict

Row = Mapping[str, Any]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns of all rows, in order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


def can_parquet() -> bool:
    # Looked up without an import, which is slow.
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet(rows: Sequence[Row], *, to: Path | IO[bytes]) -> None:
    """Write rows as Parquet. Raises Conflict without pyarrow."""
    if not can_parquet():
        raise Conflict(
            "Parquet needs pyarrow: run script/setup --with-spark, or choose CSV."
        )
    # Imported here, because most installations have no pyarrow.
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table(
        {name: pa.array([row.get(name) for row in rows]) for name in columns_of(rows)}
    )
    pyarrow.parquet.write_table(table, to)
