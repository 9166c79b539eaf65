"""A message as a consumer gets it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from catmq_client.wire import body_of


class Message:
    """One message; `epoch` rises whenever its queue changes hands and serves as a fencing token."""

    __slots__ = (
        "attempt", "body", "epoch", "headers", "key", "message_id", "offset",
        "queue", "stored_at_ms", "tag", "topic", "trace_id",
    )  # fmt: skip

    def __init__(self, *, topic: str, queue: int, epoch: int, view: dict[str, Any]) -> None:
        """`view` is a message of a pull's answer."""
        self.topic = topic
        self.queue = queue
        self.epoch = epoch
        self.offset: int = view["offset"]
        self.message_id: str = view["message_id"]
        self.key: str | None = view.get("key")
        self.tag: str | None = view.get("tag")
        self.headers: dict[str, str] = view.get("headers") or {}
        self.trace_id: str | None = view.get("trace_id")
        self.attempt: int = view.get("attempt", 0)
        self.stored_at_ms: int = view["stored_at_ms"]
        self.body: bytes = body_of(view)

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body read as JSON."""
        return json.loads(self.body)

    @property
    def stored_at(self) -> datetime:
        """When the message was stored, by its database's clock, in UTC."""
        return datetime.fromtimestamp(self.stored_at_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"Message({self.topic} {self.message_id}, key={self.key!r}, {len(self.body)} bytes)"
