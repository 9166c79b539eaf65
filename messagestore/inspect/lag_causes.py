"""Collects facts on a group's lag from nodes and metadata. metadata.rules.groups.lagging
draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import structs

from messagestore.consume.group_lag import QueueLag
from messagestore.heads import corruption
from messagestore.inspect import browse
from messagestore.shares.known_queues import MAX_RUNS
from metadata.actors import Actor
from metadata.errors import CatmqError
from metadata.groups.groups import GroupView
from metadata.monitoring import lag_trends
from metadata.monitoring.lag_trends import GroupProgress
from metadata.rules.groups.lag_causes import (
    LAGGING_STATES,
    Cause,
    GroupFacts,
    Reader,
    ReadQueue,
    find_causes,
    find_hot_queue,
)
from metadata.rules.topics.names import failure_name

SAMPLED = 50  # messages of the hottest queue whose keys are compared


def explain_lag(
    *,
    view: GroupView,
    offsets: Sequence[QueueLag],
    progress: GroupProgress | None,
    actor: Actor,
) -> list[Cause]:
    """Return the causes of a group's lag, from positions that were just read. Empty without
    a lag.
    """
    if progress is None or not any(queue.lag != 0 for queue in offsets):
        return []
    lagging_topics = {queue.topic for queue in offsets if queue.lag}
    settings = [s.delivery for s in view.subscriptions if s.topic in lagging_topics]
    stopped = {queue for s in view.subscriptions for queue in s.stopped_queues}
    # A retry topic is shown under the name of the topic it belongs to.
    retries = {failure_name(view.name, s.topic): s.topic for s in view.subscriptions}
    corrupt = set(corruption.current())
    members = []
    for member in view.members:
        slowest = member.process.slowest if member.process else None
        if slowest is not None:
            # The report is some seconds old, and the handler has probably run on since.
            running_ms = slowest.running_ms + (member.process_age_ms or 0)
            slowest = structs.replace(slowest, running_ms=running_ms)
        members.append(Reader(member.name, member.heartbeat_age_ms, member.active, slowest))
    facts = GroupFacts(
        trend=progress.trend.state,
        queues=[
            ReadQueue(
                retries.get(queue.topic, queue.topic),
                queue.queue,
                None if queue.head is None else queue.lag,
                queue.owner,
                stopped=queue.queue in stopped,
                corrupt=queue.queue in corrupt,
                is_full=(queue.runs or 0) >= MAX_RUNS,
                is_retry=queue.topic in retries,
            )
            for queue in offsets
        ],
        members=members,
        mode=view.mode,
        stopped=view.stopped,
        paused=[s.topic for s in view.subscriptions if s.stopped],
        session_timeout_ms=view.session_timeout_ms,
        handled_per_s=progress.pace.handled,
        pulled_per_s=progress.pace.pulled,
        sent_per_s=progress.pace.sent,
        threads=min(
            (delivery.threads for delivery in settings if delivery.threads), default=None
        ),
        ordered=any(delivery.ordered for delivery in settings),
        **lag_trends.read_recent_events(group_id=view.id)._asdict(),
    )
    hottest_queue = find_hot_queue(facts) if facts.trend in LAGGING_STATES else None
    # Keys cost a read of bodies, so only for a queue that has a reader and whose lag still
    # grows.
    if hottest_queue is not None and hottest_queue.owner is not None:
        committed = (q.committed for q in offsets if q.queue == hottest_queue.id)
        # Without the right to look, or with a node away, the other causes are still shown.
        with suppress(CatmqError):
            keys = browse.read_keys(
                topic=hottest_queue.topic,
                queue=hottest_queue.id,
                offset=next(committed, None) or 0,
                limit=SAMPLED,
                actor=actor,
            )
            facts = structs.replace(facts, keys=keys)
    return find_causes(facts)
