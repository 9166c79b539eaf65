"""Output of commands: tables for people, lines for programs, notes and progress.

Notes and progress are written to standard error.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from catmq_client.cli.forms import (
    PLAIN,
    Form,
    Format,
    Paint,
    encode_text,
    escape_control,
    is_table,
    json_bytes,
    paint,
    shows_colours,
)

# Text of an empty cell.
MISSING = "-"
# Errors begin with this word.
PROGRAM = "catmq:"
# Time between two updates of the progress line.
PROGRESS_S = 0.5
CLEAR_LINE = "\r\x1b[K"

# The value of a column in a row: a field, or a function of the row. By heading.
Column = str | Callable[[Any], object]
Columns = Mapping[str, Column]


def json_line(value: Mapping[str, Any]) -> bytes:
    return json_bytes(value) + b"\n"


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_noun(1, "line"), count_noun(2, "line")
    ('1 line', '2 lines')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def text_or_base64(body: bytes) -> dict[str, str]:
    """Return `{"body": …}`, or `{"body_base64": …}` for bytes that are not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def with_text_body(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its body as text or base64, in place of `body_bytes`."""
    other_fields = {
        name: value for name, value in message.items() if not name.startswith("body")
    }
    return {**other_fields, **text_or_base64(message["body_bytes"])}


def message_row(topic: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form that every command prints, from its fields."""
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


class RowPrinter:
    """Prints rows as they arrive. In a table the heading comes before the first row."""

    def __init__(self, form: Form, columns: Columns, widths: Sequence[int]) -> None:
        self._form = form
        self._columns = columns
        # The widths are fixed, because later rows are not known yet.
        self._layout = Layout(
            list(columns), widths, [False] * len(columns), paint(form, sys.stdout)
        )
        self._heading = self._layout.heading().encode() if is_table(form) else b""

    def write(self, row: Mapping[str, Any], body: bytes | None = None) -> None:
        """Print a row; `body` is that of a message.

        Raises BrokenPipeError if the reader of the output is gone.
        """
        if isinstance(self._form, Format):
            line = self._form.line(row, body)
        elif is_table(self._form):
            line = encode_text(
                self._layout.row(
                    [format_cell(value) for value in row_values(row, self._columns)]
                )
            )
        else:
            line = json_line(row) if self._form == "json" or body is None else body + b"\n"
        write(self._heading + line)
        self._heading = b""


class MessagePrinter(RowPrinter):
    """Prints messages as they arrive."""

    def __init__(self, form: Form) -> None:
        super().__init__(form, MESSAGE, MESSAGE_WIDTHS)


def write(line: bytes) -> None:
    """Write a line and flush it. Raises BrokenPipeError if the reader is gone."""
    # Flushed line by line, so that the next program of a pipe sees each row at once.
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def show(text: str) -> None:
    write(encode_text(text))


def note(text: str) -> None:
    """Write text that is not the result to standard error. An error begins in red."""
    if text.startswith(PROGRAM) and shows_colours(sys.stderr):
        text = Paint(on=True).text(PROGRAM, "red") + text.removeprefix(PROGRAM)
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Progress:
    """A line on a terminal that shows the progress of a command. Elsewhere it does nothing."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_at = time.monotonic()
        self._shown = False

    def is_due(self) -> bool:
        """Return True if it is time to update the line."""
        return self._on and time.monotonic() - self._shown_at >= PROGRESS_S

    def show(self, text: str) -> None:
        """Replace the line, if that is due."""
        if self.is_due():
            self._shown_at, self._shown = time.monotonic(), True
            self._overwrite(text)

    def clear(self) -> None:
        """Erase the line. Call it before other output."""
        if self._shown:
            self._shown = False
            self._overwrite("")

    def _overwrite(self, text: str) -> None:
        # A closed terminal must not end the command.
        with suppress(OSError):
            sys.stderr.write(f"{CLEAR_LINE}{text}")
            sys.stderr.flush()


def format_cell(value: object) -> str:
    """Return a value as the text of a cell."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape_control(str(value))


def format_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Paint = PLAIN
) -> str:
    """Return rows as a table, with columns as wide as needed and numbers to the right.

    >>> print(format_table(["NAME", "LAG"], [["orders", 7], ["refunds", None]]), end="")
    NAME     LAG
    orders     7
    refunds    -
    """
    cells = [list(row) for row in rows]
    # A column is numeric if it has a number and nothing but numbers and empty cells.
    numeric = [
        any(isinstance(row[index], int) for row in cells)
        and all(row[index] is None or isinstance(row[index], int) for row in cells)
        for index in range(len(headings))
    ]
    lines = [list(headings), *([format_cell(value) for value in row] for row in cells)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headings))]
    layout = Layout(headings, widths, numeric, colours)
    return layout.heading() + "".join(layout.row(line) for line in lines[1:])


