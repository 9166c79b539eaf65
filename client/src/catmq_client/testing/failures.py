"""Failed messages of the FakeBroker: copies that wait for their retry, and the dead.

As at a broker, who reports a message must own its queue, a copy comes from the failure topic of its group and
topic when its time has come, and after the last retry a message is dead. The failure topic is made with the
first failure, with one queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from catmq_client.errors import Conflict
from catmq_client.testing.clock import FakeClock
from catmq_client.testing.groups import FakeGroup, Position
from catmq_client.testing.topics import FakeQueue, FakeTopics, StoredMessage


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that failed `attempt` times; what it was is in `message`, where in `origin`."""

    group: str
    message: StoredMessage
    attempt: int
    error: str
    due_at_ms: int | None

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return str((self.message.origin or {})["topic"])


class FakeFailures:
    """All of them; every call is made under the broker's lock."""

    def __init__(self, topics: FakeTopics, clock: FakeClock) -> None:
        self.waiting: list[FailedMessage] = []
        self.dead: list[FailedMessage] = []
        self._topics = topics
        self._clock = clock
        # What was answered, so that a repeat is harmless: by group, queue, offset, rewinds.
        self._answers: dict[tuple[str, int, int, int], tuple[str, dict[str, int]]] = {}

    def report(self, group: FakeGroup, consumer_id: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Take failed messages; return for each: it will come again, is dead, or nothing was stored."""
        if group.mode == "broadcasting":
            what = f"group {group.name} broadcasts: what fails there has no retry topic"
            raise Conflict(what, code="no_failure_topic", status=409)
        answer: dict[str, Any] = {"retried": [], "dead": [], "refused": []}
        for one in messages:
            verdict, told = self._take(group, consumer_id, one)
            answer[verdict].append({"queue": one["queue"], "offset": one["offset"], **told})
        return answer

    def move_due(self, group: FakeGroup) -> None:
        """Puts the copies whose time has come into the group's failure topics."""
        now = self._clock.now_ms()
        due = [one for one in self.waiting if one.group == group.name and (one.due_at_ms or 0) <= now]
        for one in sorted(due, key=lambda failed: failed.due_at_ms or 0):
            self.waiting.remove(one)
            queue = self._failure_queue(group, one.topic)
            stored = replace(
                one.message, topic=queue.topic, queue=queue.id, offset=queue.head, stored_at_ms=now
            )
            queue.messages.append(stored)

    def next_due_s(self) -> float:
        """Seconds until the next copy is due; a day without one."""
        times = [one.due_at_ms for one in self.waiting if one.due_at_ms is not None]
        return max(0.0, (min(times) - self._clock.now_ms()) / 1000) if times else 86_400.0

    def redrive(self, dead: list[FailedMessage]) -> None:
        """Makes dead messages come again at once; the counting of their failures goes on."""
        for one in dead:
            self.dead.remove(one)
            self.waiting.append(replace(one, due_at_ms=self._clock.now_ms()))

    def _take(self, group: FakeGroup, consumer_id: str, one: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """In which list of the answer a message belongs, and what is told of it."""
        position = group.position_of(consumer_id, one["queue"])
        if position is None or position.fence != (one["epoch"], consumer_id):
            return "refused", {"state": "fenced"}
        queue, offset = position.queue, one["offset"]
        if queue.node in self._topics.down_nodes:
            return "refused", {"state": "unavailable"}
        if not queue.low <= offset < queue.head:
            return "refused", {"state": "missing"}
        known = (group.name, queue.id, offset, position.rewinds)
        if known not in self._answers:
            self._answers[known] = self._store(group, position, one)
        return self._answers[known]

    def _store(self, group: FakeGroup, position: Position, one: dict[str, Any]) -> tuple[str, dict[str, int]]:
        (message,) = position.queue.between(one["offset"], 1)
        attempt, error = message.attempt + 1, (one.get("error") or "")[:2_000]
        first = {"topic": message.topic, "queue": message.queue, "offset": message.offset}
        origin = message.origin or {**first, "first_failed_at_ms": one.get("first_failed_at_ms") or 0}
        settings = group.settings(origin["topic"])
        is_dead = one.get("last", False) or settings.ordered or attempt > settings.retries
        due_at_ms = None if is_dead else self._clock.now_ms() + round(settings.pause_s(attempt) * 1000)
        copy = replace(message, attempt=attempt, origin={**origin, "error": error})
        failed = FailedMessage(group.name, copy, attempt, error, due_at_ms)
        if due_at_ms is None:
            self.dead.append(failed)
            return "dead", {"attempt": attempt}
        self.waiting.append(failed)
        return "retried", {"attempt": attempt, "due_at_ms": due_at_ms}

    def _failure_queue(self, group: FakeGroup, topic: str) -> FakeQueue:
        name = f"{group.name}_{topic}_fail"
        if name not in self._topics.by_name:
            self._topics.create(name, queues=1, nodes=["failure"], origin_topic=topic)
        (queue,) = self._topics.find(name).queues
        group.subscribe([queue], start="earliest")
        return queue
