"""SQL statements, read from `sql/<engine>.sql` and known by name.

A file is a list of sections `-- name: <name>`; a section holds one or more statements
separated by `;`. Values are written `:name`, holes for identifiers and row lists `{name}`.
Only
`tables`
imports this module, so every statement that reaches a node is in these files and run on one
page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DIRECTORY = Path(__file__).with_name("sql")
_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_TOKEN = re.compile(r"(?<![:\w]):([a-z_]+)|\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement, cut at its values and holes.

    `pieces` alternates text with names; `values[i]` says whether the i-th name is a value
    (escaped) or a hole (put in as it is). `count`: how many statements the section holds,
    each of which the server must answer.
    """

    name: str
    text: str
    pieces: tuple[bytes, ...]
    names: tuple[str, ...]
    values: tuple[bool, ...]
    count: int

    def render(
        self, parameters: Mapping[str, object], literal: Callable[[object], bytes]
    ) -> bytes:
        """The statement as bytes to send, every value turned into a literal by the
        connection.

        Raises KeyError for a name that is not given.
        """
        out = [self.pieces[0]]
        for index, name in enumerate(self.names):
            given = parameters[name]
            if self.values[index]:
                out.append(literal(given))
            else:
                out.append(given if isinstance(given, bytes) else str(given).encode())
            out.append(self.pieces[index + 1])
        return b"".join(out)

    def single(self, parameters: Mapping[str, object]) -> list[str]:
        """The section's statements one by one, holes filled, values left as `:name` for the
        driver.
        """
        text = _TOKEN.sub(
            lambda token: str(parameters[token[2]]) if token[2] else token[0], self.text
        )
        return [
            statement
            for statement in (part.strip() for part in text.split(";"))
            if statement
        ]


def parse(text: str) -> dict[str, Statement]:
    """The statements of a file's text, by name.

    >>> parse("-- name: head\\nSELECT head FROM {table} WHERE queue_id = :queue")["head"].names
    ('table', 'queue')
    """
    parts = _SECTION.split(text)
    return {
        name: _cut(name, body) for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def _cut(name: str, body: str) -> Statement:
    text = _COMMENT.sub("", body).strip().rstrip(";")
    pieces, names, values, at = [], [], [], 0
    for token in _TOKEN.finditer(text):
        pieces.append(text[at : token.start()].encode())
        names.append(token[1] or token[2])
        values.append(token[1] is not None)
        at = token.end()
    pieces.append(text[at:].encode())
    count = len([part for part in text.split(";") if part.strip()])
    return Statement(name, text, tuple(pieces), tuple(names), tuple(values), count)


@cache
def load(engine: str) -> dict[str, Statement]:
    """All statements of an engine (`mysql` or `sqlite`), by name."""
    return parse((_DIRECTORY / f"{engine}.sql").read_text("utf-8"))
