"""Redrives: requests to send dead letters again. These are the rows;
`messagestore.retries.redrives` does the work.

request_redrive → advance … → finish_redrive, or stop_redrive in between. A group has at
most one running redrive, so that no message is sent again twice. Every step is a guarded
update, so a stopped redrive goes no further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db.models import QuerySet
from msgspec import Struct

from metadata.actors import Actor, job
from metadata.db import access, audit
from metadata.db.clock import database_now
from metadata.db.prune import PruneRule
from metadata.db.rows import find_group, lock_group, make_view, select
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.models import Redrive
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import RedriveState, RedriveTarget
from metadata.rules.rights import Right

DEFAULT_RATE = 200  # messages a second
MAX_RATE = 10_000
_ANY = f"SELECT 1 FROM {Redrive._meta.db_table} WHERE state = %s LIMIT 1"  # noqa: S608 - table name only
KEPT_DAYS = 30  # after its end
TARGETS = tuple(RedriveTarget)


class RedriveSelection(Struct, frozen=True):
    """Dead letters of a redrive: `rows` by node. If that is None, all dead letters of the
    group, or those of a topic and an error class if these are set.
    """

    rows: Mapping[int, Sequence[int]] | None
    topic_id: int | None
    topic: str
    error_class: str | None


class RedriveView(Struct, frozen=True):
    """A redrive.

    `bounds` ({node: row}) are the highest rows that it includes. `places` ({node: (died at
    in ms, row)}) are its positions. `deleting` ({node: rows}) are rows that were sent again
    and are not counted yet.
    """

    id: int
    group: str
    group_id: int
    chosen: RedriveSelection
    to: str
    rate: int
    state: str
    bounds: Mapping[int, int]
    places: Mapping[int, tuple[int, int]]
    deleting: Mapping[int, Sequence[int]]
    total: int
    redriven: int
    skipped: int
    detail: str
    asked_by: str
    created_at_ms: int
    finished_at_ms: int | None


@transactional
def request_redrive(
    *,
    group: str,
    chosen: RedriveSelection,
    to: str,
    rate: int | None,
    bounds: Mapping[int, int],
    total: int,
    actor: Actor,
) -> RedriveView:
    """Create a running redrive. Needs `manage` on the group.

    Raises Invalid, NotFound, Conflict(in_use) while another redrive of the group runs.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    check_options(to=to, rate=rate)
    # The lock: two requests must not both find no running redrive.
    group_row = lock_group(group)
    other = group_row.redrives.filter(state=RedriveState.RUNNING).first()
    if other is not None:
        raise Conflict(
            f"Redrive {other.pk} of group {group} is running: wait for its end, or stop it.",
            code=Code.IN_USE,
        )
    rows = chosen.rows
    row = Redrive.objects.create(
        group=group_row,
        topic_id=chosen.topic_id,
        topic=chosen.topic,
        error_class=chosen.error_class,
        chosen=None
        if rows is None
        else {str(node): sorted(ids) for node, ids in rows.items()},
        to=to,
        rate=rate or DEFAULT_RATE,
        bounds={str(node): bound for node, bound in bounds.items()},
        total=total,
        asked_by=actor.name,
        created_at=database_now(),
    )
    after = {
        "id": row.pk,
        "to": to,
        "topic": chosen.topic or None,
        "error": chosen.error_class,
    }
    audit.record(
        actor=actor,
        verb=Verb.REDRIVE,
        kind="dead",
        name=group,
        after={**after, "messages": total},
    )
    return _view(row)


def check_options(*, to: str, rate: int | None) -> None:
    """Raise Invalid for an unknown target or an impossible rate."""
    if to not in TARGETS:
        raise Invalid.field("to", f"must be one of {', '.join(TARGETS)}")
    if rate is not None and not 1 <= rate <= MAX_RATE:
        raise Invalid.field("rate", f"must be 1 to {MAX_RATE} messages a second")


