"""Messages of kombu as they are stored, and back."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kombu.utils import json

from catmq_client.errors import OptionError
from catmq_client.message import Message

# The longest delay of a broker; a task with a later eta is delayed again when it arrives.
MOST_DELAY = timedelta(days=366)
# A task that is due so soon is not delayed.
AT_ONCE = timedelta(seconds=1)
AGAIN = "catmq-again"
MOST_CHARACTERS = 100
# Those of AMQP, and of kombu.
PROPERTIES = frozenset(
    (
        "app_id",
        "body_encoding",
        "cluster_id",
        "correlation_id",
        "delivery_info",
        "delivery_mode",
        "delivery_tag",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
        AGAIN,
    )
)

# Celery and kombu walk through headers recursively. Bodies are text here, whatever their
# depth.
MAX_DEPTH = 100
# A time limit beyond what timers can hold ends Celery's event loop.
MAX_TIME_LIMIT_S = 10**9

Payload = dict[str, Any]
_Types = tuple[type, ...]

# Values that JSON has: fields of a message must have these types, if they are there.
_TEXT: _Types = (str, type(None))
_PAYLOAD_TYPES: Mapping[str, _Types] = {
    "body": _TEXT,
    "content-type": _TEXT,
    "content-encoding": _TEXT,
    "properties": (dict,),
    "headers": (dict, type(None)),
}
# Headers of Celery's task messages, protocol 2. Its worker ends at some values of another
# type.
_TASK_TYPES: Mapping[str, _Types] = {
    **dict.fromkeys(("task", "id"), (str,)),
    **dict.fromkeys(("lang", "root_id", "parent_id", "group", "meth", "shadow"), _TEXT),
    **dict.fromkeys(
        ("eta", "expires", "argsrepr", "kwargsrepr", "origin", "compression"), _TEXT
    ),
    **dict.fromkeys(("retries", "replaced_task_nesting"), (int, type(None))),
    "timelimit": (list, type(None)),
    "stamped_headers": (list, type(None)),
    "stamps": (dict, type(None)),
}


class WrongMessage(ValueError):
    """The body of a message is not one that this transport writes."""


def encoded(payload: Payload) -> bytes:
    """Return the JSON of a message, with times and numbers as kombu writes them.

    Properties that AMQP does not have are left out, as there. Raises OptionError naming
    what is no JSON.
    """
    properties = payload.get("properties") or {}
    kept = {name: value for name, value in properties.items() if name in PROPERTIES}
    message = {**payload, "properties": kept}
    try:
        try:
            # Text stays readable and searchable.
            return _json_of(message, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair has no UTF-8; as an escape it arrives as it was.
            return _json_of(message, ensure_ascii=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"headers and properties of a message are JSON: {error}"
        ) from error


def _json_of(message: Payload, *, ensure_ascii: bool) -> str:
    text: str = json.dumps(message, separators=(",", ":"), ensure_ascii=ensure_ascii)
    return text


def decoded(body: bytes) -> Payload:
    """Return a message. Raises WrongMessage unless it has the shape that this transport
    writes.

    Anybody with the right to produce may have written the body. What passes here does not
    raise in kombu, and Celery's worker reports it as an invalid task at worst.
    """
    try:
        payload = json.loads(body)
    # decoders that applications register with kombu may raise anything
    except Exception as error:
        raise WrongMessage(f"it is no JSON of kombu: {error!r}") from error
    if not isinstance(payload, dict) or "properties" not in payload:
        raise WrongMessage("it has no properties")
    _check_types(payload, _PAYLOAD_TYPES, "")
    payload["headers"] = payload.get("headers") or {}
    # Celery's report of an unknown message counts its characters.
    payload["body"] = payload.get("body") or ""
    _check_depth((payload["headers"], payload["properties"]))
    _check_properties(payload["properties"], payload["body"])
    if "task" in payload["headers"]:
        _check_types(payload["headers"], _TASK_TYPES, "header ")
        _check_time_limits(payload["headers"].get("timelimit"))
    return payload


def _check_types(values: Mapping[str, Any], types: Mapping[str, _Types], kind: str) -> None:
    for name, allowed in types.items():
        if name in values and not isinstance(values[name], allowed):
            raise WrongMessage(f"{kind}{name} is a {type(values[name]).__name__}")


def _check_depth(value: Any) -> None:
    """Raise WrongMessage for containers that are nested deeper than MAX_DEPTH."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise WrongMessage(f"its headers are nested deeper than {MAX_DEPTH}")
        level = [child for container in level for child in _children(container)]
        depth += 1


def _children(container: Any) -> Iterator[Any]:
    values = container.values() if isinstance(container, dict) else container
    return (value for value in values if isinstance(value, dict | list | tuple))


def _check_properties(properties: Payload, body: str) -> None:
    info = properties.setdefault("delivery_info", {})
    if not isinstance(info, dict):
        raise WrongMessage(f"delivery_info is a {type(info).__name__}")
    _check_types(info, {"exchange": _TEXT, "routing_key": _TEXT}, "delivery_info ")
    for name, value in (*properties.items(), *info.items()):
        # kombu and Celery use these as keys of dicts.
        if name != "delivery_info" and isinstance(value, dict | list):
            raise WrongMessage(f"property {name} is a {type(value).__name__}")
    encoding = properties.get("body_encoding")
    if encoding == "base64":
        try:
            base64.b64decode(body)
        except ValueError as error:
            raise WrongMessage(f"its body is no Base64: {error}") from error
    elif encoding not in (None, "", "utf-8"):
        raise WrongMessage(f"the encoding of its body is {encoding!r}")


def _check_time_limits(limits: Any) -> None:
    if limits and (len(limits) != 2 or not all(_is_time_limit(limit) for limit in limits)):
        raise WrongMessage("header timelimit is not a pair of numbers")


def _is_time_limit(limit: Any) -> bool:
    return limit is None or (
        isinstance(limit, int | float) and 0 <= limit <= MAX_TIME_LIMIT_S
    )


def labels(payload: Payload) -> dict[str, Any]:
    """Return the name of the task as tag and its id as trace id, by which the message is
    searched.
    """
    headers = payload.get("headers") or {}
    values = {"tag": headers.get("task"), "trace_id": headers.get("id")}
    return {
        # Brokers take only text that has an UTF-8 form.
        name: value[:MOST_CHARACTERS].encode(errors="replace").decode()
        for name, value in values.items()
        if isinstance(value, str) and value
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
    """Return until when a message counts, ms since 1970; None: for ever. `expiration` is
    text, ms.
    """
    lasts = payload["properties"].get("expiration")
    try:
        return None if lasts is None else stored_at_ms + int(float(lasts))
    except (TypeError, ValueError, OverflowError):
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
    except (TypeError, ValueError, OverflowError):
        return 0
