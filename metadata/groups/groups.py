"""Consumer groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    ConsumerGroupTopic,
    QueueOffset,
)
from metadata.monitoring.mail_domains import check_domains
from metadata.rules.membership.process_report import ProcessReport, unpack
from metadata.rules.settings import GROUP, LIMITS, GroupSettings, check_settings
from metadata.rules.topics.names import check_confirmed, check_name


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member: `heartbeat_age_ms` by the database's clock, `queues` = ids it owns now.

    `active`: it may own queues; otherwise the group's limits make it stand by.

    `consumer_id_prefix` has no signature: it names the consumer in logs but opens nothing.
    `process`: what
    its process said of itself `process_age_ms` ago; None where it says nothing.
    """

    name: str
    instance_id: str | None
    consumer_id_prefix: str
    address: str
    sdk: str
    generation: int
    joined_at_ms: int
    heartbeat_age_ms: int | None
    queues: tuple[int, ...]
    active: bool
    process: ProcessReport | None = None
    process_age_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupView(GroupSettings):
    """A group. `rebalancing`: a rebalance is due. `members` is empty in lists. `casual`:
    see the model.
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
    mode: str = "clustering",
    settings: Mapping[str, Any] | None = None,
    casual: bool = False,
) -> GroupView:
    """A new group. Needs `manage`, with owners all rights. Settings: rules.settings.GROUP.

    `casual`: see the model.

    Raises Invalid, Conflict(already_exists).
    """
    check_name("group", name)
    access.require(actor, "manage", name, what="group")
    if mode not in ConsumerGroup.Mode.values:
        raise Invalid.field(
            "mode", f"must be one of {', '.join(ConsumerGroup.Mode.values)}"
        )
    values = check_domains(check_settings(GROUP, settings or {}))
    check_fits(mode, values)
    if values.get("owners"):
        access.require_ownership(actor, name, what="group")
    given = {"mode": mode, "casual": casual, "created_at": database_now(), **values}
    row = rows.create(ConsumerGroup.objects.all(), "Group", name=name, **given)
    after = {"mode": mode, **values}
    audit.record(actor=actor, verb="create", kind="group", name=name, after=after)
    record_change("group", row.pk)
    return _view(row)


def check_fits(mode: str, values: Mapping[str, Any]) -> None:
    """Raise Invalid for a limit on who owns queues, where nobody owns any."""
    given = sorted(name for name in LIMITS if values.get(name))
    if mode == ConsumerGroup.Mode.SHARE and given:
        raise Invalid.field(
            given[0], "a share group has no owners of queues, so this is not for it"
        )


@transactional
def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> GroupView:
    """The group with some settings changed (rules.settings.GROUP). Needs `manage`, other
    owners all rights.

    Stopping or starting raises the generation, so that members hear of it at once; other
    limits on who may own queues share them anew. A shorter session timeout is refused while
    there are members: they would handle messages of queues that others own already. Raises
    Invalid, NotFound, Conflict(in_use).
    """
    access.require(actor, "manage", name, what="group")
    values = check_domains(check_settings(GROUP, settings))
    row = lock_group(name)
    check_fits(row.mode, values)
    before = rows.changed_values(row, values)
    if "owners" in before:
        access.require_ownership(actor, name, what="group")
    if (
        values.get("session_timeout_ms", row.session_timeout_ms) < row.session_timeout_ms
        and row.members.exists()
    ):
        raise Conflict(
            f"Members of group {name} use a session timeout of {row.session_timeout_ms} "
            "ms. Stop them before "
            "you lower it.",
            code=Code.IN_USE,
        )
    if before:
        row.casual = False
        rows.save_changes(
            row, before, values, actor=actor, kind="group", name=name, also=("casual",)
        )
        if "stopped" in before:
            row.generation = rebalance.raise_generation(row.pk)
        if LIMITS.keys() & before.keys():
            rebalance.request(
                row.pk, f"{', '.join(sorted(LIMITS.keys() & before.keys()))} changed"
            )
        record_change("group", row.pk)
    return _view(row)


@transactional
def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Delete a group and mark its subscriptions to be taken down; its name is free at once.
    Needs `manage`.

    Raises Invalid(not_confirmed), Conflict(in_use) while it has members.
    """
    access.require(actor, "manage", name, what="group")
    row = lock_group(name)
    check_confirmed(name, confirm)
    members = row.members.count()
    if members:
        raise Conflict(
            f"Group {name} has {members} members: stop them first.", code=Code.IN_USE
        )
    subscriptions = list(row.subscriptions.values_list("pk", flat=True))
    row.subscriptions.update(state=ConsumerGroupTopic.State.DELETING)
    row.name, row.deleted_at = f"{name}~{row.pk}", database_now()
    row.save(update_fields=("name", "deleted_at"))
    audit.record(
        actor=actor,
        verb="delete",
        kind="group",
        name=name,
        before={"id": row.pk},
        after={"name": row.name},
    )
    if subscriptions:
        record_change("subscription", *subscriptions)
    record_change("group", row.pk)


