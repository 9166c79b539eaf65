"""Instances of a broadcasting group as the store sees them."""

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
    """Topic `orders` with two queues, and the broadcasting group `news` that reads it from
    the start.
    """
    state = topics.create(name="orders", queues=2, actor=ME)
    groups.create(name="news", mode="broadcasting", actor=ME)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    return [one.queue.queue for one in state.queues]


@dataclass
class Instance:
    """A process that joined the group as the instance `name`, and does what it is told at
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
        """Its consumer id."""
        assert self.joined is not None
        return consumer_ids.check(self.joined.consumer_id)

    def join(self, *topics: str, address: str = "127.0.0.1") -> Instance:
        """Registers."""
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
        """One heartbeat; takes over what it is told."""
        told = consumers.heartbeat(
            consumer=self.id, generation=self.generation, owned=[*self.owned.items()]
        )
        self.generation = told.generation
        self.owned = {one.queue: one.epoch for one in told.assigned}
        return told

    def take(self) -> dict[int, tuple[str, int | None]]:
        """Heartbeats and acquires all it is told to own: queue → (state, offset)."""
        self.beat()
        acquired = positions.acquire(
            consumer=self.id, queues=[Claim(*one) for one in self.owned.items()]
        )
        return {one.queue: (one.state, one.offset) for one in acquired}

    def pull(self, queue: int, offset: int = 0) -> PulledQueue:
        """Reads a queue from an offset on."""
        asked = [PullQueue(queue, self.owned[queue], offset)]
        return pull.pull(
            consumer=self.id, queues=asked, max_messages=100, max_bytes=1 << 20
        )[0]

    def commit(self, queue: int, offset: int) -> str:
        """Commits; the state."""
        asked = [CommitOffset(queue, self.owned[queue], offset)]
        return positions.commit(consumer=self.id, offsets=asked)[0].state

    def leave(self) -> None:
        """Ends the membership."""
        consumers.leave(consumer=self.id, actor=ME)


def send(queue: int, count: int, topic: str = "orders") -> None:
    """Puts messages m0, m1, … into a queue."""
    messages = [NewMessage(body=b"m%d" % number, queue=queue) for number in range(count)]
    publish(topic=topic, messages=messages, batch_id=None, actor=ME)


def bodies(instance: Instance, queue: int, offset: int = 0) -> list[bytes]:
    """What the instance reads in a queue."""
    answer = instance.pull(queue, offset)
    assert answer.state == "ok"
    return [message.body for message in answer.messages]


def committed(queue: int) -> dict[str, int]:
    """Instance's name → its position in a queue, as the node has it."""
    names = {
        str(pk): name for pk, name in BroadcastInstance.objects.values_list("pk", "name")
    }
    return {
        names.get(instance, instance): at
        for _, instance, _, _, at in tampering.readers(queue)
    }
