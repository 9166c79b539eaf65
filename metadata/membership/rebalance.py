"""Rebalances: which member shall read which queue of a group, and how a queue changes owner.

A rebalance is due while the group's `rebalance_wanted` > `rebalance_done`. The transaction
that causes a rebalance also sets this mark. A registration or expiry of a member then runs
the rebalance at once. For other causes, the update that first sets the mark calls the
background hook, and the sweep over pending_groups() finds what was missed. Running a
rebalance twice is harmless.

A row of QueueOffset moves through these states. Each step is one guarded update under the
group's lock:

    free      owner NULL                   A rebalance grants it: owner = target = m,
                                           epoch + 1.
    stable    owner = target = m           Heartbeats of m list it under `assigned`.
    leaving   owner = m,                   Heartbeats of m list it under `revoked`, from
              target = other or NULL,      generation g on. A heartbeat of m that has
              target_generation = g        applied g and no longer reports the queue
                                           releases it: `other` becomes the owner, epoch
                                           + 1, or with target NULL it becomes free. If m
                                           leaves or expires, the queue becomes free.

If the owner of a leaving queue leaves or expires, the free queue keeps `other` as its target.
No member acts on the target of a free queue. The next rebalance takes it for the queue's present
place, so `other` gets the queue unless that is out of balance by then.

An owner never gets the same (queue, epoch) twice. If a rebalance gives a leaving queue back
to its owner, that is a new grant with epoch + 1, because the owner may have released it
already.

`idle_since` of a row is the time since which no member serves the queue: since its owner was
ordered to release it, left, or sent its last heartbeat before it expired. It is cleared when the
next owner has acquired the queue, and rebalance_history.py records the time between.

In broadcasting groups no queue changes owner (broadcast_instances.py): there a rebalance only
raises the generation.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce
from msgspec import Meta, Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.rows import lock_group, lock_group_by_id, select
from metadata.db.transactions import reachable, transactional
from metadata.errors import MetadataUnavailable, NotFound
from metadata.membership import granted_queues, rebalance_history
from metadata.models import ConsumerGroup, ConsumerGroupConsumer, QueueOffset
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import GroupMode, SubscriptionState
from metadata.rules.membership.assignment import assign
from metadata.rules.membership.eligibility import Candidate, eligible_members
from metadata.rules.rights import Right
from metadata.rules.topics.states import READABLE_STATES, TopicState
from metadata.rules.wire import Number

log = logging.getLogger(__name__)
Background = Callable[[int], object]  # group id

_SELECT_PENDING = (
    f"SELECT id FROM {ConsumerGroup._meta.db_table}"  # noqa: S608 - table name only
    " WHERE rebalance_wanted > rebalance_done AND deleted_at IS NULL ORDER BY id LIMIT %s"
)
MAX_CAUSE = 300
_background: Background | None = None


class Move(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A queue that moves from one member to another (null: none)."""

    queue: Number
    topic: str
    source: str | None
    target: str | None
    # False: the source was ordered to give the queue up.
    at_once: Annotated[bool, Meta(description="no member must release it first")]


class RebalanceResult(Struct, frozen=True):
    """The generation after a rebalance, and the queues that it moved."""

    group_id: int
    generation: int
    moves: tuple[Move, ...] = ()

    @property
    def granted(self) -> tuple[int, ...]:
        return tuple(move.queue for move in self.moves if move.at_once)

    @property
    def revoked(self) -> tuple[int, ...]:
        return tuple(move.queue for move in self.moves if not move.at_once)


def set_background(hook: Background | None) -> None:
    """Set the function that runs a rebalance soon in the background. Called once at
    startup.
    """
    global _background
    _background = hook


def request(group_id: int, cause: str) -> None:
    """Mark the group for a rebalance, and call the background hook after the commit.

    The caller's transaction holds the lock of the group.
    """
    if mark_due(group_id, cause):
        log.info("group %d needs a rebalance: %s", group_id, cause)
        transaction.on_commit(lambda: _background and _background(group_id), robust=True)


