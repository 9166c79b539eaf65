"""Consumer groups of the FakeBroker: members, assignment, hand-over, fences and committed offsets.

It follows the broker's rules: a queue is revoked in a heartbeat's answer, released by a heartbeat
that no longer lists it, and granted to its target with the next epoch; the first acquire with that
epoch fences the former owner. A member is an identity: another incarnation of it takes its queues
over at once, under the next epoch. In a broadcasting group every instance owns all queues, at
positions of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from catmq_client.errors import Conflict, FieldError, Gone, InvalidRequest, NotFound
from catmq_client.reading.subscription_settings import Settings
from catmq_client.testing.clock import FakeClock
from catmq_client.testing.topics import FakeQueue, FakeTopics, StoredMessage, message_view

_ids = itertools.count(1)


@dataclass(slots=True)
class Position:
    """Owner and progress of a group in a queue."""

    queue: FakeQueue
    owner: str | None = None
    target: str | None = None
    epoch: int = 0
    target_generation: int = 0
    # What the node knows: the fence and the committed offset.
    fence: tuple[int, str] = (0, "")
    committed: int = 0
    rewinds: int = 0


@dataclass(slots=True)
class Member:
    """A registered consumer; `name` is its identity, `number` its place in the order of joining."""

    consumer_id: str
    name: str
    incarnation: str
    number: int
    replaced: list[str] = field(default_factory=list)
    heartbeats: int = 0


@dataclass(slots=True)
class FakeGroup:
    """A group, its members, and positions by queue id; in a broadcasting group those of each instance."""

    name: str
    mode: str = "clustering"
    session_timeout_ms: int = 15_000
    heartbeat_interval_ms: int = 3_000
    generation: int = 0
    stopped: bool = False
    stopped_topics: set[str] = field(default_factory=set)
    stopped_queues: set[int] = field(default_factory=set)
    members: dict[str, Member] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)
    instances: dict[str, dict[int, Position]] = field(default_factory=dict)
    # Consumer id → instance; it outlives the member, as reader rows do.
    instance_of: dict[str, str] = field(default_factory=dict)
    starts: dict[int, str] = field(default_factory=dict)
    # What operators set of a subscription, by topic.
    delivery: dict[str, dict[str, Any]] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)

    def subscribe(self, queues: list[FakeQueue], *, start: str) -> bool:
        """Makes positions for queues that have none."""
        new = [queue for queue in queues if queue.id not in self.starts]
        self.starts.update((queue.id, start) for queue in new)
        for positions in [self.positions, *self.instances.values()]:
            positions.update((queue.id, self._position(queue)) for queue in new)
        if new:
            self.rebalance()
        return bool(new)

    def check(self, *, mode: str | None, session_timeout_ms: int | None, instance_id: str | None) -> None:
        """Raises unless a consumer that asks for these settings may register."""
        for name, asked in (("mode", mode), ("session_timeout_ms", session_timeout_ms)):
            has = getattr(self, name)
            if asked is not None and asked != has:
                detail = f"Group {self.name} has {name} {has}, this consumer asks for {asked}"
                raise Conflict(detail, code="group_settings_differ", status=409)
        if self.mode == "broadcasting" and not instance_id:
            wrong = FieldError("instance_id", f"group {self.name} is broadcasting: name the instance")
            raise InvalidRequest(wrong.message, errors=[wrong], status=400)

    def join(self, name: str, incarnation: str) -> Member:
        """The member; another incarnation of an identity replaces the former."""
        member = next((one for one in self.members.values() if one.name == name), None)
        if member is None:
            member = Member(self._new_id(name), name, incarnation, next(_ids))
            self.members[member.consumer_id] = member
            self._arrive(member)
            self.rebalance()
        elif incarnation in member.replaced:
            raise Gone(f"{name} was replaced", code="replaced", status=410)
        elif member.incarnation != incarnation:
            self._replace(member, incarnation)
        return member

    def remove(self, consumer_id: str, why: str) -> None:
        """Takes a member out: `expired` or `left`."""
        if self.members.pop(consumer_id, None) is not None:
            self.gone[consumer_id] = why
            for position in self.positions.values():
                if position.owner == consumer_id:
                    position.owner = None
                if position.target == consumer_id:
                    position.target = None
            self.rebalance()

    def rebalance(self) -> None:
        """Sticky and balanced: every member gets as many queues as any other, give or take one."""
        if self.mode == "broadcasting":
            for member in self.members.values():
                self._grant_all(self.instances[member.name], member.consumer_id)
            self.generation += 1
            return
        order = sorted(self.members, key=lambda key: self.members[key].number)
        targets = _balanced(order, {q: p.target or p.owner for q, p in self.positions.items()})
        generation, moved = self.generation + 1, False
        for queue_id, position in self.positions.items():
            target, owner = targets.get(queue_id), position.owner
            again = target is not None and (owner is None or owner == target != position.target)
            if again or position.target != target:
                position.target, position.target_generation, moved = target, generation, True
            if again:
                self._grant(position)
        self.generation += moved

    def set_stopped(self, stopped: bool, *, topic: str | None = None, queue: int | None = None) -> None:
        """Stops or starts the group, its subscription to a topic, or one queue of it."""
        if topic is not None:
            (self.stopped_topics.add if stopped else self.stopped_topics.discard)(topic)
        elif queue is not None:
            (self.stopped_queues.add if stopped else self.stopped_queues.discard)(queue)
        else:
            self.stopped = stopped
        self.generation += 1

    def settings(self, topic: str) -> Settings:
        """Return the delivery settings of a topic."""
        return Settings.from_answer(self.delivery.get(topic, {}))

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Changes settings of the subscription; None: the consumer decides, as without it."""
        self.delivery[topic] = {**self.delivery.get(topic, {}), **settings}
        self.generation += 1

    def reset(self, queues: list[FakeQueue], offsets: list[int]) -> None:
        """Moves the group, its owners keep their queues under the next epoch."""
        for positions in [self.positions, *self.instances.values()]:
            for queue, offset in zip(queues, offsets, strict=True):
                position = positions[queue.id]
                position.epoch += 1
                position.fence = (position.epoch, position.owner or "")
                position.committed = offset
                position.rewinds += 1
        self.generation += 1

    def heartbeat(self, consumer_id: str, generation: int, owned: list[dict[str, int]]) -> dict[str, Any]:
        """Return the queues to own and to give up; release what `owned` no longer lists."""
        self._member(consumer_id).heartbeats += 1
        holds = {item["queue"] for item in owned}
        for position in self._owned_by(consumer_id):
            released = position.queue.id not in holds and position.target != consumer_id
            if released and generation >= position.target_generation:
                self.generation += 1
                self._grant(position)
        mine = self._owned_by(consumer_id)
        leaving = {p.queue.id for p in mine if p.target != consumer_id}
        return {
            "generation": self.generation,
            "assigned": [self._assigned(p) for p in mine if p.target == consumer_id],
            "revoked": sorted(leaving | (holds - {p.queue.id for p in mine})),
            "subscriptions": {topic: self._told(topic) for topic in {_subscription(p.queue) for p in mine}},
        }

    def acquire(self, consumer_id: str, queue: int, epoch: int) -> dict[str, Any]:
        """Fences all former owners, if metadata granted the queue under this epoch."""
        self._member(consumer_id)
        position = self._positions(consumer_id).get(queue)
        granted = position is not None and position.owner == position.target == consumer_id
        if position is None or not granted or position.epoch != epoch:
            return {"queue": queue, "state": "fenced", "offset": None}
        if epoch > position.fence[0] or position.fence == (epoch, consumer_id):
            position.fence = (epoch, consumer_id)
            return {"queue": queue, "state": "ok", "offset": position.committed}
        # Metadata follows its node.
        position.epoch = position.fence[0] + 1
        self.generation += 1
        return {"queue": queue, "state": "fenced", "offset": None}

    def commit(self, consumer_id: str, queue: int, epoch: int, offset: int) -> dict[str, Any]:
        """Raises the committed offset, for the owner only."""
        position = self._positions(consumer_id).get(queue)
        if position is None or position.fence != (epoch, consumer_id):
            return {"queue": queue, "state": "fenced"}
        if offset > position.queue.head:
            return {"queue": queue, "state": "out_of_range"}
        position.committed = max(position.committed, offset)
        return {"queue": queue, "state": "ok"}

    def read(self, consumer_id: str, asked: dict[str, int], *, limit: int) -> dict[str, Any]:
        """One queue's part of a pull."""
        position = self._positions(consumer_id).get(asked["queue"])
        offset = asked["offset"]
        if position is not None and self._stops(position.queue):
            return _pulled(asked["queue"], "stopped", offset, head=position.queue.head)
        if position is None or position.fence != (asked["epoch"], consumer_id):
            return _pulled(asked["queue"], "fenced", offset, head=0)
        queue = position.queue
        if offset < queue.low:
            return {**_pulled(queue.id, "cleaned", offset, head=queue.head), "low": queue.low}
        if offset > queue.head:
            return {**_pulled(queue.id, "out_of_range", offset, head=queue.head), "low": queue.low}
        found, next_offset = self._served(queue, offset, limit)
        answer = _pulled(queue.id, "ok", next_offset, head=queue.head)
        return {**answer, "messages": [message_view(m) for m in found]}

    def _served(self, queue: FakeQueue, offset: int, limit: int) -> tuple[list[StoredMessage], int]:
        """The messages that the settings let through, and where to go on."""
        settings = Settings() if queue.origin_topic else self.settings(queue.topic)
        ripe_ms = self.clock.now_ms() - settings.delay_s * 1000
        found: list[StoredMessage] = []
        for message in queue.between(offset, queue.head - offset):
            if len(found) >= limit or message.stored_at_ms > ripe_ms:
                return found, message.offset
            if not settings.tags or message.tag in settings.tags:
                found.append(message)
        return found, queue.head

    def _told(self, topic: str) -> dict[str, Any]:
        """The settings as a heartbeat tells them: tags as a list, nothing that is left open."""
        told = {name: value for name, value in asdict(self.settings(topic)).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}

    def _assigned(self, position: Position) -> dict[str, Any]:
        queue = position.queue
        stopped = self._stops(queue)
        assigned = {"topic": queue.topic, "queue": queue.id, "epoch": position.epoch, "stopped": stopped}
        return assigned if queue.origin_topic is None else {**assigned, "origin_topic": queue.origin_topic}

    def _stops(self, queue: FakeQueue) -> bool:
        return self.stopped or _subscription(queue) in self.stopped_topics or queue.id in self.stopped_queues

    def _position(self, queue: FakeQueue) -> Position:
        at = queue.low if self.starts[queue.id] == "earliest" else queue.head
        return Position(queue, committed=at)

    def position_of(self, consumer_id: str, queue: int) -> Position | None:
        """Return a consumer's position in a queue."""
        return self._positions(consumer_id).get(queue)

    def _positions(self, consumer_id: str) -> dict[int, Position]:
        """Those that a consumer reads by, also one that is no member any more."""
        return self.positions if self.mode == "clustering" else self.instances[self.instance_of[consumer_id]]

    def _owned_by(self, consumer_id: str) -> list[Position]:
        return [p for p in self._positions(consumer_id).values() if p.owner == consumer_id]

    def _new_id(self, name: str) -> str:
        consumer_id = f"{self.name}.k.{next(_ids)}.x"
        self.instance_of[consumer_id] = name
        return consumer_id

    def _arrive(self, member: Member) -> None:
        """A broadcasting member's instance gets its places; it keeps those it had."""
        if self.mode == "broadcasting" and member.name not in self.instances:
            places = {q: self._position(p.queue) for q, p in self.positions.items()}
            self.instances[member.name] = places

    def _replace(self, member: Member, incarnation: str) -> None:
        """The successor owns at once what the former process did; what was leaving goes."""
        former, member.consumer_id = member.consumer_id, self._new_id(member.name)
        member.replaced.append(member.incarnation)
        member.incarnation = incarnation
        self.members[member.consumer_id] = self.members.pop(former)
        self.gone[former] = "replaced"
        for position in self._positions(former).values():
            if position.owner == former != position.target:
                self._grant(position)
                self.generation += 1
            if position.target == former:
                position.target = member.consumer_id
            if position.owner == former:
                self._grant(position)

    def _grant_all(self, positions: dict[int, Position], consumer_id: str) -> None:
        for position in positions.values():
            if position.owner != consumer_id:
                position.target = consumer_id
                self._grant(position)

    def _grant(self, position: Position) -> None:
        position.owner = position.target
        if position.owner is not None:
            position.epoch += 1

    def _member(self, consumer_id: str) -> Member:
        member = self.members.get(consumer_id)
        if member is None:
            why = self.gone.get(consumer_id, "expired")
            why = "expired" if why == "left" else why
            raise Gone(f"{consumer_id} is {why}", code=why, status=410)
        return member


