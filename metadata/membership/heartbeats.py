"""Heartbeats: recorded in batches, then answered with the queues to own and to give up.

A single UPDATE records all heartbeats that wait in this process. In a broker a loop does
that. The same thread then reads the states of the members, in this order:

(a) the members, with the generations of their groups,
(b) the queues of groups whose generation is new (assignment_cache.py).

The order matters if a rebalance commits between the two reads:

* (a) before (b): the answer has the new queues under the old generation. The member has to ask
  once more, and nothing else happens.
* (b) before (a) would give the old queues under the new generation. A queue that the rebalance
  has just granted would be missing. The member would then report the new generation without
  this queue, and that could count as a release that was never ordered.

Releases are guarded updates under the group's lock. Releases and the recording use the
bulkhead's unlimited pool, so no other kind of call can delay a hand-over by taking all
places.

A heartbeat that cannot be recorded is refused within moments. If the database is down for
all brokers, the refusal comes with a promise that the member may continue
(metadata.db.contact). A member of a broadcasting group owns every queue that the group reads
(broadcast_instances.py), unless the limits of the group make it stand by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Value, When
from msgspec import Struct, structs

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
    read_owned_queues,
    read_paused_queues,
)
from metadata.models import ConsumerGroupConsumer, Heartbeat, QueueOffset
from metadata.rules.groups.states import GroupMode
from metadata.rules.membership.process_report import ProcessStatus, pack

# At most five UPDATEs a second in each process; a lone heartbeat is not delayed. The wait
# costs a member at most a tenth of the shortest session timeout (2 s).
EVERY_S = 0.2
MAX_BATCH = 500  # ids in an UPDATE
SERVE_S = 0.25  # longest pass of the loop that records them

# A function that returns the queues of each owner, by consumer id. There are two: one reads
# through the cache, the other the database only.
_ReadQueues = Callable[[Sequence[Owner]], dict[str, tuple[OwnedQueue, ...]]]


class HeartbeatAnswer(Struct, frozen=True):
    """The generation of the group, the queues to own, and the queues to give up.

    The member acquires each `assigned` queue on its node under the given epoch. It
    stops reading and commits each `revoked` queue, and leaves it out of `owned` in its
    next heartbeat. `revoked` also has queues that the member reports but does not own.
    """

    generation: int
    assigned: tuple[OwnedQueue, ...]
    revoked: tuple[int, ...]


class _Beat(Struct, frozen=True):
    """A heartbeat that waits to be recorded.

    `generation` is the generation that the member has applied, `report` its packed process
    report, "" if it sends none.
    """

    consumer: ConsumerId
    generation: int
    report: str = ""


class _MemberState(Struct, frozen=True):
    """State of the member of a recorded heartbeat.

    `generation` is the generation of its group. `held` are the queues that it owns, including
    the queues that it must release. `gone` is the error to raise if the sender is no member.

    In broadcasting groups only: `instance_epoch` is the epoch of the member's instance, and a
    member that `stands_by` must not own the queues in `held`.
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
    report: ProcessStatus | None = None,
) -> HeartbeatAnswer:
    """Record that the member is alive, and return the queues it shall own and give up.

    `generation` is the generation that the member has applied, `owned` the (queue, epoch)
    pairs it reports. A queue that was revoked at or before that generation and is not in
    `owned` counts as released. The session of the member runs from the moment it sent the
    heartbeat. A `report` replaces the former report.

    Raises:
        Gone(expired | replaced): the sender is no member any more.
        MetadataUnavailable(busy): only this broker has trouble. Try another one.
        Unrecorded: the database is down for all, and the member may continue.
        MetadataUnavailable with another code: the heartbeat was recorded, but a release (or
            for a member that stands by, a new epoch) may or may not have been done.
    """
    beat = _Beat(consumer, generation, pack(report) if report else "")
    try:
        # The batch would be refused for the same reasons, but waiting for it would occupy a
        # thread. `_coalescer` is created at the end of this module.
        _check_recordable()
        state = _coalescer.submit(beat)
    except MetadataUnavailable as error:
        # Case 1: only this process has trouble. It is overloaded (the error is already `busy`),
        # or this broker's last recorded heartbeat (`unrecorded_s`) is so recent that the
        # database works. Other brokers can reach it and would expire the member, so `busy`
        # makes the member try another process or broker.
        only_this_process = error.code == Code.BUSY or contact.unrecorded_s() <= SILENT_S
        if only_this_process:
            raise MetadataUnavailable(
                error.detail, code=Code.BUSY, retry_after_ms=error.retry_after_ms
            ) from error
        # Case 2: no heartbeat of this broker was recorded for longer than SILENT_S, so the
        # database counts as down for all. The member may continue with its queues if every
        # broker gives it these two facts (contact.py):
        # - for `silent_ms` no process of the broker has had any answer, so the broker has
        #   expired no member in that time;
        # - it promises to expire none for a session timeout from now on.
        refusal = Unrecorded(error.detail, retry_after_ms=error.retry_after_ms)
        refusal.silent_ms = int(contact.silent_s() * 1000)
        contact.promise()
        raise refusal from error
    state = _require_member(state)
    reported_queues = {queue for queue, _ in owned}
    if state.stands_by:
        # A member that stands by must stop reading, and drops its queues. It never acquires the
        # same (queue, epoch) a second time. So if it reports queues under the epochs that it
        # would get on becoming active again, the epoch of its instance is raised now, and it
        # will get the queues under a new epoch.
        if {(held.queue, held.epoch) for held in state.held} & set(owned):
            broadcast_instances.raise_epoch(
                instance_id=consumer.instance_id, epoch=state.instance_epoch
            )
        return HeartbeatAnswer(state.generation, (), tuple(sorted(reported_queues)))
    # Queues that the member was ordered to give up and no longer reports are released.
    if any(
        held.leaving
        and held.target_generation <= generation
        and held.queue not in reported_queues
        for held in state.held
    ):
        state = _require_member(
            _release(
                consumer=consumer, generation=generation, reported_queues=reported_queues
            )
        )
    return _answer(state, reported_queues)


