"""SQL statements by name, read from `sql/<engine>.sql`.

A file is a list of sections `-- name: <name>`; a section holds one or more statements
separated by `;`. Values are written `:name`, placeholders for identifiers and row lists
`{name}`. Only the package `tables` imports this module, so these files hold every statement
that reaches a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from messagestore.engine.transaction_strings import Rendered
from metadata.rules.nodes import Engine

_DIRECTORY = Path(__file__).with_name("sql")
_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_TOKEN = re.compile(r"(?<![:\w]):([a-z_]+)|\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class _Part:
    """A single statement, split at its values and placeholders.

    `pieces` are the texts between the `names`. `values[i]` is True if the i-th name is a
    value (escaped), False if it is a placeholder (inserted as it is).
    """

    pieces: tuple[bytes, ...]
    names: tuple[str, ...]
    values: tuple[bool, ...]
    has_rows: bool

    def render(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> bytes:
        parts = [self.pieces[0]]
        for index, name in enumerate(self.names):
            value = parameters[name]
            if self.values[index]:
                parts.append(literal(value))
            else:
                parts.append(value if isinstance(value, bytes) else str(value).encode())
            parts.append(self.pieces[index + 1])
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named section: its text, and its single statements. The server answers each."""

    name: str
    text: str
    parts: tuple[_Part, ...]

    @property
    def count(self) -> int:
        return len(self.parts)

    def render(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> bytes:
        """Return the section as bytes to send, with values turned into literals by
        `literal`.

        Raises KeyError for a name without a parameter.
        """
        return b";".join([part.render(parameters, literal) for part in self.parts])

    def render_each(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> list[Rendered]:
        """Return the single statements as `render` does."""
        return [
            Rendered(part.render(parameters, literal), part.has_rows) for part in self.parts
        ]

    def single(self, parameters: Mapping[str, object]) -> list[str]:
        """Return the single statements: placeholders filled, values left as `:name`."""
        # SQLite's driver binds `:name` itself, and runs a single statement per call.
        text = _TOKEN.sub(
            lambda token: str(parameters[token[2]]) if token[2] else token[0], self.text
        )
        return [part.strip() for part in text.split(";") if part.strip()]


def parse(text: str) -> dict[str, Statement]:
    """Return the statements of a file's text, by name.

    >>> section = parse("-- name: head\\nSELECT head FROM {table} WHERE queue_id = :queue")["head"]
    >>> section.parts[0].names
    ('table', 'queue')
    """
    sections = _SECTION.split(text)
    return {
        name: _parse_statement(name, body)
        for name, body in zip(sections[1::2], sections[2::2], strict=True)
    }


def _parse_statement(name: str, body: str) -> Statement:
    text = _COMMENT.sub("", body).strip().rstrip(";")
    singles = [part.strip() for part in text.split(";")]
    return Statement(name, text, tuple(_parse_part(part) for part in singles if part))


def _parse_part(text: str) -> _Part:
    pieces, names, values, position = [], [], [], 0
    for token in _TOKEN.finditer(text):
        pieces.append(text[position : token.start()].encode())
        names.append(token[1] or token[2])
        values.append(token[1] is not None)
        position = token.end()
    pieces.append(text[position:].encode())
    return _Part(
        tuple(pieces), tuple(names), tuple(values), text.startswith(("SELECT", "SHOW"))
    )


@cache
def load(engine: Engine) -> dict[str, Statement]:
    """Return all statements of an engine, by name."""
    return parse((_DIRECTORY / f"{engine}.sql").read_text("utf-8"))