def mark_due(group_id: int, cause: str) -> bool:
    """Mark the group for a rebalance, without calling the background hook.

    Return True if it was not marked before. The caller holds the lock of the group.
    """
    group_rows = ConsumerGroup.objects.filter(pk=group_id)
    wanted_count, done_count, earlier_cause = group_rows.values_list(
        "rebalance_wanted", "rebalance_done", "rebalance_cause"
    ).get()
    was_clear: bool = wanted_count == done_count
    causes = cause if was_clear or not earlier_cause else f"{earlier_cause}; {cause}"
    group_rows.update(
        rebalance_wanted=F("rebalance_wanted") + 1, rebalance_cause=causes[:MAX_CAUSE]
    )
    return was_clear


def pending_groups(limit: int = 100) -> list[int]:
    """Return the ids of groups for which a rebalance is due, lowest first."""
    with reachable():
        return [group_id for (group_id,) in select(_SELECT_PENDING, [limit])]


def groups_with_unassigned_queues(limit: int = 1_000) -> list[int]:
    """Return the ids of groups that have members, and queues with neither owner nor
    target.

    A rebalance whose mark was lost would leave such groups. Of more than `limit` groups, a
    random choice is returned.
    """
    with reachable():
        rows = QueueOffset.objects.filter(
            owner__isnull=True,
            target__isnull=True,
            group__mode=GroupMode.CLUSTERING,
            group__deleted_at__isnull=True,
            group__members__isnull=False,
            queue__state__in=READABLE_STATES,
            queue__topic__state=TopicState.READY,
        )
        group_ids = list(rows.order_by().values_list("group_id", flat=True).distinct())
    # Groups with limits on their members may stay like this, and must not fill the list
    # every time.
    return random.sample(group_ids, min(limit, len(group_ids)))


def rebalance_each(
    group_ids: Iterable[int], run: Callable[[int], object] | None = None
) -> int:
    """Run rebalance(), or `run`, for each group. Return the number of groups.

    A group that fails does not keep the others from their turn. Raises
    MetadataUnavailable at the end if metadata was unavailable for one of them.
    """
    action = run or rebalance
    shuffled = list(group_ids)
    random.shuffle(shuffled)
    failure: MetadataUnavailable | None = None
    for group_id in shuffled:
        try:
            action(group_id)
        except NotFound:  # the group was deleted meanwhile
            continue
        except MetadataUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
    return len(shuffled)


