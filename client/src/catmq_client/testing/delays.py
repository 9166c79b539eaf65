"""Delayed messages of the FakeBroker: they wait until its clock says that they are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from catmq_client.errors import Conflict, FieldError, InvalidRequest, NotFound
from catmq_client.http.wire import body_of
from catmq_client.sending.routing import slot_of
from catmq_client.testing.clock import FakeClock
from catmq_client.testing.topics import FakeQueue, FakeTopic, FakeTopics

YEAR_MS = 366 * 86_400_000
TOLERANCE_MS = 600_000
ID_HEADER = "catmq-delayed-id"
FIELDS = {"delay_ms", "deliver_at_ms"}


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that is not due yet."""

    message_id: str
    due_at_ms: int
    topic: str
    queue: int
    by_key: bool
    message: dict[str, Any]
    stored_at_ms: int


class FakeDelays:
    """All of them; every call is made under the broker's lock."""

    def __init__(self, topics: FakeTopics, clock: FakeClock) -> None:
        self.waiting: list[WaitingMessage] = []
        self._topics = topics
        topics.delays = self
        self._clock = clock
        self._last_row = 0
        self._recalled: set[str] = set()

    def check(self, index: int, message: dict[str, Any]) -> None:
        """Raises InvalidRequest, naming the field, for a delay that no broker takes."""
        delay_ms, at_ms = message.get("delay_ms"), message.get("deliver_at_ms")
        now = self._clock.now_ms()
        if delay_ms and at_ms is not None:
            raise _wrong(index, "deliver_at_ms", "give either delay_ms or deliver_at_ms")
        if delay_ms is not None and not 0 <= delay_ms <= YEAR_MS:
            raise _wrong(index, "delay_ms", f"is {delay_ms}; it lies between 1 and {YEAR_MS} ms (a year)")
        if at_ms is not None and at_ms < now - TOLERANCE_MS:
            raise _wrong(index, "deliver_at_ms", f"passed {(now - at_ms) // 1000} s ago")
        if at_ms is not None and at_ms > now + YEAR_MS:
            raise _wrong(index, "deliver_at_ms", "is more than a year from now")

    def keep(self, topic: FakeTopic, queue: FakeQueue, message: dict[str, Any]) -> dict[str, Any]:
        """Keeps a message until it is due; its result."""
        self._last_row += 1
        key, now = message.get("key"), self._clock.now_ms()
        due_at_ms = message["deliver_at_ms"] if "deliver_at_ms" in message else now + message["delay_ms"]
        by_key = key is not None and message.get("queue") in (None, topic.slots[slot_of(key)])
        plain = {name: value for name, value in message.items() if name not in FIELDS}
        one = WaitingMessage(f"d1-{self._last_row}", due_at_ms, topic.name, queue.id, by_key, plain, now)
        self.waiting.append(one)
        return {"message_id": one.message_id, "due_at_ms": due_at_ms}

    def move_due(self) -> None:
        """Puts what is due into its queue, in the order of the times."""
        now = self._clock.now_ms()
        for one in sorted(self.waiting, key=lambda waiting: waiting.due_at_ms):
            if one.due_at_ms > now:
                return
            self._move(one)

    def _move(self, one: WaitingMessage) -> None:
        topic = self._topics.by_name.get(one.topic)
        if topic is None:
            self.waiting.remove(one)
            return
        home = topic.slots[slot_of(one.message["key"])] if one.by_key else one.queue
        taking = [queue for queue in topic.queues if queue.state == "read_write"]
        taking = [queue for queue in taking if queue.node not in self._topics.down_nodes]
        chosen = [queue for queue in taking if queue.id == home]
        if not chosen and not (one.by_key and topic.keyed == "strict"):
            chosen = taking
        if chosen:
            self.waiting.remove(one)
            headers = {**(one.message.get("headers") or {}), ID_HEADER: one.message_id}
            self._topics.store(topic, chosen[0], {**one.message, "headers": headers})

    def next_due_s(self) -> float:
        """Seconds until the next one is due; a day without one."""
        times = [one.due_at_ms for one in self.waiting]
        return max(0.0, (min(times) - self._clock.now_ms()) / 1000) if times else 86_400.0

    def recall(self, message_id: str) -> None:
        """Takes a message back; raises Conflict when it has come, NotFound when there never was one."""
        self.move_due()
        for one in self.waiting:
            if one.message_id == message_id:
                self.waiting.remove(one)
                self._recalled.add(message_id)
                return
        if message_id in self._recalled:
            return
        row = message_id.removeprefix("d1-")
        if row.isdigit() and 0 < int(row) <= self._last_row:
            raise Conflict(f"Message {message_id} is in its queue.", code="already_delivered", status=409)
        raise NotFound(f"No message {message_id} waits.", code="message_not_found", status=404)

    def listing(self, topic: str, *, after: str | None, limit: int) -> dict[str, Any]:
        """A page of what waits, as GET /api/v1/topics/{topic}/delayed answers it."""
        self.move_due()
        mine = [one for one in self.waiting if one.topic == self._topics.find(topic).name]
        behind = [one for one in mine if after is None or _row(one.message_id) > _row(after)]
        following = behind[limit - 1].message_id if len(behind) > limit else None
        listed = [_view(one) for one in behind[:limit]]
        return {"messages": listed, "next": following, "count": len(mine), "away": []}


def _row(message_id: str) -> int:
    return int(message_id.partition("-")[2])


def _view(one: WaitingMessage) -> dict[str, Any]:
    optional = {name: one.message.get(name) for name in ("key", "tag", "headers", "trace_id")}
    return {
        "message_id": one.message_id,
        "due_at_ms": one.due_at_ms,
        "queue": one.queue,
        **optional,
        "producer": "fake",
        "stored_at_ms": one.stored_at_ms,
        "attempt": 0,
        "body_bytes": body_of(one.message),
    }


def _wrong(index: int, name: str, message: str) -> InvalidRequest:
    error = FieldError(f"messages[{index}].{name}", message)
    return InvalidRequest(f"{error.field}: {message}", code="invalid", errors=[error], status=400)
