"""Consumer groups of the FakeBroker: a single member at a time, which owns all queues of
its group.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from catmq_client.errors import Conflict, Gone
from catmq_client.reading.subscription_settings import Settings
from catmq_client.testing.topics import FakeClock, FakeQueue, StoredMessage, unsupported

_ids = itertools.count(1)


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
    owns_queues = True

    def __init__(self, name: str, *, clock: FakeClock, session_timeout_ms: int) -> None:
        self.name = name
        self.clock = clock
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms: int = min(3_000, session_timeout_ms // 3)
        self.generation: int = 0
        self.positions: dict[int, Position] = {}
        # Delivery settings of the subscriptions, by topic.
        self.delivery: dict[str, dict[str, Any]] = {}
        self._starts: dict[int, str] = {}
        # Name and incarnation of each member, by consumer id.
        self._members: dict[str, tuple[str, str]] = {}
        # Error codes of ended memberships, by consumer id.
        self._ended_members: dict[str, str] = {}

    def subscribe(self, queues: list[FakeQueue], *, start: str) -> bool:
        """Create positions in queues that have none. Return False if none was created."""
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

        Raises NotBuilt for a second member of a group that owns queues.
        """
        self._check_settings(settings)
        for consumer_id, (member, member_incarnation) in [*self._members.items()]:
            if (member, member_incarnation) == (name, incarnation):
                return consumer_id
            if member == name:
                self.leave(consumer_id, "replaced")
            elif self.owns_queues:
                raise unsupported(
                    f"a second member in group {self.name}, which {member} has not left"
                )
        consumer_id = f"{name}.k.{next(_ids)}.x"
        self._members[consumer_id] = name, incarnation
        self.generation += 1
        # The new epoch fences the former incarnation.
        for position in self.positions.values():
            position.epoch += 1
        return consumer_id

    def leave(self, consumer_id: str, reason: str = "expired") -> None:
        """End a membership. `reason` is the error code of the member's later requests."""
        if self._members.pop(consumer_id, None) is not None:
            self._ended_members[consumer_id] = reason

    def knows_consumer(self, consumer_id: str) -> bool:
        return consumer_id in self._members or consumer_id in self._ended_members

    def settings(self, topic: str) -> Settings:
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
            "assigned": [
                self.assigned(position)
                for position in self.positions.values()
                if self.owns_queues
            ],
            "revoked": sorted({entry["queue"] for entry in owned} - set(self.positions)),
            "subscriptions": self.subscriptions(self.positions.values()),
        }

    def acquire(self, consumer_id: str, queue: int, epoch: int) -> dict[str, Any]:
        self._check(consumer_id)
        position = self.positions.get(queue)
        if position is None or position.epoch != epoch:
            return {"queue": queue, "state": "fenced", "offset": None}
        # From here on, requests of a former owner are fenced.
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
        # Two commits may arrive in any order, so the highest offset counts.
        position.committed = max(position.committed, offset)
        return {"queue": queue, "state": "ok"}

    def read(
        self, consumer_id: str, request: dict[str, int], *, limit: int
    ) -> dict[str, Any]:
        """Return a queue's part of the answer to a pull."""
        position = self.position_of(consumer_id, request["queue"])
        offset = request["offset"]
        if position is None or position.fence != (request["epoch"], consumer_id):
            return pulled(request["queue"], "fenced", offset, head=0)
        queue = position.queue
        if not queue.low <= offset <= queue.head:
            state = "cleaned" if offset < queue.low else "out_of_range"
            return {**pulled(queue.id, state, offset, head=queue.head), "low": queue.low}
        settings = self.filter_of(queue)
        visible_until_ms = self.clock.now_ms() - settings.delay_s * 1000
        messages, next_offset = list[StoredMessage](), queue.head
        for message in queue.between(offset, queue.head - offset):
            if len(messages) >= limit or message.stored_at_ms > visible_until_ms:
                next_offset = message.offset
                break
            if settings.takes(message.tag, message.headers):
                messages.append(message)
        return {
            **pulled(queue.id, "ok", next_offset, head=queue.head),
            "messages": [message.view() for message in messages],
        }

    def assigned(self, position: Position) -> dict[str, Any]:
        return {**position.queue.identity(), "epoch": position.epoch, "stopped": False}

    def subscriptions(self, positions: Iterable[Position]) -> dict[str, dict[str, Any]]:
        """Return the delivery settings by topic as a heartbeat answers them."""
        settings = {
            topic: {
                name: value
                for name, value in asdict(self.settings(topic)).items()
                if value is not None
            }
            for topic in {position.queue.subscribed_topic for position in positions}
        }
        # Through JSON, as over HTTP: tuples become lists.
        return cast(dict[str, dict[str, Any]], json.loads(json.dumps(settings)))

    def filter_of(self, queue: FakeQueue) -> Settings:
        """Return the settings with the filter and the delay that apply to a queue."""
        # A retry is a message that has passed both already.
        return Settings() if queue.origin_topic else self.settings(queue.topic)

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise if a consumer that wants these settings may not register."""
        if settings.get("mode") == "share":
            raise Conflict(
                f"group {self.name} has mode {self.mode}",
                code="group_settings_differ",
                status=409,
            )
        if settings.get("mode") not in (None, self.mode):
            raise unsupported(f"groups with mode {settings['mode']}")

    def _check(self, consumer_id: str) -> None:
        """Raise Gone unless the consumer is a member."""
        if consumer_id not in self._members:
            reason = self._ended_members.get(consumer_id, "expired")
            raise Gone(f"{consumer_id} is {reason}", code=reason, status=410)


def pulled(queue: int, state: str, next_offset: int, *, head: int) -> dict[str, Any]:
    """Return a queue's part of the answer to a pull, without messages."""
    return {
        "queue": queue,
        "state": state,
        "messages": [],
        "next_offset": next_offset,
        "head": head,
    }
