"""Heartbeats: recorded first, then answered with what to own and what to give up.

One UPDATE records all heartbeats that wait in this process (combining.py), in a broker by a
loop. The same thread reads for all of them: first the groups' generations, then the queues
where a generation is new (assignment_cache.py). In that order an answer may carry newer
queues than its generation, which costs a member one more heartbeat, but never older ones,
which could make a release count that was never ordered. Releases are guarded updates of
their own, and so that no other kind of call can hold a hand-over up, neither they nor the
recording take a place at the bulkhead.

One that cannot be recorded is refused within moments, with a promise that lets its member
go on (contact.py).

A member of a broadcasting group owns every queue that the group reads (broadcast_instances.py),
unless the group's limits make it stand by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Value, When

from metadata.config import config
from metadata.db.changes import record_change
from metadata.db.clock import UtcNow
from metadata.db.consumer_ids import ConsumerId
from metadata.db.contact import SILENT_S, contact
from metadata.db.rows import lock_group_by_id
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Gone, MetadataUnavailable, Unrecorded
from metadata.grouping import grouped
from metadata.limits.bulkhead import bulkhead
from metadata.limits.coalescer import PacedCoalescer
from metadata.membership import broadcast_instances, granted_queues, rebalance
from metadata.membership.assignment_cache import (
    AssignmentCache,
    OwnedQueue,
    Owner,
    PausedQueues,
    read_owned_queues,
    read_paused_queues,
)
from metadata.models import ConsumerGroup, ConsumerGroupConsumer, Heartbeat, QueueOffset
from metadata.rules.membership.process_report import ProcessReport, pack

# At most five UPDATEs a second and process; a lone heartbeat is not delayed. The wait costs
# a member at
# most a tenth of the shortest session timeout (2 s).
EVERY_S = 0.2
MOST = 500  # ids in one UPDATE
SERVE_S = 0.25  # longest pass of the loop that records them

_Owned = Callable[[Sequence[Owner]], dict[str, tuple[OwnedQueue, ...]]]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The group's generation, the queues to own, and the queues to stop, commit and leave
    out of `owned`.

    A queue to own is to be acquired under its epoch.

    Among the last is also whatever the member says it holds and does not own.
    """

    generation: int
    assigned: tuple[OwnedQueue, ...]
    revoked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Beat:
    consumer: ConsumerId
    generation: int
    report: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """State that was read for one recorded heartbeat; `gone` says why there is none.

    `instance_epoch` is that of the instance which a member of a broadcasting group holds;
    one that
    `stands_by` may not own what is in `held`.
    """

    generation: int = 0
    held: tuple[OwnedQueue, ...] = ()
    gone: Gone | None = None
    instance_epoch: int = 0
    stands_by: bool = False


def heartbeat(
    *,
    consumer: ConsumerId,
    generation: int,
    owned: Sequence[tuple[int, int]],
    report: ProcessReport | None = None,
) -> HeartbeatAnswer:
    """Record that the member lives, and tell it what to own and what to give up.

    `generation` is the one the member has applied, `owned` the (queue, epoch) pairs it
    holds: a queue that was revoked at or before that generation and is not among them
    counts as released. The lease of the member runs from the moment it sent this. A
    `report` is kept in place of the one before. Raises Gone(expired | replaced),
    Unrecorded, and MetadataUnavailable when a release may or may not be done.
    """
    seen = _still_there(
        _recorded(_Beat(consumer, generation, pack(report) if report else ""))
    )
    holds = {queue for queue, _ in owned}
    if seen.stands_by:
        return _told_to_stand_by(consumer, seen, owned)
    if any(_released(one, generation, holds) for one in seen.held):
        seen = _still_there(_release(consumer=consumer, generation=generation, holds=holds))
    return _answer(seen, holds)


@bulkhead.permit()
def assignment(*, consumer: ConsumerId) -> HeartbeatAnswer:
    """Return what a heartbeat of a member that holds nothing would be told, without
    recording one.

    Raises Gone(expired | replaced), MetadataUnavailable.
    """
    with reachable():
        (seen,) = _read(
            [_Beat(consumer, 0)], _members([consumer.member_id]), _assignments.of
        )
    seen = _still_there(seen)
    return (
        HeartbeatAnswer(seen.generation, (), ()) if seen.stands_by else _answer(seen, set())
    )


def _answer(seen: _Seen, holds: set[int]) -> HeartbeatAnswer:
    leaving = {one.queue for one in seen.held if one.leaving}
    foreign = holds - {one.queue for one in seen.held}
    return HeartbeatAnswer(
        generation=seen.generation,
        assigned=tuple(one for one in seen.held if not one.leaving),
        revoked=tuple(sorted(leaving | foreign)),
    )


def _recorded(beat: _Beat) -> _Seen:
    """Return what was read for a recorded heartbeat. Raises Unrecorded, or
    MetadataUnavailable(busy).
    """
    try:
        # here, because waiting for one's turn in a batch that is refused would hold a
        # thread, too
        _check()
        return _coalescer.submit(beat)
    except MetadataUnavailable as error:
        raise _unrecorded(error) from error


