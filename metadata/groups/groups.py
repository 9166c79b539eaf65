"""Consumer groups: create, update, delete and describe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from metadata.actors import Actor
from metadata.db import access, audit, paging, rows
from metadata.db.changes import record_change
from metadata.db.clock import age_ms, database_now, ms
from metadata.db.paging import Page, Window
from metadata.db.rows import find_group, lock_group
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Invalid
from metadata.grouping import grouped
from metadata.groups.subscription_rows import SubscriptionView, views_of
from metadata.membership import broadcast_instances, rebalance
from metadata.models import (
    ConsumerGroup,
    ConsumerGroupConsumer,
    QueueOffset,
)
from metadata.monitoring.mail_domains import check_domains
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import GroupMode, SubscriptionState
from metadata.rules.membership.process_report import ProcessStatus, unpack
from metadata.rules.rights import Right
from metadata.rules.settings import GROUP, LIMITS, GroupSettings, check_settings
from metadata.rules.topics.names import check_confirmed, check_name
from metadata.rules.wire import Number


class MemberView(Struct, frozen=True):
    """A member of a group."""

    name: str
    instance_id: str | None
    # Without the signature: it identifies the consumer in logs but grants nothing.
    consumer_id_prefix: Annotated[
        str,
        Meta(description="beginning of the consumer id, as in logs; not valid as an id"),
    ]
    address: str
    sdk: str
    generation: Annotated[Number, Meta(description="generation that it has applied")]
    joined_at_ms: Number
    heartbeat_age_ms: Number | None  # by the clock of the database
    queues: tuple[Number, ...]  # ids of the queues that it owns
    active: Annotated[
        bool, Meta(description="false: it stands by because of the group's limits")
    ]
    process: Annotated[
        ProcessStatus | None, Meta(description="null: its client reports nothing")
    ]
    process_age_ms: Annotated[Number | None, Meta(description="time since that report")]


@dataclass(frozen=True, kw_only=True)
class GroupView(GroupSettings):
    """A group. `rebalancing`: a rebalance is due. `casual`: see the model.

    `members` is empty in lists.
    """

    id: int
    name: str
    mode: str
    generation: int
    casual: bool
    rebalancing: bool
    created_at_ms: int
    subscriptions: tuple[SubscriptionView, ...]
    members: tuple[MemberView, ...]


@transactional
def create(
    *,
    name: str,
    actor: Actor,
    mode: str = GroupMode.CLUSTERING,
    settings: Mapping[str, Any] | None = None,
    casual: bool = False,
) -> GroupView:
    """Create a group. Needs `manage`; setting owners needs all rights.

    `settings`: metadata.rules.settings.GROUP. `casual`: see the model. Raises Invalid,
    Conflict(already_exists).
    """
    check_name("group", name)
    access.require(actor, Right.MANAGE, name, what="group")
    if mode not in list(GroupMode):
        raise Invalid.field("mode", f"must be one of {', '.join(GroupMode)}")
    values = check_domains(check_settings(GROUP, settings or {}))
    check_fits(mode, values)
    if values.get("owners"):
        access.require_ownership(actor, name, what="group")
    columns = {"mode": mode, "casual": casual, "created_at": database_now(), **values}
    row = rows.create(ConsumerGroup.objects.all(), "Group", name=name, **columns)
    after = {"mode": mode, **values}
    audit.record(actor=actor, verb=Verb.CREATE, kind="group", name=name, after=after)
    record_change("group", row.pk)
    return _describe_row(row)


def check_fits(mode: str, values: Mapping[str, Any]) -> None:
    """Raise Invalid if a share group gets limits on its members: it has no owners of
    queues.
    """
    limits = sorted(name for name in LIMITS if values.get(name))
    if mode == GroupMode.SHARE and limits:
        raise Invalid.field(
            limits[0], "a share group has no owners of queues, so this is not for it"
        )


@transactional
def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> GroupView:
    """Change settings of a group (metadata.rules.settings.GROUP). Needs `manage`; changing
    owners needs all rights.

    Pausing or resuming raises the generation, so that members learn of it at once.
    Changed limits on members cause a rebalance. Raises Invalid, NotFound, and
    Conflict(in_use) for a shorter session timeout while there are members.
    """
    access.require(actor, Right.MANAGE, name, what="group")
    values = check_domains(check_settings(GROUP, settings))
    group_row = lock_group(name)
    check_fits(group_row.mode, values)
    former = rows.changed_values(group_row, values)
    if "owners" in former:
        access.require_ownership(actor, name, what="group")
    if (
        values.get("session_timeout_ms", group_row.session_timeout_ms)
        < group_row.session_timeout_ms
        and group_row.members.exists()
    ):
        raise Conflict(
            f"Members of group {name} use a session timeout of {group_row.session_timeout_ms} "
            "ms. Stop them before "
            "you lower it.",
            code=Code.IN_USE,
        )
    if former:
        # A group that a user has configured is no casual group any more.
        group_row.casual = False
        rows.save_changes(
            group_row,
            former,
            values,
            actor=actor,
            kind="group",
            name=name,
            also=("casual",),
        )
        # Waiting pulls return when the generation rises, so a pause takes effect at once.
        if "stopped" in former:
            group_row.generation = rebalance.raise_generation(group_row.pk)
        if LIMITS.keys() & former.keys():
            rebalance.request(
                group_row.pk, f"{', '.join(sorted(LIMITS.keys() & former.keys()))} changed"
            )
        record_change("group", group_row.pk)
    return _describe_row(group_row)


@transactional
def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Delete a group. Its name is free at once; a sweep removes its subscriptions. Needs
    `manage`.

    Raises Invalid(not_confirmed), Conflict(in_use) while it has members.
    """
    access.require(actor, Right.MANAGE, name, what="group")
    group_row = lock_group(name)
    check_confirmed(name, confirm)
    # Under the lock of the group, so that no member joins after the check.
    members = group_row.members.count()
    if members:
        raise Conflict(
            f"Group {name} has {members} members: stop them first.", code=Code.IN_USE
        )
    subscriptions = list(group_row.subscriptions.values_list("pk", flat=True))
    group_row.subscriptions.update(state=SubscriptionState.DELETING)
    # The row stays until its subscriptions are removed; the new name makes the old name
    # free.
    group_row.name, group_row.deleted_at = f"{name}~{group_row.pk}", database_now()
    group_row.save(update_fields=("name", "deleted_at"))
    audit.record(
        actor=actor,
        verb=Verb.DELETE,
        kind="group",
        name=name,
        before={"id": group_row.pk},
        after={"name": group_row.name},
    )
    if subscriptions:
        record_change("subscription", *subscriptions)
    record_change("group", group_row.pk)


