"""Rebalances: who shall read which queue of a group, and the hand-over from one owner to
the next.

The truth is a mark on the group: a rebalance is due while `rebalance_wanted` >
`rebalance_done`. The
mark is set in the transaction of its cause. Whoever registers or expires a member then runs
rebalance() at once; everything else is left to the background hook, which is called only by
the update that sets a clear mark, and to the sweep over pending(). Running twice is
harmless.

A row of QueueOffset moves through these states; each step is one guarded update under the
group's lock:

    free      owner NULL                  rebalance grants it: owner = target = m, epoch + 1
    stable    owner = target = m          m's heartbeats list it under `assigned`
    leaving   owner = m, target = other   m's heartbeats list it under `revoked`, from
                                          generation g on;
                                          m's heartbeat at >= g without the queue releases
                                          it to the
                                          target, epoch + 1; m's expiry makes it free

An owner never gets the same (queue, epoch) twice: if a rebalance gives a leaving queue back
to its owner, that is a new grant with epoch + 1, because the owner may have let go of it
already.

`idle_since` of a row begins when its owner is told to give the queue up, leaves or was last
heard, and ends when the next owner has acquired it; rebalance_history.py records the time
between. Broadcasting groups have nothing to hand over (broadcast_instances.py): there a
rebalance only raises the generation.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.rows import lock_group, lock_group_by_id, select
from metadata.db.transactions import reachable, transactional
from metadata.errors import MetadataUnavailable, NotFound
from metadata.membership import granted_queues, rebalance_history
from metadata.models import ConsumerGroup, ConsumerGroupConsumer, QueueOffset
from metadata.rules.membership.assignment import assign
from metadata.rules.membership.eligibility import Candidate, eligible_members

log = logging.getLogger(__name__)
Background = Callable[[int], None]  # group id
Grants = dict[tuple[int | None, int], list[int]]  # (owner now, member) → queues
Retargets = dict[tuple[int | None, int | None], list[int]]  # (owner now, target) → queues

LIVE_QUEUES = ("read_write", "read_only")
_PENDING = (
    f"SELECT id FROM {ConsumerGroup._meta.db_table}"  # noqa: S608 - no value of anybody's
    " WHERE rebalance_wanted > rebalance_done AND deleted_at IS NULL ORDER BY id LIMIT %s"
)
MAX_CAUSE = 300
_background: Background | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A queue's new destination; `source` and `target` are members' names, None for nobody.

    `at_once`: the target owns it now; otherwise the source was asked to give it up first.
    """

    queue: int
    topic: str
    source: str | None
    target: str | None
    at_once: bool


@dataclass(frozen=True, slots=True)
class RebalanceResult:
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
    """Set who is asked to run a rebalance soon; called once, by the composition root."""
    global _background
    _background = hook


def request(group_id: int, cause: str) -> None:
    """Mark the group for a rebalance, inside the caller's transaction, which holds the
    group's lock.
    """
    if mark_due(group_id, cause):
        log.info("group %d needs a rebalance: %s", group_id, cause)
        transaction.on_commit(lambda: _ask(group_id), robust=True)


def mark_due(group_id: int, cause: str) -> bool:
    """Set the mark without asking anybody to act on it; whether it was clear. Caller holds
    the lock.
    """
    rows = ConsumerGroup.objects.filter(pk=group_id)
    wanted, done, before = rows.values_list(
        "rebalance_wanted", "rebalance_done", "rebalance_cause"
    ).get()
    was_clear: bool = wanted == done
    causes = cause if was_clear or not before else f"{before}; {cause}"
    rows.update(
        rebalance_wanted=F("rebalance_wanted") + 1, rebalance_cause=causes[:MAX_CAUSE]
    )
    return was_clear


def _ask(group_id: int) -> None:
    if _background is not None:
        _background(group_id)


def pending_groups(limit: int = 100) -> list[int]:
    """Ids of groups whose mark is set, the lowest first."""
    with reachable():
        return [group_id for (group_id,) in select(_PENDING, [limit])]


def groups_with_unassigned_queues(limit: int = 1_000) -> list[int]:
    """Ids of groups that have members, and a queue meant for nobody: what a lost mark would
    leave.

    Groups with limits may be so for ever, so they must not fill the list: any `limit` of
    all of them.
    """
    with reachable():
        rows = QueueOffset.objects.filter(
            owner__isnull=True,
            target__isnull=True,
            group__mode=ConsumerGroup.Mode.CLUSTERING,
            group__deleted_at__isnull=True,
            group__members__isnull=False,
            queue__state__in=LIVE_QUEUES,
            queue__topic__state="ready",
        )
        groups = list(rows.order_by().values_list("group_id", flat=True).distinct())
    return random.sample(groups, min(limit, len(groups)))


