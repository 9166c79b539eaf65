"""Topics, queues and messages of the FakeBroker."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from catmq_client.errors import (
    CatmqError,
    Conflict,
    FieldError,
    InvalidRequest,
    NotFound,
    Unavailable,
    from_problem,
)
from catmq_client.http.wire import body_of
from catmq_client.sending.routing import SLOTS, slot_of
from catmq_client.testing.clock import FakeClock

_FIELDS = {
    "body_bytes",
    "body",
    "body_base64",
    "key",
    "tag",
    "headers",
    "trace_id",
    "queue",
    "delay_ms",
    "deliver_at_ms",
}


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a queue, as tests look at it."""

    topic: str
    queue: int
    offset: int
    body: bytes
    key: str | None
    tag: str | None
    headers: dict[str, str] | None
    trace_id: str | None
    stored_at_ms: int
    # Of one that comes again: how often it failed, and where it was first, as a pull tells it.
    attempt: int = 0
    origin: dict[str, Any] | None = None

    @property
    def message_id(self) -> str:
        """The opaque id."""
        return f"{self.queue}-{self.offset}"


@dataclass(slots=True)
class FakeQueue:
    """One queue: its messages from offset `low` on."""

    id: int
    number: int
    topic: str
    node: str
    state: str = "read_write"
    low: int = 0
    # Of a failure topic: the topic whose failed messages these are.
    origin_topic: str | None = None
    messages: list[StoredMessage] = field(default_factory=list)

    @property
    def head(self) -> int:
        """The offset of the next message."""
        return self.low + len(self.messages)

    def between(self, offset: int, limit: int) -> list[StoredMessage]:
        """At most `limit` messages from `offset` on."""
        start = offset - self.low
        return self.messages[start : start + limit]


@dataclass(slots=True)
class FakeTopic:
    """A topic and its layout."""

    name: str
    queues: list[FakeQueue]
    slots: list[int]
    keyed: str = "strict"
    on_unknown: str = "fail"
    version: int = 1

    def view(self) -> dict[str, Any]:
        """The topic as GET /api/v1/topics/{topic} answers it."""
        return {
            "name": self.name,
            "kind": "normal",
            "state": "ready",
            "queues": [
                {
                    "queue": q.id,
                    "number": q.number,
                    "node": q.node,
                    "state": q.state,
                    "low": q.low,
                    "head": q.head,
                }
                for q in self.queues
            ],
            "layout": {"version": self.version, "slots": self.slots},
            "keyed": self.keyed,
            "on_unknown": self.on_unknown,
        }


class Delays(Protocol):
    """Keeps messages until they are due (FakeDelays)."""

    def check(self, index: int, message: dict[str, Any]) -> None: ...
    def keep(self, topic: FakeTopic, queue: FakeQueue, message: dict[str, Any]) -> dict[str, Any]: ...


