"""Java clients join and leave: register, join groups, heartbeat, deregister."""

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
from brokerapi.java.bounded import BoundedDict
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
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.errors import CatmqError, Code, Conflict, Forbidden, Gone, Invalid, NotFound
from metadata.groups import groups
from metadata.membership import consumers, java_beats, java_members
from metadata.rules.groups.states import GroupMode

log = logging.getLogger(__name__)

NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
MOST_CHARS = 100
MOST_BEATING = 20_000
MOST_CLIENTS = 100  # in a heartbeat; the clients name only themselves


class RegisterRequest(JavaRequest):
    name: str | None = None


class Register(JavaEndpoint):
    """POST consumer/register: a number that identifies the client in later calls."""

    body = Body(RegisterRequest)

    def answer_to(self, call: Call, request: RegisterRequest) -> dict[str, Any]:
        draining.check()
        # Java clients always send these, so a request without them is from another program.
        for field in ("name", "clientIp", "sdkVersion"):
            if not (getattr(request, field) or "").strip():
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
    """POST consumer/registerConsumerGroup: the client joins its groups, which must exist.

    A group that was deleted does not keep the client from joining the others: a running
    client joins again after each outage.
    """

    body = Body(JoinRequest)

    def answer_to(self, call: Call, request: JoinRequest) -> dict[str, Any]:
        draining.check()
        if not request.consumerId or request.consumerId < 0 or not request.consumerName:
            raise Invalid.field("consumerId", "is none that register gave: register first")
        topics_by_group = request.consumerGroupNames or {}
        names = list(topics_by_group)
        deleted = groups.deletion_times(names[: polling.MOST_DELETED])
        for group in sorted(deleted):
            log.warning("group %s was deleted, and a Java client still names it", group)
        # Without an existing group, the deleted groups remain, and are refused as not
        # found.
        existing = [group for group in names if group not in deleted] or names
        # All groups are checked before the first is joined.
        for group in existing:
            _check_group(group, topics_by_group[group] or [])
        java_id, name = request.consumerId, request.consumerName
        for group in existing:
            broadcasts = snapshot.find_group(group).mode == GroupMode.BROADCASTING
            registration = membership.join(
                group=group,
                name=member_name(name),
                incarnation=java_members.incarnation_of_client(java_id),
                instance_id=instance_name(name) if broadcasts else None,
                sdk=client_name(name, request.sdkVersion or ""),
                address=call.actor.address,
                actor=call.actor,
            )
            consumer = consumer_ids.check(registration.consumer_id)
            handles.remember(consumer)
            # The client names only its own number later on.
            java_members.link_client(consumer=consumer, java_id=java_id)
        return {"broadcastConsumerGroupName": {}, "consumerGroupNameNew": {}}


def _check_group(group: str, topics: list[str]) -> None:
    """Raise NotFound or Conflict if the client cannot join. Log a difference of the topics."""
    info = snapshot.find_group(group)
    if info.is_share:
        raise Conflict(
            f"Group {group} is a share group: Java clients own queues. Use another group.",
            code=Code.GROUP_SETTINGS_DIFFER,
        )
    current = snapshot.current()
    subscribed_topics = {
        current.topics[subscription.topic_id]
        for subscription in current.subscriptions_of(info.id)
    }
    names = {topic.name for topic in subscribed_topics if topic.failure_of is None}
    if names != set(topics):
        log.warning(
            "group %s reads %s, a Java client handles %s",
            group,
            sorted(names),
            sorted(topics),
        )


def member_name(name: str) -> str:
    """Return the member name for the name of a client: address|process|number|port.

    >>> member_name("10.0.0.5|4242|137|8087"), member_name("10.0.0.5|4242|137null ")
    ('java-10.0.0.5-4242-137-8087', 'java-10.0.0.5-4242-137null')
    """
    return f"java-{NOT_OF_A_NAME.sub('-', name.strip())}"[:MOST_CHARS]


def instance_name(name: str) -> str:
    """Return the instance name in a broadcasting group: address and port if there is a
    port, because a restart keeps them.

    >>> instance_name("10.0.0.5|4242|137|8087"), instance_name("10.0.0.5|4242|137|null")
    ('java-10.0.0.5-8087', 'java-10.0.0.5-4242-137-null')
    """
    parts = name.strip().split("|")
    has_port = len(parts) == 4 and parts[3].isdigit()
    return member_name(f"{parts[0]}|{parts[3]}" if has_port else name)


