"""Subscriptions with their reader rows, which fix where a group starts in each queue.

A creation writes rows in state creating, then reader rows on the nodes, then state ready. A
deletion goes the other way. `sweep` finishes what a crash left. In a broadcasting group
each instance has its own reader row. The retry topic of a subscription is created and
deleted with it.
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
from metadata.rules.groups.states import Start

UNFINISHED_AFTER_S = 60.0


def create(
    *,
    group: str,
    topic: str,
    actor: Actor,
    start: str = Start.EARLIEST,
    start_at_ms: int | None = None,
    start_ago_ms: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SubscriptionView:
    """Subscribe a group from `earliest` or `latest`, or from a time; ready when this
    returns.

    `start_at_ms` is ms since 1970 UTC, `start_ago_ms` is ms before now. Needs `manage` on
    the group and `consume` on the topic. Raises what `subscription_rows.plan` raises, and
    NodeUnavailable after a rollback.
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
        _remove(planned, actor)
        raise


def delete(*, group: str, topic: str, actor: Actor) -> None:
    """End a subscription and delete its positions and retries. Needs `manage` on the group.

    An unreachable node keeps its reader rows until the sweep reaches it. Until then the
    same subscription cannot be created again.
    """
    _remove(subscription_rows.mark_deleting(group=group, topic=topic, actor=actor), actor)


def sweep(older_than_s: float = UNFINISHED_AFTER_S) -> int:
    """Remove subscriptions that are being deleted or were left unfinished. Returns how
    many.
    """
    return sweeping.run_each(
        subscription_rows.unfinished(older_than_s),
        act=lambda subscription: _remove(subscription, job("subscriptions")),
        name=lambda subscription: (
            f"Removal of subscription {subscription.group}/{subscription.topic}"
        ),
    )


def _remove(subscription: SubscriptionView, actor: Actor) -> bool:
    """Remove a subscription that is not ready, its retry topic first. Returns False if it
    is.
    """
    with sweeping.log_failure(
        f"Deletion of the reader rows of {subscription.group}/{subscription.topic}"
    ):
        if not subscription_rows.abandon(subscription.id):
            return False
        # The retry topic's subscription ends first, so that no retry is stored without a
        # reader.
        retry_subscription = subscription_rows.retry_subscription(subscription)
        if retry_subscription is not None:
            _remove(retry_subscription, actor)
        if subscription.to_failures:
            reader_rows.close(subscription)
        reader_rows.delete(subscription)
        subscription_rows.remove(subscription.id, actor)
        return True
    return False
