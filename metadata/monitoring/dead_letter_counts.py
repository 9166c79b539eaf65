"""Number of dead messages in each group, as a job counted them; and who has looked at them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import F, Q, Sum

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import database_now
from metadata.db.rows import lock_group, make_view
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict
from metadata.models import ConsumerGroup, DeadLetterCount

MOST = 8  # groups that are named
_UNSEEN = Q(seen_at__isnull=True) | Q(seen_at__lt=F("newest_at"))


@dataclass(frozen=True, slots=True)
class Count:
    """The dead of a group: all, those of the last hour, and when the newest died, by its
    node's clock.
    """

    messages: int
    last_hour: int
    newest_ms: int

    def plus(self, other: Count) -> Count:
        newest_ms = max(self.newest_ms, other.newest_ms)
        return Count(
            self.messages + other.messages, self.last_hour + other.last_hour, newest_ms
        )


@dataclass(frozen=True, slots=True)
class GroupDeadLetters:
    """The dead of a group, for lists. `has_unseen`: some died since somebody last said that
    they were seen.
    """

    group: str
    messages: int
    last_hour: int
    newest_at_ms: int
    unseen: bool
    seen_by: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """All dead messages together, and the groups that have any, those with the newest
    first.
    """

    messages: int
    groups: int
    rows: tuple[GroupDeadLetters, ...]
    unseen: tuple[GroupDeadLetters, ...]


@transactional
def record(counts: Mapping[int, Count]) -> int:
    """Record what was counted, by group id: the groups that are not named have none. How
    many have any.
    """
    now = database_now()
    DeadLetterCount.objects.exclude(group_ref__in=list(counts)).delete()
    known = {row.group_ref: row for row in DeadLetterCount.objects.select_for_update()}
    for group_id, count in sorted(counts.items()):
        row = known.get(group_id) or DeadLetterCount(group_ref=group_id)
        row.messages, row.last_hour, row.counted_at = count.messages, count.last_hour, now
        row.newest_at = datetime.fromtimestamp(count.newest_ms / 1000, tz=UTC)
        row.save()
    return len(counts)


def list_dead_letters(*, most: int = MOST) -> DeadLetters:
    with reachable():
        names = ConsumerGroup.objects.filter(deleted_at__isnull=True)
        rows = DeadLetterCount.objects.filter(group_ref__in=names.values("pk")).order_by(
            "-newest_at", "-pk"
        )
        total = rows.aggregate(all=Sum("messages"))["all"] or 0
        newest, fresh = list(rows[:most]), list(rows.filter(_UNSEEN)[:most])
        called = dict(
            names.filter(pk__in=[row.group_ref for row in (*newest, *fresh)]).values_list(
                "pk", "name"
            )
        )
        count = rows.count()
    return DeadLetters(total, count, _rows(newest, called), _rows(fresh, called))


def read_group_count(group_id: int) -> GroupDeadLetters | None:
    """Return the dead letters of a group as they were counted last; None if it has none."""
    return read_group_counts([group_id]).get(group_id)


def read_group_counts(group_ids: Collection[int]) -> dict[int, GroupDeadLetters]:
    """Return the dead letters of groups as they were counted last, by group id. Others have
    none.
    """
    with reachable():
        names = dict(
            ConsumerGroup.objects.filter(pk__in=group_ids).values_list("pk", "name")
        )
        rows = list(DeadLetterCount.objects.filter(group_ref__in=names))
    return dict(zip((row.group_ref for row in rows), _rows(rows, names), strict=True))


def _rows(
    rows: list[DeadLetterCount], called: Mapping[int, str]
) -> tuple[GroupDeadLetters, ...]:
    return tuple(
        make_view(
            GroupDeadLetters,
            row,
            group=called[row.group_ref],
            unseen=row.seen_at is None or row.seen_at < row.newest_at,
        )
        for row in rows
        if row.group_ref in called
    )


@transactional
def mark_seen(*, group: str, actor: Actor) -> None:
    """Record that somebody has looked at the dead of a group, up to the newest that was
    counted.

    Needs `manage` on the group. Raises Forbidden, NotFound, Conflict where there is nothing
    new to see.
    """
    access.require(actor, "manage", group, what="group")
    rows = DeadLetterCount.objects.filter(group_ref=lock_group(group).pk)
    if not rows.filter(_UNSEEN).update(seen_at=F("newest_at"), seen_by=actor.name):
        raise Conflict(f"Group {group} has no new dead letters.")
    count = rows.values_list("messages", flat=True).get()
    audit.record(actor=actor, verb="saw", kind="dead", name=group, after={"dead": count})


def has_unseen(*, group: str) -> bool:
    """Return True if a message of the group died since its dead were last looked at."""
    with reachable():
        named = ConsumerGroup.objects.filter(name=group, deleted_at__isnull=True)
        return DeadLetterCount.objects.filter(
            _UNSEEN, group_ref__in=named.values("pk")
        ).exists()
