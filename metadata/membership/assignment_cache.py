"""Queues of each member, read for many members at once and cached per generation of the
group.

Every change of a queue's owner, or of what a group reads, raises the generation of the
group in the same transaction. So queues that were read at a generation are valid as
long as it lasts, and a heartbeat without changes needs no query of queues. An entry
still expires after MAX_AGE_S, in case an operator changed rows by hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from metadata.models import ConsumerGroupTopic, QueueOffset

MAX_AGE_S = 15.0
MAX_MEMBERS = 20_000  # more than one process can serve

# Only these columns: the layout of a topic alone has 6 KB.
_COLUMNS = (
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


class OwnedQueue(Struct, frozen=True):
    """A queue that a member owns.

    `leaving`: the queue was revoked at `target_generation`, and the member must release
    it. `stopped`: it is paused, so the member owns it but gets no messages.
    `origin_topic`: for a queue of a retry topic, the topic whose messages failed.
    """

    topic: str
    queue: int
    epoch: int
    stopped: bool
    origin_topic: str | None = None
    leaving: bool = False
    target_generation: int = 0


class PausedQueues(Struct, frozen=True):
    """Topics and queues that operators paused, as (group id, topic id) and (group id,
    queue id).
    """

    topics: set[tuple[int, int]]
    queues: set[tuple[int, int]]

    def covers(self, group_id: int, topic_id: int, queue: int) -> bool:
        return (group_id, topic_id) in self.topics or (group_id, queue) in self.queues


class Owner(Struct, frozen=True):
    """A member's row, read together with the generation of its group."""

    member_id: int
    consumer_id: str
    group_id: int
    generation: int


class _Entry(Struct, frozen=True):
    generation: int
    read_at: float  # time.monotonic()
    queues: tuple[OwnedQueue, ...]


class AssignmentCache:
    """Cache of the queues that members own. Thread-safe: at worst two threads read the
    same rows.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def owned_queues(self, owners: Sequence[Owner]) -> dict[str, tuple[OwnedQueue, ...]]:
        """Return the queues of each owner by consumer id, as of its generation or a later
        one.
        """
        now = time.monotonic()
        queues_of: dict[str, tuple[OwnedQueue, ...]] = {}
        uncached = []
        # A change of a queue raises the generation of its group in the same transaction, so an
        # entry of the same generation is current.
        for owner in owners:
            entry = self._entries.get(owner.consumer_id)
            if (
                entry
                and entry.generation == owner.generation
                and now - entry.read_at < MAX_AGE_S
            ):
                queues_of[owner.consumer_id] = entry.queues
            else:
                uncached.append(owner)
        if uncached:
            queues_read = read_owned_queues(uncached)
            # Members that left are never looked up again, so their entries go with the rest.
            if len(self._entries) + len(queues_read) > MAX_MEMBERS:
                self._entries = {}
            for owner in uncached:
                self._entries[owner.consumer_id] = _Entry(
                    owner.generation, now, queues_read[owner.consumer_id]
                )
            queues_of |= queues_read
        return queues_of


def read_owned_queues(owners: Sequence[Owner]) -> dict[str, tuple[OwnedQueue, ...]]:
    """Read the queues that members own now, by consumer id.

    A consumer that was replaced meanwhile owns nothing.
    """
    paused = read_paused_queues(sorted({member.group_id for member in owners}))
    rows = QueueOffset.objects.filter(
        owner_id__in=sorted({member.member_id for member in owners})
    )
    queues_of: dict[str, list[OwnedQueue]] = {member.consumer_id: [] for member in owners}
    for row in rows.order_by("queue_id").values_list(*_COLUMNS):
        (
            queue,
            epoch,
            owner,
            target,
            target_generation,
            consumer_id,
            topic_id,
            topic,
            group_id,
            group_stopped,
            origin_id,
            origin_name,
        ) = row
        owned_queue = OwnedQueue(
            topic=topic,
            queue=queue,
            epoch=epoch,
            stopped=group_stopped
            or paused.covers(group_id, topic_id, queue)
            or (origin_id is not None and paused.covers(group_id, origin_id, queue)),
            leaving=target != owner,
            target_generation=target_generation,
            origin_topic=origin_name,
        )
        # The row may name the consumer id of a successor, which is not among the owners.
        queues_of.get(consumer_id, []).append(owned_queue)
    return {consumer_id: tuple(queues) for consumer_id, queues in queues_of.items()}


def read_paused_queues(groups: Sequence[int]) -> PausedQueues:
    paused = PausedQueues(set(), set())
    rows = ConsumerGroupTopic.objects.filter(group_id__in=groups)
    for group_id, topic_id, stopped, queues in rows.values_list(
        "group_id", "topic_id", "stopped", "stopped_queues"
    ):
        if stopped:
            paused.topics.add((group_id, topic_id))
        paused.queues.update((group_id, queue) for queue in queues)
    return paused
