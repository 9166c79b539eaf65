"""The export: definitions of the objects that an actor may see, for another installation."""

from __future__ import annotations

from typing import Any

from metadata.actors import Actor
from metadata.db.access import EVERYTHING, matches
from metadata.definitions.existing import all_groups, all_topics, open_queues
from metadata.rules.definitions import PARTS, VERSION, write_settings
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.topics.states import TopicState


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
        if view.state == TopicState.READY and matches(view.name, pattern)
    ]
    names = {view.name for view in topics}
    # (group, its subscriptions to these topics).
    candidates = [
        (
            group,
            [
                s
                for s in group.subscriptions
                if s.state == SubscriptionState.READY and s.topic in names
            ],
        )
        for group in all_groups(actor)
        if not group.casual
    ]
    groups = [
        (group, subscriptions)
        for group, subscriptions in candidates
        if subscriptions or pattern == EVERYTHING
    ]
    return {
        "version": VERSION,
        "topics": [
            {
                "name": view.name,
                "queues": open_queues(view),
                **write_settings(PARTS["topics"].settings, view),
            }
            for view in topics
        ],
        "groups": [
            {
                "name": group.name,
                "mode": group.mode,
                **write_settings(PARTS["groups"].settings, group),
            }
            for group, _ in groups
        ],
        "subscriptions": [
            {
                "group": subscription.group,
                "topic": subscription.topic,
                "start": subscription.start,
                # Only a subscription that starts at a time has this field.
                **(
                    {}
                    if subscription.start_at_ms is None
                    else {"start_at_ms": subscription.start_at_ms}
                ),
                **write_settings(PARTS["subscriptions"].settings, subscription.delivery),
            }
            for _, subscriptions in groups
            for subscription in subscriptions
        ],
    }
