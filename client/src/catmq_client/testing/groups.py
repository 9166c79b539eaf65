"""Consumer groups of the FakeBroker: members, assignment, hand-over, fences and committed offsets.

It follows the broker's rules: a queue is revoked in a heartbeat's answer, released by a heartbeat
that no longer lists it, and granted to its target with the next epoch; the first acquire with that
epoch fences the former owner.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import Gone, NotFound
from catmq_client.testing.topics import FakeQueue, FakeTopics, message_view

_ids = itertools.count(1)


@dataclass(slots=True)
class Position:
    """Who reads a queue for a group, and how far."""

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
    """A registered consumer."""

    consumer_id: str
    name: str
    incarnation: str
    heartbeats: int = 0


@dataclass(slots=True)
class FakeGroup:
    """A group, its members and positions by queue id."""

    name: str
    session_timeout_ms: int = 15_000
    heartbeat_interval_ms: int = 3_000
    generation: int = 0
    stopped: bool = False
    members: dict[str, Member] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)

    def subscribe(self, queues: list[FakeQueue], *, start: str) -> bool:
        """Makes positions for queues that have none."""
        new = [queue for queue in queues if queue.id not in self.positions]
        for queue in new:
            committed = queue.low if start == "earliest" else queue.head
            self.positions[queue.id] = Position(queue, committed=committed)
        if new:
            self.rebalance()
        return bool(new)

    def join(self, name: str, incarnation: str) -> Member:
        """The member; another incarnation under the same name replaces the former."""
        for member in [*self.members.values()]:
            if member.name == name:
                if member.incarnation == incarnation:
                    return member
                self.remove(member.consumer_id, "replaced")
        member = Member(f"{self.name}.k.{next(_ids)}.x", name, incarnation)
        self.members[member.consumer_id] = member
        self.rebalance()
        return member

    def remove(self, consumer_id: str, why: str) -> None:
        """Takes a member out: `expired`, `replaced` or `left`."""
        if self.members.pop(consumer_id, None) is not None:
            self.gone[consumer_id] = why
            for position in self.positions.values():
                if position.owner == consumer_id:
                    position.owner = None
            self.rebalance()

    def rebalance(self) -> None:
        """Sticky and balanced: every member gets as many queues as any other, give or take one."""
        self.generation += 1
        targets = _balanced(sorted(self.members), {q: p.owner for q, p in self.positions.items()})
        for queue_id, position in self.positions.items():
            position.target = targets.get(queue_id)
            position.target_generation = self.generation
            if position.owner is None:
                self._grant(position)

    def heartbeat(self, consumer_id: str, generation: int, owned: list[dict[str, int]]) -> dict[str, Any]:
        """What to own and what to give up; releases what `owned` no longer lists."""
        self._member(consumer_id).heartbeats += 1
        held = {(item["queue"], item["epoch"]) for item in owned}
        mine = [p for p in self.positions.values() if p.owner == consumer_id]
        for position in mine:
            released = (position.queue.id, position.epoch) not in held
            if released and position.target != consumer_id and generation >= position.target_generation:
                self.generation += 1
                self._grant(position)
        mine = [p for p in self.positions.values() if p.owner == consumer_id]
        return {
            "generation": self.generation,
            "assigned": [
                {"topic": p.queue.topic, "queue": p.queue.id, "epoch": p.epoch, "stopped": self.stopped}
                for p in mine
                if p.target == consumer_id
            ],
            "revoked": [p.queue.id for p in mine if p.target != consumer_id],
        }

    def acquire(self, consumer_id: str, queue: int, epoch: int) -> dict[str, Any]:
        """Fences all former owners, if the epoch is the newest."""
        position = self.positions[queue]
        known = position.fence
        if epoch > known[0] or (epoch, consumer_id) == known:
            position.fence = (epoch, consumer_id)
            return {"queue": queue, "state": "ok", "offset": position.committed}
        return {"queue": queue, "state": "fenced", "offset": None}

    def commit(self, consumer_id: str, queue: int, epoch: int, offset: int) -> dict[str, Any]:
        """Raises the committed offset, for the owner only."""
        position = self.positions.get(queue)
        if position is None or position.fence != (epoch, consumer_id):
            return {"queue": queue, "state": "fenced"}
        if offset > position.queue.head:
            return {"queue": queue, "state": "out_of_range"}
        position.committed = max(position.committed, offset)
        return {"queue": queue, "state": "ok"}

    def read(self, consumer_id: str, asked: dict[str, int], *, limit: int) -> dict[str, Any]:
        """One queue's part of a pull."""
        position = self.positions.get(asked["queue"])
        offset = asked["offset"]
        if position is None or position.fence != (asked["epoch"], consumer_id):
            return _pulled(asked["queue"], "fenced", offset, head=0)
        queue = position.queue
        if self.stopped:
            return _pulled(queue.id, "stopped", offset, head=queue.head)
        if offset < queue.low:
            return {**_pulled(queue.id, "cleaned", offset, head=queue.head), "low": queue.low}
        if offset > queue.head:
            return {**_pulled(queue.id, "out_of_range", offset, head=queue.head), "low": queue.low}
        found = queue.between(offset, limit)
        answer = _pulled(queue.id, "ok", offset + len(found), head=queue.head)
        return {**answer, "messages": [message_view(m) for m in found]}

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

    def __init__(self, topics: FakeTopics) -> None:
        self.by_name: dict[str, FakeGroup] = {}
        self._topics = topics

    def find(self, name: str) -> FakeGroup:
        """The group, or NotFound."""
        group = self.by_name.get(name)
        if group is None:
            detail = f"there is no group {name}; make it with: catmq group create {name}"
            raise NotFound(detail, code="group_not_found", status=404)
        return group

    def of_consumer(self, consumer_id: str) -> FakeGroup:
        """The group in which a consumer id was given out."""
        for group in self.by_name.values():
            if consumer_id in group.members or consumer_id in group.gone:
                return group
        raise NotFound(f"{consumer_id} was never given out", code="consumer_not_found", status=404)

    def subscribe(self, group: str, topic: str, *, start: str) -> FakeGroup:
        """The group, made if it is new, reading the topic."""
        found = self.by_name.setdefault(group, FakeGroup(group))
        found.subscribe(self._topics.find(topic).queues, start=start)
        return found


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
