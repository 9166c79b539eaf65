"""Messages: as they come in, as they are stored, and what is wrong with one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from metadata.config import config
from metadata.errors import FieldError, Invalid, TooLarge

MAX_DELAY_MS: Final = 366 * 86_400_000


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be stored. `queue` is the queue's global id, or None to let key or batch
    decide.

    With `queue_strict` it goes to that queue or fails; without it another queue of the
    topic will do. With `delay_ms`, or with `deliver_at_ms` (ms since 1970 UTC), it comes
    into its queue when it is due.
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
        """The id: computed, never stored."""
        return message_id(self.queue, self.offset)


def masked(message: StoredMessage) -> StoredMessage:
    """The outside of a message: what it says is left out, for people who may not read it."""
    return msgspec.structs.replace(message, body=b"", headers=None)


class MessageSearch(NamedTuple):
    """Values that a wanted message carries; None: anything. `body_part`: bytes in its body."""

    key: str | None = None
    tag: str | None = None
    trace_id: str | None = None
    body_part: bytes | None = None
    header: tuple[str, str] | None = None  # name and value

    def header_texts(self) -> tuple[str | None, str | None]:
        """The header as it stands in the JSON text of headers: as the first one, and as a
        later one.
        """
        if self.header is None:
            return None, None
        name, value = (msgspec.json.encode(part).decode() for part in self.header)
        return f"{{{name}:{value}", f",{name}:{value}"


# A message as its node gives it: offset, key, tag, headers (JSON text), body, trace id,
# stored at, attempt.
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
    """The id of the message at an offset.

    >>> message_id(7, 41)
    '7-41'
    """
    return f"{queue}-{offset}"


def parse_message_id(text: str) -> tuple[int, int]:
    """(queue, offset) of a message id. Raises Invalid.

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
    """Raise Invalid or TooLarge naming every message and field over a limit."""
    if not messages:
        raise Invalid.field("messages", "is empty: send at least one message")
    if len(messages) > config.max_messages:
        limit = config.max_messages
        raise TooLarge(
            f"messages: {len(messages)} in one request; at most {limit} are allowed."
        )
    errors = [
        error
        for index in _closer_look(messages)
        for error in _wrong(index, messages[index])
    ]
    if errors:
        over_body = any(error.field.endswith(".body") for error in errors)
        kind = TooLarge if over_body else Invalid
        raise kind(f"{errors[0].field}: {errors[0].message}", errors=errors)


def _closer_look(messages: Sequence[NewMessage]) -> list[int]:
    """The indexes of messages that need one; most have only a body and a short key."""
    most_bytes, most_chars = config.max_body_bytes, config.max_key_chars
    return [
        index
        for index, m in enumerate(messages)
        if len(m.body) > most_bytes
        or (m.key is not None and len(m.key) > most_chars)
        or m.tag is not None
        or m.trace_id is not None
        or m.headers is not None
        or m.delay_ms is not None
        or m.deliver_at_ms is not None
        or not m.queue_strict
    ]


def _wrong(index: int, message: NewMessage) -> list[FieldError]:
    limits = (
        ("body", len(message.body), config.max_body_bytes, "bytes"),
        ("key", len(message.key or ""), config.max_key_chars, "characters"),
        ("tag", len(message.tag or ""), config.max_tag_chars, "characters"),
        ("trace_id", len(message.trace_id or ""), config.max_trace_id_chars, "characters"),
    )
    errors = [
        FieldError(
            f"messages[{index}].{field}", f"has {size} {unit}; at most {limit} are allowed"
        )
        for field, size, limit, unit in limits
        if size > limit
    ]
    errors += _wrong_delay(index, message)
    if message.queue is None and not message.queue_strict:
        errors.append(
            FieldError(f"messages[{index}].queue_strict", "names no queue: give queue, too")
        )
    headers = message.headers
    if headers:
        size = sum(
            len(name.encode()) + len(value.encode()) for name, value in headers.items()
        )
        if len(headers) > config.max_headers or size > config.max_headers_bytes:
            limit = (
                f"at most {config.max_headers} of {config.max_headers_bytes} bytes "
                "together are allowed"
            )
            errors.append(
                FieldError(
                    f"messages[{index}].headers", f"{len(headers)} of {size} bytes; {limit}"
                )
            )
    return errors


def _wrong_delay(index: int, message: NewMessage) -> list[FieldError]:
    """Return the errors of a delay by itself; a time of delivery is compared with its
    node's clock later.
    """
    if message.delay_ms is not None and message.deliver_at_ms is not None:
        return [
            FieldError(
                f"messages[{index}].deliver_at_ms", "give either delay_ms or deliver_at_ms"
            )
        ]
    if message.delay_ms is not None and not 0 < message.delay_ms <= MAX_DELAY_MS:
        what = f"is {message.delay_ms}; it lies between 1 and {MAX_DELAY_MS} ms (a year)"
        return [FieldError(f"messages[{index}].delay_ms", what)]
    return []


def headers_text(headers: dict[str, str] | None) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def digest(messages: Sequence[NewMessage]) -> bytes:
    """16 bytes that tell two batches apart: sha256 over their canonical MessagePack.

    It is taken from the parsed messages, so a retry in JSON of a batch first sent in
    MessagePack agrees.
    """
    rows = [
        (m.body, m.key, m.tag, sorted(m.headers.items()) if m.headers else (), m.trace_id)
        for m in messages
    ]
    return hashlib.sha256(msgspec.msgpack.encode(rows)).digest()[:16]
