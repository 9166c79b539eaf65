"""API keys and users that have `manage` on topics and lack `consume`, so they cannot let a
group subscribe to them.
"""

from __future__ import annotations

from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access
from metadata.db.transactions import reachable
from metadata.models import ApiKey, ConsumerGroupTopic, Topic, UserRights
from metadata.rules.rights import ActorKind, Right
from metadata.rules.topics.states import TopicKind, TopicState
from metadata.users import accounts


class ManagesOnly(Struct, frozen=True):
    """A key or user with `manage` and without `consume` on some topics.

    `patterns` are its patterns of `manage` that no pattern of `consume` matches, `topics`
    the existing topics, `subscriptions` those of its groups to them, as (group, topic).
    """

    kind: str
    name: str
    patterns: tuple[str, ...]
    topics: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]


def find_manage_only() -> list[ManagesOnly]:
    """Return the keys and users with topics or patterns that they manage and may not
    consume.

    Raises MetadataUnavailable.
    """
    with reachable():
        topics = list(
            Topic.objects.filter(kind=TopicKind.NORMAL)
            .exclude(state=TopicState.DELETED)
            .order_by("name")
            .values_list("name", flat=True)
        )
        # Patterns are matched in Python, so the rows are read once for all actors.
        subscriptions = list(
            ConsumerGroupTopic.objects.filter(topic__name__in=topics)
            .order_by("group__name", "topic__name")
            .values_list("group__name", "topic__name")
        )
        keys = ApiKey.objects.order_by("name").values_list("name", "rights")
        actors = [
            Actor(
                kind=ActorKind.KEY,
                name=name,
                rights={right: tuple(names) for right, names in rights.items()},
            )
            for name, rights in keys
        ]
        # Owners have all rights on their objects, so only stored rights can lack `consume`.
        users = UserRights.objects.order_by("name").values_list("name", flat=True)
        actors += [
            accounts.user_actor(name=name, administrator=False, address="")
            for name in users
        ]
    manage_only = []
    for actor in actors:
        readable = {
            *actor.rights.get(Right.CONSUME, ()),
            *actor.rights.get(Right.ADMIN, ()),
        }
        # A pattern that a pattern of `consume` matches is left out, because its topics can
        # be consumed.
        patterns = tuple(
            pattern
            for pattern in actor.rights.get(Right.MANAGE, ())
            if not any(access.matches(pattern, name) for name in readable)
        )
        managed = {
            topic
            for topic in topics
            if access.may(actor, Right.MANAGE, topic)
            and not access.may(actor, Right.CONSUME, topic)
        }
        if patterns or managed:
            pairs = tuple(
                (group, topic)
                for group, topic in subscriptions
                if topic in managed and access.may(actor, Right.MANAGE, group, what="group")
            )
            manage_only.append(
                ManagesOnly(actor.kind, actor.name, patterns, tuple(sorted(managed)), pairs)
            )
    return manage_only
