"""Input of `catmq send`: a message in each line, from a file or standard input.

Memory is bounded by the longest line.
"""

from __future__ import annotations

import codecs
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

from catmq_client.cli.stop import Stop

Source = IO[bytes] | gzip.GzipFile

# Byte order marks of Windows programs. That of UTF-32 little-endian begins like UTF-16's.
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
# Far above any broker's limit of a body. It bounds the memory of a file without line ends.
MAX_LINE_BYTES = 16 * 1024 * 1024


REWRITE = "write it in UTF-8 (iconv -f UTF-16 -t UTF-8; in PowerShell: -Encoding utf8)"


class BadLine(Exception):
    """A line that cannot be sent. The text has its number and the remedy."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"line {number}: {text}")
        self.number = number


class Line(NamedTuple):
    """A message to send. `number` is its line in the input, from 1."""

    number: int
    body: bytes
    key: str | None


def open_input(name: str) -> AbstractContextManager[Source]:
    """Open the input `name`: `-` is standard input, `….gz` is decompressed. Raises OSError."""
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    path = Path(name)
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def requires_json(name: str, key_field: str | None) -> bool:
    """Return True if every line must be JSON: for a file named .jsonl, or with a key field."""
    return key_field is not None or name.lower().removesuffix(".gz").endswith(".jsonl")


def read_lines(
    source: Source, *, stop: Stop, json_lines: bool, key_field: str | None
) -> Iterator[Line]:
    """Yield the lines of the input that are not empty.

    Raises BadLine, or Stopped by a signal.
    """
    number = 0
    while True:
        number += 1
        with stop.waiting():
            line = read_line(source, number)
        if not line:
            return
        body = (without_byte_order_mark(line) if number == 1 else line).rstrip(b"\r\n")
        if body.strip():
            yield Line(
                number,
                body,
                check_json_line(number, body, key_field) if json_lines else None,
            )


def read_line(source: Source, number: int) -> bytes:
    """Return the next line with its end, b"" at the end of the input. Raises BadLine."""
    try:
        line = source.readline(MAX_LINE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadLine(
            number, "the gzip file is damaged here, or is none: download it again"
        ) from error
    if len(line) > MAX_LINE_BYTES:
        raise BadLine(
            number, f"longer than {MAX_LINE_BYTES} bytes: one message is one line"
        )
    return line


def without_byte_order_mark(first_line: bytes) -> bytes:
    """Return the first line without the mark of UTF-8.

    Raises BadLine if its mark is that of UTF-16 or UTF-32.
    """
    if first_line.startswith(UTF16_MARKS):
        raise BadLine(1, f"the input is UTF-16 or UTF-32: {REWRITE}")
    return first_line.removeprefix(codecs.BOM_UTF8)


def check_json_line(number: int, body: bytes, key_field: str | None) -> str | None:
    """Return the key of a JSON line, None without `key_field`. Raises BadLine."""
    try:
        value = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise BadLine(
            number, f"not UTF-8 (byte {error.start + 1}): write the file in UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:
        place = (
            f" from character {error.pos + 1} on"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        remedy = "correct it; without --key-field a file not named .jsonl may hold any text"
        if body.startswith(codecs.BOM_UTF8):
            remedy = (
                "remove its byte order mark (EF BB BF), which comes from a file that "
                "was appended"
            )
        elif b"\0" in body:
            remedy = f"it has zero bytes, as UTF-16 has: {REWRITE}"
        raise BadLine(number, f"not JSON{place}: {remedy}") from error
    return None if key_field is None else key_of(number, value, key_field)


def key_of(number: int, value: Any, field: str) -> str:
    """Return the key in a JSON object: text, or a whole number as text. Raises BadLine."""
    if not isinstance(value, dict):
        raise BadLine(
            number,
            f"not a JSON object, so it has no field {field!r} for the key (--key-field)",
        )
    key = value.get(field)
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    problem = (
        f"no field {field!r}"
        if field not in value
        else f"field {field!r} is {json.dumps(key)[:40]}"
    )
    raise BadLine(number, f"{problem}: --key-field needs text or a whole number there")
