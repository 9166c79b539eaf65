"""Heartbeats: recorded first, then answered with what to own and what to give up.

One UPDATE records all heartbeats that wait in this process (combining.py), and the same leader reads
for all of them: first the groups' generations, then the queues. In that order an answer may carry
newer queues than its generation, which costs a member one more heartbeat, but never older ones, which
could make a release count that was never ordered. Releases are guarded updates of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadata import rebalance
from metadata.changes import changed
from metadata.clock import UtcNow
from metadata.combining import Combiner
from metadata.config import config
from metadata.consumer_ids import ConsumerId
from metadata.errors import Code, Gone
from metadata.gate import gate, gated
from metadata.locks import group_by_id
from metadata.models import ConsumerGroupConsumer, ConsumerGroupTopic, Heartbeat, QueueOffset
from metadata.transactions import reachable, transactional

EVERY_S = 0.1  # at most ten UPDATEs a second and process; a lone heartbeat is not delayed
MOST = 500  # ids in one UPDATE


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
)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A queue to own: acquire it under this epoch. `stopped`: own it, but read nothing for now."""

    topic: str
    queue: int
    epoch: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The group's generation, the queues to own, and the queues to stop, commit and leave out of `owned`."""

    generation: int
    assigned: tuple[Assigned, ...]
    revoked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Beat:
    """What one heartbeat says."""

    consumer: ConsumerId
    generation: int


