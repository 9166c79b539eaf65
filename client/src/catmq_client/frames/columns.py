"""Messages as Arrow. The only module of the client that imports pyarrow.

pyarrow ships no types, so its classes are named by aliases of Any here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

from catmq_client.errors import BodyNotText, OptionError
from catmq_client.frames.pages import Page
from catmq_client.message import (
    ATTEMPT,
    BODY,
    HEADERS,
    KEY,
    OFFSET,
    STORED_AT_MS,
    TAG,
    TRACE_ID,
    Row,
)

try:
    import pyarrow as pa
except ImportError as _error:
    raise ImportError(
        "catmq_client.frames needs pyarrow: pip install './client[arrow]'"
    ) from _error

Table: TypeAlias = Any
RecordBatch: TypeAlias = Any
RecordBatchReader: TypeAlias = Any
ArrowSchema: TypeAlias = Any
ArrowArray: TypeAlias = Any

TYPES: dict[str, Any] = {
    "queue": pa.int64(),
    "offset": pa.int64(),
    "key": pa.string(),
    "tag": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
    "trace_id": pa.string(),
    "attempt": pa.int32(),
    "stored_at": pa.timestamp("ms", tz="UTC"),
}
# Positions of the columns in a row; the queue is that of the page.
POSITIONS = {
    "offset": OFFSET,
    "key": KEY,
    "tag": TAG,
    "headers": HEADERS,
    "body": BODY,
    "trace_id": TRACE_ID,
    "attempt": ATTEMPT,
    "stored_at": STORED_AT_MS,
}


class BatchBuilder:
    """Collects pages, and makes a RecordBatch of them with the chosen columns."""

    def __init__(
        self, topic: str, columns: Sequence[str] | None, decode: str | None
    ) -> None:
        """Check the options. Raises OptionError."""
        if decode not in (None, "utf-8"):
            raise OptionError(f"decode={decode!r}: write 'utf-8' or None")
        names = list(TYPES) if columns is None else check_columns(columns)
        self._topic, self._is_text = topic, decode is not None
        types = TYPES | ({"body": pa.string()} if self._is_text else {})
        self.schema: ArrowSchema = pa.schema([(name, types[name]) for name in names])
        self._rows: list[Row] = []
        self._queues: list[tuple[int, int]] = []
        self.body_bytes: int = 0

    @property
    def rows(self) -> int:
        """The number of rows that the next batch has so far."""
        return len(self._rows)

    def append(self, page: Page) -> None:
        self._rows += page.rows
        self._queues.append((page.queue, len(page.rows)))
        self.body_bytes += page.body_bytes

    def flush(self) -> RecordBatch:
        """Return the collected rows. Raises BodyNotText if a body cannot be decoded."""
        arrays = [self._make_array(name) for name in self.schema.names]
        self._rows, self._queues, self.body_bytes = [], [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _make_array(self, name: str) -> ArrowArray:
        if name == "queue":
            runs = [pa.repeat(pa.scalar(queue), rows) for queue, rows in self._queues]
            return pa.concat_arrays(runs)
        values = list(map(itemgetter(POSITIONS[name]), self._rows))
        if name == "headers":
            return headers_array(values)
        array = pa.array(values, TYPES[name])
        if name != "body" or not self._is_text:
            return array
        try:
            # Checks the UTF-8 of all bodies without a Python object for each.
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            raise self._find_binary_body() from None

    def _find_binary_body(self) -> BodyNotText:
        """Return the error that names the first message whose body is not UTF-8."""
        queues = chain.from_iterable([queue] * rows for queue, rows in self._queues)
        for queue, row in zip(queues, self._rows, strict=True):
            try:
                row[BODY].decode()
            except UnicodeDecodeError as error:
                return BodyNotText(
                    f"{self._topic}, queue {queue}, offset {row[OFFSET]}: the body is "
                    f"not UTF-8 text ({error.reason} at byte {error.start}); read it as "
                    "bytes with decode=None",
                    queue=queue,
                    offset=row[OFFSET],
                )
        raise AssertionError("Arrow and Python agree about UTF-8")


def headers_array(texts: Sequence[str | None]) -> ArrowArray:
    """Return a map column of the headers of messages.

    `texts` has the headers of each message as a JSON object. A message without headers (None,
    "" or an empty object) gets null.
    """
    # The objects are joined to a JSON array: parsing it costs a fraction of parsing each object.
    objects = iter(json.loads(f"[{','.join(filter(None, texts))}]"))
    # A map column has the names and values of all rows in two flat arrays. Row i has those from
    # index offsets[i] to offsets[i + 1].
    offsets: list[int | None] = []
    names: list[str] = []
    values: list[str] = []
    for text in texts:
        headers = next(objects) if text else None
        # A null offset makes the row null.
        offsets.append(len(names) if headers else None)
        if headers:
            names += headers.keys()
            values += headers.values()
    offsets.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(names, pa.string()),
        pa.array(values, pa.string()),
    )


def check_columns(columns: Sequence[str]) -> list[str]:
    """Return the names of columns. Raises OptionError, which suggests the right name."""
    # A text is a sequence of texts, too.
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if name not in TYPES:
            matches = difflib.get_close_matches(str(name), TYPES, n=1)
            hint = (
                f"did you mean {matches[0]}?"
                if matches
                else f"there are {', '.join(TYPES)}"
            )
            raise OptionError(f"columns: {name!r} is not a column of a message; {hint}")
    if not names or len(set(names)) < len(names):
        raise OptionError(
            f"columns={names}: name at least one column, and each only once; there are "
            f"{', '.join(TYPES)}"
        )
    return names


def make_table(schema: ArrowSchema, record_batches: Iterator[RecordBatch]) -> Table:
    """Return a pyarrow.Table of the batches."""
    return pa.Table.from_batches(record_batches, schema=schema)


def make_reader(
    schema: ArrowSchema, record_batches: Iterator[RecordBatch]
) -> RecordBatchReader:
    """Return a pyarrow.RecordBatchReader, which takes the batches when it is read."""
    return pa.RecordBatchReader.from_batches(schema, record_batches)