def _check() -> None:
    """Raise MetadataUnavailable if heartbeats cannot be recorded now, or not soon."""
    bulkhead.check()
    if not bulkhead.watched:
        return
    if contact.silent_s() > SILENT_S or _coalescer.stuck_s() > SILENT_S:
        raise MetadataUnavailable(
            "The metadata database did not answer.", retry_after_ms=1000
        )


def _unrecorded(error: MetadataUnavailable) -> MetadataUnavailable:
    """The refusal of a heartbeat: a promise, unless this process alone is in trouble, or
    has too much to do.

    Then others would expire the member, so it has to come again, and find another process
    or broker.
    """
    if error.code == Code.BUSY or contact.unrecorded_s() <= SILENT_S:
        return MetadataUnavailable(
            error.detail, code=Code.BUSY, retry_after_ms=error.retry_after_ms
        )
    refusal = Unrecorded(error.detail, retry_after_ms=error.retry_after_ms)
    refusal.silent_ms = int(contact.silent_s() * 1000)
    contact.promise()
    return refusal


def _still_there(seen: _Seen) -> _Seen:
    """The same; raises Gone. The error is made anew, because one batch may hold a member
    twice.
    """
    if seen.gone is not None:
        raise Gone(seen.gone.detail, code=seen.gone.code)
    return seen


def _told_to_stand_by(
    consumer: ConsumerId, seen: _Seen, owned: Sequence[tuple[int, int]]
) -> HeartbeatAnswer:
    """Nothing to own. What the member was granted before is void from now on: should it
    become active again, it gets its queues under a new epoch, as a member never takes the
    same (queue, epoch) twice."""
    if {(one.queue, one.epoch) for one in seen.held} & set(owned):
        broadcast_instances.raise_epoch(
            instance_id=consumer.instance_id, epoch=seen.instance_epoch
        )
    return HeartbeatAnswer(
        seen.generation, (), tuple(sorted({queue for queue, _ in owned}))
    )


def _released(one: OwnedQueue, generation: int, holds: set[int]) -> bool:
    return one.leaving and one.target_generation <= generation and one.queue not in holds


@bulkhead.permit(None)
def _record(beats: Sequence[_Beat]) -> list[_Seen]:
    """Record a batch of heartbeats and read the answers; in the order of `beats`."""
    ids = sorted({beat.consumer.member_id for beat in beats})
    with reachable():
        members = _members(ids)
        valid = [beat for beat in beats if _is_valid(beat, members)]
        alive = sorted({beat.consumer.member_id for beat in valid})
        values = {"last_seen": UtcNow(), **_reports(valid)}
        if Heartbeat.objects.filter(pk__in=alive).update(**values) < len(alive):
            members = _members(ids)  # somebody expired meanwhile
        contact.recorded()
        return _read(beats, members, _assignments.of)


def _reports(beats: Iterable[_Beat]) -> dict[str, Any]:
    """Return the columns that the UPDATE of the heartbeats sets where some of them bring a
    report.
    """
    told = {beat.consumer.member_id: beat.report for beat in beats if beat.report}
    if not told:
        return {}
    cases = [When(pk=member, then=Value(text)) for member, text in sorted(told.items())]
    return {
        "report": Case(*cases, default=F("report")),
        "reported_at": Case(
            When(pk__in=sorted(told), then=UtcNow()), default=F("reported_at")
        ),
    }


def _is_valid(beat: _Beat, members: Mapping[int, ConsumerGroupConsumer]) -> bool:
    member = members.get(beat.consumer.member_id)
    return member is not None and member.consumer_id == beat.consumer.text


def _members(ids: list[int]) -> dict[int, ConsumerGroupConsumer]:
    """Member id → a membership that can be recorded: an expired one has no heartbeat row."""
    rows = ConsumerGroupConsumer.objects.filter(pk__in=ids, heartbeat__isnull=False)
    return {row.pk: row for row in rows.select_related("group")}


def _read(
    beats: Sequence[_Beat], members: Mapping[int, ConsumerGroupConsumer], owned: _Owned
) -> list[_Seen]:
    """Return what each member must know; also note which generation a member says it has
    applied.
    """
    owners = [
        Owner(row.pk, row.consumer_id, row.group_id, row.group.generation)
        for row in members.values()
        if row.group.mode == ConsumerGroup.Mode.CLUSTERING
    ]
    found = {text: _Seen(held=held) for text, held in owned(owners).items()} | _broadcast(
        members.values()
    )
    _note_generations(beats, members)
    return [_seen(beat, members.get(beat.consumer.member_id), found) for beat in beats]


def _broadcast(members: Iterable[ConsumerGroupConsumer]) -> dict[str, _Seen]:
    """Consumer id → what it owns, or would if it did not stand by, of members of
    broadcasting groups.
    """
    mine = [one for one in members if one.group.mode == ConsumerGroup.Mode.BROADCASTING]
    if not mine:
        return {}
    stops = read_paused_queues(sorted({one.group_id for one in mine}))
    waiting = _standing_by(mine)
    epochs = broadcast_instances.read_epochs([one.consumer_id for one in mine])
    reads = grouped(
        (read.group_id, read)
        for read in broadcast_instances.read_queues({one.group_id for one in mine})
    )
    return {
        one.consumer_id: _Seen(
            held=tuple(_held(read, epoch, stops) for read in reads.get(one.group_id, ())),
            instance_epoch=epoch,
            stands_by=one.pk in waiting,
        )
        for one in mine
        if (epoch := epochs.get(one.consumer_id)) is not None
    }


