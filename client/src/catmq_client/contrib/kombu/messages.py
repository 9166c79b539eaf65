"""Messages of kombu as they are stored, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from catmq_client.errors import OptionError
from catmq_client.message import Message

# The longest delay of a broker; a task with a later eta is delayed again when it arrives.
MOST_DELAY = timedelta(days=366)
# A task that is due so soon is not delayed.
AT_ONCE = timedelta(seconds=1)
AGAIN = "catmq-again"
MOST_CHARACTERS = 100

Payload = dict[str, Any]


def encoded(payload: Payload) -> bytes:
    """Return the JSON of a message. Raises OptionError naming what is no JSON."""
    try:
        return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise OptionError(f"headers and properties of a message are JSON: {error}") from error


def decoded(body: bytes) -> Payload:
    """Return a message. Raises ValueError unless this transport wrote it."""
    payload = json.loads(body)
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        raise ValueError("it has no properties")
    payload["properties"].setdefault("delivery_info", {})
    payload.setdefault("headers", {})
    return payload


def labels(payload: Payload) -> dict[str, Any]:
    """Return by what a message is found: the name of its task as tag, its id as trace id."""
    headers = payload.get("headers") or {}
    found = {"tag": headers.get("task"), "trace_id": headers.get("id")}
    return {
        name: value[:MOST_CHARACTERS] for name, value in found.items() if isinstance(value, str) and value
    }


def eta(payload: Payload, now: datetime) -> datetime | None:
    """Return when a task is due, if that is later than at once."""
    text = (payload.get("headers") or {}).get("eta")
    if not isinstance(text, str):
        return None
    try:
        due = datetime.fromisoformat(text)
    except ValueError:
        return None
    due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
    return due if due > now + AT_ONCE else None


def delay(payload: Payload, now: datetime) -> dict[str, Any]:
    """Return the arguments of a send that delay a task until its eta, {} if it is due."""
    payload["properties"].pop(AGAIN, None)
    due = eta(payload, now)
    if due is None:
        return {}
    if due - now < MOST_DELAY - timedelta(minutes=10):  # clocks differ
        return {"deliver_at": due}
    payload["properties"][AGAIN] = True
    return {"delay_ms": MOST_DELAY // timedelta(milliseconds=1)}


def expires_at_ms(payload: Payload, stored_at_ms: int) -> int | None:
    """Return until when a message counts, ms since 1970; None: for ever. `expiration` is text, ms."""
    lasts = payload["properties"].get("expiration")
    try:
        return None if lasts is None else stored_at_ms + int(float(lasts))
    except (TypeError, ValueError):
        return None


def is_expired(payload: Payload, stored_at_ms: int, now: datetime) -> bool:
    """Return True if a message is too old to be delivered."""
    until_ms = expires_at_ms(payload, stored_at_ms)
    return until_ms is not None and now.timestamp() * 1000 >= until_ms


def arrived(message: Message, payload: Payload, *, tag: str, redelivered: bool) -> Payload:
    """Return a message as a channel delivers it: under a delivery tag of its own."""
    properties = payload["properties"]
    properties["delivery_tag"] = tag
    properties["delivery_info"]["redelivered"] = redelivered
    properties["delivery_info"]["message_id"] = message.message_id
    return payload


def priority(payload: Mapping[str, Any]) -> int:
    """Return the priority of a message, 0 if it has none."""
    try:
        return int(payload["properties"].get("priority") or 0)
    except (TypeError, ValueError):
        return 0
