"""Messages as applications pass them, checked and written as fields of a send request."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from catmq_client.errors import OptionError
from catmq_client.trace_context import TRACEPARENT, find_trace_id

# The id that an outbox assigns to a message, and the id a broker assigns to a delayed
# message.
OUTBOX_ID_HEADER, DELAYED_ID_HEADER = "catmq-outbox-id", "catmq-delayed-id"
RESERVED_HEADERS = frozenset((OUTBOX_ID_HEADER, DELAYED_ID_HEADER))


class _NotGiven:
    """Type of NOT_GIVEN."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


# Default of the argument `json`. None cannot be it, because null is a JSON value.
NOT_GIVEN: Any = _NotGiven()


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
    queue_strict: bool = True


def build_message(
    body: Any,
    *,
    json: Any = NOT_GIVEN,
    key: str | None = None,
    tag: str | None = None,
    headers: Mapping[str, str] | None = None,
    trace_id: str | None = None,
    queue: int | None = None,
    delay_ms: int | None = None,
    deliver_at: datetime | None = None,
    queue_strict: bool = True,
) -> dict[str, Any]:
    """Return a message as fields of a send request, without those that are None.

    Raises OptionError.
    """
    # Most bodies are bytes. Skipping a call for them makes sends measurably faster.
    is_plain = json is NOT_GIVEN and type(body) is bytes
    message: dict[str, Any] = {"body_bytes": body if is_plain else encode_body(body, json)}
    if key is not None:
        message["key"] = checked_text("key", key)
    if tag is not None:
        message["tag"] = checked_text("tag", tag)
    if headers:
        message["headers"] = checked_headers(headers)
        if trace_id is None and TRACEPARENT in headers:
            # So that the message is found by its trace, also by brokers that do not know it.
            trace_id = find_trace_id(headers)
    if trace_id is not None:
        message["trace_id"] = checked_text("trace_id", trace_id)
    if queue is not None:
        message.update(queue_fields(queue, queue_strict))
    if delay_ms is not None or deliver_at is not None:
        message.update(due_fields(delay_ms, deliver_at))
    return message


def checked_text(name: str, value: Any, max_length: int | None = None) -> str:
    """Return the text. Raises OptionError if it is too long or cannot be encoded as UTF-8.

    A message that the codec cannot write would fail the whole batch it is sent in.
    """
    if not isinstance(value, str):
        raise OptionError(f"{name}={value!r}: give text, str(…)")
    if max_length is not None and len(value) > max_length:
        raise OptionError(
            f"{name} has {len(value)} characters: at most {max_length} are allowed"
        )
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{name}={value!r:.200}: not UTF-8 ({error.reason})") from error
    return value


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are not reserved. Raises OptionError if a header is no text.

    Handlers forward messages with `headers=message.headers`. A reserved header identifies
    the message that was received, so it must not be copied to another message.
    """
    return {
        checked_text("a header's name", name): checked_text(f"header {name}", text)
        for name, text in headers.items()
        if name not in RESERVED_HEADERS
    }


def encode_body(body: Any, json: Any = NOT_GIVEN) -> bytes:
    """Return bytes, text or a JSON value as the bytes of a body. Raises OptionError."""
    if json is not NOT_GIVEN:
        if body is not None:
            raise OptionError("body and json are both given: give one of them")
        try:
            text = json_text.dumps(
                json, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            )
        except (TypeError, ValueError, RecursionError) as error:
            # The error text leaves out the value, which may be large.
            raise OptionError(
                f"json cannot be written as JSON: {error}. Give text, finite numbers, True, "
                "False, None, and lists and dicts of them"
            ) from error
        return checked_text("json", text).encode()
    if type(body) is bytes:
        return body
    if body is None:
        raise OptionError(
            "the message has no body: give body=…, or json=… (json=None is null)"
        )
    if isinstance(body, str):
        return checked_text("body", body).encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise OptionError(f"body is a {type(body).__name__}: give bytes or text, or json=…")


def build_batch_messages(
    items: Iterable[NewMessage | bytes | str | Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return messages of send_batch as fields of a send request. Raises OptionError."""
    # Most are bytes. Skipping two calls for them halves the time of the list.
    return [
        {"body_bytes": item} if type(item) is bytes else build_batch_message(item)
        for item in items
    ]


def build_batch_message(
    item: NewMessage | bytes | str | Mapping[str, Any],
) -> dict[str, Any]:
    """Return a message of send_batch as fields of a send request. Raises OptionError."""
    if isinstance(item, bytes | str):
        return build_message(item)
    if isinstance(item, NewMessage):
        # NamedTuple._asdict() takes three times as long.
        body, key, tag, headers, trace_id, queue, delay_ms, deliver_at, strict = item
        if (
            type(body) is bytes
            and (key is None or (type(key) is str and key.isascii()))
            and (queue is None or type(queue) is int)
            and tag is None
            and headers is None
            and trace_id is None
            and delay_ms is None
            and deliver_at is None
            and strict
        ):
            # Nothing here needs a check, and the calls of build_message() take longer than it.
            message: dict[str, Any] = {"body_bytes": body}
            if key is not None:
                message["key"] = key
            if queue is not None:
                message["queue"] = queue
            return message
        return build_message(
            body, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=strict,
        )  # fmt: skip
    if not isinstance(item, Mapping):
        raise OptionError(
            f"a message of type {type(item).__name__}: give a NewMessage, bytes, text, or a "
            "mapping with its fields"
        )
    unknown = set(item) - {*NewMessage._fields, "json"}
    if unknown:
        raise OptionError(
            f"{sorted(unknown)[0]} is not a field of a message: "
            f"{', '.join(NewMessage._fields)}, json"
        )
    return build_message(**{"body": None, **item})


def queue_fields(queue: int, strict: bool) -> dict[str, Any]:
    """Return the fields of a message that name its queue. Raises OptionError.

    >>> queue_fields(7, False)
    {'queue': 7, 'queue_strict': False}
    """
    # bool is a subclass of int: queue=True must not become queue 1.
    if isinstance(queue, bool) or not isinstance(queue, int):
        raise OptionError(f"queue={queue!r}: queues are whole numbers")
    return {"queue": queue} if strict else {"queue": queue, "queue_strict": False}


def due_fields(delay_ms: int | None, deliver_at: datetime | None) -> dict[str, int]:
    """Return the field of a message that delays its delivery. Raises OptionError.

    >>> due_fields(1500, None)
    {'delay_ms': 1500}
    """
    if delay_ms is not None and deliver_at is not None:
        raise OptionError("give either delay_ms or deliver_at, not both")
    if delay_ms is not None:
        if isinstance(delay_ms, bool) or not isinstance(delay_ms, int) or delay_ms < 0:
            raise OptionError(f"delay_ms={delay_ms!r}: give whole milliseconds from 0")
        return {"delay_ms": delay_ms}
    if not isinstance(deliver_at, datetime) or deliver_at.tzinfo is None:
        raise OptionError(f"deliver_at={deliver_at!r}: give a datetime with a time zone")
    return {"deliver_at_ms": int(deliver_at.timestamp() * 1000)}