def deletion_times(names: Collection[str]) -> dict[str, int]:
    """Name → time in ms since 1970 at which the last group of that name was deleted, if
    none has it now.
    """
    with reachable():
        alive = set(
            ConsumerGroup.objects.filter(name__in=names).values_list("name", flat=True)
        )
        rows = ConsumerGroup.objects.filter(deleted_at__isnull=False)
        found: dict[str, int] = {}
        for name in sorted(set(names) - alive):
            times = rows.filter(name__startswith=f"{name}~").values_list(
                "deleted_at", flat=True
            )
            if last := max(filter(None, times), default=None):
                found[name] = ms(last)
    return found


def describe(*, name: str, actor: Actor) -> GroupView:
    """The group with subscriptions and members. Needs any right on it; raises
    NotFound(group_not_found).
    """
    access.require_any_right(actor, name)
    with reachable():
        return _view(find_group(name))


def page(*, actor: Actor, window: Window) -> Page[GroupView]:
    """Groups by name, those the actor has any right on; with subscriptions, without
    members.
    """
    found, following = paging.select_page(
        ConsumerGroup.objects.filter(deleted_at__isnull=True), window=window, actor=actor
    )
    with reachable():
        subscriptions = views_of([row.pk for row in found])
    return Page(
        tuple(_as_view(row, subscriptions.get(row.pk, ()), ()) for row in found), following
    )


def _view(row: ConsumerGroup) -> GroupView:
    return _as_view(row, views_of([row.pk]).get(row.pk, ()), _members(row))


def _members(group: ConsumerGroup) -> Iterable[MemberView]:
    members = ConsumerGroupConsumer.objects.filter(group=group).select_related(
        "process", "heartbeat"
    )
    rows = QueueOffset.objects.filter(group=group, owner__isnull=False)
    owned = grouped(rows.values_list("owner_id", "queue_id"))
    now = database_now()
    active = rebalance.active_members(group)
    if group.mode == ConsumerGroup.Mode.BROADCASTING:
        everything = [read.queue for read in broadcast_instances.read_queues([group.pk])]
        owned = dict.fromkeys(active, everything)
    for row in members.order_by("identity"):
        beat = getattr(row, "heartbeat", None)
        process = unpack(beat.report) if beat else None
        reported_at = beat.reported_at if beat else None
        yield MemberView(
            name=row.process.name,
            instance_id=row.instance_id or None,
            consumer_id_prefix=row.consumer_id.rpartition(".")[0],
            address=row.process.address,
            sdk=row.process.sdk,
            generation=row.generation,
            joined_at_ms=ms(row.joined_at),
            heartbeat_age_ms=age_ms(beat.last_seen, now) if beat else None,
            queues=tuple(sorted(owned.get(row.pk, ()))),
            active=row.pk in active,
            process=process,
            process_age_ms=age_ms(reported_at, now) if process and reported_at else None,
        )


def _as_view(
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
