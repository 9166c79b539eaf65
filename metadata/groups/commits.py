"""Commits: how far groups had committed, looked at by the job that records lag, and kept
for a week.

No message carries the time of its commit, and a commit writes nothing but the position. So
between two looks lies what is not known: about a minute while the job runs, more when it
did not. Reports say how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import before, database_now
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import grouped
from metadata.models import CommitLook, ConsumerGroupTopic
from metadata.rules.groups.commits import CommitInterval, PositionSample, commit_intervals

KEPT_DAYS = 7
MOST_LOOKS = 1_500  # for one message: those of about a day


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """Offsets of a group in the queues of a topic. `at_rest`: nothing is left to read in
    any of them.
    """

    topic_id: int
    group_id: int
    looks: Mapping[int, PositionSample]
    at_rest: bool


@transactional
def record_positions(found: Iterable[GroupPositions]) -> int:
    """Keep what was seen; return how many rows that took. A group that stays at rest takes
    none.

    What is left out that way costs no precision: all that is committed later is also stored
    later.
    """
    now, count = database_now(), 0
    for one in found:
        rows = CommitLook.objects.filter(topic_ref=one.topic_id, group_ref=one.group_id)
        positions = {str(queue): list(look) for queue, look in sorted(one.looks.items())}
        if one.at_rest and _committed(
            rows.order_by("-id").values_list("positions", flat=True).first()
        ) == {queue: look[0] for queue, look in positions.items()}:
            continue
        CommitLook.objects.create(
            topic_ref=one.topic_id, group_ref=one.group_id, at=now, positions=positions
        )
        count += 1
    return count


def _committed(positions: Mapping[str, list[int]] | None) -> dict[str, int]:
    return {queue: look[0] for queue, look in (positions or {}).items()}


def latest_positions(
    pairs: Iterable[tuple[int, int]],
) -> dict[tuple[int, int], dict[int, PositionSample]]:
    """Of each (topic, group) that was looked at: queue → the last look."""
    found: dict[tuple[int, int], dict[int, PositionSample]] = {}
    with reachable():
        for topic, group in sorted(set(pairs)):
            rows = CommitLook.objects.filter(topic_ref=topic, group_ref=group).order_by(
                "-id"
            )
            positions = rows.values_list("positions", flat=True).first() or {}
            found[topic, group] = {
                int(queue): PositionSample(*look) for queue, look in positions.items()
            }
    return found


def commit_times(
    *, topic: str, group: str, days: int, actor: Actor
) -> dict[int, list[CommitInterval]]:
    """Queue → when its offsets were first committed, as far as the looks of the last days
    tell.

    Needs `admin` on the topic. Nothing is told of a group that does not read the topic.
    """
    access.require(actor, "admin", topic)
    named = ConsumerGroupTopic.objects.filter(topic__name=topic, group__name=group)
    with reachable():
        pair = named.exclude(state="deleting").values_list("topic_id", "group_id").first()
        if pair is None:
            return {}
        rows = CommitLook.objects.filter(topic_ref=pair[0], group_ref=pair[1])
        rows = rows.filter(at__gte=before(database_now(), seconds=days * 86_400)).order_by(
            "id"
        )
        seen = rows.values_list("positions", flat=True).iterator()
        looks = grouped(
            (int(queue), PositionSample(*look))
            for one in seen
            for queue, look in one.items()
        )
    return {queue: commit_intervals(mine) for queue, mine in looks.items()}


def first_committed(
    *, topic_id: int, group_id: int, queue: int, offset: int, since_ms: int
) -> CommitInterval | None:
    """Return when a group first committed beyond an offset that was stored at `since_ms`;
    None: not known.
    """
    since = datetime.fromtimestamp(since_ms / 1000, tz=UTC)
    with reachable():
        rows = CommitLook.objects.filter(
            topic_ref=topic_id, group_ref=group_id, at__gte=since
        )
        before_it = None
        for seen in (
            rows.order_by("id").values_list("positions", flat=True)[:MOST_LOOKS].iterator()
        ):
            look = PositionSample(*seen[str(queue)]) if str(queue) in seen else None
            if look is not None and look.committed > offset:
                return CommitInterval(offset, offset + 1, before_it, look.told_ms)
            before_it = look.asked_ms if look is not None else before_it
    return None


prune = PruneRule(CommitLook.objects.all(), at="at", days=KEPT_DAYS)
