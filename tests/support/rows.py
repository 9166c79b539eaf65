"""Metadata for tests: rows only, without tables on any node."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from metadata import actors
from metadata.db import consumer_ids
from metadata.db.clock import before, database_now, database_state
from metadata.groups import groups, subscription_rows
from metadata.membership import consumers, expiry
from metadata.membership.consumers import HeartbeatAnswer
from metadata.models import ConsumerGroup, Heartbeat, QueueOffset
from metadata.nodes import node_rows
from metadata.rules.membership.liveness import ClockReading, Watch
from metadata.topics import topic_rows

ME = actors.command("test")


def node(name: str = "n1", **settings: object) -> None:
    """Create a node without a database."""
    node_rows.create(
        name=name, engine="sqlite", database=f"nowhere/{name}", actor=ME, **settings
    )  # type: ignore[arg-type]


def topic(name: str = "orders", *, queues: int = 4) -> tuple[int, ...]:
    """Create a ready topic and return its queue ids."""
    ready_topic = topic_rows.make_ready(
        topic_rows.plan_topic(name=name, queues=queues, actor=ME).id
    )
    return tuple(queue.queue for queue in ready_topic.queues)


def group(
    name: str = "billing",
    *,
    topics: tuple[str, ...] = ("orders",),
    mode: str = "clustering",
    **settings: object,
) -> None:
    """Create a group with ready subscriptions."""
    groups.create(name=name, mode=mode, settings=settings, actor=ME)
    for topic_name in topics:
        subscribe(name, topic_name)


def subscribe(group: str, topic: str) -> int:
    """Create a ready subscription and return its id."""
    planned = subscription_rows.plan(group=group, topic=topic, start="earliest", actor=ME)
    return subscription_rows.make_ready(planned.id).id


def world(
    *, queues: int = 4, mode: str = "clustering", **settings: object
) -> tuple[int, ...]:
    """Create node n1, topic orders, and group billing, which reads it. Return the queue
    ids.
    """
    node()
    ids = topic(queues=queues)
    group(mode=mode, **settings)
    QueueOffset.objects.update(epoch=0)  # so that tests can expect epochs 1, 2, 3
    return ids


def owners() -> dict[int, int | None]:
    """Return the owning member of each queue of the only group."""
    return dict(QueueOffset.objects.values_list("queue_id", "owner_id"))


def epochs() -> dict[int, int]:
    """Return the epoch of each queue of the only group."""
    return dict(QueueOffset.objects.values_list("queue_id", "epoch"))


def generation() -> int:
    """Return the generation of the only group."""
    return ConsumerGroup.objects.get().generation


@dataclass
class Member:
    """A client process as the server sees it: it registers, sends heartbeats, and applies
    them at once.
    """

    name: str
    group: str = "billing"
    instance_id: str | None = None
    incarnation: str = field(default_factory=lambda: str(uuid.uuid4()))
    address: str = "127.0.0.1"
    generation: int = 0
    owned: dict[int, int] = field(default_factory=dict)
    id: consumer_ids.ConsumerId | None = None

    def register(self) -> Member:
        """Register, or register again."""
        registered = consumers.register(
            group=self.group,
            name=self.name,
            incarnation=self.incarnation,
            instance_id=self.instance_id,
            sdk="test",
            address=self.address,
            actor=ME,
        )
        self.id = consumer_ids.check(registered.consumer_id)
        return self

    def beat(self) -> HeartbeatAnswer:
        """Send a heartbeat and own exactly the assigned queues."""
        assert self.id is not None
        answer = consumers.heartbeat(
            consumer=self.id, generation=self.generation, owned=[*self.owned.items()]
        )
        self.generation = answer.generation
        self.owned = {assigned.queue: assigned.epoch for assigned in answer.assigned}
        return answer

    def leave(self) -> None:
        """End the membership."""
        assert self.id is not None
        consumers.leave(consumer=self.id, actor=ME)


def steady_guard() -> expiry.OutageGuard:
    """Return a guard that has seen a healthy database for a very long time."""

    class Steady(expiry.OutageGuard):
        def look(self) -> Watch:
            server, now, _ = database_state()
            return Watch(ClockReading(server, now, 1e9), 0.0)

    return Steady()


def long_ago(*, seconds: float) -> datetime:
    """Return the database's time `seconds` ago."""
    return before(database_now(), seconds=seconds)


class Speaker(Protocol):
    """An object with a consumer id."""

    @property
    def id(self) -> consumer_ids.ConsumerId | None: ...


def silence(member: Speaker, *, seconds: float) -> None:
    """Set the member's last heartbeat to `seconds` ago."""
    assert member.id is not None
    Heartbeat.objects.filter(pk=member.id.member_id).update(
        last_seen=long_ago(seconds=seconds)
    )