class FakeTopics:
    """All topics; every call is made under the broker's lock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.delays: Delays | None = None
        self.by_name: dict[str, FakeTopic] = {}
        self.queues: dict[int, FakeQueue] = {}
        self.down_nodes: set[str] = set()
        # The parts of batches that are stored, by batch_id and the queue they preferred.
        self._parts: dict[tuple[str, int], tuple[bytes, list[dict[str, Any]]]] = {}
        self._last_id = 0

    def create(
        self,
        name: str,
        *,
        queues: int,
        nodes: list[str],
        keyed: str = "strict",
        on_unknown: str = "fail",
        origin_topic: str | None = None,
    ) -> FakeTopic:
        """A new topic, its queues spread over the nodes; takes the place of one of the same name."""
        first = self._last_id + 1
        self._last_id += queues
        for old in self.by_name[name].queues if name in self.by_name else ():
            del self.queues[old.id]
        made = [
            FakeQueue(first + n, n, name, nodes[n % len(nodes)], origin_topic=origin_topic)
            for n in range(queues)
        ]
        slots = [made[slot % queues].id for slot in range(SLOTS)]
        topic = self.by_name[name] = FakeTopic(name, made, slots, keyed, on_unknown)
        self.queues.update({queue.id: queue for queue in made})
        return topic

    def find(self, name: str) -> FakeTopic:
        """The topic, or NotFound naming the command that makes it."""
        topic = self.by_name.get(name)
        if topic is None:
            detail = f"there is no topic {name}; make it with: catmq topic create {name} --queues 4"
            raise NotFound(detail, code="topic_not_found", status=404)
        return topic

    def publish(self, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """A receipt for each message, or `{error}` where its queue refused; raises when all did.

        A repeated batch_id gives the first receipts again, and stores what is still missing.
        """
        topic = self.find(name)
        messages: Any = body.get("messages")
        _check_messages(messages)
        for index, message in enumerate(messages):
            if self.delays is not None:
                self.delays.check(index, message)
        batch_id = body.get("batch_id") or f"none-{time.monotonic_ns()}"
        homes = [self._home(topic, batch_id, message, i) for i, message in enumerate(messages)]
        results: list[dict[str, Any]] = [{}] * len(messages)
        refusals: list[CatmqError] = []
        for home in dict.fromkeys(homes):
            indexes = [i for i, queue_id in enumerate(homes) if queue_id == home]
            try:
                stored = self._store_part(topic, batch_id, home, [messages[i] for i in indexes])
            except CatmqError as error:
                refusals.append(error)
                refusal = {"code": error.code, "detail": error.detail, "retriable": error.retriable}
                stored = [{"error": refusal}] * len(indexes)
            for i, result in zip(indexes, stored, strict=True):
                results[i] = result
        if refusals and all("error" in result for result in results):
            raise refusals[0]
        return results

    def _home(self, topic: FakeTopic, batch_id: str, message: dict[str, Any], index: int) -> int:
        """The queue that a message prefers; without queue and key the same one for all of its batch."""
        queue_id = message.get("queue")
        if queue_id is None:
            key = message.get("key")
            if key is not None:
                return topic.slots[slot_of(key)]
            open_queues = [q.id for q in topic.queues if q.state == "read_write"] or [topic.queues[0].id]
            return open_queues[slot_of(batch_id) % len(open_queues)]
        if queue_id not in [queue.id for queue in topic.queues]:
            what = f"{queue_id} is not a queue of topic {topic.name}"
            wrong = FieldError(f"messages[{index}].queue", what)
            raise NotFound(f"{wrong.field}: {what}", code="queue_not_found", errors=[wrong], status=404)
        return int(queue_id)

    def _store_part(
        self, topic: FakeTopic, batch_id: str, home: int, messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        digest = hashlib.sha256(repr((topic.name, messages)).encode()).digest()
        known = self._parts.get((batch_id, home))
        if known is not None:
            if known[0] != digest:
                raise from_problem(
                    409, {"code": "batch_conflict", "detail": "that batch_id held other messages"}
                )
            return known[1]
        queue = self.queues[home]
        if queue.node in self.down_nodes:
            raise Unavailable(f"node {queue.node} is down", code="node_unavailable", status=503)
        if queue.state != "read_write":
            raise Conflict(f"queue {home} is {queue.state}", code="queue_not_writable", status=409)
        results = [self._take(topic, queue, message) for message in messages]
        self._parts[batch_id, home] = (digest, results)
        return results

    def _take(self, topic: FakeTopic, queue: FakeQueue, message: dict[str, Any]) -> dict[str, Any]:
        if self.delays is not None and (message.get("delay_ms") or "deliver_at_ms" in message):
            return self.delays.keep(topic, queue, message)
        return self.store(topic, queue, message)

    def store(self, topic: FakeTopic, queue: FakeQueue, message: dict[str, Any]) -> dict[str, Any]:
        """Puts a message at the end of a queue; its result."""
        stored = StoredMessage(
            topic=topic.name,
            queue=queue.id,
            offset=queue.head,
            body=body_of(message),
            key=message.get("key"),
            tag=message.get("tag"),
            headers=message.get("headers"),
            trace_id=message.get("trace_id"),
            stored_at_ms=self._clock.now_ms(),
        )
        queue.messages.append(stored)
        return {"queue": queue.id, "offset": stored.offset, "message_id": stored.message_id}


def message_view(message: StoredMessage) -> dict[str, Any]:
    """A message as pull and browse answer it."""
    origin = {} if message.origin is None else {"origin": message.origin}
    return {
        "offset": message.offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "headers": message.headers,
        "body_bytes": message.body,
        "trace_id": message.trace_id,
        "stored_at_ms": message.stored_at_ms,
        "attempt": message.attempt,
        **origin,
    }


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", "give a list of at least one message")
    for i, message in enumerate(messages):
        for name in set(message) - _FIELDS:
            raise _invalid(f"messages[{i}].{name}", "unknown field")
        if len({"body_bytes", "body", "body_base64"} & set(message)) != 1:
            raise _invalid(f"messages[{i}].body", "give exactly one of body and body_base64")
        if len(body_of(message)) > 1024 * 1024:
            raise _invalid(f"messages[{i}].body", "over 1 MiB", status=413)
        if len(message.get("key") or "") > 200:
            raise _invalid(f"messages[{i}].key", "over 200 characters")


def _invalid(name: str, message: str, *, status: int = 400) -> InvalidRequest:
    code = "too_large" if status == 413 else "invalid"
    return InvalidRequest(f"{name}: {message}", code=code, errors=[FieldError(name, message)], status=status)
