"""Dead letters of each group, as a job counted them, and who has looked at them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from django.db.models import F, Q, Sum
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import database_now
from metadata.db.rows import lock_group, make_view
from metadata.db.transactions import reachable, transactional
from metadata.errors import Conflict
from metadata.models import ConsumerGroup, DeadLetterCount
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import Right

MAX_NAMED = 8  # groups in a summary
_HAS_UNSEEN = Q(seen_at__isnull=True) | Q(seen_at__lt=F("newest_at"))


class Count(Struct, frozen=True):
    """Dead letters of a group: all, those of the last hour, and when the newest died, by
    its node's clock.
    """

    messages: int
    last_hour: int
    newest_ms: int

    def plus(self, other: Count) -> Count:
        newest_ms = max(self.newest_ms, other.newest_ms)
        return Count(
            self.messages + other.messages, self.last_hour + other.last_hour, newest_ms
        )


class GroupDeadLetters(Struct, frozen=True):
    """Dead letters of a group, for lists.

    `unseen`: some died after a user last marked them as seen.
    """

    group: str
    messages: int
    last_hour: int
    newest_at_ms: int
    unseen: bool
    seen_by: str


class DeadLetters(Struct, frozen=True):
    """Dead letters of all groups: sums, and the groups with the newest or unseen letters."""

    messages: int
    groups: int
    rows: tuple[GroupDeadLetters, ...]
    unseen: tuple[GroupDeadLetters, ...]


@transactional
def record(counts: Mapping[int, Count]) -> int:
    """Store the counts by group id. Groups that are not in `counts` have no dead letters.

    Return the number of groups in `counts`.
    """
    now = database_now()
    DeadLetterCount.objects.exclude(group_ref__in=list(counts)).delete()
    # Locked and updated in place, so that mark_seen() at the same time is not overwritten.
    rows = {row.group_ref: row for row in DeadLetterCount.objects.select_for_update()}
    for group_id, count in sorted(counts.items()):
        row = rows.get(group_id) or DeadLetterCount(group_ref=group_id)
        row.messages, row.last_hour, row.counted_at = count.messages, count.last_hour, now
        row.newest_at = datetime.fromtimestamp(count.newest_ms / 1000, tz=UTC)
        row.save()
    return len(counts)


def list_dead_letters(*, most: int = MAX_NAMED) -> DeadLetters:
    """Return a summary of all dead letters, with at most `most` groups in each list."""
    with reachable():
        # Counts of groups that were deleted meanwhile stay until the next count.
        names = ConsumerGroup.objects.filter(deleted_at__isnull=True)
        rows = DeadLetterCount.objects.filter(group_ref__in=names.values("pk")).order_by(
            "-newest_at", "-pk"
        )
        total = rows.aggregate(all=Sum("messages"))["all"] or 0
        newest, unseen = list(rows[:most]), list(rows.filter(_HAS_UNSEEN)[:most])
        group_names = dict(
            names.filter(pk__in=[row.group_ref for row in (*newest, *unseen)]).values_list(
                "pk", "name"
            )
        )
        return DeadLetters(
            total,
            rows.count(),
            _to_views(newest, group_names),
            _to_views(unseen, group_names),
        )


def read_group_count(group_id: int) -> GroupDeadLetters | None:
    return read_group_counts([group_id]).get(group_id)


def read_group_counts(group_ids: Collection[int]) -> dict[int, GroupDeadLetters]:
    """Return the last counted dead letters by group id. Groups without are left out."""
    with reachable():
        names = dict(
            ConsumerGroup.objects.filter(pk__in=group_ids).values_list("pk", "name")
        )
        rows = list(DeadLetterCount.objects.filter(group_ref__in=names))
    return dict(zip((row.group_ref for row in rows), _to_views(rows, names), strict=True))


def _to_views(
    rows: list[DeadLetterCount], group_names: Mapping[int, str]
) -> tuple[GroupDeadLetters, ...]:
    return tuple(
        make_view(
            GroupDeadLetters,
            row,
            group=group_names[row.group_ref],
            unseen=row.seen_at is None or row.seen_at < row.newest_at,
        )
        for row in rows
        if row.group_ref in group_names
    )


@transactional
def mark_seen(*, group: str, actor: Actor) -> None:
    """Mark the dead letters of a group as seen, up to the newest that was counted.

    Needs `manage` on the group. Raises Forbidden, NotFound, and Conflict if there are
    no unseen dead letters.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    rows = DeadLetterCount.objects.filter(group_ref=lock_group(group).pk)
    # Seen up to the newest that was counted: messages that died since stay unseen.
    if not rows.filter(_HAS_UNSEEN).update(seen_at=F("newest_at"), seen_by=actor.name):
        raise Conflict(f"Group {group} has no new dead letters.")
    count = rows.values_list("messages", flat=True).get()
    audit.record(actor=actor, verb=Verb.SAW, kind="dead", name=group, after={"dead": count})


def has_unseen(*, group: str) -> bool:
    """Return True if a message of the group died after its dead letters were last marked
    as seen.
    """
    with reachable():
        group_rows = ConsumerGroup.objects.filter(name=group, deleted_at__isnull=True)
        return DeadLetterCount.objects.filter(
            _HAS_UNSEEN, group_ref__in=group_rows.values("pk")
        ).exists()