def rebalance_by_hand(
    *, group: str, actor: Actor, dry_run: bool = False
) -> RebalanceResult:
    """Rebalance a group now, or with `dry_run` only return the moves. Needs `manage`.

    Queues that are balanced already do not move. Raises NotFound(group_not_found),
    Forbidden.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    if dry_run:
        # The moves are found by making them and rolling back.
        with reachable(), transaction.atomic():
            rehearsed = _rebalance_group(lock_group(group))
            transaction.set_rollback(True)
        return rehearsed

    result = _rebalance_and_audit(group=group, actor=actor)
    _log_moves(group, result)
    return result


@transactional
def _rebalance_and_audit(*, group: str, actor: Actor) -> RebalanceResult:
    group_row = lock_group(group)
    mark_due(group_row.pk, f"asked for by {actor.kind} {actor.name}")
    group_row.refresh_from_db()
    result = _rebalance_group(group_row)
    after = {"generation": result.generation, "moves": len(result.moves)}
    audit.record(actor=actor, verb=Verb.REBALANCE, kind="group", name=group, after=after)
    return result


def rebalance(group_id: int) -> RebalanceResult:
    """Assign every queue of a group: grant free queues, revoke moving queues, clear the mark.

    Raises NotFound(group_not_found).
    """
    group, result = _rebalance_locked(group_id, only_marked=False)
    _log_moves(group, result)
    return result


def rebalance_if_due(group_id: int) -> None:
    """Rebalance a group if its mark is set. Raises NotFound(group_not_found).

    If many members join at once, the first call does it for all that have joined.
    """
    _log_moves(*_rebalance_locked(group_id, only_marked=True))


@transactional
def _rebalance_locked(group_id: int, *, only_marked: bool) -> tuple[str, RebalanceResult]:
    """Return the name of the group and the result of its rebalance."""
    group = lock_group_by_id(group_id)
    if only_marked and group.rebalance_wanted == group.rebalance_done:
        return group.name, RebalanceResult(group.pk, group.generation)
    return group.name, _rebalance_group(group)


def _log_moves(group: str, result: RebalanceResult) -> None:
    if result.moves:
        log.info(
            "group %s generation %d: granted %s, revoked %s",
            group, result.generation, list(result.granted), list(result.revoked),
        )  # fmt: skip


def _rebalance_group(group: ConsumerGroup) -> RebalanceResult:
    """Rebalance a locked group.

    The rebalance is recorded in the history if it was due or moved a queue.
    """
    is_due = group.rebalance_wanted > group.rebalance_done
    assigns_queues = group.mode == GroupMode.CLUSTERING
    now = database_now()
    moves, assignment = _assign_queues(group, now) if assigns_queues else ((), {})
    changed = bool(moves) or (is_due and not assigns_queues)
    generation = group.generation + changed
    if is_due or moves:
        ConsumerGroup.objects.filter(pk=group.pk).update(
            generation=generation, rebalance_done=group.rebalance_wanted, rebalance_cause=""
        )
        rebalance_history.record_rebalance(
            group_id=group.pk,
            generation=generation,
            cause=group.rebalance_cause or "the sweep found queues without an owner",
            at=now,
            assignment=assignment,
            moves=[(move.queue, move.source or "", move.target or "") for move in moves],
        )
    if changed:
        granted_queues.note(group.pk, [move.queue for move in moves if move.at_once])
        record_change("group", group.pk)
    return RebalanceResult(group.pk, generation, moves)


def _assign_queues(
    group: ConsumerGroup, now: datetime
) -> tuple[tuple[Move, ...], dict[str, list[int]]]:
    """Write the new targets of all queues, under the next generation.

    Return the moves, and the queues that each member shall have afterwards, by its
    name.
    """
    rows = list(
        QueueOffset.objects.filter(
            group=group,
            queue__state__in=READABLE_STATES,
            queue__topic__state=TopicState.READY,
            queue__topic__subscriptions__group=group,
            queue__topic__subscriptions__state=SubscriptionState.READY,
        )
        .select_related("queue__topic")
        .defer("queue__topic__layout")
        .order_by("queue_id")
    )
    members = _read_members(group)
    names = {member.pk: member.identity for member in members}
    targets = assign(
        members=_find_eligible(group, members, rows),
        queues={row.queue_id: row.queue.topic_id for row in rows},
        current={row.queue_id: row.target_id or row.owner_id for row in rows},
    )
    # Each entry becomes an UPDATE of its list of queues.
    grants: dict[tuple[int | None, int], list[int]] = {}  # by (owner now, new owner)
    retargets: dict[tuple[int | None, int | None], list[int]] = {}  # by (owner now, target)
    for row in rows:
        new_target = targets.get(row.queue_id)
        if new_target is not None and (
            # The second case: a leaving queue goes back to its owner, which may have
            # released it already, so it needs a new epoch.
            row.owner_id is None
            or (row.owner_id == new_target and row.target_id != new_target)
        ):
            grants.setdefault((row.owner_id, new_target), []).append(row.queue_id)
        elif row.target_id != new_target:
            retargets.setdefault((row.owner_id, new_target), []).append(row.queue_id)
    group_rows = QueueOffset.objects.filter(group=group)
    # Members learn of a target from the next generation on.
    order_columns = {
        "target_generation": group.generation + 1,
        "idle_since": Coalesce("idle_since", Value(now)),
    }
    # The target owns a granted queue at once, under a new epoch.
    for (owner, target), queues in grants.items():
        group_rows.filter(queue__in=queues, owner=owner).update(
            owner=target, target=target, epoch=F("epoch") + 1, **order_columns
        )
    # The owner of a retargeted queue must release it first. A free queue is retargeted only if
    # it kept a target (see the module docstring) and no member can have it now: the target is
    # cleared.
    for (owner, next_owner), queues in retargets.items():
        group_rows.filter(queue__in=queues, owner=owner).update(
            target=next_owner, **order_columns
        )
    granted = {queue for queues in grants.values() for queue in queues}
    changed = granted | {queue for queues in retargets.values() for queue in queues}
    # Queues that the group no longer reads, or that were closed, get no target. Their owners,
    # if they have any, must release them.
    abandoned_rows = group_rows.filter(target__isnull=False).exclude(
        pk__in=[row.pk for row in rows]
    )
    abandoned = list(abandoned_rows.select_related("queue__topic"))
    if abandoned:
        abandoned_rows.update(target=None, **order_columns)
    changed |= {row.queue_id for row in abandoned}
    moves = [
        Move(
            queue=row.queue_id,
            topic=row.queue.topic.name,
            # The owner of a free queue has left: `held_by` still has the name of the last
            # member that acquired it.
            source=names.get(row.owner_id or 0) or row.held_by or None,
            target=names.get(targets.get(row.queue_id, 0)),
            at_once=row.queue_id in granted,
        )
        for row in (*rows, *abandoned)
        if row.queue_id in changed
    ]
    assignment: dict[str, list[int]] = {name: [] for name in names.values()}
    for queue, member in targets.items():
        assignment[names[member]].append(queue)
    return tuple(sorted(moves, key=lambda move: move.queue)), assignment


def _read_members(group: ConsumerGroup) -> list[ConsumerGroupConsumer]:
    rows = ConsumerGroupConsumer.objects.filter(group=group)
    return list(rows.select_related("process").order_by("pk"))


def _find_eligible(
    group: ConsumerGroup,
    members: Iterable[ConsumerGroupConsumer],
    rows: Iterable[QueueOffset],
) -> list[int]:
    queue_counts: dict[int, int] = {}
    for row in rows:
        holder = row.target_id or row.owner_id
        if holder is not None:
            queue_counts[holder] = queue_counts.get(holder, 0) + 1
    return eligible_members(
        [
            Candidate(member.pk, member.process.address, queue_counts.get(member.pk, 0))
            for member in members
        ],
        allow=group.allow_addresses,
        deny=group.deny_addresses,
        most=group.max_active_members,
    )


def active_members(group: ConsumerGroup) -> frozenset[int]:
    return frozenset(
        _find_eligible(group, _read_members(group), QueueOffset.objects.filter(group=group))
    )


def hand_over(row: QueueOffset) -> bool:
    """Give a leaving queue to its target, or make it free. Return False if the row has
    changed.

    The caller holds the lock of the group.
    """
    unchanged_row = QueueOffset.objects.filter(
        pk=row.pk, owner=row.owner_id, target=row.target_id, epoch=row.epoch
    )
    if row.target_id is None:
        return unchanged_row.update(owner=None) > 0
    return unchanged_row.update(owner=row.target_id, epoch=F("epoch") + 1) > 0


def raise_generation(group_id: int) -> int:
    """Raise the generation of the group, so that waiting pulls return. Return the new one.

    The caller holds the lock of the group and calls record_change().
    """
    ConsumerGroup.objects.filter(pk=group_id).update(generation=F("generation") + 1)
    return ConsumerGroup.objects.values_list("generation", flat=True).get(pk=group_id)
