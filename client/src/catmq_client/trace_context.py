"""W3C trace context of a message: its headers `traceparent` and `tracestate`.

The rules are those of https://www.w3.org/TR/trace-context/ (levels 1 and 2). A header that
breaks them is ignored, as they demand: the message has no trace context then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# version "-" trace id "-" parent id "-" flags; later versions may append fields.
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<parent_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
_SIMPLE_KEY = r"[a-z][a-z0-9_\-*/]{0,255}"
_TENANT_KEY = r"[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
# A value has printable ASCII without comma and equals sign, and does not end in a space.
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"({_SIMPLE_KEY}|{_TENANT_KEY})=({_VALUE})")
MAX_MEMBERS = 32


class TraceContext(NamedTuple):
    """The trace of a message, and the span that sent it.

    `state` is the header `tracestate`, "" without a valid one.
    """

    trace_id: str  # 32 hexadecimal digits
    parent_id: str  # 16 hexadecimal digits
    sampled: bool
    state: str = ""


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Return the trace context of a header, None without one or if it breaks the rules.

    >>> parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").sampled
    True
    >>> parse_traceparent("00-00000000000000000000000000000000-b7ad6b7169203331-01")
    """
    match = _TRACEPARENT.fullmatch(text) if text else None
    if match is None or match["version"] == "ff":
        return None
    # Version 00 has exactly these fields. Of a later one, only these are understood.
    if match["version"] == "00" and match["more"] is not None:
        return None
    if set(match["trace_id"]) == {"0"} or set(match["parent_id"]) == {"0"}:
        return None
    sampled = bool(int(match["flags"], 16) & _SAMPLED)
    return TraceContext(match["trace_id"], match["parent_id"], sampled)


def parse_tracestate(text: str | None) -> str:
    """Return a valid `tracestate` in its canonical form, "" for any other.

    A single member that breaks the rules makes the whole header invalid.

    >>> parse_tracestate("a=1 , b@c=2,,"), parse_tracestate("a=1,a=2")
    ('a=1,b@c=2', '')
    """
    # Empty members and white space around a member are allowed.
    members = [member.strip(" \t") for member in (text or "").split(",")]
    matches = [_MEMBER.fullmatch(member) for member in members if member]
    keys = {match[1] for match in matches if match is not None}
    if len(matches) > MAX_MEMBERS or len(keys) < len(matches):
        return ""
    return ",".join(match[0] for match in matches if match is not None)


def read_trace_context(headers: Mapping[str, str] | None) -> TraceContext | None:
    """Return the trace context of a message's headers, None without a valid one."""
    context = parse_traceparent(headers.get(TRACEPARENT)) if headers else None
    if context is None or headers is None:
        # Without a valid traceparent, tracestate means nothing.
        return None
    return context._replace(state=parse_tracestate(headers.get(TRACESTATE)))


def find_trace_id(headers: Mapping[str, str] | None) -> str | None:
    """Return the trace id of a message's headers, with which it is found in CatMQ."""
    context = parse_traceparent(headers.get(TRACEPARENT)) if headers else None
    return None if context is None else context.trace_id