@dataclass(frozen=True, slots=True)
class _Held:
    """A queue whose owner the member is."""

    topic: str
    queue: int
    epoch: int
    stopped: bool
    leaving: bool
    target_generation: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read for one recorded heartbeat; `gone` says why there is none."""

    generation: int = 0
    held: tuple[_Held, ...] = ()
    gone: Gone | None = None


def heartbeat(*, consumer: ConsumerId, generation: int, owned: Sequence[tuple[int, int]]) -> HeartbeatAnswer:
    """Records that the member lives, and tells it what to own and what to give up.

    `generation` is the one the member has applied, `owned` the (queue, epoch) pairs it holds: a queue that
    was revoked at or before that generation and is not among them counts as released. The lease of the
    member runs from the moment it sent this. Raises Gone(expired | replaced), MetadataUnavailable.
    """
    gate.check()  # here, because waiting for one's turn in a batch that is refused would hold a thread, too
    seen = _combiner.submit(_Beat(consumer, generation))
    if seen.gone is not None:
        raise Gone(seen.gone.detail, code=seen.gone.code)
    holds = {queue for queue, _ in owned}
    if any(_released(one, generation, holds) for one in seen.held):
        seen = _release(consumer=consumer, generation=generation, holds=holds)
    if seen.gone is not None:
        raise Gone(seen.gone.detail, code=seen.gone.code)
    return HeartbeatAnswer(
        generation=seen.generation,
        assigned=tuple(
            Assigned(one.topic, one.queue, one.epoch, one.stopped) for one in seen.held if not one.leaving
        ),
        revoked=tuple(one.queue for one in seen.held if one.leaving),
    )


def _released(one: _Held, generation: int, holds: set[int]) -> bool:
    return one.leaving and one.target_generation <= generation and one.queue not in holds


@gated
def _record(beats: Sequence[_Beat]) -> list[_Seen]:
    """Records a batch of heartbeats and reads the answers; in the order of `beats`."""
    with reachable():
        valid = _texts(beats)
        alive = sorted({beat.consumer.member_id for beat in beats if _is_valid(beat, valid)})
        Heartbeat.objects.filter(pk__in=alive).update(last_seen=UtcNow())
        return _read(beats)


def _texts(beats: Sequence[_Beat]) -> dict[int, str | None]:
    """Member id → the consumer id that is valid for it now."""
    ids = sorted({beat.consumer.member_id for beat in beats})
    return dict(ConsumerGroupConsumer.objects.filter(pk__in=ids).values_list("pk", "consumer_id"))


def _is_valid(beat: _Beat, texts: dict[int, str | None]) -> bool:
    return texts.get(beat.consumer.member_id) == beat.consumer.text


def _read(beats: Sequence[_Beat]) -> list[_Seen]:
    """What each member must know; also notes which generation a member says it has applied."""
    ids = sorted({beat.consumer.member_id for beat in beats})
    members = {row.pk: row for row in _members(ids)}
    held = _held(ids, sorted({row.group_id for row in members.values()}))
    _note_generations(beats, members)
    return [_seen(beat, members.get(beat.consumer.member_id), held) for beat in beats]


def _members(ids: list[int]) -> list[ConsumerGroupConsumer]:
    """Memberships that were recorded: an expired one has no heartbeat row."""
    rows = ConsumerGroupConsumer.objects.filter(pk__in=ids, heartbeat__isnull=False)
    return list(rows.select_related("group"))


def _held(ids: list[int], groups: list[int]) -> dict[str, list[_Held]]:
    """Consumer id → the queues it owns. Keyed by the text, so that a replaced member is told nothing."""
    stopped = set(
        ConsumerGroupTopic.objects.filter(group_id__in=groups, stopped=True).values_list(
            "group_id", "topic_id"
        )
    )
    rows = QueueOffset.objects.filter(owner_id__in=ids).order_by("queue_id").values_list(*_COLUMNS)
    found: dict[str, list[_Held]] = {}
    for queue, epoch, owner, target, ordered, text, topic_id, topic, group_id, group_stopped in rows:
        held = _Held(
            topic=topic,
            queue=queue,
            epoch=epoch,
            stopped=group_stopped or (group_id, topic_id) in stopped,
            leaving=target != owner,
            target_generation=ordered,
        )
        found.setdefault(text, []).append(held)
    return found


def _note_generations(beats: Sequence[_Beat], members: dict[int, ConsumerGroupConsumer]) -> None:
    """Writes the applied generation of members that moved on; few do, except right after a rebalance."""
    moved: dict[int, list[int]] = {}
    for beat in beats:
        row = members.get(beat.consumer.member_id)
        if row is not None and row.consumer_id == beat.consumer.text and row.generation < beat.generation:
            moved.setdefault(min(beat.generation, row.group.generation), []).append(row.pk)
    for generation, ids in sorted(moved.items()):
        rows = ConsumerGroupConsumer.objects.filter(pk__in=sorted(ids), generation__lt=generation)
        rows.update(generation=generation)


def _seen(beat: _Beat, member: ConsumerGroupConsumer | None, held: dict[str, list[_Held]]) -> _Seen:
    if member is None:
        return _Seen(gone=expired())
    if member.consumer_id != beat.consumer.text:
        return _Seen(gone=replaced())
    return _Seen(member.group.generation, tuple(held.get(beat.consumer.text, ())))


def expired() -> Gone:
    """The error for a member that was silent for too long, or left."""
    return Gone("This consumer has expired or left: register again.", code=Code.EXPIRED)


def replaced() -> Gone:
    """The error for a member whose name another process took over."""
    return Gone("Another process registered under this consumer's name: stop.", code=Code.REPLACED)


@gated
@transactional
def _release(*, consumer: ConsumerId, generation: int, holds: set[int]) -> _Seen:
    """Hands over what the member let go of, judged by rows read under the group's lock; what it holds now."""
    group = group_by_id(consumer.group_id)
    rows = QueueOffset.objects.filter(
        group=group,
        owner=consumer.member_id,
        owner__consumer_id=consumer.text,
        target_generation__lte=generation,
    )
    leaving = [row for row in rows if row.target_id != row.owner_id and row.queue_id not in holds]
    if sum(rebalance.hand_over(row) for row in leaving):
        rebalance.next_generation(group.pk)
        changed("group", group.pk)
    return _read([_Beat(consumer, generation)])[0]


def _new_combiner() -> Combiner[_Beat, _Seen]:
    """Of the threads that are not for long polls half may wait for their heartbeat to be recorded: a
    database that is frozen must leave the others for sends and pulls. Who finds no place tries again soon."""
    return Combiner(
        _record,
        every_s=EVERY_S,
        most=MOST,
        places=max(8, (config.threads - config.max_waiters) // 2),
        limit_s=config.metadata_timeout_ms / 1000 + 0.5,
    )


_combiner = _new_combiner()
