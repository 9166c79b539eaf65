"""Joining a group: what a consumer names and may make is made on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from messagestore import subscriptions
from metadata import access, consumers, groups, snapshot
from metadata.actors import Actor
from metadata.errors import Code, Conflict, NotFound


@dataclass(frozen=True, slots=True)
class Joined:
    """A registered member; `created` names the group and subscriptions made for it."""

    consumer_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
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
) -> Joined:
    """Registers a member in a group, which must exist unless topics are named and the key may `manage` it.

    Needs `consume` on the group. Subscriptions that the topics lack are made, from `start`.
    Raises NotFound, Forbidden, Invalid, NodeUnavailable, MetadataUnavailable.
    """
    access.require(actor, "consume", group, what="group")
    created: list[str] = []
    if topics:
        wanted = {topic: snapshot.find_topic(topic).id for topic in topics}  # before anything is made
        created = [*_ensure_group(group, actor), *_ensure_subscriptions(group, wanted, start, actor)]
    registered = consumers.register(
        group=group,
        name=name,
        incarnation=str(incarnation),
        instance_id=instance_id,
        sdk=sdk,
        address=address,
        actor=actor,
    )
    return Joined(
        registered.consumer_id,
        registered.session_timeout_ms,
        registered.heartbeat_interval_ms,
        tuple(created),
    )


def _ensure_group(group: str, actor: Actor) -> list[str]:
    try:
        snapshot.find_group(group)
        return []
    except NotFound:
        access.require(actor, "manage", group, what="group")
    return [f"group:{group}"] if _made(partial(groups.create, name=group, actor=actor)) else []


def _ensure_subscriptions(group: str, wanted: Mapping[str, int], start: str, actor: Actor) -> list[str]:
    info = snapshot.find_group(group)
    ready = {one.topic_id for one in snapshot.current().subscriptions_of(info.id) if one.state == "ready"}
    return [
        f"subscription:{group}/{topic}"
        for topic, topic_id in wanted.items()
        if topic_id not in ready
        and _made(partial(subscriptions.create, group=group, topic=topic, start=start, actor=actor))
    ]


def _made(make: Callable[[], object]) -> bool:
    """Runs a creation; False if another member was quicker."""
    try:
        make()
    except Conflict as error:
        if error.code != Code.ALREADY_EXISTS:
            raise
        return False
    return True
