"""Messages as applications give them, and as they go on the wire."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from catmq_client.errors import OptionError
from catmq_client.sending.times import waits


class NewMessage(NamedTuple):
    """A message for send_batch."""

    body: bytes | str
    key: str | None = None
    tag: str | None = None
    headers: Mapping[str, str] | None = None
    trace_id: str | None = None
    queue: int | None = None
    delay_ms: int | None = None
    deliver_at: datetime | None = None


def as_sent(
    body: Any,
    json: Any,
    *,
    key: str | None = None,
    tag: str | None = None,
    headers: Mapping[str, str] | None = None,
    trace_id: str | None = None,
    queue: int | None = None,
    delay_ms: int | None = None,
    deliver_at: datetime | None = None,
) -> dict[str, Any]:
    """A message as it goes on the wire, without what is None. Raises OptionError."""
    message: dict[str, Any] = {"body_bytes": body if type(body) is bytes else _body(body, json)}
    if key is not None:
        message["key"] = _text("key", key)
    if tag is not None:
        message["tag"] = _text("tag", tag)
    if headers:
        message["headers"] = {
            _text("a header's name", name): _text(f"header {name}", value) for name, value in headers.items()
        }
    if trace_id is not None:
        message["trace_id"] = _text("trace_id", trace_id)
    if queue is not None:
        if isinstance(queue, bool) or not isinstance(queue, int):
            raise OptionError(f"queue={queue!r}: queues are whole numbers")
        message["queue"] = queue
    if delay_ms is not None or deliver_at is not None:
        message.update(waits(delay_ms, deliver_at))
    return message


def _text(name: str, value: Any) -> str:
    """The value, if every codec can write it: one that cannot would fail the batch it travels in."""
    if not isinstance(value, str):
        raise OptionError(f"{name}={value!r}: give text, str(…)")
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{name}={value!r}: no UTF-8 ({error.reason})") from error
    return value


def _body(body: Any, json: Any) -> bytes:
    if body is None:
        body = json_text.dumps(json, separators=(",", ":"), ensure_ascii=False)
    if isinstance(body, str):
        return _text("body", body).encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise OptionError(f"body is a {type(body).__name__}: give bytes or text, or json=…")


def from_item(item: NewMessage | bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    """One of the messages of send_batch as it goes on the wire. Raises OptionError."""
    if isinstance(item, bytes | str):
        return as_sent(item, None)
    if isinstance(item, NewMessage):
        body, key, tag, headers, trace_id, queue, delay_ms, deliver_at = item
        return as_sent(
            body, None, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at,
        )  # fmt: skip
    unknown = set(item) - {*NewMessage._fields, "json"}
    if unknown:
        raise OptionError(
            f"{sorted(unknown)[0]} is no field of a message: {', '.join(NewMessage._fields)}, json"
        )
    rest = {name: value for name, value in item.items() if name not in ("body", "json")}
    return as_sent(item.get("body"), item.get("json"), **rest)
