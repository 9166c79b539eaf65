"""The history of rebalances: why, who got what from whom, and how long each queue stood
still.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import UtcNow, ms
from metadata.db.consumer_ids import ConsumerId
from metadata.db.paging import MAX_LIMIT
from metadata.db.prune import PruneRule
from metadata.db.rows import find_group, make_view
from metadata.db.transactions import reachable
from metadata.errors import Invalid, MetadataUnavailable
from metadata.limits.bulkhead import bulkhead
from metadata.models import QueueOffset, Rebalance, RebalanceMove

log = logging.getLogger(__name__)
KEPT_DAYS = 30
KEPT_EACH = 1_000  # of one group
MAX_LATE_NOTES = 1_000  # notes that wait for the database


@dataclass(frozen=True, slots=True)
class MoveView:
    """A queue that went from one member to another (None: nobody), and how long it stood
    still.

    `pause_ms` is None until the new owner acquired it, and for ever if a later rebalance
    overtook the move.
    """

    queue: int
    topic: str
    from_member: str | None
    to_member: str | None
    pause_ms: int | None


@dataclass(frozen=True, slots=True)
class RebalanceView:
    """One rebalance; `assignment` maps members to the ids of the queues that were meant for
    them.
    """

    id: int
    generation: int
    cause: str
    at_ms: int
    assignment: Mapping[str, Sequence[int]]
    moves: tuple[MoveView, ...]


@dataclass(frozen=True, slots=True)
class _Note:
    """Queue → epoch of what a consumer acquired at a time.monotonic()."""

    consumer: ConsumerId
    epochs: Mapping[int, int]
    at: float


_late: deque[_Note] = deque(maxlen=MAX_LATE_NOTES)


def list_rebalances(
    *, group: str, actor: Actor, limit: int = 50, after: int | None = None
) -> tuple[list[RebalanceView], int | None]:
    """Rebalances of a group, newest first, those before id `after`; and the id to go on
    after.

    Needs any right on the group. Raises NotFound, Invalid.
    """
    access.require_any_right(actor, group)
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid.field("limit", f"must be 1 to {MAX_LIMIT}")
    with reachable():
        rows = Rebalance.objects.filter(group=find_group(group)).order_by("-id")
        if after is not None:
            rows = rows.filter(pk__lt=after)
        found = list(rows.prefetch_related("moves__queue__topic")[: limit + 1])
        views = [_view(one) for one in found[:limit]]
    return views, views[-1].id if len(found) > limit else None


def _view(row: Rebalance) -> RebalanceView:
    return make_view(
        RebalanceView,
        row,
        moves=tuple(
            MoveView(
                queue=move.queue_id,
                topic=move.queue.topic.name,
                from_member=move.from_member or None,
                to_member=move.to_member or None,
                pause_ms=move.pause_ms,
            )
            for move in row.moves.all()
        ),
    )


def record_rebalance(
    *,
    group_id: int,
    generation: int,
    cause: str,
    at: datetime,
    assignment: Mapping[str, Sequence[int]],
    moves: Sequence[tuple[int, str, str]],
) -> None:
    """Write one rebalance with its moves (queue, from, to), in the caller's transaction."""
    row = Rebalance.objects.create(
        group_id=group_id,
        generation=generation,
        cause=cause,
        at=at,
        assignment=dict(assignment),
    )
    RebalanceMove.objects.bulk_create(
        [
            RebalanceMove(
                rebalance=row, queue_id=queue, from_member=source, to_member=target
            )
            for queue, source, target in moves
        ]
    )


def record_acquired(*, consumer: ConsumerId, queues: Sequence[tuple[int, int]]) -> None:
    """Note that the owner acquired these (queue, epoch)s on their nodes: their pauses are
    over.

    Only the history depends on it, so a metadata database that is away is not an error
    here: it is noted when the database is back (catch_up).
    """
    if consumer.instance_id:
        return
    note = _Note(consumer, dict(queues), time.monotonic())
    try:
        _write(note)
    except MetadataUnavailable as error:
        log.info(
            "group %d: pauses not recorded, will retry: %s", consumer.group_id, error.detail
        )
        _late.append(note)


def write_late_notes() -> None:
    """Note what could not be noted when it happened. Raises MetadataUnavailable if it still
    cannot.
    """
    for _ in range(len(_late)):
        note = _late.popleft()
        try:
            _write(note)
        except MetadataUnavailable:
            _late.appendleft(note)
            raise


@bulkhead.permit("notes")
def _write(note: _Note) -> None:
    """By guarded updates, not under the group's lock: a new owner must not wait for a
    rebalance to end.
    """
    consumer, epochs = note.consumer, note.epochs
    with reachable():
        rows = QueueOffset.objects.filter(
            group=consumer.group_id,
            queue_id__in=sorted(epochs),
            owner__consumer_id=consumer.text,
            idle_since__isnull=False,
        )
        found = rows.select_related("owner").annotate(now=UtcNow())
        mine = [row for row in found if row.epoch == epochs[row.queue_id]]
        if not mine:
            return
        member = mine[0].owner
        assert member is not None  # noqa: S101 - the filter above
        held = QueueOffset.objects.filter(pk__in=[row.pk for row in mine], owner=member)
        held.update(held_by=member.identity)
        # one that leaves again goes on waiting
        held.filter(target=member).update(idle_since=None)
        ago_ms = int((time.monotonic() - note.at) * 1000)
        pauses = {
            row.queue_id: max(0, ms(row.now) - ago_ms - ms(row.idle_since))
            for row in mine
            if row.idle_since
        }
        _record_pauses(group_id=consumer.group_id, member=member.identity, pauses=pauses)


def _record_pauses(*, group_id: int, member: str, pauses: Mapping[int, int]) -> None:
    """Note how many ms each queue had stood still when `member` acquired it, at its latest
    move.
    """
    open_moves = RebalanceMove.objects.filter(
        rebalance__group_id=group_id,
        queue_id__in=sorted(pauses),
        to_member=member,
        pause_ms__isnull=True,
    )
    latest = {
        queue: pk for pk, queue in open_moves.order_by("pk").values_list("pk", "queue_id")
    }
    moves = [
        RebalanceMove(pk=pk, pause_ms=pauses[queue]) for queue, pk in sorted(latest.items())
    ]
    RebalanceMove.objects.bulk_update(moves, ["pause_ms"], batch_size=500)


prune = PruneRule(
    Rebalance.objects.all(), at="at", days=KEPT_DAYS, each="group_id", most_each=KEPT_EACH
)
