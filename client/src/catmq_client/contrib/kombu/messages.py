"""Encoding and decoding of kombu's messages, and the checks of stored messages."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from kombu.utils import json

from catmq_client.errors import OptionError
from catmq_client.message import Message

# The longest delay of a broker. A task with a later eta is delayed again when it is delivered.
MAX_DELAY = timedelta(days=366)
# A task that is due within this time is not delayed.
AT_ONCE = timedelta(seconds=1)
# Property of a message that has to be delayed again.
DELAY_AGAIN = "catmq-again"
MAX_CHARACTERS = 100
# The properties of AMQP and of kombu.
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
        DELAY_AGAIN,
    )
)

# Celery and kombu walk through headers recursively. Bodies may be deeper: here they are text.
MAX_DEPTH = 100
# A time limit beyond what timers can hold ends Celery's event loop.
MAX_TIME_LIMIT_S = 10**9

Payload = dict[str, Any]
_Types = tuple[type, ...]

# Types of the fields of a message, if they are present.
_TEXT: _Types = (str, type(None))
_PAYLOAD_TYPES: Mapping[str, _Types] = {
    "body": _TEXT,
    "content-type": _TEXT,
    "content-encoding": _TEXT,
    "properties": (dict,),
    "headers": (dict, type(None)),
}
# Types of the headers of Celery's task messages, protocol 2. Some values of another type would
# end Celery's worker.
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
    """The body of a message does not have the form that this transport writes."""


def encode(payload: Payload) -> bytes:
    """Return a message as JSON, with times and numbers as kombu writes them.

    As in AMQP, unknown properties are dropped. Raises OptionError if a value cannot be
    written as JSON.
    """
    properties = payload.get("properties") or {}
    message = {
        **payload,
        "properties": {
            name: value for name, value in properties.items() if name in PROPERTIES
        },
    }
    try:
        try:
            # Without escapes, so that people can read and search the text.
            return _to_json(message, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair has no UTF-8 encoding. An escape preserves it.
            return _to_json(message, ensure_ascii=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"headers and properties of a message are JSON: {error}"
        ) from error


def _to_json(message: Payload, *, ensure_ascii: bool) -> str:
    return cast(str, json.dumps(message, separators=(",", ":"), ensure_ascii=ensure_ascii))


def decode(body: bytes) -> Payload:
    """Return the message in a body. Raises WrongMessage if it does not have the form that this
    transport writes.

    Any client that may produce to the topic may have written the body. A message that passes
    the checks raises no error in kombu, and Celery's worker at worst reports an invalid task.
    """
    try:
        payload = json.loads(body)
    # Decoders that applications register with kombu may raise anything.
    except Exception as error:
        raise WrongMessage(f"it is no JSON of kombu: {error!r}") from error
    if not isinstance(payload, dict) or "properties" not in payload:
        raise WrongMessage("it has no properties")
    _check_types(payload, _PAYLOAD_TYPES, "")
    payload["headers"] = payload.get("headers") or {}
    # Not None: Celery's report of an unknown message calls len() on it.
    payload["body"] = payload.get("body") or ""
    _check_depth((payload["headers"], payload["properties"]))
    _check_properties(payload["properties"], payload["body"])
    if "task" in payload["headers"]:
        _check_types(payload["headers"], _TASK_TYPES, "header ")
        limits = payload["headers"].get("timelimit")
        if limits and (
            len(limits) != 2
            or not all(
                limit is None
                or (isinstance(limit, int | float) and 0 <= limit <= MAX_TIME_LIMIT_S)
                for limit in limits
            )
        ):
            raise WrongMessage("header timelimit is not a pair of numbers")
    return payload


def _check_types(
    values: Mapping[str, Any], types: Mapping[str, _Types], prefix: str
) -> None:
    for name, allowed in types.items():
        if name in values and not isinstance(values[name], allowed):
            raise WrongMessage(f"{prefix}{name} is a {type(values[name]).__name__}")


def _check_depth(value: Any) -> None:
    """Raise WrongMessage for containers that are nested deeper than MAX_DEPTH."""
    # Level by level: a recursion could exceed the stack.
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise WrongMessage(f"its headers are nested deeper than {MAX_DEPTH}")
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list | tuple)
        ]
        depth += 1


def _check_properties(properties: Payload, body: str) -> None:
    info = properties.setdefault("delivery_info", {})
    if not isinstance(info, dict):
        raise WrongMessage(f"delivery_info is a {type(info).__name__}")
    _check_types(info, {"exchange": _TEXT, "routing_key": _TEXT}, "delivery_info ")
    for name, value in (*properties.items(), *info.items()):
        # kombu and Celery use some of the values as keys of dicts, so they must be hashable.
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


def search_fields(payload: Payload) -> dict[str, Any]:
    """Return the fields by which people search the message: the task's name as tag, and its
    id as trace id.
    """
    headers = payload.get("headers") or {}
    values = {"tag": headers.get("task"), "trace_id": headers.get("id")}
    return {
        # A lone surrogate, which UTF-8 cannot encode, becomes '?'.
        name: value[:MAX_CHARACTERS].encode(errors="replace").decode()
        for name, value in values.items()
        if isinstance(value, str) and value
    }


def parse_eta(payload: Payload, now: datetime) -> datetime | None:
    """Return the eta of a task; None if it has none or is due by now."""
    text = (payload.get("headers") or {}).get("eta")
    if not isinstance(text, str):
        return None
    try:
        eta = datetime.fromisoformat(text)
    except ValueError:
        return None
    eta = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
    return eta if eta > now + AT_ONCE else None


def delay_arguments(payload: Payload, now: datetime) -> dict[str, Any]:
    """Return the arguments of a send that delay a task until its eta; {} if it is due.

    Sets the property DELAY_AGAIN if the eta is beyond the longest delay.
    """
    payload["properties"].pop(DELAY_AGAIN, None)
    eta = parse_eta(payload, now)
    if eta is None:
        return {}
    # The margin is for a broker whose clock differs.
    if eta - now < MAX_DELAY - timedelta(minutes=10):
        return {"deliver_at": eta}
    payload["properties"][DELAY_AGAIN] = True
    return {"delay_ms": MAX_DELAY // timedelta(milliseconds=1)}


def expires_at_ms(payload: Payload, stored_at_ms: int) -> int | None:
    """Return when a message expires, ms since 1970; None if it does not."""
    # Text with a number of ms, as in AMQP.
    expiration_ms = payload["properties"].get("expiration")
    try:
        return None if expiration_ms is None else stored_at_ms + int(float(expiration_ms))
    except (TypeError, ValueError, OverflowError):
        return None


def is_expired(payload: Payload, stored_at_ms: int, now: datetime) -> bool:
    expiry_ms = expires_at_ms(payload, stored_at_ms)
    return expiry_ms is not None and now.timestamp() * 1000 >= expiry_ms


def set_delivery_info(
    message: Message, payload: Payload, *, tag: str, redelivered: bool
) -> Payload:
    """Write delivery tag, redelivered flag and message id into a payload, and return it."""
    properties = payload["properties"]
    properties["delivery_tag"] = tag
    properties["delivery_info"]["redelivered"] = redelivered
    properties["delivery_info"]["message_id"] = message.message_id
    return payload


def parse_priority(payload: Mapping[str, Any]) -> int:
    """Return the priority of a message; 0 if it has none or an invalid one."""
    try:
        return int(payload["properties"].get("priority") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
