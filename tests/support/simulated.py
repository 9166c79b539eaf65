"""A FakeBroker with the whole protocol of groups, for tests of the client. tests/contract
compares it with a broker.

It follows the broker's rules: a queue is revoked in the answer to a heartbeat, released by
a heartbeat that no longer lists it, and granted to its target with the next epoch. The
first acquire with that epoch fences the former owner. A member is an identity: another
incarnation takes over its queues at once, under the next epoch. In a broadcasting group
every instance owns all queues, at positions of its own.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import (
    CatmqError,
    Conflict,
    FieldError,
    Gone,
    InvalidRequest,
    Unavailable,
)
from catmq_client.testing import FakeBroker
from catmq_client.testing.failures import FakeFailures
from catmq_client.testing.groups import FakeGroup, Position, pulled
from catmq_client.testing.topics import FakeClock, FakeQueue, FakeTopic, FakeTopics

MAX_QUEUES = 1_000  # per request
_ids = itertools.count(1)


@dataclass(slots=True)
class Place(Position):
    """A position with its owner, and the member to which it moves."""

    owner: str | None = None
    target: str | None = None
    target_generation: int = 0


@dataclass(slots=True)
class Member:
    """A registered consumer. `name` is its identity, `number` its place in the order of
    joining.
    """

    consumer_id: str
    name: str
    incarnation: str
    number: int
    replaced: list[str] = field(default_factory=list)
    heartbeats: int = 0


class SimulatedGroup(FakeGroup):
    """A group of many members with positions by queue id; in a broadcasting group, by
    instance.
    """

    positions: dict[int, Place]  # type: ignore[assignment]

    def __init__(self, name: str, *, mode: str | None, **more: Any) -> None:
        super().__init__(name, **more)
        self.mode = mode or "clustering"
        self.stopped = False
        self.stopped_topics: set[str] = set()
        self.stopped_queues: set[int] = set()
        self.members: dict[str, Member] = {}
        self.gone: dict[str, str] = {}
        self.instances: dict[str, dict[int, Place]] = {}
        # Consumer id → instance. It remains after the member has left, like reader rows.
        self.instance_of: dict[str, str] = {}

    def subscribe(self, queues: list[FakeQueue], *, start: str) -> bool:
        earlier_generation, has_new_queues = (
            self.generation,
            super().subscribe(queues, start=start),
        )
        # The generation rises once, with the rebalance below.
        self.generation = earlier_generation
        for positions in self.instances.values():
            positions.update(
                (q.id, self.position_in(q)) for q in queues if q.id not in positions
            )
        if has_new_queues:
            self.rebalance()
        return has_new_queues

    def position_in(self, queue: FakeQueue) -> Place:
        return Place(
            queue, queue.low if self._starts[queue.id] == "earliest" else queue.head
        )

    def join(self, name: str, incarnation: str, **settings: Any) -> str:
        """Register. Another incarnation of an identity replaces the former."""
        self.check(**settings)
        member = next((m for m in self.members.values() if m.name == name), None)
        if member is None:
            member = Member(self._new_id(name), name, incarnation, next(_ids))
            self.members[member.consumer_id] = member
            if self.mode == "broadcasting" and name not in self.instances:
                self.instances[name] = {
                    q: self.position_in(p.queue) for q, p in self.positions.items()
                }
            self.rebalance()
        # Otherwise a former process that registers again would replace its successor in
        # turn.
        elif incarnation in member.replaced:
            raise Gone(f"{name} was replaced", code="replaced", status=410)
        elif member.incarnation != incarnation:
            self._replace(member, incarnation)
        return member.consumer_id

    def check(
        self,
        *,
        mode: str | None = None,
        session_timeout_ms: int | None = None,
        instance_id: str | None = None,
    ) -> None:
        """Raise unless a consumer with these settings may register."""
        for name, requested in (("mode", mode), ("session_timeout_ms", session_timeout_ms)):
            current = getattr(self, name)
            if requested is not None and requested != current:
                detail = (
                    f"Group {self.name} has {name} {current}, this consumer asks for "
                    f"{requested}"
                )
                raise Conflict(detail, code="group_settings_differ", status=409)
        if self.mode == "broadcasting" and not instance_id:
            field_error = FieldError(
                "instance_id", f"group {self.name} is broadcasting: name the instance"
            )
            raise InvalidRequest(field_error.message, errors=[field_error], status=400)

    def leave(self, consumer_id: str, why: str = "left") -> None:
        """Remove a member. `why` is `expired` or `left`."""
        if self.members.pop(consumer_id, None) is not None:
            self.gone[consumer_id] = why
            for place in self.positions.values():
                if place.owner == consumer_id:
                    place.owner = None
                if place.target == consumer_id:
                    place.target = None
            self.rebalance()

    def knows_consumer(self, consumer_id: str) -> bool:
        return consumer_id in self.instance_of

    def rebalance(self) -> None:
        """Distribute the queues evenly, and let members keep their queues where possible."""
        if self.mode == "broadcasting":
            for member in self.members.values():
                self._grant_all(self.instances[member.name], member.consumer_id)
            self.generation += 1
            return
        # In the order of joining, so that tests can predict who gets which queue.
        order = sorted(self.members, key=lambda key: self.members[key].number)
        targets = _balanced(
            order, {q: p.target or p.owner for q, p in self.positions.items()}
        )
        generation, moved = self.generation + 1, False
        for queue_id, place in self.positions.items():
            target, owner = targets.get(queue_id), place.owner
            granted_now = target is not None and (
                owner is None or owner == target != place.target
            )
            if granted_now or place.target != target:
                place.target, place.target_generation, moved = target, generation, True
            if granted_now:
                self._grant(place)
        self.generation += moved

    def set_stopped(
        self, stopped: bool, *, topic: str | None = None, queue: int | None = None
    ) -> None:
        """Stop or start the group, its subscription to a topic, or a queue of it."""
        if topic is not None:
            (self.stopped_topics.add if stopped else self.stopped_topics.discard)(topic)
        elif queue is not None:
            (self.stopped_queues.add if stopped else self.stopped_queues.discard)(queue)
        else:
            self.stopped = stopped
        self.generation += 1

    def reset(self, queues: list[FakeQueue], offsets: list[int]) -> None:
        """Move the group's positions. Owners keep their queues under the next epoch."""
        for positions in [self.positions, *self.instances.values()]:
            for queue, offset in zip(queues, offsets, strict=True):
                place = positions[queue.id]
                place.epoch += 1
                # Commits under the former epoch must not undo the reset.
                place.fence = (place.epoch, place.owner or "")
                place.committed = offset
        self.generation += 1

    def heartbeat(
        self, consumer_id: str, generation: int, owned: list[dict[str, int]]
    ) -> dict[str, Any]:
        """Return the queues to own and to give up. Release queues that `owned` no longer
        lists.
        """
        self._check(consumer_id)
        self.members[consumer_id].heartbeats += 1
        held_queues = {item["queue"] for item in owned}
        for place in self._owned_by(consumer_id):
            # A queue moves only after its owner has given it up, so that two members never
            # handle it.
            released = place.queue.id not in held_queues and place.target != consumer_id
            # A heartbeat that was built before the member learned of the move proves
            # nothing.
            if released and generation >= place.target_generation:
                self.generation += 1
                self._grant(place)
        owned_places = self._owned_by(consumer_id)
        leaving = {p.queue.id for p in owned_places if p.target != consumer_id}
        return {
            "generation": self.generation,
            "assigned": [self.assigned(p) for p in owned_places if p.target == consumer_id],
            "revoked": sorted(leaving | (held_queues - {p.queue.id for p in owned_places})),
            "subscriptions": self.subscriptions(owned_places),
        }

    def acquire(self, consumer_id: str, queue: int, epoch: int) -> dict[str, Any]:
        """Fence all former owners if the queue was granted under this epoch."""
        self._check(consumer_id)
        place = self.position_of(consumer_id, queue)
        granted = place is not None and place.owner == place.target == consumer_id
        if place is None or not granted or place.epoch != epoch:
            return {"queue": queue, "state": "fenced", "offset": None}
        if epoch > place.fence[0] or place.fence == (epoch, consumer_id):
            place.fence = (epoch, consumer_id)
            return {"queue": queue, "state": "ok", "offset": place.committed}
        # The node had a later epoch; the metadata catches up with it.
        place.epoch = place.fence[0] + 1
        self.generation += 1
        return {"queue": queue, "state": "fenced", "offset": None}

    def read(
        self, consumer_id: str, position: dict[str, int], *, limit: int
    ) -> dict[str, Any]:
        place = self.position_of(consumer_id, position["queue"])
        if place is not None and self._stops(place.queue):
            return pulled(
                position["queue"], "stopped", position["offset"], head=place.queue.head
            )
        return super().read(consumer_id, position, limit=limit)

    def assigned(self, position: Position) -> dict[str, Any]:
        return {**super().assigned(position), "stopped": self._stops(position.queue)}

    def position_of(self, consumer_id: str, queue: int) -> Place | None:
        return self._positions(consumer_id).get(queue)

    def _stops(self, queue: FakeQueue) -> bool:
        topic = queue.origin_topic or queue.topic
        return (
            self.stopped or topic in self.stopped_topics or queue.id in self.stopped_queues
        )

    def _positions(self, consumer_id: str) -> dict[int, Place]:
        """Return the positions by which a consumer reads, or by which a former member read."""
        return (
            self.positions
            if self.mode == "clustering"
            else self.instances[self.instance_of[consumer_id]]
        )

    def _owned_by(self, consumer_id: str) -> list[Place]:
        return [p for p in self._positions(consumer_id).values() if p.owner == consumer_id]

    def _new_id(self, name: str) -> str:
        consumer_id = f"{self.name}.k.{next(_ids)}.x"
        self.instance_of[consumer_id] = name
        return consumer_id

    def _replace(self, member: Member, incarnation: str) -> None:
        """Let the successor own the queues of the former process. Revoked queues go to
        their targets.
        """
        former, member.consumer_id = member.consumer_id, self._new_id(member.name)
        member.replaced.append(member.incarnation)
        member.incarnation = incarnation
        self.members[member.consumer_id] = self.members.pop(former)
        self.gone[former] = "replaced"
        for place in self._positions(former).values():
            if place.owner == former != place.target:
                self._grant(place)
                self.generation += 1
            if place.target == former:
                place.target = member.consumer_id
            if place.owner == former:
                self._grant(place)

    def _grant_all(self, positions: dict[int, Place], consumer_id: str) -> None:
        for place in positions.values():
            if place.owner != consumer_id:
                place.target = consumer_id
                self._grant(place)

    def _grant(self, place: Place) -> None:
        place.owner = place.target
        if place.owner is not None:
            place.epoch += 1

    def _check(self, consumer_id: str) -> None:
        if consumer_id not in self.members:
            why = self.gone.get(consumer_id, "expired")
            why = "expired" if why == "left" else why
            raise Gone(f"{consumer_id} is {why}", code=why, status=410)