def format_rows(
    rows: Iterable[Mapping[str, Any]], columns: Columns, colours: Paint = PLAIN
) -> str:
    """Return objects as a table of these columns."""
    return format_table(list(columns), (row_values(row, columns) for row in rows), colours)


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Columns, form: Form) -> None:
    """Print rows of the API as a table, or each in a line as JSON or in a FORMAT."""
    if is_table(form):
        show(format_rows(rows, columns, paint(form, sys.stdout)))
        return
    for row in rows:
        print_row(row, form)


def print_row(row: Mapping[str, Any], form: Form, body: bytes | None = None) -> None:
    """Print a row on a line; `body` is that of a message, for a FORMAT."""
    write(form.line(row, body) if isinstance(form, Format) else json_line(row))


def row_values(row: Mapping[str, Any], columns: Columns) -> list[object]:
    """Return the values of a row's cells. Brokers of an older release omit some fields."""
    return [
        row.get(column) if isinstance(column, str) else column(row)
        for column in columns.values()
    ]


def field_columns(names: str) -> dict[str, Column]:
    """Return columns for fields, with headings from their names.

    >>> field_columns("name created_at")
    {'NAME': 'name', 'CREATED AT': 'created_at'}
    """
    return {name.replace("_", " ").upper(): name for name in names.split()}


def time_column(field: str) -> Column:
    """Return a column for a field that has a time in ms."""
    return lambda row: format_time(row.get(field))


def duration_column(field: str) -> Column:
    """Return a column for a field that has a duration in ms."""
    return lambda row: format_duration(row.get(field))


@dataclass(frozen=True)
class Layout:
    """Headings, widths and alignment of a table's columns."""

    headings: Sequence[str]
    widths: Sequence[int]
    # True for columns that are aligned to the right
    numeric: Sequence[bool]
    colours: Paint

    def heading(self) -> str:
        """Return the line with the headings."""
        return self._line(
            [self.colours.text(text, "bold") for text in self._padded(self.headings)]
        )

    def row(self, cells: Sequence[str]) -> str:
        """Return the line of a row."""
        padded = self._padded(cells)
        return self._line(list(map(self.colours.value, self.headings, padded)))

    def _padded(self, cells: Sequence[str]) -> list[str]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(cells, self.widths, self.numeric, strict=True)
        ]
        return [*padded[:-1], padded[-1].rstrip()]

    def _line(self, cells: Sequence[str]) -> str:
        return "  ".join(cells).rstrip() + "\n"


def format_facts(row: Mapping[str, Any], columns: Columns, colours: Paint = PLAIN) -> str:
    """Return an object as text, with a name and a value on each line."""
    lines = [
        (name.lower(), format_cell(value))
        for name, value in zip(columns, row_values(row, columns), strict=True)
    ]
    width = max(len(name) for name, _ in lines)
    return "".join(
        f"{colours.text(name.ljust(width), 'dim')}  {colours.value(name, value)}\n"
        for name, value in lines
    )


def format_time(at_ms: int | None) -> str | None:
    """Return a time as text: UTC, to the second."""
    if at_ms is None:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        # The time is outside the years that Python supports.
        return f"{at_ms} ms"


def format_duration(span_ms: int | None) -> str | None:
    """Return a duration as short text.

    >>> [format_duration(ms) for ms in (900, 61_000, 7_260_000, 200_000_000)]
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


MESSAGE: Columns = {
    "STORED": time_column("stored_at_ms"),
    "MESSAGE": lambda row: f"{row['queue']}-{row['offset']}",
    "KEY": "key",
    "TAG": "tag",
    "BODY": lambda row: row["body"] if "body" in row else f"base64:{row['body_base64']}",
}
MESSAGE_WIDTHS = (20, 10, 14, 8, 0)