class BeatRequest(JavaRequest):
    consumerId: Long | None = None
    consumerIds: Annotated[list[Long], Meta(max_length=MOST_CLIENTS)] | None = None


class Heartbeat(JavaEndpoint):
    """POST consumer/heartbeat: `deleted` 1 makes the client register again, with all its
    groups.

    Heartbeats of a client that no longer polls are not recorded, so its queues go to
    others.
    """

    body = Body(BeatRequest)

    def answer_to(self, call: Call, request: BeatRequest) -> dict[str, Any]:
        java_ids = [
            java_id
            for java_id in (request.consumerId, *(request.consumerIds or ()))
            if java_id
        ]
        # Not any(generator): the heartbeat of every client is recorded.
        must_register = [_must_register(call, java_id) for java_id in java_ids]
        deleted = any(must_register)
        if java_ids and not deleted:
            call.repeat = _RepeatedHeartbeat(java_ids)
        return {"heatbeatTime": 10, "deleted": int(deleted), "bakUrl": ""}


class _RepeatedHeartbeat(Unchanged):
    """A repeated heartbeat of clients that poll."""

    def __init__(self, ids: Collection[int]) -> None:
        super().__init__(0.0, {})
        self._ids = ids

    def note(self) -> bool:
        return all(map(_count_heartbeat, self._ids))


class _LiveClient(NamedTuple):
    """A client whose heartbeats need no look-up while its groups have these generations."""

    until: float  # time.monotonic()
    members: tuple[int, ...]
    generations: Mapping[int, int]

    def is_valid(self) -> bool:
        """Return True if it is recent, and no member has left or expired."""
        if time.monotonic() >= self.until or java_beats.needs_full_check(self.members):
            return False
        return not holds.has_changed(self.generations)


_live_clients = BoundedDict[int, _LiveClient](MOST_BEATING)  # by client


def _count_heartbeat(java_id: int) -> bool:
    """Record a heartbeat if the client is known to live, as after a poll a moment ago. Else
    return False.
    """
    if polling.has_just_polled(java_id):
        return True
    client = _live_clients.get(java_id)
    if client is None or not client.is_valid():
        return False
    java_beats.note(dict.fromkeys(client.members))
    return True


def _must_register(call: Call, java_id: int) -> bool:
    """Record a heartbeat. Return True if the client must register again. Raises Forbidden."""
    client = _live_clients.get(java_id)
    _check_rights(call, client.generations if client is not None else ())
    if _count_heartbeat(java_id):
        return False
    try:
        members, has_joined = java_members.heartbeating_members(java_id)
        # A young client registers its groups next, and must not be sent back.
        if not has_joined:
            return not java_members.is_young(java_id)
        generations = {}
        _check_rights(call, [consumer.group_id for consumer in members])
        for consumer in members:
            answer = consumers.heartbeat(consumer=consumer, generation=0, owned=())
            generations[consumer.group_id] = answer.generation
        if members:
            ids = tuple(member.member_id for member in members)
            java_beats.note_present(ids)
            _live_clients[java_id] = _LiveClient(
                time.monotonic() + SETTLED_S, ids, generations
            )
    except Gone:
        return True
    # Not an outage: the client must know that it was refused.
    except Forbidden:
        raise
    # Not an error for the client: it would register again, although its membership is alive.
    except CatmqError as error:
        log.info(
            "The heartbeat of Java client %d was not recorded: %s", java_id, error.detail
        )
    return False


def _check_rights(call: Call, group_ids: Iterable[int]) -> None:
    for group_id in group_ids:
        check_right(call, group_id)


class LeaveRequest(JavaRequest):
    id: Long | None = None


class DeRegister(JavaEndpoint):
    """POST consumer/deRegister: the client leaves its groups. An unknown client has left
    already.
    """

    body = Body(LeaveRequest)

    def answer_to(self, call: Call, request: LeaveRequest) -> dict[str, Any]:
        for member in java_members.memberships_of_client(request.id or 0):
            try:
                consumers.leave(consumer=member.consumer, actor=call.actor)
            except NotFound:  # its group was deleted
                continue
            # Its queue ids are no longer valid.
            handles.forget(member.consumer.member_id)
        java_members.forget_client(request.id or 0)
        return {}
