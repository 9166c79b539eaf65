"""Forms of output: the words of `--output`, a FORMAT such as '{key} {body}', and colour on
a terminal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, TextIO

from catmq_client.cli.arguments import wrong
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
PART = re.compile(r"\{\{|\}\}|\\[tn\\]|\{([^{}]*)\}|[^{}\\]+|.", re.DOTALL)
ESCAPED = {"{{": "{", "}}": "}", r"\t": "\t", r"\n": "\n", r"\\": "\\", "\\": "\\"}
NAME = re.compile(r"[A-Za-z_]\w*(\.[^.{}]+)*")
# Control characters, and halves of surrogate pairs, which JSON can write and UTF-8 cannot.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
TOO_DEEP = b"[JSON too deep] "  # printed before a body whose fields cannot be read


class Format:
    r"""A line for each row: text with fields of the row in braces. Raises
    ArgumentTypeError.

    >>> Format(r"{key}\t{headers.trace}").line({"key": "k", "headers": {"trace": 7}})
    b'k\t7\n'
    >>> Format("{{{tags}}} {gone}").line({"tags": ["a"], "gone": None})
    b'{["a"]} \n'
    """

    def __init__(self, text: str, known: Collection[str] = ()) -> None:
        self._known = known
        self._parts: list[tuple[str, str]] = []  # (text, "") or ("", path of a field)
        for found in PART.finditer(text):
            if found[1] is None and found[0] in "{}":
                raise wrong(
                    f"{text!r}: a brace without its other one; write {{{{ or }}}} for a "
                    "brace itself"
                )
            if found[1] is not None and not NAME.fullmatch(found[1]):
                raise wrong(
                    f"{text!r}: {found[0]} is no field; give its name, such as {{name}}"
                )
            self._parts.append(
                (ESCAPED.get(found[0], found[0]), "")
                if found[1] is None
                else ("", found[1])
            )
        for path in self._paths():
            if known and path.partition(".")[0] not in known:
                raise wrong(
                    f"{text!r}: {{{path}}} is no field; there are {', '.join(known)}"
                )

    def line(self, row: Mapping[str, Any], body: bytes | None = None) -> bytes:
        """Return the line of a row; `body` is that of a message. Raises OptionError for an
        unknown field.
        """
        return (
            b"".join(self._shown(text, path, row, body) for text, path in self._parts)
            + b"\n"
        )

    def _paths(self) -> list[str]:
        return [path for _, path in self._parts if path]

    def _shown(
        self, text: str, path: str, row: Mapping[str, Any], body: bytes | None
    ) -> bytes:
        if not path:
            return text.encode()
        first, _, inner = path.partition(".")
        if first == "body" and body is not None:
            return field_of(body, inner) if inner else body
        if first not in row and not self._known:
            raise OptionError(
                f"--output: {{{first}}} is no field; there are {', '.join(row)}"
            )
        return shown(member(row.get(first), inner))


def field_of(body: bytes, path: str) -> bytes:
    """Return a field of a JSON body, nothing of another; of one too deep the whole with a
    mark.
    """
    try:
        return shown(member(json.loads(body), path))
    except ValueError:
        return b""
    except RecursionError:
        return TOO_DEEP + body


def member(value: Any, path: str) -> Any:
    """Return what a path of names leads to inside of a value, None if there is nothing.

    >>> member({"a": {"b": 1}}, "a.b"), member({"a": 1}, "a.b"), member(7, "")
    (1, None, 7)
    """
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


def shown(value: Any) -> bytes:
    """Return a value in a FORMAT: text as it is, nothing for null, else JSON."""
    if value is None:
        return b""
    if isinstance(value, str):
        return in_utf8(value)
    return json_bytes(value)


def in_utf8(text: str) -> bytes:
    r"""Return text in UTF-8; half of a surrogate pair as its escape.

    >>> in_utf8("a\ud83d")
    b'a\\ud83d'
    """
    return text.encode(errors="backslashreplace")


def json_bytes(value: Any) -> bytes:
    r"""Return a value as compact JSON in UTF-8; with escapes if it has half of a surrogate
    pair.

    >>> json_bytes({"a": "\ud83d"})
    b'{"a":"\\ud83d"}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


Form = str | Format  # pretty, table, json, body or none; or a FORMAT


def is_table(form: Form) -> bool:
    """Return True for a form that is for people, not programs."""
    return form in TABLES


def printable(text: str) -> str:
    r"""Return text with its control characters escaped: a message must not steer the
    terminal.

    >>> printable("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
STATES = {
    "green": ("ready", "read_write", "in", "running", "done", "ok"),
    "yellow": ("creating", "read_only", "draining", "out", "stopped", "deleting"),
    "red": ("offline", "failed", "deleted", "retired", "cancelled"),
}
OF_STATE = {state: colour for colour, states in STATES.items() for state in states}


def coloured(stream: TextIO) -> bool:
    """Return True for a terminal that shows colours and whose user wants them
    (https://no-color.org).
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
        """Return the text of a cell: states in the colour that they have, keys stand out."""
        if heading.upper() == "STATE":
            colour = OF_STATE.get(text.strip())
            return self.text(text, colour) if colour else text
        return self.text(text, "cyan") if heading == "KEY" and text.strip() != "-" else text


PLAIN = Paint(on=False)


def paint(form: Form, stream: TextIO) -> Paint:
    """Return the colours of a form on a stream."""
    return Paint(on=form == "pretty" and coloured(stream))
