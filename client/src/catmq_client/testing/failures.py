"""Failed messages of the FakeBroker: copies that wait for their retry, and dead letters.

A copy comes from the failure topic of its group and topic when its time has come; the
failure topic is made with the first failure, with one queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from catmq_client.testing.groups import FakeGroup, Position
from catmq_client.testing.shares import FakeShareGroup
from catmq_client.testing.topics import FakeTopics, StoredMessage


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that failed `attempt` times; what it was is in `message`, where in its
    `origin`.
    """

    group: str
    message: StoredMessage
    attempt: int
    error: str
    due_at_ms: int  # 0: a dead letter

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return str((self.message.origin or {})["topic"])


class FakeFailures:
    """All failed messages; every call is made under the broker's lock."""

    def __init__(self, topics: FakeTopics) -> None:
        self.waiting: list[FailedMessage] = []
        self.dead: list[FailedMessage] = []
        # What was answered, so that a repeat is harmless: by group, queue, offset.
        self.answers: dict[tuple[str, int, int], tuple[str, dict[str, int]]] = {}
        self._topics = topics

    def report(
        self, group: FakeGroup, consumer_id: str, messages: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Take failed messages; return for each: it will come again, is dead, or nothing
        was stored.
        """
        answer: dict[str, Any] = {"retried": [], "dead": [], "refused": []}
        for one in messages:
            verdict, told = self.take(
                group, group.position_of(consumer_id, one["queue"]), consumer_id, one
            )
            answer[verdict].append({"queue": one["queue"], "offset": one["offset"], **told})
        return answer

    def take(
        self,
        group: FakeGroup,
        position: Position | None,
        consumer_id: str,
        one: dict[str, Any],
    ) -> tuple[str, dict[str, Any]]:
        """Return in which list of the answer a message belongs, and what is told of it."""
        known = (group.name, one["queue"], one["offset"])
        if position is None or not group.holds(consumer_id, one):
            return "refused", {"state": "fenced"}
        if not position.queue.low <= one["offset"] < position.queue.head:
            return "refused", {"state": "missing"}
        if known not in self.answers:
            self.answers[known] = self._store(group, position, one)
        return self.answers[known]

    def end_leases(self, group: FakeShareGroup) -> None:
        """Make dead letters of the messages that members lost as often as the group lets
        them.
        """
        for position, offset, times in [*group.worn_out()]:
            error = f"LeaseLost: {times} leases ended without a result"
            self._store(group, position, {"offset": offset, "error": error, "final": True})

    def move_due(self, group: FakeGroup) -> None:
        """Put the copies whose time has come into the group's failure topics."""
        now = self._topics.clock.now_ms()
        due = [
            one for one in self.waiting if one.group == group.name and one.due_at_ms <= now
        ]
        for one in sorted(due, key=lambda failed: failed.due_at_ms):
            self.waiting.remove(one)
            name = f"{group.name}_{one.topic}_fail"
            if name not in self._topics.by_name:
                self._topics.create(name, queues=1, origin_topic=one.topic)
            (queue,) = self._topics.find(name).queues
            group.subscribe([queue], start="earliest")
            copy = replace(
                one.message, topic=name, queue=queue.id, offset=queue.head, stored_at_ms=now
            )
            queue.messages.append(copy)

    def _store(
        self, group: FakeGroup, position: Position, one: dict[str, Any]
    ) -> tuple[str, dict[str, int]]:
        (message,) = position.queue.between(one["offset"], 1)
        attempt, error = message.attempt + 1, (one.get("error") or "")[:2_000]
        first = {"topic": message.topic, "queue": message.queue, "offset": message.offset}
        origin = message.origin or {
            **first,
            "first_failed_at_ms": one.get("first_failed_at_ms") or 0,
        }
        settings = group.settings(origin["topic"])
        copy = replace(message, attempt=attempt, origin={**origin, "error": error})
        is_last = one.get("last") or one.get("final") or settings.ordered
        if is_last or attempt > settings.retries:
            self.dead.append(FailedMessage(group.name, copy, attempt, error, 0))
            return "dead", {"attempt": attempt}
        delay_ms = one.get("delay_ms", round(settings.pause_s(attempt) * 1000))
        due_at_ms = self._topics.clock.now_ms() + delay_ms
        self.waiting.append(FailedMessage(group.name, copy, attempt, error, due_at_ms))
        return "retried", {"attempt": attempt, "due_at_ms": due_at_ms}
