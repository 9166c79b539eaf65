"""Queues of each member, read for many members at once, and remembered while its group's
generation stands.

Every change of who owns or may read a queue raises the generation of its group in the same
transaction. So what was read at a generation or later holds at that generation, and a
heartbeat in quiet times needs no look at the queues. It is believed for KNOWN_S all the
same, which would end what a change by hand began.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from metadata.models import ConsumerGroupTopic, QueueOffset

MAX_AGE_S = 15.0
MAX_MEMBERS = 20_000  # members; more than one process can serve

_COLUMNS = (  # no more: a topic's layout alone is 6 KB
    "queue_id",
    "epoch",
    "owner_id",
    "target_id",
    "target_generation",
    "owner__consumer_id",
    "queue__topic_id",
    "queue__topic__name",
    "group_id",
    "group__stopped",
    "queue__topic__failure_of_id",
    "queue__topic__failure_of__name",
)


@dataclass(frozen=True, slots=True)
class OwnedQueue:
    """A queue whose owner the member is; one that is `leaving` was revoked at
    `target_generation`.

    `stopped`: it owns the queue, but reads nothing for now.
    """

    topic: str
    queue: int
    epoch: int
    stopped: bool
    # of a failure topic's queue: the topic whose messages failed
    origin_topic: str | None = None
    leaving: bool = False
    target_generation: int = 0


@dataclass(frozen=True, slots=True)
class PausedQueues:
    """Stops by operators, as (group, topic) and (group, queue) pairs; a stopped group is
    told apart.
    """

    topics: set[tuple[int, int]]
    queues: set[tuple[int, int]]

    def cover(self, group_id: int, topic_id: int, queue: int) -> bool:
        return (group_id, topic_id) in self.topics or (group_id, queue) in self.queues


@dataclass(frozen=True, slots=True)
class Owner:
    """A member as its row names it now, read together with its group's generation."""

    member_id: int
    text: str
    group_id: int
    generation: int


@dataclass(frozen=True, slots=True)
class _Known:
    generation: int
    read_at: float  # time.monotonic()
    held: tuple[OwnedQueue, ...]


class AssignmentCache:
    """Queues that members own; safe for threads, which at worst read the same twice."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def of(self, owners: Sequence[Owner]) -> dict[str, tuple[OwnedQueue, ...]]:
        """Consumer id → the queues it owns, at its owner's generation or later."""
        now = time.monotonic()
        found: dict[str, tuple[OwnedQueue, ...]] = {}
        unknown = []
        for one in owners:
            known = self._known.get(one.text)
            if (
                known
                and known.generation == one.generation
                and now - known.read_at < MAX_AGE_S
            ):
                found[one.text] = known.held
            else:
                unknown.append(one)
        if unknown:
            read = read_owned_queues(unknown)
            if len(self._known) + len(read) > MAX_MEMBERS:
                self._known = {}
            for one in unknown:
                self._known[one.text] = _Known(one.generation, now, read[one.text])
            found |= read
        return found


def read_owned_queues(owners: Sequence[Owner]) -> dict[str, tuple[OwnedQueue, ...]]:
    """Consumer id → the queues it owns now. One that was replaced meanwhile owns nothing."""
    stops = read_paused_queues(sorted({one.group_id for one in owners}))
    rows = QueueOffset.objects.filter(
        owner_id__in=sorted({one.member_id for one in owners})
    )
    found: dict[str, list[OwnedQueue]] = {one.text: [] for one in owners}
    for row in rows.order_by("queue_id").values_list(*_COLUMNS):
        (
            queue,
            epoch,
            owner,
            target,
            ordered,
            text,
            topic_id,
            topic,
            group_id,
            stopped,
            origin,
            of,
        ) = row
        held = OwnedQueue(
            topic=topic,
            queue=queue,
            epoch=epoch,
            stopped=stopped
            or stops.cover(group_id, topic_id, queue)
            or (origin is not None and stops.cover(group_id, origin, queue)),
            leaving=target != owner,
            target_generation=ordered,
            origin_topic=of,
        )
        found.get(text, []).append(held)
    return {text: tuple(held) for text, held in found.items()}


def read_paused_queues(groups: Sequence[int]) -> PausedQueues:
    stops = PausedQueues(set(), set())
    rows = ConsumerGroupTopic.objects.filter(group_id__in=groups)
    for group_id, topic_id, stopped, some in rows.values_list(
        "group_id", "topic_id", "stopped", "stopped_queues"
    ):
        if stopped:
            stops.topics.add((group_id, topic_id))
        stops.queues.update((group_id, queue) for queue in some)
    return stops
