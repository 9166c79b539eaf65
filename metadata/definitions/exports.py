"""The export: definitions of what an actor sees, for another installation."""

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
    """Return the document of the topics whose name matches a glob pattern, their
    subscriptions and groups.

    With the pattern `*`, groups without a subscription too. Groups that a command made for
    a look are left out.
    """
    pattern = topic or EVERYTHING
    chosen = [
        one
        for one in all_topics(actor)
        if one.state == "ready" and matches(one.name, pattern)
    ]
    names = {one.name for one in chosen}
    found = [(one, _read(one, names)) for one in all_groups(actor) if not one.casual]
    groups = [(one, read) for one, read in found if read or pattern == EVERYTHING]
    return {
        "version": VERSION,
        "topics": [_topic(one) for one in chosen],
        "groups": [_group(one) for one, _ in groups],
        "subscriptions": [_subscription(one) for _, read in groups for one in read],
    }


def _read(group: GroupView, topics: set[str]) -> list[SubscriptionView]:
    return [
        one for one in group.subscriptions if one.state == "ready" and one.topic in topics
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
    words = {"group": view.group, "topic": view.topic, "start": view.start}
    since = {} if view.start_at_ms is None else {"start_at_ms": view.start_at_ms}
    return {
        **words,
        **since,
        **write_settings(PARTS["subscriptions"].settings, view.delivery),
    }
