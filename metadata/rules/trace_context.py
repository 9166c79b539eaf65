"""W3C trace context: the headers `traceparent` and `tracestate` of requests and messages.

The rules are those of https://www.w3.org/TR/trace-context/ (level 1 and 2). The client has
the same rules in catmq_client.trace_context; a test compares both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# version "-" trace id "-" parent id "-" flags; later versions may append fields.
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<parent_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01


class TraceContext(NamedTuple):
    """The trace of a request or a message, and the span that it comes from."""

    trace_id: str  # 32 hexadecimal digits
    parent_id: str  # 16 hexadecimal digits
    sampled: bool


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
