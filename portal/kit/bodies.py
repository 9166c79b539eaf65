"""Message bodies as text for a page: indented JSON, other text as it is, binary data in
hexadecimal.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass

# Longer bodies are cut, so that a message cannot make a page of many megabytes.
SHOWN_BYTES = 64 * 1024
# A hex dump is five times as long as its data.
HEX_BYTES = 4 * 1024
# Deeper JSON is shown as it is: json.loads would exhaust Python's stack.
MAX_JSON_DEPTH = 200
PREVIEW_CHARS = 120
# A diff of longer texts takes seconds.
MAX_DIFF_LINES = 2_000


@dataclass(frozen=True, slots=True)
class Body:
    """A body as text. `kind` is json, text, bytes or empty. `cut`: only its beginning
    is shown.
    """

    kind: str
    text: str
    size: int
    cut: bool


def render_body(body: bytes) -> Body:
    """Return a body as text that is safe to show, whatever bytes it contains."""
    if not body:
        return Body("empty", "", 0, False)
    # A cut body is no valid JSON, so it is not indented.
    cut = len(body) > SHOWN_BYTES
    if cut:
        return Body(*_decode(body[:SHOWN_BYTES]), len(body), True)
    pretty = _indent_json(body)
    if pretty is not None:
        return Body("json", pretty, len(body), False)
    kind, text = _decode(body)
    return Body(kind, text, len(body), kind == "bytes" and len(body) > HEX_BYTES)


def _indent_json(body: bytes) -> str | None:
    """Return the body as indented JSON.

    Return None if it is not JSON, is nested too deeply, or has half a surrogate pair, which
    no page can encode.
    """
    if body[:1] not in b'{["0123456789-tfn \n\r\t' or _bracket_depth(body) > MAX_JSON_DEPTH:
        return None
    try:
        pretty = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        pretty.encode()
        return pretty
    except (ValueError, RecursionError):
        return None


def _bracket_depth(body: bytes) -> int:
    """Return the largest number of brackets open at once. Brackets within strings
    count, too.
    """
    # Counted without recursion, because this decides whether recursion is safe.
    depth = max_depth = 0
    for byte in body:
        if byte in b"[{":
            depth += 1
            max_depth = max(max_depth, depth)
        elif byte in b"]}":
            depth -= 1
    return max_depth


def _decode(body: bytes) -> tuple[str, str]:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.end < len(body) - 4 or error.start == 0:
            return "bytes", _hex_dump(body[:HEX_BYTES])
        # The body was cut within its last character.
        text = body[: error.start].decode()
    return "text", text.replace("\0", "␀")


def _hex_dump(body: bytes) -> str:
    """Return a hex dump: sixteen bytes a line, printable characters at its end."""
    lines = []
    for first in range(0, len(body), 16):
        chunk = body[first : first + 16]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in chunk)
        lines.append(f"{first:06x}  {chunk.hex(' '):<47}  {printable}")
    return "\n".join(lines)


def preview_line(body: bytes) -> str:
    """Return the beginning of a body in a single line."""
    text = body[: 4 * PREVIEW_CHARS].decode(errors="replace").replace("\0", "␀")
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARS else f"{line[:PREVIEW_CHARS]} …"


def diff_lines(before: str, after: str) -> list[tuple[str, str]]:
    """Return (sign, line) of a unified diff: '-' for removed, '+' for added, ' ' for
    context lines.
    """
    old_lines, new_lines = (
        before.splitlines()[:MAX_DIFF_LINES],
        after.splitlines()[:MAX_DIFF_LINES],
    )
    diff: Sequence[str] = list(difflib.unified_diff(old_lines, new_lines, lineterm="", n=3))
    return [
        (line[:1], line[1:]) for line in diff if not line.startswith(("---", "+++", "@@"))
    ]
