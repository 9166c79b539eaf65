"""Positions that were moved by hand: kept, so that a move can be looked up and undone.

A row is written before its position moves, because afterwards nobody may know where it was,
and made exact once it has moved. So after a crash in between there may be a row of a move
that was not made: not `finish_move`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

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

KEPT_DAYS = 90
MOST_KEPT = 10_000  # of a group


@dataclass(frozen=True, slots=True)
class PastMove:
    """A queue's move: those of one `reset` were asked for together; `undoes` names the
    reset it undid.
    """

    id: int
    reset: str
    topic: str
    queue: int
    number: int
    instance: str | None
    from_offset: int
    to_offset: int
    done: bool
    undoes: str | None
    at_ms: int
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
    """Write down a move that is about to be made, and its audit row; the move's id."""
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
    made = OffsetMove.objects.create(
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
    return int(made.pk)


@transactional
def finish_move(*, move: int, from_offset: int) -> None:
    """Say that a move was made, and from where exactly: members may have committed until
    then.
    """
    OffsetMove.objects.filter(pk=move).update(done=True, from_offset=from_offset)


def list_moves(
    *, group: str, limit: int, after: int | None, actor: Actor
) -> Page[PastMove]:
    """A group's moves, the newest first. Needs any right on the group; raises
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
        found = list(rows[: limit + 1])
    following = str(found[limit - 1].pk) if len(found) > limit else None
    return Page(tuple(_view(row) for row in found[:limit]), following)


def moves_of_reset(*, group: str, reset: str | None) -> list[PastMove]:
    """The moves of a reset; None: of the last one that was neither undone nor is an undoing
    itself.

    Raises NotFound(reset_not_found).
    """
    with reachable():
        rows = OffsetMove.objects.filter(group=find_group(group), done=True)
        if reset is None:
            undone = rows.exclude(undoes="").values_list("undoes", flat=True)
            last = (
                rows.filter(undoes="")
                .exclude(reset__in=list(undone))
                .order_by("-id")
                .first()
            )
            reset = last.reset if last is not None else ""
        found = [
            _view(row)
            for row in rows.filter(reset=reset)
            .select_related("queue__topic")
            .order_by("id")
        ]
    if not found:
        which = f"no reset {reset}" if reset else "no reset that could be undone"
        raise NotFound(
            f"Group {group} has {which}. List them: catmq offsets history {group}",
            code=Code.RESET_NOT_FOUND,
        )
    return found


def has_skipped(*, group_id: int, queue: int, offset: int, since: datetime) -> bool:
    """Return True if the last reset that moved a group's position across an offset moved it
    forwards.
    """
    with reachable():
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
    OffsetMove.objects.all(), at="at", days=KEPT_DAYS, each="group", most_each=MOST_KEPT
)


def _view(row: OffsetMove) -> PastMove:
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