def deletion_times(names: Collection[str]) -> dict[str, int]:
    """Return when the last group of each name was deleted, in ms since 1970, by name.

    Names of existing groups are left out.
    """
    with reachable():
        existing = set(
            ConsumerGroup.objects.filter(name__in=names).values_list("name", flat=True)
        )
        rows = ConsumerGroup.objects.filter(deleted_at__isnull=False)
        times_of: dict[str, int] = {}
        for name in sorted(set(names) - existing):
            # A deleted group has the name that `delete` gave it.
            times = rows.filter(name__startswith=f"{name}~").values_list(
                "deleted_at", flat=True
            )
            if deleted_at := max(filter(None, times), default=None):
                times_of[name] = ms(deleted_at)
    return times_of


def describe(*, name: str, actor: Actor) -> GroupView:
    """Return a group with subscriptions and members. Needs any right on it. Raises
    NotFound(group_not_found).
    """
    access.require_any_right(actor, name)
    with reachable():
        return _describe_row(find_group(name))


def page(*, actor: Actor, window: Window) -> Page[GroupView]:
    """Return groups by name that the actor has any right on, with subscriptions but
    without members.
    """
    group_rows, next_cursor = paging.select_page(
        ConsumerGroup.objects.filter(deleted_at__isnull=True), window=window, actor=actor
    )
    # Read together, so that a page costs the same number of queries whatever its size.
    with reachable():
        subscriptions = views_of([row.pk for row in group_rows])
    return Page(
        tuple(_to_view(row, subscriptions.get(row.pk, ()), ()) for row in group_rows),
        next_cursor,
    )


def _describe_row(row: ConsumerGroup) -> GroupView:
    return _to_view(row, views_of([row.pk]).get(row.pk, ()), _read_members(row))


def _read_members(group: ConsumerGroup) -> Iterable[MemberView]:
    members = ConsumerGroupConsumer.objects.filter(group=group).select_related(
        "process", "heartbeat"
    )
    rows = QueueOffset.objects.filter(group=group, owner__isnull=False)
    owned = grouped(rows.values_list("owner_id", "queue_id"))
    now = database_now()
    active = rebalance.active_members(group)
    # In a broadcasting group every active member owns every queue.
    if group.mode == GroupMode.BROADCASTING:
        all_queues = [queue.queue for queue in broadcast_instances.read_queues([group.pk])]
        owned = dict.fromkeys(active, all_queues)
    for row in members.order_by("identity"):
        # A member that is expiring at this moment has lost its heartbeat row.
        heartbeat = getattr(row, "heartbeat", None)
        process = unpack(heartbeat.report) if heartbeat else None
        reported_at = heartbeat.reported_at if heartbeat else None
        yield MemberView(
            name=row.process.name,
            instance_id=row.instance_id or None,
            consumer_id_prefix=row.consumer_id.rpartition(".")[0],
            address=row.process.address,
            sdk=row.process.sdk,
            generation=row.generation,
            joined_at_ms=ms(row.joined_at),
            heartbeat_age_ms=age_ms(heartbeat.last_seen, now) if heartbeat else None,
            queues=tuple(sorted(owned.get(row.pk, ()))),
            active=row.pk in active,
            process=process,
            process_age_ms=age_ms(reported_at, now) if process and reported_at else None,
        )


def _to_view(
    row: ConsumerGroup,
    subscriptions: Iterable[SubscriptionView],
    members: Iterable[MemberView],
) -> GroupView:
    return rows.make_view(
        GroupView,
        row,
        rebalancing=row.rebalance_wanted > row.rebalance_done,
        subscriptions=tuple(subscriptions),
        members=tuple(members),
    )
