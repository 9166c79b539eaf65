"""Causes of a group's lag: facts from nodes and metadata, put to
`metadata.rules.groups.lag_causes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from messagestore.consume.group_lag import QueueLag
from messagestore.heads import corruption
from messagestore.inspect import browse
from messagestore.shares.known_queues import MAX_RUNS
from metadata.actors import Actor
from metadata.errors import CatmqError
from metadata.groups.groups import GroupView, MemberView
from metadata.monitoring import lag_trends
from metadata.monitoring.lag_trends import GroupProgress
from metadata.rules.groups.lag_causes import (
    BEHIND,
    Cause,
    GroupFacts,
    Reader,
    ReadQueue,
    find_causes,
    find_hot_queue,
)
from metadata.rules.topics.names import failure_name

SAMPLED = 50  # messages of the hottest queue, whose keys are looked at


def explain_lag(
    *,
    view: GroupView,
    offsets: Sequence[QueueLag],
    found: GroupProgress | None,
    actor: Actor,
) -> list[Cause]:
    """Return why a group is behind, from its positions as they were just read."""
    if found is None or not any(one.lag != 0 for one in offsets):
        return []
    facts = _facts(view, offsets, found)
    hot = find_hot_queue(facts) if facts.trend in BEHIND else None
    if hot is not None and hot.owner is not None:
        facts = replace(facts, keys=_keys(hot, offsets, actor))
    return find_causes(facts)


def _facts(
    view: GroupView, offsets: Sequence[QueueLag], found: GroupProgress
) -> GroupFacts:
    behind = {one.topic for one in offsets if one.lag}
    settings = [one.delivery for one in view.subscriptions if one.topic in behind]
    lately = lag_trends.read_recent_events(group_id=view.id)
    return GroupFacts(
        trend=found.said.state,
        queues=_queues(view, offsets),
        members=[_reader(one) for one in view.members],
        mode=view.mode,
        stopped=view.stopped,
        paused=[one.topic for one in view.subscriptions if one.stopped],
        session_timeout_ms=view.session_timeout_ms,
        handled_per_s=found.pace.handled,
        pulled_per_s=found.pace.pulled,
        sent_per_s=found.pace.sent,
        threads=min((one.threads for one in settings if one.threads), default=None),
        ordered=any(one.ordered for one in settings),
        **lately._asdict(),
    )


def _reader(one: MemberView) -> Reader:
    slowest = one.process.slowest if one.process else None
    if slowest is not None:
        # It goes on, if the process lives: the report is some seconds old.
        slowest = replace(
            slowest, running_ms=slowest.running_ms + (one.process_age_ms or 0)
        )
    return Reader(one.name, one.heartbeat_age_ms, one.active, slowest)


def _queues(view: GroupView, offsets: Sequence[QueueLag]) -> list[ReadQueue]:
    stopped = {queue for one in view.subscriptions for queue in one.stopped_queues}
    retries = {failure_name(view.name, one.topic): one.topic for one in view.subscriptions}
    corrupt = set(corruption.current())
    return [
        ReadQueue(
            retries.get(one.topic, one.topic),
            one.queue,
            None if one.head is None else one.lag,
            one.owner,
            stopped=one.queue in stopped,
            corrupt=one.queue in corrupt,
            is_full=(one.runs or 0) >= MAX_RUNS,
            is_retry=one.topic in retries,
        )
        for one in offsets
    ]


def _keys(hot: ReadQueue, offsets: Sequence[QueueLag], actor: Actor) -> list[str | None]:
    """Return the keys of the messages that wait first in a queue; none if the actor may not
    look at them.
    """
    first = next((one.committed for one in offsets if one.queue == hot.id), None) or 0
    with suppress(CatmqError):  # what else is known can be said without them
        return browse.read_keys(
            topic=hot.topic, queue=hot.id, offset=first, limit=SAMPLED, actor=actor
        )
    return []