class FakeGroups:
    """All groups."""

    def __init__(self, topics: FakeTopics, clock: FakeClock) -> None:
        self.by_name: dict[str, FakeGroup] = {}
        self._clock = clock
        self._topics = topics

    def find(self, name: str) -> FakeGroup:
        """The group, or NotFound."""
        group = self.by_name.get(name)
        if group is None:
            detail = f"there is no group {name}; make it with: catmq group create {name}"
            raise NotFound(detail, code="group_not_found", status=404)
        return group

    def ensure(self, name: str, *, mode: str | None, session_timeout_ms: int) -> FakeGroup:
        """The group; made with these settings if it is new."""
        if name not in self.by_name:
            self.by_name[name] = FakeGroup(name, mode or "clustering", session_timeout_ms, clock=self._clock)
        return self.by_name[name]

    def of_consumer(self, consumer_id: str) -> FakeGroup:
        """The group in which a consumer id was given out."""
        for group in self.by_name.values():
            if consumer_id in group.instance_of:
                return group
        raise NotFound(f"{consumer_id} was never given out", code="consumer_not_found", status=404)

    def subscribe(self, group: FakeGroup, topics: Iterable[str], *, start: str) -> bool:
        """Makes the group read the topics; whether that is new."""
        new = [group.subscribe(self._topics.find(topic).queues, start=start) for topic in topics]
        return any(new)


def _subscription(queue: FakeQueue) -> str:
    return queue.origin_topic or queue.topic


def _pulled(queue: int, state: str, next_offset: int, *, head: int) -> dict[str, Any]:
    return {"queue": queue, "state": state, "messages": [], "next_offset": next_offset, "head": head}


def _balanced(members: list[str], owners: dict[int, str | None]) -> dict[int, str]:
    if not members:
        return {}
    least, more = divmod(len(owners), len(members))
    room = {member: least + (i < more) for i, member in enumerate(members)}
    targets: dict[int, str] = {}
    for queue, owner in owners.items():
        if owner is not None and room.get(owner, 0) > 0:
            targets[queue] = owner
            room[owner] -= 1
    for queue in owners:
        if queue not in targets:
            targets[queue] = next(member for member in members if room[member] > 0)
            room[targets[queue]] -= 1
    return targets
