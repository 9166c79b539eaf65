"""A message as a consumer gets it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from catmq_client.wire import body_of


class Message:
    """One message; `epoch` rises whenever its queue changes hands and serves as a fencing token.

    Most of its fields are read from the answer only when they are asked for: most never are.
    """

    __slots__ = ("_headers", "_view", "body", "epoch", "offset", "queue", "topic")

    def __init__(self, *, topic: str, queue: int, epoch: int, view: dict[str, Any]) -> None:
        """`view` is a message of a pull's answer."""
        self.topic = topic
        self.queue = queue
        self.epoch = epoch
        self.offset: int = view["offset"]
        self.body: bytes = view["body_bytes"] if "body_bytes" in view else body_of(view)
        self._view = view
        self._headers: dict[str, str] | None = None

    @property
    def message_id(self) -> str:
        """Finds it again; opaque."""
        return str(self._view["message_id"])

    @property
    def key(self) -> str | None:
        """The key it was sent with."""
        return self._view.get("key")

    @property
    def tag(self) -> str | None:
        """The tag it was sent with."""
        return self._view.get("tag")

    @property
    def headers(self) -> dict[str, str]:
        """The headers it was sent with."""
        if self._headers is None:
            self._headers = self._view.get("headers") or {}
        return self._headers

    @property
    def trace_id(self) -> str | None:
        """The trace id it was sent with."""
        return self._view.get("trace_id")

    @property
    def attempt(self) -> int:
        """How often it failed before."""
        return int(self._view.get("attempt", 0))

    @property
    def stored_at_ms(self) -> int:
        """When it was stored, by its database's clock: ms since 1970 UTC."""
        return int(self._view["stored_at_ms"])

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