@bulkhead.permit()
def assignment(*, consumer: ConsumerId) -> HeartbeatAnswer:
    """Return the answer to a heartbeat of a member that reports no queue, without recording
    a heartbeat.

    Raises Gone(expired | replaced), MetadataUnavailable.
    """
    with reachable():
        (state,) = _read_states(
            [_Beat(consumer, generation=0)],
            _find_members([consumer.member_id]),
            read_queues=_assignments.owned_queues,
        )
    state = _require_member(state)
    return (
        HeartbeatAnswer(state.generation, (), ())
        if state.stands_by
        else _answer(state, set())
    )


def _answer(state: _MemberState, reported_queues: set[int]) -> HeartbeatAnswer:
    leaving = {queue.queue for queue in state.held if queue.leaving}
    # Queues that the member reports but does not own.
    foreign = reported_queues - {queue.queue for queue in state.held}
    return HeartbeatAnswer(
        generation=state.generation,
        assigned=tuple(queue for queue in state.held if not queue.leaving),
        revoked=tuple(sorted(leaving | foreign)),
    )


def _check_recordable() -> None:
    """Raise MetadataUnavailable if heartbeats cannot be recorded now or soon."""
    bulkhead.check()
    if not bulkhead.watched:
        return
    if contact.silent_s() > SILENT_S or _coalescer.stuck_s() > SILENT_S:
        raise MetadataUnavailable(
            "The metadata database did not answer.", retry_after_ms=1000
        )


def _require_member(state: _MemberState) -> _MemberState:
    """Return the state. Raises Gone if the consumer is no member."""
    if state.gone is not None:
        # A new exception for each caller, because a batch may hold one member twice and
        # share its state.
        raise Gone(state.gone.detail, code=state.gone.code)
    return state