class SimulatedTopics(FakeTopics):
    """Topics on several nodes. `down_nodes` refuse sends, so that a batch may be stored in
    part.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.down_nodes: set[str] = set()
        # Stored parts of batches, by batch_id and the queue they were meant for.
        self._parts: dict[tuple[str, int], tuple[str, list[dict[str, Any]]]] = {}

    def publish(self, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a receipt for each message, or `{error}` where its queue refused.

        Raises if all refused. A repeated batch_id gets the first receipts again, and stores
        messages that are missing.
        """
        topic, messages = self.find(name), body["messages"]
        batch_id = body.get("batch_id") or f"none-{time.monotonic_ns()}"
        homes = [
            self.choose_queue(topic, batch_id, message, i)
            for i, message in enumerate(messages)
        ]
        results: list[dict[str, Any]] = [{}] * len(messages)
        refusals: list[CatmqError] = []
        for home in dict.fromkeys(homes):
            indexes = [i for i, queue_id in enumerate(homes) if queue_id == home]
            try:
                stored = self._store_part(
                    topic, batch_id, home, [messages[i] for i in indexes]
                )
            except CatmqError as error:
                refusals.append(error)
                refusal = {
                    "code": error.code,
                    "detail": error.detail,
                    "retriable": error.retriable,
                }
                stored = [{"error": refusal}] * len(indexes)
            for i, result in zip(indexes, stored, strict=True):
                results[i] = result
        if refusals and all("error" in result for result in results):
            raise refusals[0]
        return results

    def _store_part(
        self, topic: FakeTopic, batch_id: str, home: int, messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        content, queue = repr((topic.name, messages)), self.queues[home]
        # Checked first: a node that is down cannot look for a stored batch.
        if queue.node in self.down_nodes:
            raise Unavailable(
                f"node {queue.node} is down", code="node_unavailable", status=503
            )
        stored_part = self._parts.get((batch_id, home))
        if stored_part is not None:
            if stored_part[0] != content:
                raise Conflict(
                    "that batch_id held other messages", code="batch_conflict", status=409
                )
            return stored_part[1]
        if queue.state != "read_write":
            raise Conflict(
                f"queue {home} is {queue.state}", code="queue_not_writable", status=409
            )
        results = [self.accept(topic, queue, message) for message in messages]
        self._parts[batch_id, home] = (content, results)
        return results


class SimulatedFailures(FakeFailures):
    """Failure reports for messages on nodes that may be down."""

    _topics: SimulatedTopics

    def store_failure(
        self,
        group: FakeGroup,
        position: Position | None,
        consumer_id: str,
        one: dict[str, Any],
    ) -> tuple[str, dict[str, Any]]:
        fenced = position is None or position.fence != (one["epoch"], consumer_id)
        if (
            position is not None
            and not fenced
            and position.queue.node in self._topics.down_nodes
        ):
            return "refused", {"state": "unavailable"}
        return super().store_failure(group, position, consumer_id, one)


class SimulatedBroker(FakeBroker):
    """`stop`, `start`, `drain`, `reset`, `expire` and `clean` are acts of operators or of
    time.
    """

    topics: SimulatedTopics

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.topics = SimulatedTopics(self.clock)
        self.failures = SimulatedFailures(self.topics)
        self.draining = False

    def create_topic(
        self, name: str, *, queues: int = 4, nodes: list[str] | None = None, **settings: str
    ) -> FakeTopic:
        """Create a topic with queues spread over `nodes`. Settings: keyed, on_unknown."""
        with self._changed:
            for former_queue in (
                self.topics.by_name[name].queues if name in self.topics.by_name else ()
            ):
                former_queue.state = "retired"
            topic = self.topics.create(name, queues=queues)
            for queue in topic.queues if nodes else ():
                queue.node = nodes[queue.number % len(nodes)] if nodes else "main"
            for setting, value in settings.items():
                setattr(topic, setting, value)
            return topic

    def subscribe(  # type: ignore[override]
        self, group: str, topic: str, *, start: str = "earliest", mode: str | None = None
    ) -> SimulatedGroup:
        with self._changed:
            simulated_group = self.ensure_group(group, {"mode": mode})
            simulated_group.subscribe(self.topics.find(topic).queues, start=start)
            self._changed.notify_all()
            return simulated_group

    def ensure_group(self, name: str, body: dict[str, Any]) -> SimulatedGroup:
        if name not in self.groups:
            timeout_ms = body.get("session_timeout_ms") or self.session_timeout_ms
            self.groups[name] = SimulatedGroup(
                name, mode=body.get("mode"), clock=self.clock, session_timeout_ms=timeout_ms
            )
        return self.find_group(name)

    def find_group(self, name: str) -> SimulatedGroup:
        simulated_group = super().find_group(name)
        assert isinstance(simulated_group, SimulatedGroup)
        return simulated_group

    def stop(
        self, group: str, *, topic: str | None = None, queue: int | None = None
    ) -> None:
        """Stop consumption of a group, or of a topic or queue in it."""
        self.change(
            lambda: self.find_group(group).set_stopped(True, topic=topic, queue=queue)
        )

    def start(
        self, group: str, *, topic: str | None = None, queue: int | None = None
    ) -> None:
        """Undo `stop` with the same arguments."""
        self.change(
            lambda: self.find_group(group).set_stopped(False, topic=topic, queue=queue)
        )

    def drain(self, draining: bool = True) -> None:
        """Act as drained or stopping: answer waiting pulls, and refuse requests that begin
        something.
        """
        self.change(lambda: setattr(self, "draining", draining))

    def interrupted(self) -> bool:
        return self.draining

    def reset(self, group: str, topic: str, *, to: str | int) -> None:
        """Move a group in all queues of a topic to "earliest", "latest" or an offset, while
        it reads.
        """

        def move() -> None:
            queues = self.topics.find(topic).queues
            ends = {"earliest": [q.low for q in queues], "latest": [q.head for q in queues]}
            clamped = [
                max(q.low, min(q.head, to)) if isinstance(to, int) else 0 for q in queues
            ]
            self.find_group(group).reset(
                queues, ends[to] if isinstance(to, str) else clamped
            )
            for answer_key in [key for key in self.failures.answers if key[0] == group]:
                del self.failures.answers[answer_key]

        self.change(move)

    def committed(self, group: str, instance: str | None = None) -> dict[int, int]:
        """Return the committed offset of each queue of a group, or of a broadcasting
        instance.
        """
        if instance is None:
            return super().committed(group)
        with self._changed:
            places = self.find_group(group).instances[instance]
            return {queue: place.committed for queue, place in places.items()}

    def expire(self, group: str, name: str) -> None:
        """Remove the named member from its group, as if its session had expired."""

        def end() -> None:
            simulated_group = self.find_group(group)
            for member in [m for m in simulated_group.members.values() if m.name == name]:
                simulated_group.leave(member.consumer_id, "expired")

        self.change(end)

    def clean(self, queue: int, *, before: int) -> None:
        """Delete the messages of a queue below an offset, as retention does."""
        with self._changed:
            fake_queue = self.topics.queues[queue]
            fake_queue.messages = fake_queue.messages[before - fake_queue.low :]
            fake_queue.low = before

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        begins = path.endswith(("/messages", "/consumers", "/pull")) and method == "POST"
        if self.draining and begins:
            raise Unavailable(
                "this broker was drained", code="draining", retry_after_ms=100, status=503
            )
        for name in ("queues", "offsets", "messages"):
            if (
                path.startswith("/api/v1/consumers/")
                and len(body.get(name, ())) > MAX_QUEUES
            ):
                field_error = FieldError(name, "too many")
                raise InvalidRequest(
                    f"{name}: at most {MAX_QUEUES}", errors=[field_error], status=400
                )
        return super()._answer(method, path, body)


def _balanced(members: list[str], owners: dict[int, str | None]) -> dict[int, str]:
    if not members:
        return {}
    minimum, remainder = divmod(len(owners), len(members))
    room = {member: minimum + (i < remainder) for i, member in enumerate(members)}
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
