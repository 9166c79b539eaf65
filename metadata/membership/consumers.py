"""Members of groups: register and leave. heartbeats.py answers their heartbeats, expiry.py
removes silent members.

A member is one identity in a group: its instance_id, or its name without one. When
another process (incarnation) registers under the same identity, the row stays and the
new process inherits the queues at once, each under epoch + 1. The former process is
refused as `replaced`. A consumer id without a row is refused as `expired`.

In a broadcasting group the identity is an instance that owns every queue
(broadcast_instances.py). A join or leave there matters to other members only if the
group limits how many members are active.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from secrets import token_hex
from typing import Any
from uuid import UUID

from django.db.models import F, Value
from django.db.models.functions import Coalesce, Least
from msgspec import Struct

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
from metadata.rules.groups.states import GroupMode
from metadata.rules.rights import Right
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
# Earlier processes of an identity that are remembered, so that none of them comes back.
MAX_REPLACED = 16


class Registered(Struct, frozen=True):
    """Result of a registration. The member must send a heartbeat every
    `heartbeat_interval_ms`.
    """

    consumer_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int


class _Applicant(Struct, frozen=True):
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
    """Make the process a member of the group and rebalance the group. Needs `consume` on
    the group.

    `incarnation` is a UUID that the process made at its start. A repeat with the same
    incarnation gets the same result; another replaces the earlier process of that identity.
    Raises Invalid, NotFound(group_not_found), Gone(replaced) for a process that was
    itself replaced, and MetadataUnavailable.
    """
    access.require(actor, Right.CONSUME, group, what="group")
    consumer_name = check_spelling("consumer", name)
    try:
        canonical_incarnation = str(UUID(incarnation))
    except ValueError:
        raise Invalid.field(
            "incarnation", "must be a UUID made when the process started"
        ) from None
    applicant = _Applicant(
        name=consumer_name,
        incarnation=canonical_incarnation,
        instance_id=check_spelling("instance", instance_id, field="instance_id")
        if instance_id
        else "",
        sdk=sdk[:100],
        address=address[:100],
        key_id=actor.key_id,
    )
    group_id, registered, needs_rebalance = _register_in_group(
        group=group, applicant=applicant
    )
    # After the commit: the rebalance takes the lock of the group in a transaction of its own.
    if needs_rebalance:
        rebalance_now(group_id)
    return registered


@bulkhead.permit()
def check_settings(
    *, group: str, asked: Mapping[str, object], instance_id: str | None
) -> int:
    """Return the id of the group if a consumer that asks for these settings may register
    in it.

    A setting of None accepts any value. Raises Conflict(group_settings_differ), which
    names both values, Invalid if a broadcasting group gets no instance_id,
    NotFound(group_not_found), and MetadataUnavailable.
    """
    with reachable():
        group_row = find_group(group)
    for setting, expected in asked.items():
        actual = getattr(group_row, setting)
        if expected is not None and expected != actual:
            raise Conflict(
                f"Group {group} has {setting} {actual}, this consumer asks for {expected}: "
                f"let it ask for {actual} or for none, or use another group.",
                code=Code.GROUP_SETTINGS_DIFFER,
            )
    check_instance_id(group=group, mode=group_row.mode, instance_id=instance_id)
    return group_row.pk


def check_instance_id(*, group: str, mode: str | None, instance_id: str | None) -> None:
    """Raise Invalid if the mode needs an instance_id and there is none."""
    if mode == GroupMode.BROADCASTING and not instance_id:
        raise Invalid.field(
            "instance_id",
            f"group {group} is broadcasting: each consumer needs its own stable instance_id, "
            "because its offsets are stored under it",
        )


def rebalance_now(group_id: int) -> None:
    """Run the rebalance whose mark was just committed.

    If it fails, the mark stays, and the sweep over pending_groups() runs the rebalance
    later.
    """
    try:
        rebalance.rebalance_if_due(group_id)
    except (MetadataUnavailable, NotFound) as error:
        log.warning(
            "group %d could not be rebalanced, will retry: %s", group_id, error.detail
        )


@transactional
def _register_in_group(
    *, group: str, applicant: _Applicant
) -> tuple[int, Registered, bool]:
    """Return the group id, the result, and True if the group is due for a rebalance."""
    group_row = lock_group(group)
    check_instance_id(group=group, mode=group_row.mode, instance_id=applicant.instance_id)
    member = (
        group_row.members.select_related("process")
        .filter(identity=applicant.identity)
        .first()
    )
    if member is None:
        now = database_now()
        process = Consumer.objects.create(**applicant.process)
        member = ConsumerGroupConsumer.objects.create(
            group=group_row,
            process=process,
            identity=applicant.identity,
            instance_id=applicant.instance_id,
            # A placeholder: the real consumer id contains the id of this row.
            consumer_id=token_hex(16),
            joined_at=now,
        )
        if not casual_groups.is_command_line_tool(applicant.sdk):
            casual_groups.enable_no_consumer_alarm(group_row)
        consumer_id = _issue_consumer_id(group_row, member, applicant, now)
        Heartbeat.objects.create(membership=member, last_seen=now)
        log.info("group %s: %s joined", group_row.name, applicant.identity)
        needs_rebalance = _request_rebalance(group_row, f"{applicant.identity} joined")
    else:
        consumer_id, needs_rebalance = _register_again(group_row, member, applicant)
    interval_ms = min(MAX_HEARTBEAT_INTERVAL_MS, group_row.session_timeout_ms // 3)
    return (
        group_row.pk,
        Registered(consumer_id, group_row.session_timeout_ms, interval_ms),
        needs_rebalance,
    )


def _request_rebalance(group: ConsumerGroup, cause: str) -> bool:
    """Mark the group for a rebalance if a join or leave affects other members.

    Return True if it was marked.
    """
    if group.mode == GroupMode.SHARE:
        # No member owns queues in a share group. But brokers divide the messages by the
        # number of members, which they read from the snapshot.
        record_change("group", group.pk)
        return False
    affects_others = (
        group.mode == GroupMode.CLUSTERING or group.max_active_members is not None
    )
    if affects_others:
        rebalance.mark_due(group.pk, cause)
    return affects_others


def _issue_consumer_id(
    group: ConsumerGroup,
    member: ConsumerGroupConsumer,
    applicant: _Applicant,
    now: datetime,
) -> str:
    """Give the member a new consumer id and return it. Its former id becomes invalid."""
    is_broadcasting = group.mode == GroupMode.BROADCASTING
    instance_id = (
        broadcast_instances.claim_instance(group=group, name=member.instance_id, now=now)
        if is_broadcasting
        else 0
    )
    consumer_id = consumer_ids.issue(
        group_id=group.pk,
        key_id=applicant.key_id,
        member_id=member.pk,
        instance_id=instance_id,
    )
    member.consumer_id = consumer_id
    member.save(update_fields=("consumer_id",))
    return consumer_id


def _register_again(
    group: ConsumerGroup, member: ConsumerGroupConsumer, applicant: _Applicant
) -> tuple[str, bool]:
    """Register an identity that is a member already: the same process again, or its
    successor.

    A successor inherits the queues under epoch + 1. Queues that were leaving go to their
    targets at once. Return the consumer id, and True if the group is due for a rebalance.
    Raises Gone(replaced).
    """
    if applicant.incarnation in member.replaced_incarnations:
        raise replaced_error()
    now = database_now()
    Heartbeat.objects.filter(pk=member.pk).update(last_seen=now)
    same_process = member.process.incarnation == applicant.incarnation
    if same_process and member.process.key_id == applicant.key_id:
        return member.consumer_id, False
    # Only address limits make the new address matter to the assignment.
    address_changed = bool(group.allow_addresses or group.deny_addresses)
    address_changed = address_changed and member.process.address != applicant.address
    if not same_process:
        replaced = [*member.replaced_incarnations, member.process.incarnation]
        member.replaced_incarnations = replaced[-MAX_REPLACED:]
    Consumer.objects.filter(pk=member.process_id).update(**applicant.process)
    # The report describes the former process.
    Heartbeat.objects.filter(pk=member.pk).update(report="", reported_at=None)
    member.generation = 0
    member.instance_id = applicant.instance_id
    member.save(update_fields=("replaced_incarnations", "generation", "instance_id"))
    # The former process is fenced by the higher epochs, so it need not release anything.
    owned_rows = QueueOffset.objects.filter(group=group, owner=member)
    handed_over = sum(
        rebalance.hand_over(row) for row in owned_rows if row.target_id != member.pk
    )
    QueueOffset.objects.filter(group=group, owner=member).update(epoch=F("epoch") + 1)
    if group.mode == GroupMode.SHARE:
        # Noted with its former consumer id, which the next statement replaces.
        ended_share_members.note_ended(group.pk, [member.consumer_id])
    consumer_id = _issue_consumer_id(group, member, applicant, now)
    if handed_over:
        rebalance.raise_generation(group.pk)
        record_change("group", group.pk)
    log.info("group %s: %s registered again", group.name, applicant.identity)
    return consumer_id, address_changed and _request_rebalance(
        group, f"{applicant.identity} came back at another address"
    )


@bulkhead.permit()
def leave(*, consumer: ConsumerId, actor: Actor) -> None:
    """End a membership and give its queues to other members at once.

    Does nothing if the membership has ended already.
    """
    if _remove_leaving_member(consumer=consumer, actor=actor):
        rebalance_now(consumer.group_id)


@transactional
def _remove_leaving_member(*, consumer: ConsumerId, actor: Actor) -> bool:
    """Remove a member that leaves. Return True if the group is due for a rebalance."""
    try:
        group = lock_group_by_id(consumer.group_id)
    except NotFound:
        return False
    access.require(actor, Right.CONSUME, group.name, what="group")
    member = group.members.filter(pk=consumer.member_id, consumer_id=consumer.text).first()
    if member is None:
        return False
    log.info("group %s: %s left", group.name, member.identity)
    return drop_members(group, {member.pk: database_now()}, f"{member.identity} left")


def drop_members(group: ConsumerGroup, members: Mapping[int, datetime], cause: str) -> bool:
    """Remove memberships and free their queues. The caller holds the group's lock.

    `members` maps member ids to the time when each was last heard. Return True if the
    group is due for a rebalance.
    """
    ids = sorted(members)
    Heartbeat.objects.filter(pk__in=ids).delete()
    for member, last_seen in sorted(members.items()):
        # The pause of a queue began when its owner was last heard, or earlier if the
        # queue was leaving already.
        QueueOffset.objects.filter(group=group, owner=member).update(
            owner=None,
            idle_since=Least(Coalesce("idle_since", Value(last_seen)), Value(last_seen)),
        )
    QueueOffset.objects.filter(group=group, target__in=ids).update(target=None)
    rows = ConsumerGroupConsumer.objects.filter(pk__in=ids)
    if group.mode == GroupMode.BROADCASTING:
        instance_members = rows.values_list("instance_id", "pk")
        broadcast_instances.record_last_seen(
            group=group,
            last_seen_by_name={name: members[member] for name, member in instance_members},
        )
    if group.mode == GroupMode.SHARE:
        ended_share_members.note_ended(
            group.pk, list(rows.values_list("consumer_id", flat=True))
        )
    processes = list(rows.values_list("process_id", flat=True))
    rows.delete()
    Consumer.objects.filter(pk__in=processes).delete()
    return _request_rebalance(group, cause)
