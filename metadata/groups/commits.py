"""Commit times: positions of groups, sampled by the job that records lag, and kept for a
week.

A message does not store the time of its commit, and a commit writes only the position.
So the time of a commit is known to the interval between two samples: about a minute
while the job runs, more if it did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import before, database_now
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import grouped
from metadata.models import CommitLook, ConsumerGroupTopic
from metadata.rules.groups.commits import CommitInterval, PositionSample, commit_intervals
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.rights import Right

KEPT_DAYS = 7
MAX_SAMPLES = 1_500  # per message: those of about a day


class GroupPositions(Struct, frozen=True):
    """Positions of a group in the queues of a topic. `at_rest`: all messages are
    committed.
    """

    topic_id: int
    group_id: int
    samples: Mapping[int, PositionSample]
    at_rest: bool


@transactional
def record_positions(groups: Iterable[GroupPositions]) -> int:
    """Store samples of positions. Return the number of rows.

    A group that stays at rest takes no row.
    """
    now, count = database_now(), 0
    for group in groups:
        rows = CommitLook.objects.filter(topic_ref=group.topic_id, group_ref=group.group_id)
        positions = {
            str(queue): list(look) for queue, look in sorted(group.samples.items())
        }
        last = rows.order_by("-id").values_list("positions", flat=True).first() or {}
        # Skipping a group at rest costs no precision: whatever is committed later is also
        # stored later.
        if group.at_rest and {queue: sample[0] for queue, sample in last.items()} == {
            queue: sample[0] for queue, sample in positions.items()
        }:
            continue
        CommitLook.objects.create(
            topic_ref=group.topic_id, group_ref=group.group_id, at=now, positions=positions
        )
        count += 1
    return count


def latest_positions(
    pairs: Iterable[tuple[int, int]],
) -> dict[tuple[int, int], dict[int, PositionSample]]:
    """Return the last sample of each queue, by (topic id, group id) and queue id."""
    latest: dict[tuple[int, int], dict[int, PositionSample]] = {}
    with reachable():
        for topic, group in sorted(set(pairs)):
            rows = CommitLook.objects.filter(topic_ref=topic, group_ref=group).order_by(
                "-id"
            )
            positions = rows.values_list("positions", flat=True).first() or {}
            latest[topic, group] = {
                int(queue): PositionSample(*look) for queue, look in positions.items()
            }
    return latest


def commit_times(
    *, topic: str, group: str, days: int, actor: Actor
) -> dict[int, list[CommitInterval]]:
    """Return the commit intervals of each queue in the last days, by queue id.

    Needs `admin` on the topic. The result is empty if the group does not read the
    topic.
    """
    access.require(actor, Right.ADMIN, topic)
    subscriptions = ConsumerGroupTopic.objects.filter(topic__name=topic, group__name=group)
    with reachable():
        pair = (
            subscriptions.exclude(state=SubscriptionState.DELETING)
            .values_list("topic_id", "group_id")
            .first()
        )
        if pair is None:
            return {}
        rows = CommitLook.objects.filter(topic_ref=pair[0], group_ref=pair[1])
        rows = rows.filter(at__gte=before(database_now(), seconds=days * 86_400)).order_by(
            "id"
        )
        # Not loaded at once: a week has ten thousand samples of all queues.
        positions = rows.values_list("positions", flat=True).iterator()
        samples_by_queue = grouped(
            (int(queue), PositionSample(*look))
            for sample in positions
            for queue, look in sample.items()
        )
    return {queue: commit_intervals(samples) for queue, samples in samples_by_queue.items()}


def first_committed(
    *, topic_id: int, group_id: int, queue: int, offset: int, since_ms: int
) -> CommitInterval | None:
    """Return when a group first committed an offset that was stored at `since_ms`, None if
    not known.
    """
    since = datetime.fromtimestamp(since_ms / 1000, tz=UTC)
    with reachable():
        rows = CommitLook.objects.filter(
            topic_ref=topic_id, group_ref=group_id, at__gte=since
        )
        # In order of time, so that an offset reset after the first commit does not count.
        previous_ms = None
        for positions in (
            rows.order_by("id").values_list("positions", flat=True)[:MAX_SAMPLES].iterator()
        ):
            sample = (
                PositionSample(*positions[str(queue)]) if str(queue) in positions else None
            )
            if sample is not None and sample.committed > offset:
                return CommitInterval(offset, offset + 1, previous_ms, sample.told_ms)
            previous_ms = sample.asked_ms if sample is not None else previous_ms
    return None


prune = PruneRule(CommitLook.objects.all(), at="at", days=KEPT_DAYS)
