"""The export: definitions of the objects that an actor may see, for another installation."""

from __future__ import annotations

from typing import Any

from metadata.actors import Actor
from metadata.db.access import EVERYTHING, matches
from metadata.definitions.existing import all_groups, all_topics, open_queues
from metadata.groups.groups import GroupView
from metadata.groups.subscription_rows import SubscriptionView
from metadata.rules.definitions import PARTS, VERSION, write_settings
from metadata.topics.topic_rows import TopicView


def export(*, actor: Actor, topic: str = EVERYTHING) -> dict[str, Any]:
    """Return a document of the topics whose name matches a glob pattern, and of their
    subscriptions and groups.

    The pattern `*` includes groups without a subscription. Casual groups, which `catmq
    consume` creates, are left out.
    """
    pattern = topic or EVERYTHING
    topics = [
        view
        for view in all_topics(actor)
        if view.state == "ready" and matches(view.name, pattern)
    ]
    names = {view.name for view in topics}
    candidates = [
        (view, _subscriptions_to(view, names))
        for view in all_groups(actor)
        if not view.casual
    ]
    groups = [
        (view, subscriptions)
        for view, subscriptions in candidates
        if subscriptions or pattern == EVERYTHING
    ]
    return {
        "version": VERSION,
        "topics": [_topic(view) for view in topics],
        "groups": [_group(view) for view, _ in groups],
        "subscriptions": [
            _subscription(subscription)
            for _, subscriptions in groups
            for subscription in subscriptions
        ],
    }


def _subscriptions_to(group: GroupView, topics: set[str]) -> list[SubscriptionView]:
    return [
        subscription
        for subscription in group.subscriptions
        if subscription.state == "ready" and subscription.topic in topics
    ]


def _topic(view: TopicView) -> dict[str, Any]:
    settings = write_settings(PARTS["topics"].settings, view)
    return {"name": view.name, "queues": open_queues(view), **settings}


def _group(view: GroupView) -> dict[str, Any]:
    return {
        "name": view.name,
        "mode": view.mode,
        **write_settings(PARTS["groups"].settings, view),
    }


def _subscription(view: SubscriptionView) -> dict[str, Any]:
    names = {"group": view.group, "topic": view.topic, "start": view.start}
    start_at = {} if view.start_at_ms is None else {"start_at_ms": view.start_at_ms}
    return {
        **names,
        **start_at,
        **write_settings(PARTS["subscriptions"].settings, view.delivery),
    }
