"""Output of commands: tables for people, one JSON object a line for programs, notes on standard error."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

MISSING = "-"  # how a table shows that there is no value

# What a column shows of a row: a field, or what a function makes of the row. By heading.
Column = str | Callable[[Any], object]
Columns = Mapping[str, Column]


def json_line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def text_or_base64(body: bytes) -> dict[str, str]:
    """`{"body": …}`, or `{"body_base64": …}` for bytes that are not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its body as text or base64, in place of `body_bytes`."""
    rest = {name: value for name, value in message.items() if not name.startswith("body")}
    return {**rest, **text_or_base64(message["body_bytes"])}


def message_row(topic: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as every command prints it, from its fields and `body_bytes`."""
    return {
        "topic": topic,
        "queue": message["queue"],
        "offset": message["offset"],
        "message_id": message["message_id"],
        "key": message.get("key"),
        "tag": message.get("tag"),
        "headers": message.get("headers") or {},
        **text_or_base64(message["body_bytes"]),
        "stored_at_ms": message["stored_at_ms"],
        "attempt": message["attempt"],
    }


def line_of(row: Mapping[str, Any], body: bytes, form: str) -> bytes:
    """Return the line that `--output json` or `--output body` prints for a message."""
    return json_line(row) if form == "json" else body + b"\n"


def write(line: bytes) -> None:
    """Write a line and flush it. Raises BrokenPipeError when there is none."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def print_json(row: Mapping[str, Any]) -> None:
    write(json_line(row))


def show(text: str) -> None:
    write(text.encode())


def note(text: str) -> None:
    """Write something that is not the result to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def cell(value: object) -> str:
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows in columns as wide as they need; numbers to the right.

    >>> print(table(["NAME", "LAG"], [["orders", 7], ["refunds", None]]), end="")
    NAME     LAG
    orders     7
    refunds    -
    """
    kept = [list(row) for row in rows]
    numeric = [
        any(isinstance(row[index], int) for row in kept)
        and all(row[index] is None or isinstance(row[index], int) for row in kept)
        for index in range(len(headings))
    ]
    lines = [list(headings), *([cell(value) for value in row] for row in kept)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headings))]
    return "".join(aligned(line, widths, numeric) for line in lines)


def rows_table(rows: Iterable[Mapping[str, Any]], columns: Columns) -> str:
    return table(list(columns), (values(row, columns) for row in rows))


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Columns, form: str) -> None:
    """Print rows of the API as a table, or with form "json" as one object a line."""
    if form != "json":
        show(rows_table(rows, columns))
        return
    for row in rows:
        print_json(row)


def values(row: Mapping[str, Any], columns: Columns) -> list[object]:
    """Return the cells of a row; an older broker leaves fields out."""
    return [row.get(column) if isinstance(column, str) else column(row) for column in columns.values()]


def fields(names: str) -> dict[str, Column]:
    """Return columns of fields under their own names.

    >>> fields("name created_at")
    {'NAME': 'name', 'CREATED AT': 'created_at'}
    """
    return {name.replace("_", " ").upper(): name for name in names.split()}


def at(field: str) -> Column:
    """Return a column with the time in a field."""
    return lambda row: moment(row.get(field))


def span(field: str) -> Column:
    """Return a column with the duration in a field."""
    return lambda row: duration(row.get(field))


def aligned(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = [
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(line, widths, numeric, strict=True)
    ]
    return "  ".join(cells).rstrip() + "\n"


def facts(row: Mapping[str, Any], columns: Columns) -> str:
    """Return one thing as text, a name and a value a line."""
    kept = [(name.lower(), cell(value)) for name, value in zip(columns, values(row, columns), strict=True)]
    width = max(len(name) for name, _ in kept)
    return "".join(f"{name.ljust(width)}  {value}\n" for name, value in kept)


def moment(at_ms: int | None) -> str | None:
    """Return a time as text: UTC, to the second."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(span_ms: int | None) -> str | None:
    """Return a span of time as short text.

    >>> [duration(ms) for ms in (900, 61_000, 7_260_000, 200_000_000)]
    ['0.9s', '1m01s', '2h01m', '2d07h']
    """
    if span_ms is None:
        return None
    seconds = span_ms // 1000
    if seconds < 60:
        return f"{span_ms / 1000:.1f}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"
