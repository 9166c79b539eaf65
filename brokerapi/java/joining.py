"""A Java client comes and goes: register, join groups, heartbeat, leave."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from brokerapi.endpoint import Call
from brokerapi.http import draining
from brokerapi.java import handles, holds, polling
from brokerapi.java.endpoint import (
    MOST_GROUPS,
    MOST_NAMES,
    SETTLED_S,
    Body,
    JavaEndpoint,
    JavaRequest,
    Long,
    Unchanged,
    check_right,
    client_name,
)
from messagestore.topology import membership
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError, Code, Conflict, Forbidden, Gone, Invalid, NotFound
from metadata.groups import groups
from metadata.membership import consumers, java_beats, java_members

log = logging.getLogger(__name__)

NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
MOST_CHARS = 100
MOST_BEATING = 20_000
MOST_CLIENTS = 100  # that one heartbeat names; the clients name one


class RegisterRequest(JavaRequest):
    name: str | None = None


class Register(JavaEndpoint):
    """POST consumer/register: a number for the client, by which it calls itself from now
    on.
    """

    body = Body(RegisterRequest)

    def answer_to(self, call: Call, asked: RegisterRequest) -> dict[str, Any]:
        draining.check()
        for field in ("name", "clientIp", "sdkVersion"):
            if not (getattr(asked, field) or "").strip():
                raise Invalid.field(field, "is missing")
        return {"id": java_members.new_java_id()}


class JoinRequest(JavaRequest):
    consumerId: Long | None = None
    consumerName: str | None = None
    consumerGroupNames: (
        Annotated[
            dict[str, Annotated[list[str], Meta(max_length=MOST_NAMES)] | None],
            Meta(max_length=MOST_GROUPS),
        ]
        | None
    ) = None


class RegisterConsumerGroup(JavaEndpoint):
    """POST consumer/registerConsumerGroup: the client becomes a member of its groups, which
    must exist.

    One that was deleted keeps it from none of the others: a client that runs joins anew
    after each outage.
    """

    body = Body(JoinRequest)

    def answer_to(self, call: Call, asked: JoinRequest) -> dict[str, Any]:
        draining.check()
        if not asked.consumerId or asked.consumerId < 0 or not asked.consumerName:
            raise Invalid.field("consumerId", "is none that register gave: register first")
        named = asked.consumerGroupNames or {}
        for group in (joined := _existing(named)):
            _check_group(group, named[group] or [])
        for group in joined:
            _join(group, asked, call.actor)
        return {"broadcastConsumerGroupName": {}, "consumerGroupNameNew": {}}


def _existing(named: Collection[str]) -> list[str]:
    """Return the groups without those that were deleted; all of them if none is left."""
    deleted = groups.deletion_times(list(named)[: polling.MOST_DELETED])
    for group in sorted(deleted):
        log.warning("group %s was deleted, and a Java client still names it", group)
    return [group for group in named if group not in deleted] or list(named)


def _check_group(group: str, topics: list[str]) -> None:
    """Raise NotFound or Conflict for a group that the client cannot join; log topics that
    differ.
    """
    known = snapshot.find_group(group)
    if known.is_share:
        raise Conflict(
            f"Group {group} is a share group: Java clients own queues. Use another group.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )
    current = snapshot.current()
    read = {current.topics[one.topic_id] for one in current.subscriptions_of(known.id)}
    names = {topic.name for topic in read if topic.failure_of is None}
    if names != set(topics):
        log.warning(
            "group %s reads %s, a Java client handles %s",
            group,
            sorted(names),
            sorted(topics),
        )


def _join(group: str, asked: JoinRequest, actor: Actor) -> None:
    java_id, name = asked.consumerId or 0, asked.consumerName or ""
    broadcasts = snapshot.find_group(group).mode == "broadcasting"
    joined = membership.join(
        group=group,
        name=member_name(name),
        incarnation=java_members.incarnation_of_client(java_id),
        instance_id=instance_name(name) if broadcasts else None,
        sdk=client_name(name, asked.sdkVersion or ""),
        address=actor.address,
        actor=actor,
    )
    consumer = consumer_ids.check(joined.consumer_id)
    handles.remember(consumer)
    java_members.link_client(consumer=consumer, java_id=java_id)


def member_name(name: str) -> str:
    """Return the name of a member for the one that a client gives itself:
    address|process|number|port.

    >>> member_name("10.0.0.5|4242|137|8087"), member_name("10.0.0.5|4242|137null ")
    ('java-10.0.0.5-4242-137-8087', 'java-10.0.0.5-4242-137null')
    """
    return f"java-{NOT_OF_A_NAME.sub('-', name.strip())}"[:MOST_CHARS]


def instance_name(name: str) -> str:
    """Return the instance of a broadcasting group: address and port, which a restart keeps,
    if it has a port.

    >>> instance_name("10.0.0.5|4242|137|8087"), instance_name("10.0.0.5|4242|137|null")
    ('java-10.0.0.5-8087', 'java-10.0.0.5-4242-137-null')
    """
    words = name.strip().split("|")
    has_port = len(words) == 4 and words[3].isdigit()
    return member_name(f"{words[0]}|{words[3]}" if has_port else name)


class BeatRequest(JavaRequest):
    consumerId: Long | None = None
    consumerIds: Annotated[list[Long], Meta(max_length=MOST_CLIENTS)] | None = None


class Heartbeat(JavaEndpoint):
    """POST consumer/heartbeat: `deleted` 1 makes the client register anew, with all its
    groups.

    A client that sends heartbeats but polls no more gets none of them recorded: its queues
    go to others.
    """

    body = Body(BeatRequest)

    def answer_to(self, call: Call, asked: BeatRequest) -> dict[str, Any]:
        ids = [one for one in (asked.consumerId, *(asked.consumerIds or ())) if one]
        gone = [_is_gone(call, java_id) for java_id in ids]
        deleted = any(gone)
        if ids and not deleted:
            call.repeat = _BeatAgain(ids)
        return {"heatbeatTime": 10, "deleted": int(deleted), "bakUrl": ""}


class _BeatAgain(Unchanged):
    """A heartbeat of clients that poll."""

    def __init__(self, ids: Collection[int]) -> None:
        super().__init__(0.0, {})
        self._ids = ids

    def note(self) -> bool:
        """Return False if one of them is to be looked up."""
        return all(map(_counts, self._ids))


class _Beating(NamedTuple):
    """A client whose heartbeats count, while its groups have these generations."""

    until: float  # time.monotonic()
    members: tuple[int, ...]
    generations: Mapping[int, int]

    def is_valid(self) -> bool:
        """Return True if it is not too old, and nobody has left or expired."""
        if time.monotonic() >= self.until or java_beats.needs_full_check(self.members):
            return False
        return not holds.has_changed(self.generations)


_beating: dict[int, _Beating] = {}


def _counts(java_id: int) -> bool:
    """Note a heartbeat; False if it is not certain that the client lives. A poll a moment
    ago has told it.
    """
    if polling.has_just_polled(java_id):
        return True
    known = _beating.get(java_id)
    if known is None or not known.is_valid():
        return False
    java_beats.note(dict.fromkeys(known.members))
    return True


def _is_gone(call: Call, java_id: int) -> bool:
    """Record a heartbeat, and return True if the client is to register anew. Raises
    Forbidden.
    """
    beating = _beating.get(java_id)
    _check_rights(call, beating.generations if beating is not None else ())
    if _counts(java_id):
        return False
    try:
        members, has_joined = java_members.heartbeating_members(java_id)
        if not has_joined:
            return not java_members.is_young(java_id)
        seen = {}
        _check_rights(call, [consumer.group_id for consumer in members])
        for consumer in members:
            answer = consumers.heartbeat(consumer=consumer, generation=0, owned=())
            seen[consumer.group_id] = answer.generation
        if members:
            _note_beating(java_id, members, seen)
    except Gone:
        return True
    except Forbidden:
        raise
    except CatmqError as error:
        log.info(
            "The heartbeat of Java client %d was not recorded: %s", java_id, error.detail
        )
    return False


def _check_rights(call: Call, group_ids: Iterable[int]) -> None:
    for group_id in group_ids:
        check_right(call, group_id)


def _note_beating(
    java_id: int, members: Iterable[ConsumerId], generations: Mapping[int, int]
) -> None:
    if len(_beating) >= MOST_BEATING:
        _beating.clear()
    ids = tuple(one.member_id for one in members)
    java_beats.note_present(ids)
    _beating[java_id] = _Beating(time.monotonic() + SETTLED_S, ids, generations)


class LeaveRequest(JavaRequest):
    id: Long | None = None


class DeRegister(JavaEndpoint):
    """POST consumer/deRegister: the client leaves its groups; one that is unknown has left."""

    body = Body(LeaveRequest)

    def answer_to(self, call: Call, asked: LeaveRequest) -> dict[str, Any]:
        for member in java_members.memberships_of_client(asked.id or 0):
            try:
                consumers.leave(consumer=member.consumer, actor=call.actor)
            except NotFound:  # its group was deleted
                continue
            handles.forget(member.consumer.member_id)
        java_members.forget_client(asked.id or 0)
        return {}
