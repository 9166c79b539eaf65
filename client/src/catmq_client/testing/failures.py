"""Failed messages of the FakeBroker: those that wait for their retry, and dead letters.

When a retry is due, a copy of the message is stored in the retry topic of its group and
topic. The retry topic has a single queue and is created with the first retry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from catmq_client.testing.groups import FakeGroup, Position
from catmq_client.testing.shares import FakeShareGroup
from catmq_client.testing.topics import FakeTopics, StoredMessage


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that failed `attempt` times.

    The `origin` of its `message` is where it came from.
    """

    group: str
    message: StoredMessage
    attempt: int
    error: str
    due_at_ms: int  # 0 for a dead letter

    @property
    def topic(self) -> str:
        return str((self.message.origin or {})["topic"])


class FakeFailures:
    """All failed messages. Every call is made under the broker's lock."""

    def __init__(self, topics: FakeTopics) -> None:
        self.waiting: list[FailedMessage] = []
        self.dead: list[FailedMessage] = []
        # Answers by group, queue and offset: a repeated report must not store the failure
        # twice.
        self.answers: dict[tuple[str, int, int], tuple[str, dict[str, int]]] = {}
        self._topics = topics

    def report(
        self, group: FakeGroup, consumer_id: str, messages: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Store failed messages. Return the outcome of each: retried, dead or refused."""
        answer: dict[str, Any] = {"retried": [], "dead": [], "refused": []}
        for entry in messages:
            outcome, fields = self.store_failure(
                group, group.position_of(consumer_id, entry["queue"]), consumer_id, entry
            )
            answer[outcome].append(
                {"queue": entry["queue"], "offset": entry["offset"], **fields}
            )
        return answer

    def store_failure(
        self,
        group: FakeGroup,
        position: Position | None,
        consumer_id: str,
        entry: dict[str, Any],
    ) -> tuple[str, dict[str, Any]]:
        """Store a failed message.

        Return its list in the answer, and the fields of its entry there.
        """
        key = (group.name, entry["queue"], entry["offset"])
        # A former owner must not report: the next owner gets the message again.
        if position is None or not group.holds(consumer_id, entry):
            return "refused", {"state": "fenced"}
        if not position.queue.low <= entry["offset"] < position.queue.head:
            return "refused", {"state": "missing"}
        if key not in self.answers:
            self.answers[key] = self._store(group, position, entry)
        return self.answers[key]

    def end_leases(self, group: FakeShareGroup) -> None:
        """Make dead letters of messages that were leased as often as the group allows."""
        for position, offset, times in [*group.take_exhausted()]:
            error = f"LeaseLost: {times} leases ended without a result"
            self._store(group, position, {"offset": offset, "error": error, "final": True})

    def move_due(self, group: FakeGroup) -> None:
        """Store copies of the messages whose retry is due in the group's retry topics."""
        now = self._topics.clock.now_ms()
        for failed in sorted(self.waiting, key=lambda failed: failed.due_at_ms):
            if failed.group != group.name or failed.due_at_ms > now:
                continue
            self.waiting.remove(failed)
            name = f"{group.name}_{failed.topic}_fail"
            # As at a broker, the retry topic is created with the first retry.
            if name not in self._topics.by_name:
                self._topics.create(name, queues=1, origin_topic=failed.topic)
            (queue,) = self._topics.find(name).queues
            group.subscribe([queue], start="earliest")
            queue.messages.append(
                replace(
                    failed.message,
                    topic=name,
                    queue=queue.id,
                    offset=queue.head,
                    stored_at_ms=now,
                )
            )

    def _store(
        self, group: FakeGroup, position: Position, entry: dict[str, Any]
    ) -> tuple[str, dict[str, int]]:
        (message,) = position.queue.between(entry["offset"], 1)
        attempt, error = message.attempt + 1, (entry.get("error") or "")[:2_000]
        # A retry that fails again keeps the origin of the first failure.
        origin = message.origin or {
            "topic": message.topic,
            "queue": message.queue,
            "offset": message.offset,
            "first_failed_at_ms": entry.get("first_failed_at_ms") or 0,
        }
        settings = group.settings(origin["topic"])
        copy = replace(message, attempt=attempt, origin={**origin, "error": error})
        is_last = entry.get("last") or entry.get("final") or settings.ordered
        if is_last or attempt > settings.retries:
            self.dead.append(FailedMessage(group.name, copy, attempt, error, 0))
            return "dead", {"attempt": attempt}
        delay_ms = entry.get("delay_ms", round(settings.pause_s(attempt) * 1000))
        due_at_ms = self._topics.clock.now_ms() + delay_ms
        self.waiting.append(FailedMessage(group.name, copy, attempt, error, due_at_ms))
        return "retried", {"attempt": attempt, "due_at_ms": due_at_ms}