# Pool None is never full: only one thread at a time records, and no other call may delay it.
@bulkhead.permit(None)
def _record(beats: Sequence[_Beat]) -> list[_MemberState]:
    """Record a batch of heartbeats. Return the states of the members, in the order of
    `beats`.
    """
    ids = sorted({beat.consumer.member_id for beat in beats})
    with reachable():
        members = _find_members(ids)
        # A consumer id that was replaced must not keep its successor alive.
        valid = [
            beat
            for beat in beats
            if (member := members.get(beat.consumer.member_id)) is not None
            and member.consumer_id == beat.consumer.text
        ]
        alive = sorted({beat.consumer.member_id for beat in valid})
        values: dict[str, Any] = {"last_seen": UtcNow()}
        if reports := {
            beat.consumer.member_id: beat.report for beat in valid if beat.report
        }:
            cases = [
                When(pk=member_id, then=Value(text))
                for member_id, text in sorted(reports.items())
            ]
            # The same UPDATE has members without a report, which keep the former report.
            values["report"] = Case(*cases, default=F("report"))
            values["reported_at"] = Case(
                When(pk__in=sorted(reports), then=UtcNow()), default=F("reported_at")
            )
        if Heartbeat.objects.filter(pk__in=alive).update(**values) < len(alive):
            members = _find_members(ids)  # a member expired meanwhile
        contact.recorded()
        states = _read_states(beats, members, read_queues=_assignments.owned_queues)
        _save_generations(beats, members)
        return states


def _find_members(ids: list[int]) -> dict[int, ConsumerGroupConsumer]:
    """Return the member rows, with their groups, by member id. Members that expired or left
    have no heartbeat row and are left out.
    """
    rows = ConsumerGroupConsumer.objects.filter(pk__in=ids, heartbeat__isnull=False)
    return {row.pk: row for row in rows.select_related("group")}


def _read_states(
    beats: Sequence[_Beat],
    members: Mapping[int, ConsumerGroupConsumer],
    *,
    read_queues: _ReadQueues,
) -> list[_MemberState]:
    """Return the state of the member of each heartbeat, in the order of `beats`.

    Reads the queues, which must come after `members` were read: see the module docstring.
    """
    # In clustering groups a member owns queues by itself. In broadcasting groups it owns all
    # queues of the group. Members of share groups own none, and get an empty state.
    owners = [
        Owner(row.pk, row.consumer_id, row.group_id, row.group.generation)
        for row in members.values()
        if row.group.mode == GroupMode.CLUSTERING
    ]
    states = {
        consumer_id: _MemberState(held=queues)
        for consumer_id, queues in read_queues(owners).items()
    } | _read_broadcast_states(members.values())
    return [
        _state_of_beat(beat, members.get(beat.consumer.member_id), states) for beat in beats
    ]


def _save_generations(
    beats: Sequence[_Beat], members: Mapping[int, ConsumerGroupConsumer]
) -> None:
    """Save the generations that members have applied, each at most the generation of its
    group. Locked rows are skipped.
    """
    members_at: dict[int, list[int]] = {}  # applied generation → member ids
    for beat in beats:
        row = members.get(beat.consumer.member_id)
        if (
            row is not None
            and row.consumer_id == beat.consumer.text
            and row.generation < beat.generation
        ):
            # A client may report any number. A member cannot have applied a generation that
            # its group has not reached.
            applied = min(beat.generation, row.group.generation)
            members_at.setdefault(applied, []).append(row.pk)
    if not members_at:
        return
    # A single UPDATE for all members: right after many groups were rebalanced, one for each
    # generation would delay every answer of the batch.
    applied_generation = Case(
        *(
            When(pk__in=ids, then=generation)
            for generation, ids in sorted(members_at.items())
        )
    )
    rows = ConsumerGroupConsumer.objects.filter(
        pk__in=sorted(pk for ids in members_at.values() for pk in ids)
    )
    with transaction.atomic():
        # Waiting for a locked row would delay the batch, too. The next heartbeat of its
        # member saves the generation.
        unlocked_ids = list(
            rows.select_for_update(skip_locked=True).values_list("pk", flat=True)
        )
        rows.filter(pk__in=unlocked_ids, generation__lt=applied_generation).update(
            generation=applied_generation
        )