@transactional
def stop_redrive(*, group: str, redrive: int, actor: Actor) -> RedriveView:
    """Stop a redrive. Messages that were sent again are not taken back. Needs `manage`.
    Raises NotFound.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    row = lock_group(group).redrives.filter(pk=redrive).first()
    if row is None:
        raise _missing(group, redrive)
    # Guarded by the state: the redrive may have ended a moment ago.
    running_row = Redrive.objects.filter(pk=redrive, state=RedriveState.RUNNING)
    if running_row.update(state=RedriveState.STOPPED, finished_at=database_now()):
        before = {"state": RedriveState.RUNNING}
        after = {"id": redrive, "state": RedriveState.STOPPED, "redriven": row.redriven}
        audit.record(
            actor=actor, verb=Verb.STOP, kind="dead", name=group, before=before, after=after
        )
    row.refresh_from_db()
    return _view(row)


def list_redrives(
    *, group: str, actor: Actor, limit: int = 50, after: int | None = None
) -> list[RedriveView]:
    """Return redrives of a group, newest first, only those older than the id `after` if it
    is set. Needs `manage`.
    """
    with reachable():
        rows = _redrives_of(group, actor).order_by("-pk")
        if after is not None:
            rows = rows.filter(pk__lt=after)
        return [_view(row) for row in rows[:limit]]


def find_redrive(*, group: str, redrive: int, actor: Actor) -> RedriveView:
    """Return a redrive of a group by its id. Needs `manage`. Raises NotFound."""
    with reachable():
        row = _redrives_of(group, actor).filter(pk=redrive).first()
        if row is None:
            raise _missing(group, redrive)
        return _view(row)


def _redrives_of(group: str, actor: Actor) -> QuerySet[Redrive]:
    access.require(actor, Right.MANAGE, group, what="group")
    return Redrive.objects.filter(group=find_group(group)).select_related("group")


def list_running(limit: int = 100) -> list[RedriveView]:
    """Return the running redrives, oldest first."""
    with reachable():
        if not select(_ANY, [RedriveState.RUNNING]):
            # Nearly always so. A loop asks every second, and to build the query below would
            # cost more than to run it.
            return []
        rows = (
            Redrive.objects.filter(state=RedriveState.RUNNING)
            .select_related("group")
            .order_by("pk")
        )
        return [_view(row) for row in rows[:limit]]


def is_running(redrive: int) -> bool:
    with reachable():
        return Redrive.objects.filter(pk=redrive, state=RedriveState.RUNNING).exists()


@transactional
def begin_deleting(redrive: int, *, node: int, rows: Sequence[int]) -> None:
    """Record rows of a node that were sent again, before they are deleted there.

    If the broker ends between the two, the next broker knows which rows to count.
    """
    row = Redrive.objects.select_for_update().filter(pk=redrive).first()
    # Added to the rows of an earlier step that may not have been counted yet.
    if row is not None:
        row.deleting[str(node)] = sorted({*row.deleting.get(str(node), ()), *rows})
        row.save(update_fields=("deleting",))


@transactional
def count_deleted(redrive: int, *, node: int, rows: Sequence[int]) -> None:
    """Count rows that another broker sent again and deleted, unless it has counted them
    itself meanwhile.
    """
    row = Redrive.objects.select_for_update().filter(pk=redrive).first()
    if row is not None:
        row.redriven += _clear_deleting(row, node, rows)
        row.save(update_fields=("deleting", "redriven"))


def _clear_deleting(row: Redrive, node: int, rows: Sequence[int]) -> int:
    """Remove rows of a node from `deleting`. Return how many of them were in it."""
    before = row.deleting.pop(str(node), [])
    if remaining := sorted({*before} - {*rows}):
        row.deleting[str(node)] = remaining
    return len(before) - len(remaining)


@transactional
def advance(
    redrive: int,
    *,
    node: int,
    place: tuple[int, int],
    rows: Sequence[int],
    redriven: int,
    skipped: int,
    detail: str,
) -> None:
    """Record a step of a redrive on a node: its new position and counts. `detail` is the
    reason why it is held up, '' if it is not.

    The step sent `rows` again and deleted `redriven` of them. Rows that another broker has
    counted meanwhile are not counted again.
    """
    row = Redrive.objects.select_for_update().filter(pk=redrive).first()
    if row is not None:
        # Position and counts in a single UPDATE, so that a crash cannot separate them.
        row.places[str(node)], row.detail = list(place), detail[:1000]
        row.redriven += min(redriven, _clear_deleting(row, node, rows))
        row.skipped += skipped
        row.save(update_fields=("places", "deleting", "detail", "redriven", "skipped"))


@transactional
def finish_redrive(redrive: int, *, state: str, detail: str = "") -> None:
    """End a running redrive in the state `done` or `failed`. No effect if it was stopped."""
    # A redrive that a user has stopped keeps its state, and its audit entry.
    rows = Redrive.objects.filter(pk=redrive, state=RedriveState.RUNNING)
    if rows.update(state=state, finished_at=database_now(), detail=detail[:1000]):
        row = Redrive.objects.select_related("group").get(pk=redrive)
        before = {"state": RedriveState.RUNNING}
        after = {
            "id": redrive,
            "state": state,
            "redriven": row.redriven,
            "skipped": row.skipped,
        }
        name, actor = row.group.name, job("redrives")
        audit.record(
            actor=actor,
            verb=Verb.FINISH,
            kind="dead",
            name=name,
            before=before,
            after=after,
        )


prune = PruneRule(Redrive.objects.all(), at="finished_at", days=KEPT_DAYS)


def _missing(group: str, redrive: int) -> NotFound:
    return NotFound(f"Group {group} has no redrive {redrive}.", code=Code.REDRIVE_NOT_FOUND)


def _view(row: Redrive) -> RedriveView:
    rows = (
        None
        if row.chosen is None
        else {int(node): tuple(ids) for node, ids in row.chosen.items()}
    )
    return make_view(
        RedriveView,
        row,
        chosen=RedriveSelection(rows, row.topic_id, row.topic, row.error_class),
        bounds={int(node): bound for node, bound in row.bounds.items()},
        places={int(node): (at_ms, row_id) for node, (at_ms, row_id) in row.places.items()},
        deleting={int(node): tuple(ids) for node, ids in row.deleting.items()},
    )
