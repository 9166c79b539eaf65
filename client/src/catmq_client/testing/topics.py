"""Topics, queues, stored messages and delayed messages of the FakeBroker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import Conflict, InvalidRequest, NotBuilt, NotFound
from catmq_client.http.wire import body_of
from catmq_client.sending.routing import SLOTS, slot_of

YEAR_MS = 366 * 86_400_000
MAX_BYTES = 1024 * 1024  # of a body
ID_HEADER = "catmq-delayed-id"


def unsupported(feature: str) -> NotBuilt:
    """Return the error for a feature that only a real broker has."""
    remedy = "start a real one (script/server) and give its URL to Producer and Consumer"
    return NotBuilt(
        f"FakeBroker does not do {feature}: {remedy}", code="not_implemented", status=501
    )


class FakeClock:
    """Real time, plus the time by which a test has advanced it."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, seconds: float) -> None:
        self._ahead_ms += round(seconds * 1000)

    def seconds_to(self, times_ms: Iterable[int]) -> float:
        """Return the seconds until the earliest of some times, or a day if there are none."""
        now_ms = self.now_ms()
        return max(0.0, (min(times_ms, default=now_ms + 86_400_000) - now_ms) / 1000)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a queue.

    A retried message has the number of failed attempts, and its origin.
    """

    topic: str
    queue: int
    offset: int
    body: bytes
    key: str | None
    tag: str | None
    headers: dict[str, str] | None
    trace_id: str | None
    stored_at_ms: int
    attempt: int = 0
    origin: dict[str, Any] | None = None

    @property
    def message_id(self) -> str:
        return f"{self.queue}-{self.offset}"

    def view(self) -> dict[str, Any]:
        return {
            "offset": self.offset,
            "message_id": self.message_id,
            "key": self.key,
            "tag": self.tag,
            "headers": self.headers,
            "trace_id": self.trace_id,
            "stored_at_ms": self.stored_at_ms,
            "attempt": self.attempt,
            "body_bytes": self.body,
            **({} if self.origin is None else {"origin": self.origin}),
        }


@dataclass(slots=True)
class FakeQueue:
    """A queue with its messages from offset `low` on.

    A queue of a retry topic has an `origin_topic`: the topic whose messages are retried.
    """

    id: int
    number: int
    topic: str
    node: str = "main"
    state: str = "read_write"
    low: int = 0
    origin_topic: str | None = None
    messages: list[StoredMessage] = field(default_factory=list)

    @property
    def head(self) -> int:
        return self.low + len(self.messages)

    @property
    def subscribed_topic(self) -> str:
        """The topic that a group subscribes to; for a retry topic that is its origin."""
        return self.origin_topic or self.topic

    def identity(self) -> dict[str, Any]:
        """Return the fields by which answers name the queue."""
        return {
            "topic": self.topic,
            "queue": self.id,
            **({"origin_topic": self.origin_topic} if self.origin_topic else {}),
        }

    def between(self, offset: int, limit: int) -> list[StoredMessage]:
        """Return up to `limit` messages from `offset` on."""
        return self.messages[offset - self.low : offset - self.low + limit]


@dataclass(slots=True)
class FakeTopic:
    """A topic and its layout."""

    name: str
    queues: list[FakeQueue]
    slots: list[int]
    keyed: str = "strict"
    on_unknown: str = "fail"
    read_only: bool = False
    version: int = 1

    def view(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": "normal",
            "state": "ready",
            "queues": [
                {
                    "queue": queue.id,
                    "number": queue.number,
                    "node": queue.node,
                    "state": queue.state,
                    "low": queue.low,
                    "head": queue.head,
                }
                for queue in self.queues
            ],
            "layout": {"version": self.version, "slots": self.slots},
            "keyed": self.keyed,
            "on_unknown": self.on_unknown,
            "read_only": self.read_only,
        }


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that is not due yet."""

    message_id: str
    due_at_ms: int
    topic: FakeTopic
    queue: FakeQueue
    message: dict[str, Any]