def rebalance_each(
    groups: Iterable[int], run: Callable[[int], object] | None = None
) -> int:
    """Run rebalance(), or `run`, for some groups in any order; how many there were. One
    that fails keeps no other waiting.

    Raises MetadataUnavailable at the end, if one could not be reached.
    """
    act = run or rebalance
    ids = list(groups)
    random.shuffle(ids)
    failure: MetadataUnavailable | None = None
    for group_id in ids:
        try:
            act(group_id)
        except NotFound:  # deleted meanwhile
            continue
        except MetadataUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
    return len(ids)


def rebalance_by_hand(
    *, group: str, actor: Actor, dry_run: bool = False
) -> RebalanceResult:
    """Share the queues of a group anew, now; or only says what that would do. Needs
    `manage`.

    Queues that are shared evenly stay where they are. Raises NotFound(group_not_found),
    Forbidden.
    """
    access.require(actor, "manage", group, what="group")
    if dry_run:
        return _rehearsed(group)
    moves = _asked(group=group, actor=actor)
    _tell(group, moves)
    return moves


def _rehearsed(group: str) -> RebalanceResult:
    """Return the moves that a rebalance would make, found out by doing it and rolling it
    back.
    """
    with reachable(), transaction.atomic():
        moves = _rebalanced(lock_group(group))
        transaction.set_rollback(True)
    return moves


@transactional
def _asked(*, group: str, actor: Actor) -> RebalanceResult:
    row = lock_group(group)
    mark_due(row.pk, f"asked for by {actor.kind} {actor.name}")
    row.refresh_from_db()
    moves = _rebalanced(row)
    after = {"generation": moves.generation, "moves": len(moves.moves)}
    audit.record(actor=actor, verb="rebalance", kind="group", name=group, after=after)
    return moves


def rebalance(group_id: int) -> RebalanceResult:
    """Compute the target of every queue, grant the free ones, announce the others; clear
    the mark.

    Raises NotFound(group_not_found).
    """
    group, moves = _settled(group_id, only_marked=False)
    _tell(group, moves)
    return moves


def rebalance_if_due(group_id: int) -> None:
    """Rebalance a group that is marked; of many that join at once, the first does it for
    all that have.

    Raises NotFound(group_not_found).
    """
    _tell(*_settled(group_id, only_marked=True))


@transactional
def _settled(group_id: int, *, only_marked: bool) -> tuple[str, RebalanceResult]:
    group = lock_group_by_id(group_id)
    if only_marked and group.rebalance_wanted == group.rebalance_done:
        return group.name, RebalanceResult(group.pk, group.generation)
    return group.name, _rebalanced(group)


def _tell(group: str, moves: RebalanceResult) -> None:
    if moves.moves:
        log.info(
            "group %s generation %d: granted %s, revoked %s",
            group, moves.generation, list(moves.granted), list(moves.revoked),
        )  # fmt: skip


def _rebalanced(group: ConsumerGroup) -> RebalanceResult:
    """One rebalance of a locked group. What was asked for, or moved something, goes into
    the history.
    """
    asked = group.rebalance_wanted > group.rebalance_done
    shares = group.mode == ConsumerGroup.Mode.CLUSTERING
    now = database_now()
    moves, assignment = _moved(group, now) if shares else ((), {})
    changes = bool(moves) or (asked and not shares)
    generation = group.generation + changes
    if asked or moves:
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
    if changes:
        granted_queues.note(group.pk, [move.queue for move in moves if move.at_once])
        record_change("group", group.pk)
    return RebalanceResult(group.pk, generation, moves)


