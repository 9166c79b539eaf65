"""Offset resets: each move of a position is recorded, so that it can be looked up and
undone.

The row is inserted before the position moves, because the former position may be
unknown afterwards, and is completed after the move. So a crash in between leaves a row
that is not `done`, of a move that may not have happened.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.db.models import Q
from msgspec import Meta, Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import database_now
from metadata.db.paging import Page
from metadata.db.prune import PruneRule
from metadata.db.rows import find_group, lock_group_by_id, make_view
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, NotFound
from metadata.groups.ownership import QueueOwner
from metadata.models import OffsetMove
from metadata.rules.wire import Number

KEPT_DAYS = 90
MAX_KEPT = 10_000  # per group


class PastMove(Struct, frozen=True, rename={"from_offset": "from", "to_offset": "to"}):
    """A move of a past reset; moves with the same `reset` belong together."""

    id: Number
    reset: str
    topic: str
    queue: Number
    number: Number
    instance: str | None
    from_offset: Number
    to_offset: Number
    done: Annotated[bool, Meta(description="false: begun, but possibly not completed")]
    undoes: Annotated[str | None, Meta(description="the reset that this one undid")]
    at_ms: Number
    actor: str


@transactional
def begin_move(
    *,
    row: QueueOwner,
    reset: str,
    from_offset: int,
    to_offset: int,
    actor: Actor,
    undoes: str = "",
) -> int:
    """Insert a move that is about to be made, with its audit row. Return the id of the
    move.
    """
    # The lock keeps the deletion of the group out until the row is inserted.
    group = lock_group_by_id(row.group_id)
    of_instance = f"/{row.instance}" if row.instance else ""
    verb, name = (
        "undo" if undoes else "reset",
        f"{row.group}/{row.topic}/{row.queue}{of_instance}",
    )
    before, after = {"committed": from_offset}, {"committed": to_offset}
    audit.record(
        actor=actor, verb=verb, kind="offset", name=name, before=before, after=after
    )
    move = OffsetMove.objects.create(
        reset=reset,
        group=group,
        queue_id=row.queue,
        instance=row.instance or "",
        from_offset=from_offset,
        to_offset=to_offset,
        undoes=undoes,
        at=database_now(),
        actor_kind=actor.kind,
        actor_name=actor.name,
    )
    return int(move.pk)


@transactional
def finish_move(*, move: int, from_offset: int) -> None:
    """Mark a move as done, with the exact former offset: members may have committed until
    then.
    """
    OffsetMove.objects.filter(pk=move).update(done=True, from_offset=from_offset)


def list_moves(
    *, group: str, limit: int, after: int | None, actor: Actor
) -> Page[PastMove]:
    """Return the moves of a group, newest first. Needs any right on the group. Raises
    NotFound(group_not_found).
    """
    access.require_any_right(actor, group)
    with reachable():
        rows = (
            OffsetMove.objects.filter(group=find_group(group))
            .select_related("queue__topic")
            .order_by("-id")
        )
        if after is not None:
            rows = rows.filter(pk__lt=after)
        # A row more than the page has shows whether there is a next page.
        moves = list(rows[: limit + 1])
    next_cursor = str(moves[limit - 1].pk) if len(moves) > limit else None
    return Page(tuple(_to_view(row) for row in moves[:limit]), next_cursor)


def moves_of_reset(*, group: str, reset: str | None) -> list[PastMove]:
    """Return the moves of a reset. None stands for the last reset that can be undone.

    Raises NotFound(reset_not_found).
    """
    with reachable():
        rows = OffsetMove.objects.filter(group=find_group(group), done=True)
        if reset is None:
            # A reset that was undone, or that undid another, cannot be undone.
            undone = rows.exclude(undoes="").values_list("undoes", flat=True)
            last_move = (
                rows.filter(undoes="")
                .exclude(reset__in=list(undone))
                .order_by("-id")
                .first()
            )
            reset = last_move.reset if last_move is not None else ""
        moves = [
            _to_view(row)
            for row in rows.filter(reset=reset)
            .select_related("queue__topic")
            .order_by("id")
        ]
    if not moves:
        missing = f"no reset {reset}" if reset else "no reset that could be undone"
        raise NotFound(
            f"Group {group} has {missing}. List them: catmq offsets history {group}",
            code=Code.RESET_NOT_FOUND,
        )
    return moves


def has_skipped(*, group_id: int, queue: int, offset: int, since: datetime) -> bool:
    """Return True if the last reset across an offset moved the position of the group
    forwards.
    """
    with reachable():
        # Moves across the offset, in either direction.
        moves = OffsetMove.objects.filter(
            Q(from_offset__lte=offset, to_offset__gt=offset)
            | Q(from_offset__gt=offset, to_offset__lte=offset),
            group=group_id,
            queue=queue,
            instance="",
            at__gte=since,
            done=True,
        )
        last = moves.order_by("-id").values_list("from_offset", "to_offset").first()
    return last is not None and last[0] < last[1]


prune = PruneRule(
    OffsetMove.objects.all(), at="at", days=KEPT_DAYS, each="group", most_each=MAX_KEPT
)


def _to_view(row: OffsetMove) -> PastMove:
    return make_view(
        PastMove,
        row,
        topic=row.queue.topic.name,
        queue=row.queue_id,
        number=row.queue.number,
        instance=row.instance or None,
        undoes=row.undoes or None,
        actor=f"{row.actor_kind} {row.actor_name}",
    )
