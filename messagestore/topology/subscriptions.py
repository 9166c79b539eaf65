"""Subscriptions with their reader rows: where a group starts in each queue is fixed when it
subscribes.

Rows in state creating, then reader rows on the nodes, then ready; backwards when a
subscription goes.
`sweep` finishes what a crash left half done. In a broadcasting group each instance has its
own reader row. The retry topic of the subscription comes and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from messagestore import sweeping
from messagestore.topology import reader_rows, retry_topics
from metadata.actors import Actor, job
from metadata.errors import CatmqError
from metadata.groups import subscription_rows
from metadata.groups.subscription_rows import SubscriptionView

UNFINISHED_AFTER_S = 60.0


def create(
    *,
    group: str,
    topic: str,
    actor: Actor,
    start: str = "earliest",
    start_at_ms: int | None = None,
    start_ago_ms: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SubscriptionView:
    """Subscribe a group from `earliest` or `latest`, or from a time; ready when this
    returns.

    `start_at_ms` is since 1970 UTC, `start_ago_ms` back from now. Needs `manage` on the
    group and
    `consume` on the topic.

    Raises what `plan` of metadata's raises, and NodeUnavailable after taking back what was
    made.
    """
    planned = subscription_rows.plan(
        group=group, topic=topic, actor=actor, start=start, start_at_ms=start_at_ms,
        start_ago_ms=start_ago_ms, settings=settings,
    )  # fmt: skip
    try:
        reader_rows.insert(
            planned, planned.queues, start=planned.start, start_at_ms=planned.start_at_ms
        )
        retry_topics.try_to_make(group_id=planned.group_id, topic_id=planned.topic_id)
        return subscription_rows.make_ready(planned.id)
    except CatmqError:
        _take_back(planned, actor)
        raise


def delete(*, group: str, topic: str, actor: Actor) -> None:
    """End a subscription and delete its positions and its retries. Needs `manage` on the
    group.

    A node that is away keeps its reader rows until the sweep reaches it; until then the
    same subscription cannot be made again.
    """
    _take_back(
        subscription_rows.mark_deleting(group=group, topic=topic, actor=actor), actor
    )


def sweep(older_than_s: float = UNFINISHED_AFTER_S) -> int:
    """Take down subscriptions that are going, and those that a crash left half made; return
    how many.
    """
    return sweeping.run_each(
        subscription_rows.unfinished(older_than_s),
        act=lambda left: _take_back(left, job("subscriptions")),
        name=lambda left: f"Removal of subscription {left.group}/{left.topic}",
    )


def _take_back(subscription: SubscriptionView, actor: Actor) -> bool:
    """Remove what is not ready, its retry topic first."""
    with sweeping.log_failure(
        f"Deletion of the reader rows of {subscription.group}/{subscription.topic}"
    ):
        if not subscription_rows.abandon(subscription.id):
            return False
        to_failures = subscription_rows.retry_subscription(subscription)
        if to_failures is not None:
            _take_back(to_failures, actor)
        if subscription.to_failures:
            reader_rows.close(subscription)
        reader_rows.delete(subscription)
        subscription_rows.remove(subscription.id, actor)
        return True
    return False