def _held(
    read: broadcast_instances.BroadcastQueue, instance_epoch: int, stops: PausedQueues
) -> OwnedQueue:
    return OwnedQueue(
        topic=read.topic,
        queue=read.queue,
        epoch=read.base_epoch + instance_epoch,
        stopped=read.group_stopped or stops.cover(read.group_id, read.topic_id, read.queue),
    )


def _standing_by(members: Iterable[ConsumerGroupConsumer]) -> set[int]:
    """Those members of broadcasting groups that the limits of their groups leave out."""
    limited = {one.group_id: one.group for one in members if _has_limits(one.group)}
    active = {pk for group in limited.values() for pk in rebalance.active_members(group)}
    return {one.pk for one in members if one.group_id in limited and one.pk not in active}


def _has_limits(group: ConsumerGroup) -> bool:
    return bool(group.allow_addresses or group.deny_addresses or group.max_active_members)


def _note_generations(
    beats: Sequence[_Beat], members: Mapping[int, ConsumerGroupConsumer]
) -> None:
    """Write the applied generation of members that moved on, in one UPDATE: right after
    many groups were rebalanced, one for each would hold up everybody's answer. So would a
    row that somebody has locked: it is left to the next heartbeat."""
    moved: dict[int, list[int]] = {}
    for beat in beats:
        row = members.get(beat.consumer.member_id)
        if (
            row is not None
            and row.consumer_id == beat.consumer.text
            and row.generation < beat.generation
        ):
            moved.setdefault(min(beat.generation, row.group.generation), []).append(row.pk)
    if moved:
        reached = Case(
            *(
                When(pk__in=ids, then=generation)
                for generation, ids in sorted(moved.items())
            )
        )
        rows = ConsumerGroupConsumer.objects.filter(
            pk__in=sorted(pk for ids in moved.values() for pk in ids)
        )
        with transaction.atomic():
            free = list(
                rows.select_for_update(skip_locked=True).values_list("pk", flat=True)
            )
            rows.filter(pk__in=free, generation__lt=reached).update(generation=reached)


def _seen(
    beat: _Beat, member: ConsumerGroupConsumer | None, found: dict[str, _Seen]
) -> _Seen:
    if member is None:
        return _Seen(gone=expired_error())
    if member.consumer_id != beat.consumer.text:
        return _Seen(gone=replaced_error())
    return replace(
        found.get(beat.consumer.text, _Seen()), generation=member.group.generation
    )


def expired_error() -> Gone:
    return Gone("This consumer has expired or left: register again.", code=Code.EXPIRED)


def replaced_error() -> Gone:
    return Gone(
        "Another process registered under this consumer's name: stop.", code=Code.REPLACED
    )


@bulkhead.permit(None)
@transactional
def _release(*, consumer: ConsumerId, generation: int, holds: set[int]) -> _Seen:
    """Hand over what the member let go of, judged by rows read under the group's lock; what
    it holds now.
    """
    group = lock_group_by_id(consumer.group_id)
    rows = QueueOffset.objects.filter(
        group=group,
        owner=consumer.member_id,
        owner__consumer_id=consumer.text,
        target_generation__lte=generation,
    )
    leaving = [
        row for row in rows if row.target_id != row.owner_id and row.queue_id not in holds
    ]
    if sum(rebalance.hand_over(row) for row in leaving):
        rebalance.raise_generation(group.pk)
        granted_queues.note(group.pk, [row.queue_id for row in leaving])
        record_change("group", group.pk)
    # Not through what is remembered: until this is committed nobody else may see it.
    return _read(
        [_Beat(consumer, generation)], _members([consumer.member_id]), read_owned_queues
    )[0]


def _new_coalescer() -> PacedCoalescer[_Beat, _Seen]:
    """Of the threads that are not for long polls half may wait for their heartbeat to be
    recorded: a database that is frozen must leave the others for sends and pulls. Who finds
    no place tries again soon."""
    return PacedCoalescer(
        _record,
        every_s=EVERY_S,
        most=MOST,
        places=max(8, (config.threads - config.max_waiters) // 2),
        limit_s=config.metadata_timeout_ms / 1000 + 0.5,
        check=_check,
    )


def serve() -> None:
    """Record the heartbeats that come: one pass of a loop, see PacedCoalescer.serve."""
    _coalescer.serve(SERVE_S)


def wake() -> None:
    """End the wait that the loop is in: it is to stop."""
    _coalescer.wake()


def end_service() -> None:
    """The loop has ended: from now on the threads of requests record them."""
    _coalescer.end_service()


_coalescer = _new_coalescer()
_assignments = AssignmentCache()  # as this process read them
