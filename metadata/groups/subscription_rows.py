"""Subscriptions: which group reads which topic. `messagestore.topology` adds the nodes'
reader rows.

plan (rows, creating) → reader rows are made → make_ready; mark_deleting or give_up → reader
rows go → remove.

Epochs of a subscription begin above those of every earlier one (`base_epoch`), so a member
that stays while its group unsubscribes and subscribes again never gets the same (queue,
epoch) twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from metadata.actors import Actor, job
from metadata.db import access, audit
from metadata.db.changes import record_change
from metadata.db.clock import before, database_now, ms
from metadata.db.rows import changed_values, lock_group, lock_topic, make_view, save_changes
from metadata.db.transactions import reachable, read_in_pages, transactional
from metadata.errors import Code, Conflict, Invalid, NotFound, Unavailable
from metadata.grouping import grouped
from metadata.membership import rebalance
from metadata.models import ConsumerGroup, ConsumerGroupTopic, Queue, QueueOffset, Topic
from metadata.rules.definitions import START_TIME
from metadata.rules.groups.delivery import Delivery
from metadata.rules.settings import DELIVERY, SUBSCRIPTION, check_settings
from metadata.rules.topics.names import failure_name
from metadata.topics import topic_rows

# of one subscription; in the seventh, the third owner has epoch 7000000003
EPOCHS_EACH = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """A subscription: names and ids. `queues` are the topic's queue ids."""

    id: int
    group: str
    group_id: int
    topic: str
    topic_id: int
    state: str
    start: str
    stopped: bool
    stopped_queues: tuple[int, ...]
    created_at_ms: int
    queues: tuple[int, ...]
    delivery: Delivery
    # it reads what was stored then or later; None: `start` says it
    start_at_ms: int | None = None
    to_failures: bool = False  # its topic is the group's failure topic

    @property
    def base_epoch(self) -> int:
        """The epoch of a queue that nobody has owned yet in this subscription."""
        return self.id * EPOCHS_EACH


