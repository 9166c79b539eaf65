"""Rebalances: who shall read which queue of a group, and the hand-over from one owner to the next.

The truth is a mark on the group: a rebalance is due while `rebalance_wanted` > `rebalance_done`. The
mark is set in the transaction of its cause. Whoever registers or expires a member then runs
rebalance() at once; everything else is left to the background hook, which is called only by the
update that sets a clear mark, and to the sweep over pending(). Running twice is harmless.

A row of QueueOffset moves through these states; each step is one guarded update under the group's lock:

    free      owner NULL                  rebalance grants it: owner = target = m, epoch + 1
    stable    owner = target = m          m's heartbeats list it under `assigned`
    leaving   owner = m, target = other   m's heartbeats list it under `revoked`, from generation g on;
                                          m's heartbeat at >= g without the queue releases it to the
                                          target, epoch + 1; m's expiry makes it free

An owner never gets the same (queue, epoch) twice: if a rebalance gives a leaving queue back to its
owner, that is a new grant with epoch + 1, because the owner may have let go of it already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F

from metadata.changes import changed
from metadata.locks import group_by_id
from metadata.models import ConsumerGroup, ConsumerGroupConsumer, QueueOffset
from metadata.rules.assignment import assign
from metadata.transactions import reachable, transactional

log = logging.getLogger(__name__)
Background = Callable[[int], None]  # group id
Grants = dict[tuple[int | None, int], list[int]]  # (owner now, member) → queues
Retargets = dict[tuple[int | None, int | None], list[int]]  # (owner now, target) → queues

LIVE_QUEUES = ("read_write", "read_only")
_background: Background | None = None


@dataclass(frozen=True, slots=True)
class Moves:
    """What one rebalance did: queues given to a member at once, and queues to be given up."""

    group_id: int
    generation: int
    granted: tuple[int, ...] = ()
    revoked: tuple[int, ...] = ()


def set_background(hook: Background | None) -> None:
    """Sets who is asked to run a rebalance soon; called once, by the composition root."""
    global _background
    _background = hook


def request(group_id: int, cause: str) -> None:
    """Marks the group for a rebalance, inside the caller's transaction, which holds the group's lock."""
    if mark(group_id):
        log.info("group %d is to be rebalanced: %s", group_id, cause)
        transaction.on_commit(lambda: _ask(group_id), robust=True)


def mark(group_id: int) -> bool:
    """Sets the mark without asking anybody to act on it; whether it was clear before."""
    clear = ConsumerGroup.objects.filter(pk=group_id, rebalance_wanted=F("rebalance_done"))
    was_clear = clear.update(rebalance_wanted=F("rebalance_wanted") + 1) > 0
    if not was_clear:
        ConsumerGroup.objects.filter(pk=group_id).update(rebalance_wanted=F("rebalance_wanted") + 1)
    return was_clear


def _ask(group_id: int) -> None:
    if _background is not None:
        _background(group_id)


def pending(limit: int = 100) -> list[int]:
    """Ids of groups whose mark is set, the lowest first."""
    with reachable():
        due = ConsumerGroup.objects.filter(rebalance_wanted__gt=F("rebalance_done"), deleted_at__isnull=True)
        return list(due.order_by("pk").values_list("pk", flat=True)[:limit])


@transactional
def rebalance(group_id: int) -> Moves:
    """Computes the target of every queue, grants the free ones, announces the others; clears the mark.

    Raises NotFound(group_not_found).
    """
    group = group_by_id(group_id)
    moves = _moved(group)
    if moves.generation != group.generation or group.rebalance_done != group.rebalance_wanted:
        ConsumerGroup.objects.filter(pk=group_id).update(
            generation=moves.generation, rebalance_done=group.rebalance_wanted
        )
    if moves.generation != group.generation:
        log.info(
            "group %s generation %d: granted %s, revoked %s",
            group.name, moves.generation, list(moves.granted), list(moves.revoked),
        )  # fmt: skip
        changed("group", group_id)
    return moves


def _moved(group: ConsumerGroup) -> Moves:
    """Writes the new targets; the generation rises only if something moved."""
    members = list(
        ConsumerGroupConsumer.objects.filter(group=group).order_by("pk").values_list("pk", flat=True)
    )
    rows = list(_readable(group))
    targets = assign(
        members=members,
        queues={row.queue_id: row.queue.topic_id for row in rows},
        current={row.queue_id: row.target_id or row.owner_id for row in rows},
    )
    generation = group.generation + 1
    grants, retargets = _steps(rows, targets)
    for (owner, target), queues in grants.items():
        _grant(group, queues, owner=owner, member=target, generation=generation)
    for (owner, heir), queues in retargets.items():
        _retarget(group, queues, owner=owner, target=heir, generation=generation)
    granted = sorted(queue for queues in grants.values() for queue in queues)
    revoked = sorted(queue for queues in retargets.values() for queue in queues)
    revoked += _abandon(group, [row.pk for row in rows], generation)
    moved = bool(granted or revoked)
    return Moves(group.pk, generation if moved else group.generation, tuple(granted), tuple(revoked))


def _steps(rows: Iterable[QueueOffset], targets: Mapping[int, int]) -> tuple[Grants, Retargets]:
    """What to grant and what to announce, as (owner now, member) → queues; each becomes one UPDATE."""
    grants: Grants = {}
    retargets: Retargets = {}
    for row in rows:
        target = targets.get(row.queue_id)
        if target is not None and (row.owner_id is None or (row.owner_id == target != row.target_id)):
            grants.setdefault((row.owner_id, target), []).append(row.queue_id)
        elif row.target_id != target:
            retargets.setdefault((row.owner_id, target), []).append(row.queue_id)
    return grants, retargets


def _readable(group: ConsumerGroup) -> list[QueueOffset]:
    """The rows of queues that somebody shall read: topic and subscription ready, queue not retired."""
    return list(
        QueueOffset.objects.filter(
            group=group,
            queue__state__in=LIVE_QUEUES,
            queue__topic__state="ready",
            queue__topic__subscriptions__group=group,
            queue__topic__subscriptions__state="ready",
        )
        .select_related("queue")
        .order_by("queue_id")
    )


def _abandon(group: ConsumerGroup, readable: list[int], generation: int) -> list[int]:
    """Takes the target away from rows that nobody shall read any more; their queues."""
    rows = QueueOffset.objects.filter(group=group, target__isnull=False).exclude(pk__in=readable)
    left = list(rows.values_list("queue_id", flat=True))
    if left:
        rows.update(target=None, target_generation=generation)
    return left


def _grant(
    group: ConsumerGroup, queues: list[int], *, owner: int | None, member: int, generation: int
) -> None:
    """Makes `member` the owner now, under a new epoch; guarded by the owner that was read."""
    QueueOffset.objects.filter(group=group, queue__in=queues, owner=owner).update(
        owner=member, target=member, epoch=F("epoch") + 1, target_generation=generation
    )


def _retarget(
    group: ConsumerGroup, queues: list[int], *, owner: int | None, target: int | None, generation: int
) -> None:
    """Tells the owner, from `generation` on, to give the queues up; guarded by the owner that was read."""
    QueueOffset.objects.filter(group=group, queue__in=queues, owner=owner).update(
        target=target, target_generation=generation
    )


def hand_over(row: QueueOffset) -> bool:
    """Gives a leaving queue to its target, or frees it; False if the row moved on. Caller holds the lock."""
    leaving = QueueOffset.objects.filter(pk=row.pk, owner=row.owner_id, target=row.target_id, epoch=row.epoch)
    if row.target_id is None:
        return leaving.update(owner=None) > 0
    return leaving.update(owner=row.target_id, epoch=F("epoch") + 1) > 0


def next_generation(group_id: int) -> int:
    """Raises the group's generation, so that waiting pulls return. Caller locks and calls changed()."""
    ConsumerGroup.objects.filter(pk=group_id).update(generation=F("generation") + 1)
    return ConsumerGroup.objects.values_list("generation", flat=True).get(pk=group_id)
