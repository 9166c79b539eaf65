"""TLS to nodes, as a plan or a URL gives it; as in metadata/rules/tls.py, which jobs do not have."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

CLIENT_SSL = 0x800  # the server's greeting has this bit if it offers TLS


def of_query(query: str, default: tuple[str, str]) -> tuple[str, str]:
    """Return mode and CA file of a URL, those of the plan if it has none. Raises ValueError."""
    if not query:
        return default
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    mode, ca = given.pop("tls", ""), given.pop("ca", "")
    is_path = ca.startswith("/") and mode == "verify"
    if given or len(pairs) > 2 or mode not in ("off", "on", "verify") or (ca and not is_path):
        raise ValueError(
            "must end with ?tls=off, ?tls=on, ?tls=verify or ?tls=verify&ca=/path, or without it"
        )
    return mode, ca


def arguments(mode: str, ca: str) -> dict[str, Any]:
    """Return the arguments with which mysqlclient connects so; ask `is_plain` afterwards."""
    if mode == "verify":
        return {"ssl_mode": "VERIFY_IDENTITY", **({"ssl": {"ca": ca}} if ca else {})}
    return {"ssl_mode": "REQUIRED"} if mode == "on" else {}


def is_plain(mode: str, capabilities: int) -> bool:
    """Return True if a connection is not encrypted although its mode asks for it."""
    return mode in ("on", "verify") and not capabilities & CLIENT_SSL
