"""History of rebalances: the cause, which queues moved between which members, and how long
they paused.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

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
from metadata.rules.wire import Number

log = logging.getLogger(__name__)
KEPT_DAYS = 30
KEPT_PER_GROUP = 1_000
MAX_LATE_ACQUISITIONS = 1_000  # acquisitions that wait for the database


class MoveView(Struct, frozen=True, rename={"from_member": "from", "to_member": "to"}):
    """A queue that moved from one member to another (null: none), and its pause."""

    queue: Number
    topic: str
    from_member: str | None
    to_member: str | None
    # The time without an owner that reads.
    pause_ms: Annotated[
        Number | None,
        Meta(
            description="null while the pause lasts, or if the queue moved again before it ended"
        ),
    ]


class RebalanceView(Struct, frozen=True):
    """A rebalance of the past; `assignment` maps members to the queues meant for them."""

    id: Number
    generation: Number
    cause: str
    at_ms: Number
    assignment: Mapping[str, Sequence[Number]]
    moves: tuple[MoveView, ...]


class _Acquisition(Struct, frozen=True):
    """Queues that a consumer acquired: queue id → epoch, and time.monotonic() of the call."""

    consumer: ConsumerId
    epochs: Mapping[int, int]
    at: float


_late_acquisitions: deque[_Acquisition] = deque(maxlen=MAX_LATE_ACQUISITIONS)


def list_rebalances(
    *, group: str, actor: Actor, limit: int = 50, after: int | None = None
) -> tuple[list[RebalanceView], int | None]:
    """Return rebalances of a group, newest first, and the id after which to continue.

    Only those with an id below `after` are returned. Needs any right on the group.
    Raises NotFound, Invalid.
    """
    access.require_any_right(actor, group)
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid.field("limit", f"must be 1 to {MAX_LIMIT}")
    with reachable():
        rows = Rebalance.objects.filter(group=find_group(group)).order_by("-id")
        if after is not None:
            rows = rows.filter(pk__lt=after)
        rebalances = list(rows.prefetch_related("moves__queue__topic")[: limit + 1])
        views = [
            make_view(
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
            for row in rebalances[:limit]
        ]
    return views, views[-1].id if len(rebalances) > limit else None


def record_rebalance(
    *,
    group_id: int,
    generation: int,
    cause: str,
    at: datetime,
    assignment: Mapping[str, Sequence[int]],
    moves: Sequence[tuple[int, str, str]],
) -> None:
    """Insert a rebalance with its moves (queue, from, to), in the transaction of the
    caller.
    """
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
    """Record that a consumer acquired these (queue, epoch) pairs on their nodes: their
    pauses end.

    Only the history depends on it. So an unavailable metadata database is no error:
    write_late_notes() records it later.
    """
    if consumer.instance_id:
        return
    acquisition = _Acquisition(consumer, dict(queues), time.monotonic())
    try:
        _write_acquisition(acquisition)
    except MetadataUnavailable as error:
        log.info(
            "group %d: pauses not recorded, will retry: %s", consumer.group_id, error.detail
        )
        _late_acquisitions.append(acquisition)


def write_late_notes() -> None:
    """Record the acquisitions that failed before. Raises MetadataUnavailable if one fails
    again.
    """
    for _ in range(len(_late_acquisitions)):
        acquisition = _late_acquisitions.popleft()
        try:
            _write_acquisition(acquisition)
        except MetadataUnavailable:
            _late_acquisitions.appendleft(acquisition)
            raise


@bulkhead.permit("notes")
def _write_acquisition(acquisition: _Acquisition) -> None:
    consumer, epochs = acquisition.consumer, acquisition.epochs
    with reachable():
        # Guarded updates without the lock of the group: a new owner must not wait until a
        # rebalance has finished.
        rows = QueueOffset.objects.filter(
            group=consumer.group_id,
            queue_id__in=sorted(epochs),
            owner__consumer_id=consumer.text,
            idle_since__isnull=False,
        )
        waiting_rows = rows.select_related("owner").annotate(now=UtcNow())
        acquired = [row for row in waiting_rows if row.epoch == epochs[row.queue_id]]
        if not acquired:
            return
        member = acquired[0].owner
        assert member is not None  # noqa: S101 - the filter above
        acquired_rows = QueueOffset.objects.filter(
            pk__in=[row.pk for row in acquired], owner=member
        )
        acquired_rows.update(held_by=member.identity)
        # A queue that is leaving again stays paused until its next owner acquires it.
        acquired_rows.filter(target=member).update(idle_since=None)
        # The acquisition may be recorded late; the pause ended when it happened.
        elapsed_ms = int((time.monotonic() - acquisition.at) * 1000)
        pauses = {
            row.queue_id: max(0, ms(row.now) - elapsed_ms - ms(row.idle_since))
            for row in acquired
            if row.idle_since
        }
        # Stored in the latest move of each queue to this member.
        open_moves = RebalanceMove.objects.filter(
            rebalance__group_id=consumer.group_id,
            queue_id__in=sorted(pauses),
            to_member=member.identity,
            pause_ms__isnull=True,
        ).order_by("pk")
        latest = {queue: pk for pk, queue in open_moves.values_list("pk", "queue_id")}
        moves = [
            RebalanceMove(pk=pk, pause_ms=pauses[queue])
            for queue, pk in sorted(latest.items())
        ]
        RebalanceMove.objects.bulk_update(moves, ["pause_ms"], batch_size=500)


prune = PruneRule(
    Rebalance.objects.all(),
    at="at",
    days=KEPT_DAYS,
    each="group_id",
    most_each=KEPT_PER_GROUP,
)
