"""Requests and answers as bytes: MessagePack when msgspec is installed (three times
faster), else JSON.

Inside the client a message body is always `bytes`, in the field `body_bytes`, as in
MessagePack. JSON has no bytes: there `JsonCodec` writes `body` when they are UTF-8 text,
else
`body_base64`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from catmq_client.errors import OptionError

try:
    import msgspec
except ImportError:
    msgspec = None  # type: ignore[assignment]

JSON = "application/json"
MSGPACK = "application/msgpack"


class Codec(Protocol):
    """Turns one request or answer into bytes and back.

    `accept` is what a request says of the answers it takes.
    """

    content_type: str
    accept: str

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """The bytes of a request whose messages carry `body_bytes`."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value that the bytes stand for; ValueError when they cannot be read."""
        ...


class JsonCodec:
    """JSON; needs nothing but Python."""

    content_type = JSON
    accept = JSON

    def encode(self, value: Mapping[str, Any]) -> bytes:
        messages = value.get("messages")
        if messages:
            value = {**value, "messages": [_without_bytes(m) for m in messages]}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class MsgpackCodec:
    """MessagePack through msgspec; message bodies travel as they are."""

    content_type = MSGPACK
    # Messages as the rows of their table: a third of the work for broker and client.
    accept = f"{MSGPACK};messages=rows"

    def __init__(self) -> None:
        # Both are safe to share between threads, and cost more to make than to use.
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode


def best_codec() -> Codec:
    """MessagePack if it can be had, else JSON."""
    return JsonCodec() if msgspec is None else MsgpackCodec()


def encoded(codec: Codec, value: Mapping[str, Any]) -> bytes:
    """The bytes of a request. Raises OptionError when it cannot be written; nothing was
    sent then.
    """
    try:
        return codec.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"cannot be written as {codec.content_type}: {error}") from error


def body_of(message: Mapping[str, Any]) -> bytes:
    """The body of a message as a broker answered it: `body_bytes`, `body` (text) or
    `body_base64`.
    """
    body = message.get("body_bytes")
    if body is not None:
        return bytes(body)
    text = message.get("body")
    if text is not None:
        return str(text).encode()
    return base64.b64decode(message["body_base64"])


def _without_bytes(message: Mapping[str, Any]) -> dict[str, Any]:
    if "body_bytes" not in message:
        return dict(message)
    plain = dict(message)
    body: bytes = plain.pop("body_bytes")
    try:
        plain["body"] = body.decode()
    except UnicodeDecodeError:
        plain["body_base64"] = base64.b64encode(body).decode()
    return plain
