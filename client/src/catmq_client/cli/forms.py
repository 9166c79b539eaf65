"""Forms of output: the values of `--output`, a FORMAT such as '{key} {body}', and colours."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, TextIO

from catmq_client.cli.arguments import argument_error
from catmq_client.errors import OptionError

TABLES = ("pretty", "table")
MESSAGE_FIELDS = [
    "topic",
    "queue",
    "offset",
    "message_id",
    "key",
    "tag",
    "headers",
    "body",
    "stored_at_ms",
    "attempt",
    "deliveries",
]
# A part of a FORMAT: a doubled brace, an escape, a field in braces, or other text.
PART = re.compile(r"\{\{|\}\}|\\[tn\\]|\{([^{}]*)\}|[^{}\\]+|.", re.DOTALL)
ESCAPED = {"{{": "{", "}}": "}", r"\t": "\t", r"\n": "\n", r"\\": "\\", "\\": "\\"}
NAME = re.compile(r"[A-Za-z_]\w*(\.[^.{}]+)*")
# Control characters, and halves of surrogate pairs, which JSON can write and UTF-8 cannot.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Printed before a body that is nested too deep to read its fields.
TOO_DEEP = b"[JSON too deep] "


class Format:
    r"""A line for each row: text with fields of the row in braces.

    Raises ArgumentTypeError.

    >>> Format(r"{key}\t{headers.trace}").line({"key": "k", "headers": {"trace": 7}})
    b'k\t7\n'
    >>> Format("{{{tags}}} {gone}").line({"tags": ["a"], "gone": None})
    b'{["a"]} \n'
    """

    def __init__(self, text: str, fields: Collection[str] = ()) -> None:
        self._fields = fields
        # (text, "") or ("", path of a field)
        self._parts: list[tuple[str, str]] = []
        for match in PART.finditer(text):
            if match[1] is None and match[0] in "{}":
                raise argument_error(
                    f"{text!r}: a brace without its other one; write {{{{ or }}}} for a "
                    "brace itself"
                )
            if match[1] is not None and not NAME.fullmatch(match[1]):
                raise argument_error(
                    f"{text!r}: {match[0]} is no field; give its name, such as {{name}}"
                )
            self._parts.append(
                (ESCAPED.get(match[0], match[0]), "")
                if match[1] is None
                else ("", match[1])
            )
        for _, path in self._parts:
            if fields and path and path.partition(".")[0] not in fields:
                raise argument_error(
                    f"{text!r}: {{{path}}} is no field; there are {', '.join(fields)}"
                )

    def line(self, row: Mapping[str, Any], body: bytes | None = None) -> bytes:
        """Return the line of a row; `body` is that of a message.

        Raises OptionError for an unknown field.
        """
        return (
            b"".join(self._format_part(text, path, row, body) for text, path in self._parts)
            + b"\n"
        )

    def _format_part(
        self, text: str, path: str, row: Mapping[str, Any], body: bytes | None
    ) -> bytes:
        """Return a part of the line: text, or the value of a field."""
        if not path:
            return text.encode()
        name, _, inner_path = path.partition(".")
        # The bytes of a body are printed unchanged, whether they are text or not.
        if name == "body" and body is not None:
            return body_field(body, inner_path) if inner_path else body
        if name not in row and not self._fields:
            raise OptionError(
                f"--output: {{{name}}} is no field; there are {', '.join(row)}"
            )
        return format_value(value_at(row.get(name), inner_path))


def body_field(body: bytes, path: str) -> bytes:
    """Return a field of a JSON body, nothing if the body is not JSON.

    A body that is nested too deep is returned whole, after a mark.
    """
    try:
        return format_value(value_at(json.loads(body), path))
    except ValueError:
        return b""
    except RecursionError:
        return TOO_DEEP + body


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path of names inside of a value, None if there is none.

    >>> value_at({"a": {"b": 1}}, "a.b"), value_at({"a": 1}, "a.b"), value_at(7, "")
    (1, None, 7)
    """
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


def format_value(value: Any) -> bytes:
    """Return a value in a FORMAT: text unchanged, nothing for null, else JSON."""
    if value is None:
        return b""
    if isinstance(value, str):
        return encode_text(value)
    return json_bytes(value)


def encode_text(text: str) -> bytes:
    r"""Return text in UTF-8, with half of a surrogate pair as its escape.

    >>> encode_text("a\ud83d")
    b'a\\ud83d'
    """
    return text.encode(errors="backslashreplace")


def json_bytes(value: Any) -> bytes:
    r"""Return a value as compact JSON in UTF-8.

    Half of a surrogate pair cannot be encoded. A value that contains such a half is written
    with escapes.

    >>> json_bytes({"a": "\ud83d"})
    b'{"a":"\\ud83d"}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


Form = str | Format  # pretty, table, json, body or none; or a FORMAT


def is_table(form: Form) -> bool:
    """Return True for a form that is for people, not for programs."""
    return form in TABLES


def escape_control(text: str) -> str:
    r"""Return text with control characters escaped, so that it cannot control the terminal.

    >>> escape_control("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
STATES: dict[str, tuple[str, ...]] = {
    "green": ("ready", "read_write", "in", "running", "done", "ok"),
    "yellow": ("creating", "read_only", "draining", "out", "stopped", "deleting"),
    "red": ("offline", "failed", "deleted", "retired", "cancelled"),
}
COLOUR_OF_STATE: dict[str, str] = {
    state: colour for colour, states in STATES.items() for state in states
}


def shows_colours(stream: TextIO) -> bool:
    """Return True for a terminal that shows colours, unless NO_COLOR is set.

    See https://no-color.org.
    """
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


class Paint:
    """Colours of a table, or none."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def text(self, text: str, colour: str) -> str:
        """Return text in a colour."""
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self._on and text else text

    def value(self, heading: str, text: str) -> str:
        """Return the text of a cell: states in their colour, keys highlighted."""
        if heading.upper() == "STATE":
            colour = COLOUR_OF_STATE.get(text.strip())
            return self.text(text, colour) if colour else text
        return self.text(text, "cyan") if heading == "KEY" and text.strip() != "-" else text


PLAIN = Paint(on=False)


def paint(form: Form, stream: TextIO) -> Paint:
    """Return the colours of a form on a stream."""
    return Paint(on=form == "pretty" and shows_colours(stream))
