"""A message as a consumer gets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar, cast

from catmq_client.http.wire import body_of
from catmq_client.trace_context import TraceContext, read_trace_context

# A message in the rows of an answer: offset, key, tag, headers (JSON text), body, trace id,
# stored at (ms since 1970), attempt.
Row = Sequence[Any]
OFFSET, KEY, TAG, HEADERS, BODY, TRACE_ID, STORED_AT_MS, ATTEMPT = range(8)


def make_row(entry: Mapping[str, Any]) -> Row:
    """Return the row of a message that came as an object with named values."""
    headers = entry.get("headers")
    return (
        entry["offset"],
        entry.get("key"),
        entry.get("tag"),
        json.dumps(headers) if headers else None,
        body_of(entry),
        entry.get("trace_id"),
        entry["stored_at_ms"],
        entry.get("attempt", 0),
    )


class Source(NamedTuple):
    """The queue that messages were read from, their topic, and the epoch of the queue's
    owner. The messages of an answer share it.
    """

    topic: str
    queue: int
    epoch: int


class AssignedQueue(NamedTuple):
    """A queue in on_assigned, on_revoked and assignment()."""

    topic: str
    queue: int
    epoch: int


class Origin(NamedTuple):
    """Origin of a retried message: the topic, queue and offset it was first stored at.

    `error` is the text of its last failure.
    """

    topic: str
    queue: int
    offset: int
    first_failed_at_ms: int | None
    error: str | None


class Message:
    """A message. `epoch` rises whenever the queue gets another owner, so that it serves as a
    fencing token.

    A retried message has an `origin`, and `topic` is the topic it was sent to. `queue` and
    `offset` are those of the retry topic, because they are committed.

    Most fields are decoded from the row only when they are read.
    """

    __slots__ = (
        "_headers",
        "_origin",
        "_row",
        "_source",
        "body",
        "failed",
        "offset",
        "tries",
    )

    def __init__(
        self, source: Source, row: Row, origin: Mapping[str, Any] | None = None
    ) -> None:
        # Called hundreds of times per answer, so it decodes nothing.
        self._source = source
        self.offset: int = row[OFFSET]
        self.body: bytes = row[BODY]
        self._row = row
        self._origin = origin
        self._headers: dict[str, str] | None = None
        # Number of retries in place, in an ordered subscription.
        self.tries: int = 0
        # True once the message was reported as failed.
        self.failed: bool = False

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def queue(self) -> int:
        return self._source.queue

    @property
    def epoch(self) -> int:
        return self._source.epoch

    @property
    def message_id(self) -> str:
        """Id of the message: an opaque text."""
        return f"{self.queue}-{self.offset}"

    @property
    def key(self) -> str | None:
        return cast("str | None", self._row[KEY])

    @property
    def tag(self) -> str | None:
        return cast("str | None", self._row[TAG])

    @property
    def headers(self) -> dict[str, str]:
        if self._headers is None:
            text = self._row[HEADERS]
            self._headers = json.loads(text) if text else {}
        return self._headers

    @property
    def trace_id(self) -> str | None:
        return cast("str | None", self._row[TRACE_ID])

    @property
    def trace_context(self) -> TraceContext | None:
        """W3C trace context of the headers `traceparent` and `tracestate`; None without a
        valid one. Retries and dead letters keep it.
        """
        return read_trace_context(self.headers)

    @property
    def attempt(self) -> int:
        """Number of earlier attempts that failed."""
        return int(self._row[ATTEMPT]) + self.tries

    @property
    def origin(self) -> Origin | None:
        """Origin of the message before it failed; None for a first delivery."""
        origin = self._origin
        if origin is None:
            return None
        return Origin(
            topic=origin["topic"],
            queue=origin["queue"],
            offset=origin["offset"],
            first_failed_at_ms=origin.get("first_failed_at_ms"),
            error=origin.get("error"),
        )

    @property
    def stored_at_ms(self) -> int:
        """Time the message was stored, by its database's clock: ms since 1970 UTC."""
        return int(self._row[STORED_AT_MS])

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body read as JSON."""
        return json.loads(self.body)

    @property
    def stored_at(self) -> datetime:
        """Time the message was stored, by its database's clock, in UTC."""
        return datetime.fromtimestamp(self.stored_at_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"Message({self.topic} {self.message_id}, key={self.key!r}, {len(self.body)} bytes)"


M = TypeVar("M", bound=Message)


def parse_messages(
    answer: Mapping[str, Any], source: Source, create: Callable[..., M]
) -> list[M]:
    """Return the messages of an answer.

    Brokers send rows. Answers with named values, such as those of FakeBroker, are read too.
    """
    rows = answer.get("rows")
    if rows is None:
        return [
            create(source, make_row(entry), entry.get("origin"))
            for entry in answer["messages"]
        ]
    if "origins" not in answer:
        return [create(source, row) for row in rows]
    # Only answers of retry topics carry origins.
    pairs = zip(rows, answer["origins"], strict=True)
    return [create(source, row, origin) for row, origin in pairs]