class FakeTopics:
    """All topics. Every call is made under the broker's lock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.by_name: dict[str, FakeTopic] = {}
        self.queues: dict[int, FakeQueue] = {}
        self.delayed: list[DelayedMessage] = []
        # By id of a delayed message: True if it was recalled.
        self._recalled: dict[str, bool] = {}
        self._receipts: dict[str, list[dict[str, Any]]] = {}  # by batch_id

    def create(
        self, name: str, *, queues: int, origin_topic: str | None = None
    ) -> FakeTopic:
        """Create a topic. It replaces a topic of the same name."""
        first_id = len(self.queues) + 1
        new_queues = [
            FakeQueue(first_id + number, number, name, origin_topic=origin_topic)
            for number in range(queues)
        ]
        self.queues.update({queue.id: queue for queue in new_queues})
        # Each key has a slot (routing.py). The queues get the slots in turn.
        self.by_name[name] = FakeTopic(
            name, new_queues, [new_queues[slot % queues].id for slot in range(SLOTS)]
        )
        return self.by_name[name]

    def find(self, name: str) -> FakeTopic:
        if name not in self.by_name:
            raise NotFound(
                f"there is no topic {name}; make it with: "
                f"catmq topic create {name} --queues 4",
                code="topic_not_found",
                status=404,
            )
        return self.by_name[name]

    def publish(self, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Store messages. Return a receipt for each.

        A repeated batch_id returns the first receipts again. Raises NotFound, InvalidRequest
        or Conflict; then no message is stored.
        """
        topic, messages = self.find(name), body["messages"]
        # Without a batch id a repeat cannot be recognized, so each send gets an id of its own.
        batch_id = body.get("batch_id") or f"none-{time.monotonic_ns()}"
        if batch_id not in self._receipts:
            if topic.read_only:
                raise Conflict(
                    f"topic {name} is read-only", code="topic_read_only", status=409
                )
            queue_ids = [
                self.choose_queue(topic, batch_id, message, index)
                for index, message in enumerate(messages)
            ]
            self._receipts[batch_id] = [
                self.accept(topic, self.queues[queue_id], message)
                for queue_id, message in zip(queue_ids, messages, strict=True)
            ]
        return self._receipts[batch_id]

    def choose_queue(
        self, topic: FakeTopic, batch_id: str, message: dict[str, Any], index: int
    ) -> int:
        """Return the id of a message's queue. Raises InvalidRequest or NotFound.

        The messages of a batch without queue and key go to the same queue. If
        `queue_strict` is false, a closed queue is replaced by an open queue. `index` is the
        message's place in the batch, for errors.
        """
        queue_id, key = message.get("queue"), message.get("key")
        if len(body_of(message)) > MAX_BYTES:
            raise InvalidRequest(
                f"messages[{index}].body: over 1 MiB", code="too_large", status=413
            )
        if (message.get("delay_ms") or 0) > YEAR_MS:
            raise InvalidRequest(
                f"messages[{index}].delay_ms: more than a year", status=400
            )
        # Messages of a key go to the queue of its slot, also if that queue is closed.
        if queue_id is None and key is not None:
            return topic.slots[slot_of(key)]
        queue_states = {queue.id: queue.state for queue in topic.queues}
        if queue_id is not None and queue_id not in queue_states:
            raise NotFound(
                f"messages[{index}].queue: {queue_id} is not a queue of topic {topic.name}",
                code="queue_not_found",
                status=404,
            )
        if queue_id is not None and (
            message.get("queue_strict", True) or queue_states[queue_id] == "read_write"
        ):
            return int(queue_id)
        open_queues = [
            open_queue
            for open_queue, state in queue_states.items()
            if state == "read_write"
        ]
        # A test may close all queues. The fake stores the message nevertheless.
        open_queues = open_queues or [topic.queues[0].id]
        # Chosen by the batch id, so that a repeat goes to the same queue.
        return open_queues[slot_of(batch_id) % len(open_queues)]

    def accept(
        self, topic: FakeTopic, queue: FakeQueue, message: dict[str, Any]
    ) -> dict[str, Any]:
        """Store a message, or hold it until it is due. Return its receipt."""
        undelayed = {
            name: value
            for name, value in message.items()
            if name not in {"delay_ms", "deliver_at_ms"}
        }
        is_delayed = undelayed.keys() != message.keys() and message.get("delay_ms") != 0
        if not is_delayed:
            return self.store(topic, queue, undelayed)
        due_at_ms = (
            message.get("deliver_at_ms") or self.clock.now_ms() + message["delay_ms"]
        )
        message_id = f"d1-{len(self._recalled) + 1}"
        self._recalled[message_id] = False
        self.delayed.append(DelayedMessage(message_id, due_at_ms, topic, queue, undelayed))
        return {"message_id": message_id, "due_at_ms": due_at_ms}

    def store(
        self, topic: FakeTopic, queue: FakeQueue, message: dict[str, Any]
    ) -> dict[str, Any]:
        stored = StoredMessage(
            topic.name,
            queue.id,
            queue.head,
            body_of(message),
            key=message.get("key"),
            tag=message.get("tag"),
            headers=message.get("headers"),
            trace_id=message.get("trace_id"),
            stored_at_ms=self.clock.now_ms(),
        )
        queue.messages.append(stored)
        return {"queue": queue.id, "offset": stored.offset, "message_id": stored.message_id}

    def move_due(self) -> None:
        """Store the delayed messages that are due, in the order of their times."""
        now = self.clock.now_ms()
        for delayed_message in sorted(self.delayed, key=lambda delayed: delayed.due_at_ms):
            if delayed_message.due_at_ms <= now:
                self.delayed.remove(delayed_message)
                headers = delayed_message.message.get("headers") or {}
                headers = {**headers, ID_HEADER: delayed_message.message_id}
                self.store(
                    delayed_message.topic,
                    delayed_message.queue,
                    {**delayed_message.message, "headers": headers},
                )

    def recall(self, message_id: str) -> None:
        """Take a delayed message back.

        Raises Conflict if it is in its queue already, NotFound if it never existed.
        """
        # A message that has become due since the last request is in its queue already.
        self.move_due()
        if message_id not in self._recalled:
            raise NotFound(
                f"No message {message_id} waits.", code="message_not_found", status=404
            )
        remaining = [
            delayed_message
            for delayed_message in self.delayed
            if delayed_message.message_id != message_id
        ]
        if len(remaining) == len(self.delayed) and not self._recalled[message_id]:
            raise Conflict(
                f"Message {message_id} is in its queue.",
                code="already_delivered",
                status=409,
            )
        self.delayed, self._recalled[message_id] = remaining, True
