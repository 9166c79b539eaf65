"""Consumer groups of the FakeBroker: one member at a time, which owns all queues of its
group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from catmq_client.errors import Conflict, Gone
from catmq_client.reading.subscription_settings import Settings
from catmq_client.testing.topics import FakeClock, FakeQueue, StoredMessage, unsupported

_ids = itertools.count(1)


def new_id(name: str) -> str:
    """Return a new consumer id for a member of this name."""
    return f"{name}.k.{next(_ids)}.x"


@dataclass(slots=True)
class Position:
    """Progress of a group in a queue.

    `fence` is the epoch and consumer id of the last acquire.
    """

    queue: FakeQueue
    committed: int
    epoch: int = 0
    fence: tuple[int, str] = (0, "")


class FakeGroup:
    """A group, its member, and its positions by queue id.

    Every call is made under the broker's lock.
    """

    mode = "clustering"

    def __init__(self, name: str, *, clock: FakeClock, session_timeout_ms: int) -> None:
        self.name = name
        self.clock = clock
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = min(3_000, session_timeout_ms // 3)
        self.generation = 0
        self.positions: dict[int, Position] = {}
        # Delivery settings of the subscriptions, by topic.
        self.delivery: dict[str, dict[str, Any]] = {}
        self._starts: dict[int, str] = {}
        self._member = self._name = self._incarnation = ""
        self._ended_members: dict[str, str] = {}

    def subscribe(self, queues: list[FakeQueue], *, start: str) -> bool:
        """Create positions in queues that have none. Return False if all had one."""
        new = [queue for queue in queues if queue.id not in self.positions]
        for queue in new:
            self._starts[queue.id] = start
            self.positions[queue.id] = self.position_in(queue)
        self.generation += bool(new)
        return bool(new)

    def position_in(self, queue: FakeQueue) -> Position:
        """Return a new position in a queue, at the start of its subscription."""
        return Position(
            queue,
            queue.low if self._starts[queue.id] == "earliest" else queue.head,
            epoch=1,
        )

    def join(self, name: str, incarnation: str, **settings: Any) -> str:
        """Register a member, or a later incarnation of it. Return its consumer id.

        Raises NotBuilt for a second member.
        """
        if settings.get("mode") == "share":
            detail = f"group {self.name} has mode {self.mode}"
            raise Conflict(detail, code="group_settings_differ", status=409)
        if settings.get("mode") not in (None, self.mode):
            raise unsupported(f"groups with mode {settings['mode']}")
        if self._member and name != self._name:
            raise unsupported(
                f"a second member in group {self.name}, which {self._name} has not left"
            )
        if self._member and incarnation == self._incarnation:
            return self._member
        self.leave(self._member, "replaced")
        self._member, self._name, self._incarnation = new_id(name), name, incarnation
        self.generation += 1
        for position in self.positions.values():
            position.epoch += 1
        return self._member

    def leave(self, consumer_id: str, reason: str = "expired") -> None:
        """End a membership. `reason` is the error code of the member's later requests."""
        if consumer_id and consumer_id == self._member:
            self._ended_members[consumer_id], self._member = reason, ""

    def knows_consumer(self, consumer_id: str) -> bool:
        """Return True if the consumer id is or was that of a member."""
        return consumer_id == self._member or consumer_id in self._ended_members

    def settings(self, topic: str) -> Settings:
        """Return the delivery settings of a topic."""
        return Settings.from_answer(self.delivery.get(topic, {}))

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Change delivery settings of a topic. None: the consumer's option applies."""
        self.delivery[topic] = {**self.delivery.get(topic, {}), **settings}
        self.generation += 1

    def heartbeat(
        self, consumer_id: str, generation: int, owned: list[dict[str, int]]
    ) -> dict[str, Any]:
        """Return the assigned and revoked queues, and the settings of their subscriptions."""
        self._check(consumer_id)
        return {
            "generation": self.generation,
            "assigned": [self.assigned(position) for position in self.positions.values()],
            "revoked": sorted({entry["queue"] for entry in owned} - set(self.positions)),
            "subscriptions": self.subscriptions(self.positions.values()),
        }

    def acquire(self, consumer_id: str, queue: int, epoch: int) -> dict[str, Any]:
        self._check(consumer_id)
        position = self.positions.get(queue)
        if position is None or position.epoch != epoch:
            return {"queue": queue, "state": "fenced", "offset": None}
        position.fence = (epoch, consumer_id)
        return {"queue": queue, "state": "ok", "offset": position.committed}

    def holds(self, consumer_id: str, message: dict[str, Any]) -> bool:
        """Return True if a message that is reported as failed belongs to the member."""
        position = self.position_of(consumer_id, message["queue"])
        return position is not None and position.fence == (message["epoch"], consumer_id)

    def position_of(self, consumer_id: str, queue: int) -> Position | None:
        return self.positions.get(queue)

    def commit(
        self, consumer_id: str, queue: int, epoch: int, offset: int
    ) -> dict[str, Any]:
        position = self.position_of(consumer_id, queue)
        if position is None or position.fence != (epoch, consumer_id):
            return {"queue": queue, "state": "fenced"}
        if offset > position.queue.head:
            return {"queue": queue, "state": "out_of_range"}
        position.committed = max(position.committed, offset)
        return {"queue": queue, "state": "ok"}

    def read(
        self, consumer_id: str, request: dict[str, int], *, limit: int
    ) -> dict[str, Any]:
        """Return one queue's part of the answer to a pull."""
        position, offset = (
            self.position_of(consumer_id, request["queue"]),
            request["offset"],
        )
        if position is None or position.fence != (request["epoch"], consumer_id):
            return pulled(request["queue"], "fenced", offset, head=0)
        queue = position.queue
        if not queue.low <= offset <= queue.head:
            state = "cleaned" if offset < queue.low else "out_of_range"
            return {**pulled(queue.id, state, offset, head=queue.head), "low": queue.low}
        messages, next_offset = self._served(queue, offset, limit)
        answer = pulled(queue.id, "ok", next_offset, head=queue.head)
        return {**answer, "messages": [message.view() for message in messages]}

    def assigned(self, position: Position) -> dict[str, Any]:
        """Return an assigned queue as a heartbeat answers it."""
        queue = position.queue
        origin = {} if queue.origin_topic is None else {"origin_topic": queue.origin_topic}
        return {
            "topic": queue.topic,
            "queue": queue.id,
            "epoch": position.epoch,
            "stopped": False,
            **origin,
        }

    def subscriptions(self, positions: Iterable[Position]) -> dict[str, dict[str, Any]]:
        """Return the delivery settings by topic as a heartbeat answers them."""
        topics = {
            position.queue.origin_topic or position.queue.topic for position in positions
        }
        settings_by_topic = {
            topic: asdict(self.settings(topic)).items() for topic in topics
        }
        return {
            t: {
                name: as_json(value)
                for name, value in settings_by_topic[t]
                if value is not None
            }
            for t in topics
        }

    def _served(
        self, queue: FakeQueue, offset: int, limit: int
    ) -> tuple[list[StoredMessage], int]:
        """Return messages that pass filter and delay, and the next offset."""
        settings = Settings() if queue.origin_topic else self.settings(queue.topic)
        visible_until_ms = self.clock.now_ms() - settings.delay_s * 1000
        messages: list[StoredMessage] = []
        for message in queue.between(offset, queue.head - offset):
            if len(messages) >= limit or message.stored_at_ms > visible_until_ms:
                return messages, message.offset
            if settings.takes(message.tag, message.headers):
                messages.append(message)
        return messages, queue.head

    def _check(self, consumer_id: str) -> None:
        """Raise Gone unless the consumer is a member."""
        if consumer_id != self._member:
            reason = self._ended_members.get(consumer_id, "expired")
            raise Gone(f"{consumer_id} is {reason}", code=reason, status=410)


def as_json(value: object) -> object:
    """Return a setting as JSON has it: tuples become lists."""
    if isinstance(value, dict):
        return {name: as_json(element) for name, element in value.items()}
    return list(value) if isinstance(value, tuple) else value


def pulled(queue: int, state: str, next_offset: int, *, head: int) -> dict[str, Any]:
    """Return one queue's part of the answer to a pull, without messages."""
    return {
        "queue": queue,
        "state": state,
        "messages": [],
        "next_offset": next_offset,
        "head": head,
    }