@transactional
def plan(
    *,
    group: str,
    topic: str,
    actor: Actor,
    start: str,
    start_at_ms: int | None = None,
    start_ago_ms: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SubscriptionView:
    """The rows of a new subscription, in state creating, with a position per queue at its
    base epoch.

    Settings: rules.settings.DELIVERY. Needs `manage` on the group and `consume` on the
    topic. Raises NotFound, Invalid, Conflict(already_exists), Unavailable(busy) while an
    earlier one is still being made or taken down.
    """
    require_may_subscribe(actor, group=group, topic=topic)
    check_start(start=start, at_ms=start_at_ms, ago_ms=start_ago_ms)
    now = database_now()
    at_ms = start_at_ms if start_ago_ms is None else max(0, ms(now) - start_ago_ms)
    values = check_settings(DELIVERY, settings or {})
    group_row = lock_group(group)
    topic_row = lock_topic(topic)
    _check_readable(group_row, topic_row)
    check_fits(group, group_row.mode, values)
    existing = ConsumerGroupTopic.objects.filter(group=group_row, topic=topic_row).first()
    if existing is not None and existing.state == ConsumerGroupTopic.State.READY:
        raise Conflict(
            f"Group {group} subscribes to {topic} already.", code=Code.ALREADY_EXISTS
        )
    if existing is not None:
        what = (
            f"The subscription of group {group} to {topic} is {existing.state}: try "
            "again in a moment."
        )
        raise Unavailable(what, retry_after_ms=500)
    row = ConsumerGroupTopic.objects.create(
        group=group_row,
        topic=topic_row,
        start=start,
        start_at_ms=at_ms,
        created_at=now,
        **values,
    )
    # layout.make_ready gives positions in the former
    unread = (Queue.State.CREATING, Queue.State.RETIRED)
    queues = (
        topic_row.queues.exclude(state__in=unread)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    QueueOffset.objects.bulk_create(
        [
            QueueOffset(group=group_row, queue_id=queue, epoch=row.pk * EPOCHS_EACH)
            for queue in queues
        ]
    )
    after = {"start": start, **({} if at_ms is None else {"start_at_ms": at_ms}), **values}
    audit.record(
        actor=actor,
        verb="create",
        kind="subscription",
        name=f"{group}/{topic}",
        after=after,
    )
    record_change("subscription", row.pk)
    return view_of(row)


def started_after(*, group_id: int, topic_id: int, at: datetime) -> bool:
    """Return True if a subscription began behind messages that were stored at a time."""
    with reachable():
        rows = ConsumerGroupTopic.objects.filter(group=group_id, topic=topic_id)
        start = rows.values_list("start", "start_at_ms", "created_at").first()
    if start is None or start[0] == "earliest":
        return False
    _word, at_ms, created_at = start
    return bool(ms(at) < at_ms) if at_ms is not None else bool(at < created_at)


def check_start(*, start: str, at_ms: int | None, ago_ms: int | None = None) -> None:
    """Raise Invalid unless a subscription can start there: at a word, or at a time."""
    if start not in ConsumerGroupTopic.Start.values:
        raise Invalid.field(
            "start", f"must be one of {', '.join(ConsumerGroupTopic.Start.values)}"
        )
    given = {"start_at_ms": at_ms, "start_ago_ms": ago_ms}
    for name, value in given.items():
        if value is not None and (problem := START_TIME.problem(value)) is not None:
            raise Invalid.field(name, problem)
    if at_ms is not None and ago_ms is not None:
        raise Invalid.field(
            "start_ago_ms", "give start_at_ms or start_ago_ms, and not both"
        )
    if start == ConsumerGroupTopic.Start.LATEST and (
        at_ms is not None or ago_ms is not None
    ):
        raise Invalid.field("start", "is latest, which has no time: leave it out")


def require_may_subscribe(actor: Actor, *, group: str, topic: str) -> None:
    """Raise Forbidden unless the actor may have a group read a topic, be they there or not.

    `manage` on the topic is not enough: who may change a topic may not read its messages
    for that.
    """
    access.require(actor, "manage", group, what="group")
    access.require(actor, "consume", topic, what="topic")


def _check_readable(group: ConsumerGroup, topic: Topic) -> None:
    if topic.kind == Topic.Kind.FAILURE:
        what = f"{topic.name} is a retry topic: only its own group reads it"
        raise Invalid.field("topic", what)
    check_failure_name(group, topic)


def check_fits(group: str, mode: str, values: Mapping[str, Any]) -> None:
    """Raise Invalid for a setting that a subscription of a group of that mode cannot have."""
    if values.get("ordered") and mode == ConsumerGroup.Mode.SHARE:
        raise Invalid.field(
            "ordered", f"{group} is a share group: its members get messages in any order"
        )


def explain_taken_retry_name(*, group: str, topic: str) -> str:
    """Return why a pair that does not exist yet can have no retry topic; '' if it can."""
    name = failure_name(group, topic)
    with reachable():
        taken = Topic.objects.filter(name=name).exists()
    return (
        f"would have the retry topic {name}, which there is: give the group another name"
        if taken
        else ""
    )


def check_failure_name(group: ConsumerGroup, topic: Topic) -> None:
    """Raise Conflict(already_exists) if the pair's failure topic would be called like
    another pair's.
    """
    name = failure_name(group.name, topic.name)
    other = (
        Topic.objects.filter(name=name)
        .exclude(failure_group=group, failure_of=topic)
        .first()
    )
    if other is None:
        return
    whose = "there is a topic of that name"
    if other.failure_group is not None and other.failure_of is not None:
        whose = (
            f"that of group {other.failure_group.name} and topic {other.failure_of.name} is"
        )
    raise Conflict(
        f"The retry topic of group {group.name} and topic {topic.name} would be called {name}, "
        f"but {whose}: give the group another name.",
        code=Code.ALREADY_EXISTS,
    )


@transactional
def make_ready(subscription_id: int) -> SubscriptionView:
    """The subscription, ready once its reader rows exist; marks the group for a rebalance.

    Raises NotFound(subscription_not_found) if it was taken back meanwhile.
    """
    row = _locked(subscription_id)
    if row.state == ConsumerGroupTopic.State.DELETING:
        raise _gone(row.group.name, row.topic.name)
    if row.state == ConsumerGroupTopic.State.CREATING:
        row.state = ConsumerGroupTopic.State.READY
        row.save(update_fields=("state",))
        rebalance.request(row.group_id, f"subscribed to {row.topic.name}")
        record_change("subscription", row.pk)
    return view_of(row)


@transactional
def update(
    *, group: str, topic: str, settings: Mapping[str, Any], actor: Actor
) -> SubscriptionView:
    """The subscription, or some of its queues, stopped or started; members hear of it at
    once.

    `stopped_queues` replaces the list of queues that are not read for now. Needs `manage`
    on the group. Raises Invalid, NotFound.
    """
    access.require(actor, "manage", group, what="group")
    values = check_settings(SUBSCRIPTION, settings)
    group_row = lock_group(group)
    row = _of(group_row, topic)
    if "stopped_queues" in values:
        values["stopped_queues"] = _own_queues(row, values["stopped_queues"])
    check_fits(group, group_row.mode, values)
    before = changed_values(row, values)
    if before:
        save_changes(
            row, before, values, actor=actor, kind="subscription", name=f"{group}/{topic}"
        )
        rebalance.raise_generation(group_row.pk)
        record_change("subscription", row.pk)
        record_change("group", group_row.pk)
    return view_of(row)


def _own_queues(row: ConsumerGroupTopic, queues: Sequence[int]) -> list[int]:
    """The queues, rising, if all of them are the topic's."""
    own = set(Queue.objects.filter(topic_id=row.topic_id).values_list("pk", flat=True))
    foreign = sorted(set(queues) - own)
    if foreign:
        named = ", ".join(map(str, foreign))
        raise Invalid.field(
            "stopped_queues", f"topic {row.topic.name} has no queue {named}"
        )
    return sorted(queues)


@transactional
def mark_deleting(*, group: str, topic: str, actor: Actor) -> SubscriptionView:
    """The subscription, on its way out: members give its queues up. Needs `manage`."""
    access.require(actor, "manage", group, what="group")
    group_row = lock_group(group)
    row = _of(group_row, topic)
    before_state, row.state = row.state, ConsumerGroupTopic.State.DELETING
    row.save(update_fields=("state",))
    _end_failures(row)
    rebalance.request(group_row.pk, f"unsubscribed from {topic}")
    name = f"{group}/{topic}"
    audit.record(
        actor=actor,
        verb="delete",
        kind="subscription",
        name=name,
        before={"state": before_state},
    )
    record_change("subscription", row.pk)
    return view_of(row)


def _end_failures(row: ConsumerGroupTopic) -> None:
    """The subscription to the failure topic goes along, and with it the topic."""
    for one in _to_failures(row.group_id, row.topic_id).exclude(
        state=ConsumerGroupTopic.State.DELETING
    ):
        one.state = ConsumerGroupTopic.State.DELETING
        one.save(update_fields=("state",))
        record_change("subscription", one.pk)


def _to_failures(group_id: int, topic_id: int) -> QuerySet[ConsumerGroupTopic]:
    return ConsumerGroupTopic.objects.filter(
        group=group_id, topic__failure_group=group_id, topic__failure_of=topic_id
    )


def retry_subscription(view: SubscriptionView) -> SubscriptionView | None:
    """The group's subscription to the failure topic of a subscription, None if there is
    none.
    """
    with reachable():
        row = (
            _to_failures(view.group_id, view.topic_id)
            .select_related("group", "topic")
            .first()
        )
        return None if row is None else view_of(row)


@transactional
def abandon(subscription_id: int) -> bool:
    """Claim a subscription that is not ready, so that its reader rows may go; False if it
    is ready.
    """
    try:
        row = _locked(subscription_id)
    except NotFound:
        return True
    if row.state == ConsumerGroupTopic.State.CREATING:
        row.state = ConsumerGroupTopic.State.DELETING
        row.save(update_fields=("state",))
        _end_failures(row)
        record_change("subscription", row.pk)
    return row.state == ConsumerGroupTopic.State.DELETING


@transactional
def remove(subscription_id: int, actor: Actor | None = None) -> None:
    """Remove a creating or deleting subscription and its positions, once its reader rows
    are gone.
    """
    try:
        row = _locked(subscription_id)
    except NotFound:
        return
    if row.state == ConsumerGroupTopic.State.READY:
        raise Conflict(f"Group {row.group.name} reads {row.topic.name}.", code=Code.IN_USE)
    by = actor or job("subscriptions")
    name, group_id = f"{row.group.name}/{row.topic.name}", row.group_id
    QueueOffset.objects.filter(group_id=group_id, queue__topic_id=row.topic_id).delete()
    row.delete()
    topic_rows.end_failure_topic(row.topic, by)
    rebalance.raise_generation(group_id)
    audit.record(
        actor=by, verb="remove", kind="subscription", name=name, before={"state": row.state}
    )
    record_change("subscription", subscription_id)
    record_change("group", group_id)


def find_subscription(*, group: str, topic: str, actor: Actor) -> SubscriptionView:
    """The subscription, also while creating or deleting. Needs any right on the group."""
    access.require_any_right(actor, group)
    with reachable():
        rows = ConsumerGroupTopic.objects.filter(
            group__name=group, group__deleted_at__isnull=True
        )
        row = rows.filter(topic__name=topic).select_related("group", "topic").first()
        if row is None or (row.group.name, row.topic.name) != (group, topic):
            raise _gone(group, topic)
        return view_of(row)


def unfinished(older_than_s: float) -> Iterator[SubscriptionView]:
    """Subscriptions that a crash left creating for longer than that, and all that are to be
    taken down.
    """
    with reachable():
        limit = before(database_now(), seconds=older_than_s)
        creating = ConsumerGroupTopic.objects.filter(state="creating", created_at__lt=limit)
        deleting = ConsumerGroupTopic.objects.filter(state="deleting")
    for page in read_in_pages((creating | deleting).select_related("group", "topic")):
        with reachable():
            views = [view_of(row) for row in page]
        yield from views


def views_of(group_ids: Sequence[int]) -> dict[int, tuple[SubscriptionView, ...]]:
    """The subscriptions of several groups, by group id, without those to failure topics."""
    rows = ConsumerGroupTopic.objects.filter(
        group_id__in=list(group_ids), topic__kind=Topic.Kind.NORMAL
    )
    ordered = list(rows.select_related("group", "topic").order_by("topic__name"))
    queues = _queues_of({row.topic_id for row in ordered})
    found = grouped(
        (row.group_id, _as_view(row, queues.get(row.topic_id, ()))) for row in ordered
    )
    return {group: tuple(views) for group, views in found.items()}


def _locked(subscription_id: int) -> ConsumerGroupTopic:
    seen = ConsumerGroupTopic.objects.filter(pk=subscription_id).first()
    if seen is not None:
        ConsumerGroup.objects.select_for_update().filter(pk=seen.group_id).first()
    row = (
        ConsumerGroupTopic.objects.select_related("group", "topic")
        .filter(pk=subscription_id)
        .first()
    )
    if row is None:
        raise NotFound("The subscription was removed.", code=Code.SUBSCRIPTION_NOT_FOUND)
    return row


def _of(group: ConsumerGroup, topic: str) -> ConsumerGroupTopic:
    """The subscription of a locked group to the topic called so, unless it is being taken
    down.
    """
    rows = group.subscriptions.filter(topic__name=topic).exclude(
        state=ConsumerGroupTopic.State.DELETING
    )
    row = rows.select_related("group", "topic").first()
    if row is None or row.topic.name != topic:
        raise _gone(group.name, topic)
    return row


def _gone(group: str, topic: str) -> NotFound:
    return NotFound(
        f"Group {group} does not subscribe to {topic}. Subscribe: catmq subscribe {group} {topic}",
        code=Code.SUBSCRIPTION_NOT_FOUND,
    )


def _queues_of(topic_ids: set[int]) -> dict[int, list[int]]:
    rows = Queue.objects.filter(topic_id__in=topic_ids).exclude(state=Queue.State.RETIRED)
    return grouped(rows.order_by("number").values_list("topic_id", "pk"))


def view_of(row: ConsumerGroupTopic) -> SubscriptionView:
    return _as_view(row, _queues_of({row.topic_id}).get(row.topic_id, ()))


def _as_view(row: ConsumerGroupTopic, queues: Sequence[int]) -> SubscriptionView:
    return make_view(
        SubscriptionView,
        row,
        stopped_queues=tuple(row.stopped_queues),
        queues=tuple(queues),
        to_failures=row.topic.kind == Topic.Kind.FAILURE,
    )
