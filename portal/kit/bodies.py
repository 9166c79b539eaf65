"""Bodies of messages as a page shows them: JSON with indents, other text as it is, bytes in
hexadecimal.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN_BYTES = 64 * 1024
HEX_BYTES = 4 * 1024
MAX_JSON_DEPTH = 200  # levels of JSON; deeper ones are shown as they are
PREVIEW_CHARS = 120
MAX_DIFF_LINES = 2_000  # lines


@dataclass(frozen=True, slots=True)
class Body:
    """A body: `kind` is json, text, bytes or empty; `cut`: only its beginning is shown."""

    kind: str
    text: str
    size: int
    cut: bool


def render_body(body: bytes) -> Body:
    """A body for a page; whatever it holds, it is shown and does no harm."""
    if not body:
        return Body("empty", "", 0, False)
    cut = len(body) > SHOWN_BYTES
    if cut:
        return Body(*_plain(body[:SHOWN_BYTES]), len(body), True)
    pretty = _pretty(body)
    if pretty is not None:
        return Body("json", pretty, len(body), False)
    kind, text = _plain(body)
    return Body(kind, text, len(body), kind == "bytes" and len(body) > HEX_BYTES)


def _pretty(body: bytes) -> str | None:
    """The body as JSON with indents; None if it is none, too deep to be indented, or says
    half a character (`"\\ud800"`), which no page can hold."""
    if body[:1] not in b'{["0123456789-tfn \n\r\t' or _depth(body) > MAX_JSON_DEPTH:
        return None
    try:
        pretty = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        pretty.encode()
        return pretty
    except (ValueError, RecursionError):
        return None


def _depth(body: bytes) -> int:
    """The most brackets open at once, counted without recursion; those within texts count
    too.
    """
    depth = most = 0
    for one in body:
        if one in b"[{":
            depth += 1
            most = max(most, depth)
        elif one in b"]}":
            depth -= 1
    return most


def _plain(body: bytes) -> tuple[str, str]:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.end < len(body) - 4 or error.start == 0:
            return "bytes", _hex(body[:HEX_BYTES])
        text = body[: error.start].decode()  # the cut went through a character
    return "text", text.replace("\0", "␀")


def _hex(body: bytes) -> str:
    """Sixteen bytes a line, with what can be printed beside them."""
    lines = []
    for first in range(0, len(body), 16):
        part = body[first : first + 16]
        seen = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{first:06x}  {part.hex(' '):<47}  {seen}")
    return "\n".join(lines)


def preview_line(body: bytes) -> str:
    """The beginning of a body, in one line."""
    text = body[: 4 * PREVIEW_CHARS].decode(errors="replace").replace("\0", "␀")
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARS else f"{line[:PREVIEW_CHARS]} …"


def diff_lines(before: str, after: str) -> list[tuple[str, str]]:
    """(sign, line): what was cut (-), what was added (+), and the lines around."""
    old, new = before.splitlines()[:MAX_DIFF_LINES], after.splitlines()[:MAX_DIFF_LINES]
    found: Sequence[str] = list(difflib.unified_diff(old, new, lineterm="", n=3))
    return [
        (line[:1], line[1:]) for line in found if not line.startswith(("---", "+++", "@@"))
    ]
