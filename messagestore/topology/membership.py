"""Joining a group: the group and subscriptions that a consumer needs are created first."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from messagestore.consume import broadcast_positions
from messagestore.topology import subscriptions
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access, consumer_ids
from metadata.errors import Code, Conflict, Forbidden, NotFound, Unavailable
from metadata.groups import groups, subscription_rows
from metadata.limits.bulkhead import bulkhead
from metadata.limits.places import Places
from metadata.membership import consumers
from metadata.membership.casual_groups import is_command_line_tool
from metadata.rules.groups.states import GroupMode, Start, SubscriptionState
from metadata.rules.rights import Right

# Concurrent joins of an API key, or of an address, in this process. More could take all places
# for calls that wait for metadata (metadata/limits/bulkhead.py), so that those of other keys
# are refused.
JOINS_OF_ONE = 24
_joins = Places(most=1_000, most_per_caller=JOINS_OF_ONE, most_shared=JOINS_OF_ONE)
# How long a join waits for another process that creates or deletes the same object, and the
# pause between two tries.
PATIENCE_S = 1.0
AGAIN_S = 0.05


class Joined(consumers.Registered, frozen=True):
    """A registered member. `created` lists the objects that its join had to create, as
    "kind:name", for example "group:billing" or "subscription:orders".
    """

    created: tuple[str, ...]


def join(
    *,
    group: str,
    name: str,
    incarnation: str,
    actor: Actor,
    topics: Sequence[str] = (),
    start: str = Start.EARLIEST,
    instance_id: str | None = None,
    sdk: str = "",
    address: str = "",
    **settings: Any,
) -> Joined:
    """Register a member in a group. Needs `consume` on the group.

    The group has to exist, unless `topics` are given and the key may `manage` the group.
    Missing subscriptions to the topics are created, from `start`.

    `settings` are `mode`, `session_timeout_ms` and those of share groups; None is the
    default. A new group gets them, an existing group has to have them. In a broadcasting
    group the instance gets its positions.

    Raises NotFound, Forbidden, Invalid, Conflict(group_settings_differ), NodeUnavailable
    and MetadataUnavailable, which is also raised if the key or address has too many joins
    in progress.
    """
    access.require(actor, Right.CONSUME, group, what="group")
    key = (actor.kind, actor.key_id or actor.name)
    with _joins.place(key, [("address", actor.address)]) as has_place:
        if not has_place:
            raise bulkhead.busy_error()
        consumers.check_instance_id(
            group=group, mode=settings.get("mode"), instance_id=instance_id
        )
        _require_topics(group, topics, actor)
        # Raises NotFound for an unknown topic, before anything is created.
        topic_ids = {topic: snapshot.find_topic(topic).id for topic in topics}
        created: list[str] = []
        check_settings = partial(
            consumers.check_settings, group=group, asked=settings, instance_id=instance_id
        )
        try:
            group_id = check_settings()
        except NotFound:
            if not topics:
                raise
            access.require(actor, Right.MANAGE, group, what="group")
            values = {key: value for key, value in settings.items() if value is not None}
            create_group = partial(
                groups.create,
                name=group,
                mode=values.pop("mode", GroupMode.CLUSTERING),
                settings=values,
                casual=is_command_line_tool(sdk),
                actor=actor,
            )
            if _create_once(create_group):
                created.append(f"group:{group}")
            # Again: another member may have created it with other settings.
            group_id = check_settings()
        if not _subscribed_ids(group_id).issuperset(topic_ids.values()):
            # Another member may have just created them, and this actor may lack the right to.
            snapshot.refresh()
        subscribed = _subscribed_ids(group_id)
        for topic, topic_id in topic_ids.items():
            create_subscription = partial(
                subscriptions.create, group=group, topic=topic, start=start, actor=actor
            )
            if topic_id not in subscribed and _create_once(create_subscription):
                created.append(f"subscription:{group}/{topic}")
        registered = consumers.register(
            group=group,
            name=name,
            incarnation=str(incarnation),
            actor=actor,
            instance_id=instance_id,
            sdk=sdk,
            address=address,
        )
        consumer = consumer_ids.check(registered.consumer_id)
        if consumer.instance_id:
            broadcast_positions.place(consumer=consumer)
        return Joined(**structs.asdict(registered), created=tuple(created))


def _require_topics(group: str, topics: Collection[str], actor: Actor) -> None:
    """Raise Forbidden for a topic that the group does not read and the actor may not
    subscribe to.

    It runs before anything is created and before topics are looked up, so the refusal does
    not reveal if a topic exists.
    """
    require = partial(subscription_rows.require_may_subscribe, actor, group=group)
    for topic in sorted(set(topics) - _subscribed_names(group)):
        try:
            require(topic=topic)
        except Forbidden:
            # Another member may have just subscribed the group; the actor needs no right then.
            snapshot.refresh()
            if topic not in _subscribed_names(group):
                raise


def _subscribed_names(group: str) -> set[str]:
    current = snapshot.current()
    group_info = current.groups_by_name.get(group)
    topic_ids = _subscribed_ids(group_info.id) if group_info is not None else set()
    return {
        current.topics[topic_id].name
        for topic_id in topic_ids
        if topic_id in current.topics
    }


def _subscribed_ids(group_id: int) -> set[int]:
    return {
        subscription.topic_id
        for subscription in snapshot.current().subscriptions_of(group_id)
        if subscription.state == SubscriptionState.READY
    }


def _create_once(create: Callable[[], object]) -> bool:
    """Run a creation. Return False if another member was first.

    Waits up to PATIENCE_S while another process creates or deletes the same object.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            create()
        except Conflict as error:
            if error.code != Code.ALREADY_EXISTS:
                raise
            return False
        except Unavailable as error:
            # Without the wait the member would join without the subscription, and never get
            # it.
            if error.code != Code.BUSY or time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_S)
        else:
            return True
