"""Members of groups: register, heartbeat, leave. expiry.py ends silent ones.

A member is one identity in a group: its instance_id, else its name. The row of an identity
stays when another incarnation takes it over, so the new process inherits the queues at
once, each under epoch + 1, and the old one is told `replaced`. A row that is gone means
`expired`.

In a broadcasting group the identity is an instance that owns every queue
(broadcast_instances.py). A join or leave there matters to other members only if the group
limits how many members are active.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import Any
from uuid import UUID

from django.db.models import F, Value
from django.db.models.functions import Coalesce, Least

from metadata.actors import Actor
from metadata.db import access, consumer_ids
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.consumer_ids import ConsumerId
from metadata.db.rows import find_group, lock_group, lock_group_by_id
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Invalid, MetadataUnavailable, NotFound
from metadata.limits.bulkhead import bulkhead
from metadata.membership import (
    broadcast_instances,
    casual_groups,
    ended_share_members,
    rebalance,
)
from metadata.membership.assignment_cache import OwnedQueue
from metadata.membership.heartbeats import (
    HeartbeatAnswer,
    assignment,
    heartbeat,
    replaced_error,
)
from metadata.models import (
    Consumer,
    ConsumerGroup,
    ConsumerGroupConsumer,
    Heartbeat,
    QueueOffset,
)
from metadata.rules.topics.names import check_spelling

__all__ = [
    "HeartbeatAnswer",
    "OwnedQueue",
    "Registered",
    "assignment",
    "check_settings",
    "heartbeat",
    "leave",
    "register",
]

log = logging.getLogger(__name__)

MAX_HEARTBEAT_INTERVAL_MS = 3_000
# earlier processes of an identity that are remembered, so that none of them comes back
MAX_REPLACED = 16


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration's answer; `heartbeat_interval_ms` is how often the member must be
    heard.
    """

    consumer_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int


@dataclass(frozen=True, slots=True)
class _Applicant:
    name: str
    incarnation: str
    instance_id: str
    sdk: str
    address: str
    key_id: int | None

    @property
    def identity(self) -> str:
        return self.instance_id or self.name

    @property
    def process(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("name", "incarnation", "address", "sdk", "key_id")
        }


@bulkhead.permit()
def register(
    *,
    group: str,
    name: str,
    incarnation: str,
    instance_id: str | None,
    sdk: str,
    address: str,
    actor: Actor,
) -> Registered:
    """Make the process a member of the group and rebalance it. Needs `consume` on the
    group.

    `incarnation` is a UUID made at the process's start: the same one again gets the same
    answer, another one replaces the earlier process of that identity. Raises Invalid,
    NotFound(group_not_found), Gone(replaced) for a process that was replaced itself,
    MetadataUnavailable.
    """
    access.require(actor, "consume", group, what="group")
    applicant = _Applicant(
        name=check_spelling("consumer", name),
        incarnation=_uuid(incarnation),
        instance_id=check_spelling("instance", instance_id, field="instance_id")
        if instance_id
        else "",
        sdk=sdk[:100],
        address=address[:100],
        key_id=actor.key_id,
    )
    group_id, registered, marked = _registered(group=group, applicant=applicant)
    if marked:
        rebalance_now(group_id)
    return registered


@bulkhead.permit()
def check_settings(
    *, group: str, asked: Mapping[str, object], instance_id: str | None
) -> int:
    """The id of the group, if a consumer that asks for these settings (None: any) may
    register in it.

    Raises Conflict(group_settings_differ), which names both values, Invalid when a
    broadcasting group gets no instance_id, NotFound(group_not_found), MetadataUnavailable.
    """
    with reachable():
        row = find_group(group)
    for setting, wanted in asked.items():
        has = getattr(row, setting)
        if wanted is not None and wanted != has:
            raise Conflict(
                f"Group {group} has {setting} {has}, this consumer asks for {wanted}: "
                f"let it ask for {has} or for none, or use another group.",
                code=Code.GROUP_SETTINGS_DIFFER,
            )
    check_instance_id(group=group, mode=row.mode, instance_id=instance_id)
    return row.pk


