"""Messages as sent and as stored, and the checks of a message against the limits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from metadata.config import config
from metadata.errors import FieldError, Invalid, TooLarge

MAX_DELAY_MS: Final = 366 * 86_400_000


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be stored.

    `queue` is the queue's global id; None lets the key or the batch choose. With
    `queue_strict` the message goes to that queue or fails; without it another queue of the
    topic may take it. A message with `delay_ms` or `deliver_at_ms` (ms since 1970 UTC)
    enters its queue when it is due.
    """

    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = None
    trace_id: str | None = None
    queue: int | None = None
    queue_strict: bool = True
    delay_ms: int | None = None
    deliver_at_ms: int | None = None


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a reader gets it; `stored_at_ms` is ms since 1970 UTC by the node's
    clock.
    """

    queue: int
    offset: int
    key: str | None
    tag: str | None
    headers: dict[str, str] | None
    body: bytes
    trace_id: str | None
    stored_at_ms: int
    attempt: int

    @property
    def message_id(self) -> str:
        """The message id, computed from queue and offset."""
        return message_id(self.queue, self.offset)


def masked(message: StoredMessage) -> StoredMessage:
    """Return the message without body and headers, for people who may not read them."""
    return msgspec.structs.replace(message, body=b"", headers=None)


class MessageSearch(NamedTuple):
    """Values that a message has to carry; None matches any value.

    `body_part`: bytes that occur in its body.
    """

    key: str | None = None
    tag: str | None = None
    trace_id: str | None = None
    body_part: bytes | None = None
    header: tuple[str, str] | None = None  # name and value

    def header_texts(self) -> tuple[str | None, str | None]:
        """Return the header as JSON text at the start of the headers, and after another
        header.

        Both are None if no header is searched for.
        """
        if self.header is None:
            return None, None
        # The column holds the JSON object as text, so a search compares with both forms.
        name, value = (msgspec.json.encode(part).decode() for part in self.header)
        return f"{{{name}:{value}", f",{name}:{value}"


# A row of a message table: offset, key, tag, headers (JSON text), body, trace id, stored at,
# attempt. Indexes into it are faster than building a message only to look at its size.
StoredRow = tuple[int, str | None, str | None, str | None, bytes, str | None, int, int]
ROW_OFFSET: Final = 0
ROW_BODY: Final = 4
ROW_STORED_AT: Final = 6


def stored_message(queue: int, row: StoredRow) -> StoredMessage:
    offset, key, tag, headers, body, trace_id, stored_at_ms, attempt = row
    return StoredMessage(
        queue,
        offset,
        key,
        tag,
        parse_headers(headers),
        body,
        trace_id,
        stored_at_ms,
        attempt,
    )


def parse_headers(text: str | None) -> dict[str, str] | None:
    return msgspec.json.decode(text, type=dict[str, str]) if text else None


def message_id(queue: int, offset: int) -> str:
    """Return the id of the message at an offset.

    >>> message_id(7, 41)
    '7-41'
    """
    return f"{queue}-{offset}"


def parse_message_id(text: str) -> tuple[int, int]:
    """Return queue and offset of a message id. Raises Invalid.

    >>> parse_message_id("7-41")
    (7, 41)
    """
    queue, dash, offset = text.partition("-")
    if dash and all(
        part.isascii() and part.isdigit() and len(part) < 19 for part in (queue, offset)
    ):
        return int(queue), int(offset)
    raise Invalid.field("message_id", f"{text!r} is not a message id; one looks like 7-41")


def validate(messages: Sequence[NewMessage]) -> None:
    """Raise Invalid or TooLarge, naming every message and field above its limit."""
    if not messages:
        raise Invalid.field("messages", "is empty: send at least one message")
    if len(messages) > config.max_messages:
        limit = config.max_messages
        raise TooLarge(
            f"messages: {len(messages)} in one request; at most {limit} are allowed."
        )
    # Most messages have only a body and a short key, and sending is the hot path: the
    # conditions spare them the checks of each field.
    max_bytes, max_chars = config.max_body_bytes, config.max_key_chars
    errors = [
        error
        for index, message in enumerate(messages)
        if len(message.body) > max_bytes
        or (message.key is not None and len(message.key) > max_chars)
        or message.tag is not None
        or message.trace_id is not None
        or message.headers is not None
        or message.delay_ms is not None
        or message.deliver_at_ms is not None
        or not message.queue_strict
        for error in _errors_of_message(index, message)
    ]
    if errors:
        has_large_body = any(error.field.endswith(".body") for error in errors)
        error_class = TooLarge if has_large_body else Invalid
        raise error_class(f"{errors[0].field}: {errors[0].message}", errors=errors)


def _errors_of_message(index: int, message: NewMessage) -> list[FieldError]:
    limits = (
        ("body", len(message.body), config.max_body_bytes, "bytes"),
        ("key", len(message.key or ""), config.max_key_chars, "characters"),
        ("tag", len(message.tag or ""), config.max_tag_chars, "characters"),
        ("trace_id", len(message.trace_id or ""), config.max_trace_id_chars, "characters"),
    )
    errors = [
        (field, f"has {size} {unit}; at most {limit} are allowed")
        for field, size, limit, unit in limits
        if size > limit
    ]
    # deliver_at_ms is compared with the clock of the queue's node later, by the delayed
    # store.
    if message.delay_ms is not None and message.deliver_at_ms is not None:
        errors.append(("deliver_at_ms", "give either delay_ms or deliver_at_ms"))
    elif message.delay_ms is not None and not 0 < message.delay_ms <= MAX_DELAY_MS:
        text = f"is {message.delay_ms}; it lies between 1 and {MAX_DELAY_MS} ms (a year)"
        errors.append(("delay_ms", text))
    if message.queue is None and not message.queue_strict:
        errors.append(("queue_strict", "names no queue: give queue, too"))
    headers = message.headers or {}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if len(headers) > config.max_headers or size > config.max_headers_bytes:
        text = (
            f"{len(headers)} of {size} bytes; at most {config.max_headers} of "
            f"{config.max_headers_bytes} bytes together are allowed"
        )
        errors.append(("headers", text))
    return [FieldError(f"messages[{index}].{field}", text) for field, text in errors]


def headers_text(headers: dict[str, str] | None) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def digest(messages: Sequence[NewMessage]) -> bytes:
    """Return 16 bytes that identify a batch's content: SHA-256 of its canonical
    MessagePack.

    The input is the parsed messages, so a retry in JSON of a batch that was first sent in
    MessagePack has the same digest.
    """
    rows = [
        (m.body, m.key, m.tag, sorted(m.headers.items()) if m.headers else (), m.trace_id)
        for m in messages
    ]
    return hashlib.sha256(msgspec.msgpack.encode(rows)).digest()[:16]