def _read_broadcast_states(
    members: Iterable[ConsumerGroupConsumer],
) -> dict[str, _MemberState]:
    """Return the state of each member of a broadcasting group, by consumer id.

    `held` has the queues it owns, or would own if it did not stand by.
    """
    broadcast_members = [
        member for member in members if member.group.mode == GroupMode.BROADCASTING
    ]
    if not broadcast_members:
        return {}
    paused = read_paused_queues(sorted({member.group_id for member in broadcast_members}))
    # A member stands by if the limits of its group exclude it.
    limited_groups = {
        member.group_id: member.group
        for member in broadcast_members
        if member.group.allow_addresses
        or member.group.deny_addresses
        or member.group.max_active_members
    }
    active = {
        pk for group in limited_groups.values() for pk in rebalance.active_members(group)
    }
    epochs = broadcast_instances.read_epochs(
        [member.consumer_id for member in broadcast_members]
    )
    queues_of_group = grouped(
        (queue.group_id, queue)
        for queue in broadcast_instances.read_queues(
            {member.group_id for member in broadcast_members}
        )
    )
    return {
        member.consumer_id: _MemberState(
            held=tuple(
                OwnedQueue(
                    topic=queue.topic,
                    queue=queue.queue,
                    # Epochs of this subscription begin at `base_epoch`, above those of earlier
                    # subscriptions. The epoch of the instance counts from there.
                    epoch=queue.base_epoch + epoch,
                    stopped=queue.group_stopped
                    or paused.covers(queue.group_id, queue.topic_id, queue.queue),
                )
                for queue in queues_of_group.get(member.group_id, ())
            ),
            instance_epoch=epoch,
            stands_by=member.group_id in limited_groups and member.pk not in active,
        )
        for member in broadcast_members
        # Without an epoch, the member was replaced between the reads. It is left out, and its
        # heartbeat is answered without queues.
        if (epoch := epochs.get(member.consumer_id)) is not None
    }


def _state_of_beat(
    beat: _Beat, member: ConsumerGroupConsumer | None, states: dict[str, _MemberState]
) -> _MemberState:
    """Return the state for a heartbeat; `gone` is set if the member expired or was replaced."""
    if member is None:
        return _MemberState(gone=expired_error())
    if member.consumer_id != beat.consumer.text:
        return _MemberState(gone=replaced_error())
    return structs.replace(
        states.get(beat.consumer.text, _MemberState()), generation=member.group.generation
    )


def expired_error() -> Gone:
    return Gone("This consumer has expired or left: register again.", code=Code.EXPIRED)


def replaced_error() -> Gone:
    return Gone(
        "Another process registered under this consumer's name: stop.", code=Code.REPLACED
    )


# Pool None, as for _record(): the new owners of the queues wait for the release.
@bulkhead.permit(None)
@transactional
def _release(
    *, consumer: ConsumerId, generation: int, reported_queues: set[int]
) -> _MemberState:
    """Hand over the queues that the member released, and return its state afterwards.

    heartbeat() may have decided by old rows that queues were released. Here the rows under the
    lock of the group decide which.
    """
    group = lock_group_by_id(consumer.group_id)
    rows = QueueOffset.objects.filter(
        group=group,
        owner=consumer.member_id,
        owner__consumer_id=consumer.text,
        target_generation__lte=generation,
    )
    leaving = [
        row
        for row in rows
        if row.target_id != row.owner_id and row.queue_id not in reported_queues
    ]
    if sum(rebalance.hand_over(row) for row in leaving):
        rebalance.raise_generation(group.pk)
        granted_queues.note(group.pk, [row.queue_id for row in leaving])
        record_change("group", group.pk)
    beats = [_Beat(consumer, generation)]
    members = _find_members([consumer.member_id])
    # Read without the cache: other threads must not see this state before it is
    # committed.
    (state,) = _read_states(beats, members, read_queues=read_owned_queues)
    # _record() may have skipped the row because it was locked.
    _save_generations(beats, members)
    return state


def _new_coalescer() -> PacedCoalescer[_Beat, _MemberState]:
    return PacedCoalescer(
        _record,
        every_s=EVERY_S,
        most=MAX_BATCH,
        # Half of the threads that are not for long polls may wait for a heartbeat to be
        # recorded. If the database hangs, the others are left for sends and pulls; a
        # member that finds no place tries again soon.
        places=max(8, (config.threads - config.max_waiters) // 2),
        limit_s=config.metadata_timeout_ms / 1000 + 0.5,
        check=_check_recordable,
    )


def serve() -> None:
    """Record waiting heartbeats: a pass of the loop (PacedCoalescer.serve)."""
    _coalescer.serve(SERVE_S)


def wake() -> None:
    _coalescer.wake()


def end_service() -> None:
    """Note that the loop has ended. From now on the threads of requests record heartbeats."""
    _coalescer.end_service()


_coalescer = _new_coalescer()
_assignments = AssignmentCache()
