"""Instances of a broadcasting group, on the level of the message store."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.topology import membership, subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.groups import groups
from metadata.membership import consumers
from metadata.membership.heartbeats import HeartbeatAnswer
from metadata.models import BroadcastInstance
from tests.support import tampering

ME = actors.command("test")


def news() -> list[int]:
    """Create topic `orders` with two queues, and broadcasting group `news`, which reads it
    from the start.
    """
    state = topics.create(name="orders", queues=2, actor=ME)
    groups.create(name="news", mode="broadcasting", actor=ME)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    return [topic_queue.queue.queue for topic_queue in state.queues]


@dataclass
class Instance:
    """A process that joined the group as instance `name`. It applies each heartbeat at
    once.
    """

    name: str
    group: str = "news"
    incarnation: str = field(default_factory=lambda: str(uuid.uuid4()))
    generation: int = 0
    owned: dict[int, int] = field(default_factory=dict)  # queue → epoch
    joined: membership.Joined | None = None

    @property
    def id(self) -> ConsumerId:
        """The consumer id."""
        assert self.joined is not None
        return consumer_ids.check(self.joined.consumer_id)

    def join(self, *topics: str, address: str = "127.0.0.1") -> Instance:
        """Register."""
        self.joined = membership.join(
            group=self.group,
            topics=topics,
            name=f"host-of-{self.name}",
            incarnation=self.incarnation,
            instance_id=self.name,
            address=address,
            actor=ME,
        )
        return self

    def beat(self) -> HeartbeatAnswer:
        """Send a heartbeat and apply its assignment."""
        answer = consumers.heartbeat(
            consumer=self.id, generation=self.generation, owned=[*self.owned.items()]
        )
        self.generation = answer.generation
        self.owned = {assigned.queue: assigned.epoch for assigned in answer.assigned}
        return answer

    def take(self) -> dict[int, tuple[str, int | None]]:
        """Send a heartbeat and acquire all assigned queues. Return queue → (state, offset)."""
        self.beat()
        acquired = positions.acquire(
            consumer=self.id, queues=[Claim(*grant) for grant in self.owned.items()]
        )
        return {position.queue: (position.state, position.offset) for position in acquired}

    def pull(self, queue: int, offset: int = 0) -> PulledQueue:
        """Read a queue from an offset on."""
        queues = [PullQueue(queue, self.owned[queue], offset)]
        return pull.pull(
            consumer=self.id, queues=queues, max_messages=100, max_bytes=1 << 20
        )[0]

    def commit(self, queue: int, offset: int) -> str:
        """Commit an offset and return the state."""
        offsets = [CommitOffset(queue, self.owned[queue], offset)]
        return positions.commit(consumer=self.id, offsets=offsets)[0].state

    def leave(self) -> None:
        """End the membership."""
        consumers.leave(consumer=self.id, actor=ME)


def send(queue: int, count: int, topic: str = "orders") -> None:
    """Send messages m0, m1, … to a queue."""
    messages = [NewMessage(body=b"m%d" % number, queue=queue) for number in range(count)]
    publish(topic=topic, messages=messages, batch_id=None, actor=ME)


def bodies(instance: Instance, queue: int, offset: int = 0) -> list[bytes]:
    """Return the bodies that the instance reads from a queue."""
    answer = instance.pull(queue, offset)
    assert answer.state == "ok"
    return [message.body for message in answer.messages]


def committed(queue: int) -> dict[str, int]:
    """Return the committed offsets of a queue by the instances' names, from the node."""
    names = {
        str(pk): name for pk, name in BroadcastInstance.objects.values_list("pk", "name")
    }
    return {
        names.get(instance, instance): offset
        for _, instance, _, _, offset in tampering.readers(queue)
    }