def _moved(
    group: ConsumerGroup, now: datetime
) -> tuple[tuple[Move, ...], dict[str, list[int]]]:
    """Write the new targets under the next generation; the moves, and what everyone shall
    have then.
    """
    rows = list(_readable(group))
    members = _members(group)
    names = {member.pk: member.identity for member in members}
    targets = assign(
        members=_eligible(group, members, rows),
        queues={row.queue_id: row.queue.topic_id for row in rows},
        current={row.queue_id: row.target_id or row.owner_id for row in rows},
    )
    grants, retargets = _steps(rows, targets)
    mine, ordered = QueueOffset.objects.filter(group=group), _ordered(group, now)
    for (owner, target), queues in grants.items():  # owns them now, under a new epoch
        theirs = mine.filter(queue__in=queues, owner=owner)
        theirs.update(owner=target, target=target, epoch=F("epoch") + 1, **ordered)
    for (owner, heir), queues in retargets.items():  # the owner is told to give them up
        mine.filter(queue__in=queues, owner=owner).update(target=heir, **ordered)
    given = {queue for queues in grants.values() for queue in queues}
    touched = given | {queue for queues in retargets.values() for queue in queues}
    abandoned = _abandon(group, [row.pk for row in rows], now)
    touched |= {row.queue_id for row in abandoned}
    moves = [
        Move(
            queue=row.queue_id,
            topic=row.queue.topic.name,
            source=names.get(row.owner_id or 0) or row.held_by or None,
            target=names.get(targets.get(row.queue_id, 0)),
            at_once=row.queue_id in given,
        )
        for row in (*rows, *abandoned)
        if row.queue_id in touched
    ]
    assignment: dict[str, list[int]] = {name: [] for name in names.values()}
    for queue, member in targets.items():
        assignment[names[member]].append(queue)
    return tuple(sorted(moves, key=lambda move: move.queue)), assignment


def _members(group: ConsumerGroup) -> list[ConsumerGroupConsumer]:
    rows = ConsumerGroupConsumer.objects.filter(group=group)
    return list(rows.select_related("process").order_by("pk"))


def _eligible(
    group: ConsumerGroup,
    members: Iterable[ConsumerGroupConsumer],
    rows: Iterable[QueueOffset],
) -> list[int]:
    held: dict[int, int] = {}
    for row in rows:
        holder = row.target_id or row.owner_id
        if holder is not None:
            held[holder] = held.get(holder, 0) + 1
    return eligible_members(
        [Candidate(one.pk, one.process.address, held.get(one.pk, 0)) for one in members],
        allow=group.allow_addresses,
        deny=group.deny_addresses,
        most=group.max_active_members,
    )


def active_members(group: ConsumerGroup) -> frozenset[int]:
    """Ids of the members that may own queues; the others stand by."""
    return frozenset(
        _eligible(group, _members(group), QueueOffset.objects.filter(group=group))
    )


def _steps(
    rows: Iterable[QueueOffset], targets: Mapping[int, int]
) -> tuple[Grants, Retargets]:
    """Return the queues to grant and to announce, by (owner now, member); each entry
    becomes one UPDATE.
    """
    grants: Grants = {}
    retargets: Retargets = {}
    for row in rows:
        target = targets.get(row.queue_id)
        if target is not None and (
            row.owner_id is None or (row.owner_id == target != row.target_id)
        ):
            grants.setdefault((row.owner_id, target), []).append(row.queue_id)
        elif row.target_id != target:
            retargets.setdefault((row.owner_id, target), []).append(row.queue_id)
    return grants, retargets


def _readable(group: ConsumerGroup) -> list[QueueOffset]:
    """The rows of queues that somebody shall read: topic and subscription ready, queue not
    retired.
    """
    return list(
        QueueOffset.objects.filter(
            group=group,
            queue__state__in=LIVE_QUEUES,
            queue__topic__state="ready",
            queue__topic__subscriptions__group=group,
            queue__topic__subscriptions__state="ready",
        )
        .select_related("queue__topic")
        .defer("queue__topic__layout")
        .order_by("queue_id")
    )


def _abandon(group: ConsumerGroup, readable: list[int], now: datetime) -> list[QueueOffset]:
    """Take the target away from rows that nobody shall read any more; these rows."""
    rows = QueueOffset.objects.filter(group=group, target__isnull=False).exclude(
        pk__in=readable
    )
    left = list(rows.select_related("queue__topic"))
    if left:
        rows.update(target=None, **_ordered(group, now))
    return left


def _ordered(group: ConsumerGroup, now: datetime) -> dict[str, Any]:
    """Return what changes with the target of a row: members are told from the next
    generation on.
    """
    return {
        "target_generation": group.generation + 1,
        "idle_since": Coalesce("idle_since", Value(now)),
    }


def hand_over(row: QueueOffset) -> bool:
    """Give a leaving queue to its target, or free it; False if the row moved on. Caller
    holds the lock.
    """
    leaving = QueueOffset.objects.filter(
        pk=row.pk, owner=row.owner_id, target=row.target_id, epoch=row.epoch
    )
    if row.target_id is None:
        return leaving.update(owner=None) > 0
    return leaving.update(owner=row.target_id, epoch=F("epoch") + 1) > 0


def raise_generation(group_id: int) -> int:
    """Raise the group's generation, so that waiting pulls return. Caller locks and calls
    changed().
    """
    ConsumerGroup.objects.filter(pk=group_id).update(generation=F("generation") + 1)
    return ConsumerGroup.objects.values_list("generation", flat=True).get(pk=group_id)
