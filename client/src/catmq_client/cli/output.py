"""Output of commands: tables for people, lines for programs, notes and progress on standard
error.
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
    coloured,
    in_utf8,
    is_table,
    json_bytes,
    paint,
    printable,
)

MISSING = "-"  # how a table shows that there is no value
PROGRAM = "catmq:"  # what errors begin with
PROGRESS_S = 0.5
CLEAR_LINE = "\r\x1b[K"

# What a column shows of a row: a field, or what a function makes of the row. By heading.
Column = str | Callable[[Any], object]
Columns = Mapping[str, Column]


def json_line(value: Mapping[str, Any]) -> bytes:
    return json_bytes(value) + b"\n"


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> number_of(1, "line"), number_of(2, "line")
    ('1 line', '2 lines')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


class Lines:
    """Rows, printed as they come; a table's heading stands before the first."""

    def __init__(self, form: Form, columns: Columns, widths: Sequence[int]) -> None:
        self._form = form
        self._columns = columns
        # Of fixed width: the next row is not known yet.
        self._layout = Layout(
            list(columns), widths, [False] * len(columns), paint(form, sys.stdout)
        )
        self._before = self._layout.heading().encode() if is_table(form) else b""

    def write(self, row: Mapping[str, Any], body: bytes | None = None) -> None:
        """Print one; `body` is that of a message. Raises BrokenPipeError when nobody reads."""
        write(self._before + self._line(row, body))
        self._before = b""

    def _line(self, row: Mapping[str, Any], body: bytes | None) -> bytes:
        if isinstance(self._form, Format):
            return self._form.line(row, body)
        if is_table(self._form):
            return in_utf8(
                self._layout.row([cell(value) for value in values(row, self._columns)])
            )
        return json_line(row) if self._form == "json" or body is None else body + b"\n"


class MessageLines(Lines):
    """Messages, printed as they come."""

    def __init__(self, form: Form) -> None:
        super().__init__(form, MESSAGE, MESSAGE_WIDTHS)


def write(line: bytes) -> None:
    """Write a line and flush it. Raises BrokenPipeError when there is none."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def show(text: str) -> None:
    write(in_utf8(text))


def note(text: str) -> None:
    """Write something that is not the result to standard error; an error's first word is
    red there.
    """
    if text.startswith(PROGRAM) and coloured(sys.stderr):
        text = Paint(on=True).text(PROGRAM, "red") + text.removeprefix(PROGRAM)
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Progress:
    """One line on a terminal that tells how far a command is; nothing elsewhere."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._told_at = time.monotonic()
        self._shown = False

    def due(self) -> bool:
        """Return True if it is time to tell something."""
        return self._on and time.monotonic() - self._told_at >= PROGRESS_S

    def tell(self, text: str) -> None:
        """Show the text in place of the former one, if that is due."""
        if self.due():
            self._told_at, self._shown = time.monotonic(), True
            self._put(text)

    def end(self) -> None:
        """Take the line away, before anything else is written."""
        if self._shown:
            self._shown = False
            self._put("")

    def _put(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(f"{CLEAR_LINE}{text}")
            sys.stderr.flush()


def cell(value: object) -> str:
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Paint = PLAIN
) -> str:
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
    layout = Layout(headings, widths, numeric, colours)
    return layout.heading() + "".join(layout.row(line) for line in lines[1:])


def rows_table(
    rows: Iterable[Mapping[str, Any]], columns: Columns, colours: Paint = PLAIN
) -> str:
    return table(list(columns), (values(row, columns) for row in rows), colours)


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Columns, form: Form) -> None:
    """Print rows of the API as a table, or each on a line, as JSON or in a FORMAT."""
    if is_table(form):
        show(rows_table(rows, columns, paint(form, sys.stdout)))
        return
    for row in rows:
        print_row(row, form)


def print_row(row: Mapping[str, Any], form: Form, body: bytes | None = None) -> None:
    """Print one row on a line; `body` is that of a message, for a FORMAT."""
    write(form.line(row, body) if isinstance(form, Format) else json_line(row))


def values(row: Mapping[str, Any], columns: Columns) -> list[object]:
    """Return the cells of a row; an older broker leaves fields out."""
    return [
        row.get(column) if isinstance(column, str) else column(row)
        for column in columns.values()
    ]


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


@dataclass(frozen=True)
class Layout:
    """The columns of a table."""

    headings: Sequence[str]
    widths: Sequence[int]
    numeric: Sequence[bool]  # to the right
    colours: Paint

    def heading(self) -> str:
        """Return the first line."""
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


def facts(row: Mapping[str, Any], columns: Columns, colours: Paint = PLAIN) -> str:
    """Return one thing as text, a name and a value a line."""
    kept = [
        (name.lower(), cell(value))
        for name, value in zip(columns, values(row, columns), strict=True)
    ]
    width = max(len(name) for name, _ in kept)
    return "".join(
        f"{colours.text(name.ljust(width), 'dim')}  {colours.value(name, value)}\n"
        for name, value in kept
    )


def moment(at_ms: int | None) -> str | None:
    """Return a time as text: UTC, to the second."""
    if at_ms is None:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # no year that Python has
        return f"{at_ms} ms"


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


MESSAGE: Columns = {
    "STORED": at("stored_at_ms"),
    "MESSAGE": lambda row: f"{row['queue']}-{row['offset']}",
    "KEY": "key",
    "TAG": "tag",
    "BODY": lambda row: row["body"] if "body" in row else f"base64:{row['body_base64']}",
}
MESSAGE_WIDTHS = (20, 10, 14, 8, 0)