def check_instance_id(*, group: str, mode: str | None, instance_id: str | None) -> None:
    """Raise Invalid unless the instance_id is given where the mode needs one."""
    if mode == ConsumerGroup.Mode.BROADCASTING and not instance_id:
        raise Invalid.field(
            "instance_id",
            f"group {group} is broadcasting: each consumer needs its own stable instance_id, "
            "because its offsets are stored under it",
        )


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise Invalid.field(
            "incarnation", "must be a UUID made when the process started"
        ) from None


def rebalance_now(group_id: int) -> None:
    """Run the rebalance whose mark was just committed; if it cannot, the sweep over
    pending() will.
    """
    try:
        rebalance.rebalance_if_due(group_id)
    except (MetadataUnavailable, NotFound) as error:
        log.warning(
            "group %d could not be rebalanced, will retry: %s", group_id, error.detail
        )


@transactional
def _registered(*, group: str, applicant: _Applicant) -> tuple[int, Registered, bool]:
    """(group id, answer, whether the group is marked for a rebalance)."""
    row = lock_group(group)
    check_instance_id(group=group, mode=row.mode, instance_id=applicant.instance_id)
    member = (
        row.members.select_related("process").filter(identity=applicant.identity).first()
    )
    if member is None:
        text, marked = _joined(row, applicant)
    else:
        text, marked = _returned(row, member, applicant)
    interval_ms = min(MAX_HEARTBEAT_INTERVAL_MS, row.session_timeout_ms // 3)
    return row.pk, Registered(text, row.session_timeout_ms, interval_ms), marked


def _joined(group: ConsumerGroup, applicant: _Applicant) -> tuple[str, bool]:
    """The consumer id of a new member, and whether the group was marked."""
    now = database_now()
    process = Consumer.objects.create(**applicant.process)
    member = ConsumerGroupConsumer.objects.create(
        group=group,
        process=process,
        identity=applicant.identity,
        instance_id=applicant.instance_id,
        consumer_id=token_hex(16),  # until the row has the id that the real one contains
        joined_at=now,
    )
    if not casual_groups.is_command_line_tool(applicant.sdk):
        casual_groups.enable_no_consumer_alarm(group)
    text = _issue(group, member, applicant, now)
    Heartbeat.objects.create(membership=member, last_seen=now)
    log.info("group %s: %s joined", group.name, applicant.identity)
    return text, _mark(group, f"{applicant.identity} joined")


def _mark(group: ConsumerGroup, cause: str) -> bool:
    """Mark the group for a rebalance, if who comes and goes concerns the others."""
    if group.mode == ConsumerGroup.Mode.SHARE:
        record_change("group", group.pk)  # how many there are decides how much each gets
        return False
    concerns = (
        group.mode == ConsumerGroup.Mode.CLUSTERING or group.max_active_members is not None
    )
    if concerns:
        rebalance.mark_due(group.pk, cause)
    return concerns


def _issue(
    group: ConsumerGroup,
    member: ConsumerGroupConsumer,
    applicant: _Applicant,
    now: datetime,
) -> str:
    """A new consumer id for the member; from now on its earlier one is worth nothing."""
    broadcasts = group.mode == ConsumerGroup.Mode.BROADCASTING
    instance_id = (
        broadcast_instances.claim_instance(group=group, name=member.instance_id, now=now)
        if broadcasts
        else 0
    )
    text = consumer_ids.issue(
        group_id=group.pk,
        key_id=applicant.key_id,
        member_id=member.pk,
        instance_id=instance_id,
    )
    member.consumer_id = text
    member.save(update_fields=("consumer_id",))
    return text


def _returned(
    group: ConsumerGroup, member: ConsumerGroupConsumer, applicant: _Applicant
) -> tuple[str, bool]:
    """The consumer id of an identity that is there already, and whether the group was
    marked: the same process again, or its successor."""
    if applicant.incarnation in member.replaced_incarnations:
        raise replaced_error()
    now = database_now()
    Heartbeat.objects.filter(pk=member.pk).update(last_seen=now)
    same_key = member.process.key_id == applicant.key_id
    if member.process.incarnation == applicant.incarnation and same_key:
        return member.consumer_id, False
    moved = bool(group.allow_addresses or group.deny_addresses)
    moved = moved and member.process.address != applicant.address
    text = _replace(group, member, applicant, now)
    return text, moved and _mark(
        group, f"{applicant.identity} came back at another address"
    )


def _replace(
    group: ConsumerGroup,
    member: ConsumerGroupConsumer,
    applicant: _Applicant,
    now: datetime,
) -> str:
    """The successor's consumer id. It inherits the queues under epoch + 1; what was leaving
    goes at once.
    """
    if member.process.incarnation != applicant.incarnation:
        earlier = [*member.replaced_incarnations, member.process.incarnation]
        member.replaced_incarnations = earlier[-MAX_REPLACED:]
    Consumer.objects.filter(pk=member.process_id).update(**applicant.process)
    # of the process before
    Heartbeat.objects.filter(pk=member.pk).update(report="", reported_at=None)
    member.generation = 0
    member.instance_id = applicant.instance_id
    member.save(update_fields=("replaced_incarnations", "generation", "instance_id"))
    owned = QueueOffset.objects.filter(group=group, owner=member)
    handed = sum(rebalance.hand_over(row) for row in owned if row.target_id != member.pk)
    QueueOffset.objects.filter(group=group, owner=member).update(epoch=F("epoch") + 1)
    if group.mode == ConsumerGroup.Mode.SHARE:
        ended_share_members.note_ended(group.pk, [member.consumer_id])
    text = _issue(group, member, applicant, now)
    if handed:
        rebalance.raise_generation(group.pk)
        record_change("group", group.pk)
    log.info("group %s: %s registered again", group.name, applicant.identity)
    return text


@bulkhead.permit()
def leave(*, consumer: ConsumerId, actor: Actor) -> None:
    """End a membership and give its queues to the others at once; one that has ended
    already is fine.
    """
    group_id = consumer.group_id
    if _left(consumer=consumer, actor=actor):
        rebalance_now(group_id)


@transactional
def _left(*, consumer: ConsumerId, actor: Actor) -> bool:
    """Remove a member that leaves; return True if the group is marked for a rebalance."""
    try:
        group = lock_group_by_id(consumer.group_id)
    except NotFound:
        return False
    access.require(actor, "consume", group.name, what="group")
    member = group.members.filter(pk=consumer.member_id, consumer_id=consumer.text).first()
    if member is None:
        return False
    log.info("group %s: %s left", group.name, member.identity)
    return drop_members(group, {member.pk: database_now()}, f"{member.identity} left")


def drop_members(group: ConsumerGroup, members: Mapping[int, datetime], cause: str) -> bool:
    """Remove memberships, last heard at the given times, and free their queues; whether the
    group was marked. The caller holds the group's lock."""
    ids = sorted(members)
    Heartbeat.objects.filter(pk__in=ids).delete()
    for member, last_seen in sorted(members.items()):
        QueueOffset.objects.filter(group=group, owner=member).update(
            owner=None,
            idle_since=Least(Coalesce("idle_since", Value(last_seen)), Value(last_seen)),
        )
    QueueOffset.objects.filter(group=group, target__in=ids).update(target=None)
    rows = ConsumerGroupConsumer.objects.filter(pk__in=ids)
    if group.mode == ConsumerGroup.Mode.BROADCASTING:
        held = rows.values_list("instance_id", "pk")
        broadcast_instances.record_last_seen(
            group=group, seen={name: members[member] for name, member in held}
        )
    if group.mode == ConsumerGroup.Mode.SHARE:
        ended_share_members.note_ended(
            group.pk, list(rows.values_list("consumer_id", flat=True))
        )
    processes = list(rows.values_list("process_id", flat=True))
    rows.delete()
    Consumer.objects.filter(pk__in=processes).delete()
    return _mark(group, cause)
