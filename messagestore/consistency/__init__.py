"""Does metadata agree with the nodes? Looked at as a whole, with mends for what can be mended safely.

`verify` looks at the messages of topics; this at tables, heads, positions and members. Nothing is ever
deleted that may hold messages: what was lost, or may hold something, is named with what to do by hand.
"""

from messagestore.consistency.findings import KINDS, Finding
from messagestore.consistency.looking import Report, check, watch
from messagestore.consistency.repairs import repair

__all__ = ["KINDS", "Finding", "Report", "check", "repair", "watch"]
