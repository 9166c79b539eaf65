"""Output of commands: tables for people, one JSON object a line for programs, notes on standard error."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

MISSING = "-"  # how a table shows that there is no value


def json_line(value: Mapping[str, Any]) -> bytes:
    """One object as a line of UTF-8 JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def text_or_base64(body: bytes) -> dict[str, str]:
    """`{"body": …}`, or `{"body_base64": …}` for bytes that are not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def message_row(topic: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as every command prints it, from its fields and `body_bytes`."""
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
    """Writes a line and hands it to the reader at once. Raises BrokenPipeError when there is none."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def show(text: str) -> None:
    """Writes what a person reads."""
    write(text.encode())


def add_output(command: argparse.ArgumentParser, *forms: str) -> None:
    """`--output`, the first form being the default; json always is one."""
    shapes = [*forms, *(["json"] if "json" not in forms else [])]
    command.add_argument("--output", choices=shapes, default=shapes[0], help=f"form (default {shapes[0]})")


def note(text: str) -> None:
    """Tells the person at the terminal something that is not the result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows in columns as wide as they need; numbers to the right.

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


def aligned(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    """One line of a table, with its end."""
    cells = [
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(line, widths, numeric, strict=True)
    ]
    return "  ".join(cells).rstrip() + "\n"


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Name and value a line, for one thing that is shown."""
    kept = [(name, cell(value)) for name, value in pairs]
    width = max(len(name) for name, _ in kept)
    return "".join(f"{name.ljust(width)}  {value}\n" for name, value in kept)


def moment(at_ms: int | None) -> str | None:
    """A time as people read it: UTC, to the second."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(span_ms: int | None) -> str | None:
    """A span of time, short.

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
