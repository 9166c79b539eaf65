"""A message as a consumer gets it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from catmq_client.wire import body_of


class Origin(NamedTuple):
    """Where a message that comes again after it failed was first: its topic, queue and offset there.

    `error` is the text of its last failure.
    """

    topic: str
    queue: int
    offset: int
    first_failed_at_ms: int | None
    error: str | None


class Message:
    """One message; `epoch` rises whenever its queue changes hands and serves as a fencing token.

    One that comes again after it failed has `origin`, and the `topic` it was sent to; `queue` and `offset`
    are those of the failure topic, because they are what is committed.

    Most of its fields are read from the answer only when they are asked for: most never are.
    """

    __slots__ = ("_headers", "_view", "body", "epoch", "failed", "offset", "queue", "topic", "tries")

    def __init__(self, *, topic: str, queue: int, epoch: int, view: dict[str, Any]) -> None:
        """`view` is a message of a pull's answer."""
        self.topic = topic
        self.queue = queue
        self.epoch = epoch
        self.offset: int = view["offset"]
        self.body: bytes = view["body_bytes"] if "body_bytes" in view else body_of(view)
        self._view = view
        self._headers: dict[str, str] | None = None
        # Of an ordered subscription: how often run() retried it in place.
        self.tries = 0
        # Whether Consumer.fail() was called for it.
        self.failed = False

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
        """How often it failed before: handed over for a retry or, in order, retried in place."""
        return int(self._view.get("attempt", 0)) + self.tries

    @property
    def origin(self) -> Origin | None:
        """Where it was before it failed; None for a message that comes for the first time."""
        told = self._view.get("origin")
        if told is None:
            return None
        return Origin(
            topic=told["topic"],
            queue=told["queue"],
            offset=told["offset"],
            first_failed_at_ms=told.get("first_failed_at_ms"),
            error=told.get("error"),
        )

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
