"""Joining a group: what a consumer names and may make is made on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

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

# Joins of one key, or one address, that a process works on at once. More could take all
# places where calls
# wait for metadata (metadata/limits/bulkhead.py), and those of others would be refused.
JOINS_OF_ONE = 24
_joins = Places(most=1_000, most_of_one=JOINS_OF_ONE, most_shared=JOINS_OF_ONE)
PATIENCE_S = 1.0
AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Joined(consumers.Registered):
    """A registered member; `created` names the group and subscriptions made for it."""

    created: tuple[str, ...]


def join(
    *,
    group: str,
    name: str,
    incarnation: str,
    actor: Actor,
    topics: Sequence[str] = (),
    start: str = "earliest",
    instance_id: str | None = None,
    sdk: str = "",
    address: str = "",
    **settings: Any,
) -> Joined:
    """Register a member in a group, which must exist unless topics are named and the key
    may `manage` it.

    Needs `consume` on the group. Subscriptions that the topics lack are made, from `start`.
    A group that is made gets `settings`: `mode`, `session_timeout_ms` and those of share
    groups, None: the default; one that exists must have them. In a broadcasting group the
    instance gets its places. Raises NotFound, Forbidden, Invalid,
    Conflict(group_settings_differ), NodeUnavailable, MetadataUnavailable, also where its
    key or address has too many joins under way.
    """
    access.require(actor, "consume", group, what="group")
    key = (actor.kind, actor.key_id or actor.name)
    with _joins.place(key, [("address", actor.address)]) as has_place:
        if not has_place:
            raise bulkhead.later()
        consumers.check_instance_id(
            group=group, mode=settings.get("mode"), instance_id=instance_id
        )
        _require_topics(group, topics, actor)
        # before anything is made
        wanted = {topic: snapshot.find_topic(topic).id for topic in topics}
        casual = is_command_line_tool(sdk)
        created = _make_missing(
            group,
            wanted,
            settings,
            start=start,
            instance_id=instance_id,
            casual=casual,
            actor=actor,
        )
        member = partial(
            consumers.register,
            group=group,
            name=name,
            incarnation=str(incarnation),
            actor=actor,
        )
        registered = member(instance_id=instance_id, sdk=sdk, address=address)
        consumer = consumer_ids.check(registered.consumer_id)
        if consumer.instance_id:
            broadcast_positions.place(consumer=consumer)
        return Joined(**asdict(registered), created=tuple(created))


def _require_topics(group: str, topics: Collection[str], actor: Actor) -> None:
    """Raise Forbidden if the group does not read one of the topics and the actor may not
    have it do so.

    Asked before anything is made, and whether there is such a topic or not: a refusal tells
    nothing of that.
    """
    may = partial(subscription_rows.require_may_subscribe, actor, group=group)
    for topic in sorted(set(topics) - _names_read(group)):
        try:
            may(topic=topic)
        except Forbidden:
            # another member may have just subscribed, and this one need not be allowed to
            snapshot.refresh()
            if topic not in _names_read(group):
                raise


def _names_read(group: str) -> set[str]:
    """The names of the topics that a group subscribes to, as this process knows it."""
    known = snapshot.current()
    info = known.groups_by_name.get(group)
    read = _read(info.id) if info is not None else set()
    return {known.topics[topic].name for topic in read if topic in known.topics}


def _make_missing(
    group: str,
    wanted: Mapping[str, int],
    asked: Mapping[str, Any],
    *,
    start: str,
    instance_id: str | None,
    casual: bool,
    actor: Actor,
) -> list[str]:
    """Make the group, if topics are wanted, and the subscriptions that they lack; return
    what was made.
    """
    fitting = partial(
        consumers.check_settings, group=group, asked=asked, instance_id=instance_id
    )
    created: list[str] = []
    try:
        group_id = fitting()
    except NotFound:
        if not wanted:
            raise
        created += _create_group(group, actor, asked, casual=casual)
        group_id = fitting()
    return created + _ensure_subscriptions(
        group, group_id, wanted, start=start, actor=actor
    )


def _create_group(
    group: str, actor: Actor, asked: Mapping[str, Any], *, casual: bool
) -> list[str]:
    """Make a group with the settings asked for; return what was made: nothing if another
    was quicker.
    """
    access.require(actor, "manage", group, what="group")
    settings = {name: value for name, value in asked.items() if value is not None}
    mode = settings.pop("mode", "clustering")
    make = partial(
        groups.create, name=group, mode=mode, settings=settings, casual=casual, actor=actor
    )
    return [f"group:{group}"] if _made(make) else []


def _ensure_subscriptions(
    group: str, group_id: int, wanted: Mapping[str, int], *, start: str, actor: Actor
) -> list[str]:
    if not _read(group_id).issuperset(wanted.values()):
        # another member may have just made them, and this one need not be allowed to
        snapshot.refresh()
    read = _read(group_id)
    return [
        f"subscription:{group}/{topic}"
        for topic, topic_id in wanted.items()
        if topic_id not in read
        and _made(
            partial(
                subscriptions.create, group=group, topic=topic, start=start, actor=actor
            )
        )
    ]


def _read(group_id: int) -> set[int]:
    """Ids of the topics that a group subscribes to, as this process knows it."""
    known = snapshot.current().subscriptions_of(group_id)
    return {one.topic_id for one in known if one.state == "ready"}


def _made(make: Callable[[], object]) -> bool:
    """Run a creation; return False if another member was quicker.

    One that is being made, or taken down, is waited for, but not for long: whoever joins
    would otherwise be without it for ever.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            make()
        except Conflict as error:
            if error.code != Code.ALREADY_EXISTS:
                raise
            return False
        except Unavailable as error:
            if error.code != Code.BUSY or time.monotonic() > end:
                raise
            time.sleep(AGAIN_S)
        else:
            return True
