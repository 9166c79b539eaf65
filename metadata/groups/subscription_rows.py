"""Subscriptions: which group reads which topic. `messagestore.topology` adds the reader rows.

    plan (rows, creating) → reader rows are inserted → make_ready
    mark_deleting or abandon → reader rows are deleted → remove

The epochs of a subscription begin above those of every former subscription (`base_epoch`).
So a member that stays while its group unsubscribes and subscribes again never gets the same
(queue, epoch) twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from msgspec import Struct

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
from metadata.rules.audit_verbs import Verb
from metadata.rules.definitions import START_TIME
from metadata.rules.groups.delivery import Delivery
from metadata.rules.groups.states import GroupMode, Start, SubscriptionState
from metadata.rules.rights import Right
from metadata.rules.settings import DELIVERY, SUBSCRIPTION, check_settings
from metadata.rules.topics.names import failure_name
from metadata.rules.topics.states import QueueState, TopicKind
from metadata.topics import topic_rows

# Epochs per subscription: the third owner of a queue in subscription 7 has epoch
# 7000000003.
EPOCHS_EACH = 1_000_000_000


class SubscriptionView(Struct, frozen=True):
    """A subscription with names and ids; `queues` are the queue ids of the topic.

    `start_at_ms`: messages stored since then are read; None if `start` decides.
    `to_failures`: the topic is the retry topic of the group.
    """

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
    start_at_ms: int | None = None
    to_failures: bool = False

    @property
    def base_epoch(self) -> int:
        """The epoch of a queue that had no owner yet in this subscription."""
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
    """Insert a new subscription in state creating, with a position per queue at its base
    epoch.

    Settings: metadata.rules.settings.DELIVERY. Needs `manage` on the group and
    `consume` on the topic. Raises NotFound, Invalid, Conflict(already_exists), and
    Unavailable(busy) while a former subscription is being created or deleted.
    """
    require_may_subscribe(actor, group=group, topic=topic)
    check_start(start=start, at_ms=start_at_ms, ago_ms=start_ago_ms)
    now = database_now()
    at_ms = start_at_ms if start_ago_ms is None else max(0, ms(now) - start_ago_ms)
    values = check_settings(DELIVERY, settings or {})
    # The group is locked before the topic, as in all transactions.
    group_row = lock_group(group)
    topic_row = lock_topic(topic)
    if topic_row.kind == TopicKind.FAILURE:
        why = f"{topic_row.name} is a retry topic: only its own group reads it"
        raise Invalid.field("topic", why)
    check_failure_name(group_row, topic_row)
    check_fits(group, group_row.mode, values)
    existing = ConsumerGroupTopic.objects.filter(group=group_row, topic=topic_row).first()
    if existing is not None and existing.state == SubscriptionState.READY:
        raise Conflict(
            f"Group {group} subscribes to {topic} already.", code=Code.ALREADY_EXISTS
        )
    if existing is not None:
        reason = (
            f"The subscription of group {group} to {topic} is {existing.state}: try "
            "again in a moment."
        )
        raise Unavailable(reason, retry_after_ms=500)
    subscription_row = ConsumerGroupTopic.objects.create(
        group=group_row,
        topic=topic_row,
        start=start,
        start_at_ms=at_ms,
        created_at=now,
        **values,
    )
    # layout.make_ready inserts the positions of queues that are being created.
    without_position = (QueueState.CREATING, QueueState.RETIRED)
    queues = (
        topic_row.queues.exclude(state__in=without_position)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    QueueOffset.objects.bulk_create(
        [
            QueueOffset(
                group=group_row, queue_id=queue, epoch=subscription_row.pk * EPOCHS_EACH
            )
            for queue in queues
        ]
    )
    after = {"start": start, **({} if at_ms is None else {"start_at_ms": at_ms}), **values}
    audit.record(
        actor=actor,
        verb=Verb.CREATE,
        kind="subscription",
        name=f"{group}/{topic}",
        after=after,
    )
    record_change("subscription", subscription_row.pk)
    return view_of(subscription_row)


def started_after(*, group_id: int, topic_id: int, at: datetime) -> bool:
    """Return True if a subscription began after messages that were stored at a time."""
    with reachable():
        rows = ConsumerGroupTopic.objects.filter(group=group_id, topic=topic_id)
        start = rows.values_list("start", "start_at_ms", "created_at").first()
    if start is None or start[0] == Start.EARLIEST:
        return False
    _start, at_ms, created_at = start
    return bool(ms(at) < at_ms) if at_ms is not None else bool(at < created_at)


def check_start(*, start: str, at_ms: int | None, ago_ms: int | None = None) -> None:
    """Raise Invalid unless `start`, with an optional time, is a valid start of a
    subscription.
    """
    if start not in list(Start):
        raise Invalid.field("start", f"must be one of {', '.join(Start)}")
    for name, value in {"start_at_ms": at_ms, "start_ago_ms": ago_ms}.items():
        if value is not None and (problem := START_TIME.problem(value)) is not None:
            raise Invalid.field(name, problem)
    if at_ms is not None and ago_ms is not None:
        raise Invalid.field(
            "start_ago_ms", "give start_at_ms or start_ago_ms, and not both"
        )
    if start == Start.LATEST and (at_ms is not None or ago_ms is not None):
        raise Invalid.field("start", "is latest, which has no time: leave it out")


def require_may_subscribe(actor: Actor, *, group: str, topic: str) -> None:
    """Raise Forbidden unless the actor may subscribe a group to a topic, whether they
    exist or not.

    `manage` on the topic is not enough: it does not include reading messages.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    access.require(actor, Right.CONSUME, topic, what="topic")


def check_fits(group: str, mode: str, values: Mapping[str, Any]) -> None:
    """Raise Invalid for a setting that a subscription of a group of that mode cannot have."""
    if values.get("ordered") and mode == GroupMode.SHARE:
        raise Invalid.field(
            "ordered", f"{group} is a share group: its members get messages in any order"
        )


def explain_taken_retry_name(*, group: str, topic: str) -> str:
    """Return why a group and topic can have no retry topic, because its name is in use; ''
    if they can.
    """
    name = failure_name(group, topic)
    with reachable():
        exists = Topic.objects.filter(name=name).exists()
    return (
        f"would have the retry topic {name}, which there is: give the group another name"
        if exists
        else ""
    )


def check_failure_name(group: ConsumerGroup, topic: Topic) -> None:
    """Raise Conflict(already_exists) if the name of the retry topic is in use by another
    topic.
    """
    name = failure_name(group.name, topic.name)
    existing = (
        Topic.objects.filter(name=name)
        .exclude(failure_group=group, failure_of=topic)
        .first()
    )
    if existing is None:
        return
    owner = "there is a topic of that name"
    if existing.failure_group is not None and existing.failure_of is not None:
        owner = (
            f"that of group {existing.failure_group.name} and topic "
            f"{existing.failure_of.name} is"
        )
    raise Conflict(
        f"The retry topic of group {group.name} and topic {topic.name} would be called {name}, "
        f"but {owner}: give the group another name.",
        code=Code.ALREADY_EXISTS,
    )


@transactional
def make_ready(subscription_id: int) -> SubscriptionView:
    """Make a subscription ready, after its reader rows were inserted, and request a
    rebalance.

    Raises NotFound(subscription_not_found) if it was deleted meanwhile.
    """
    row = _lock_subscription(subscription_id)
    if row.state == SubscriptionState.DELETING:
        raise _subscription_not_found(row.group.name, row.topic.name)
    if row.state == SubscriptionState.CREATING:
        row.state = SubscriptionState.READY
        row.save(update_fields=("state",))
        rebalance.request(row.group_id, f"subscribed to {row.topic.name}")
        record_change("subscription", row.pk)
    return view_of(row)


@transactional
def update(
    *, group: str, topic: str, settings: Mapping[str, Any], actor: Actor
) -> SubscriptionView:
    """Change settings of a subscription, pause it, or pause some of its queues.

    Members learn of it at once. `stopped_queues` replaces the list of paused queues.
    Needs `manage` on the group. Raises Invalid, NotFound.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    values = check_settings(SUBSCRIPTION, settings)
    group_row = lock_group(group)
    subscription_row = _find_subscription_of(group_row, topic)
    if "stopped_queues" in values:
        topic_queues = Queue.objects.filter(topic_id=subscription_row.topic_id)
        unknown = set(values["stopped_queues"]) - set(
            topic_queues.values_list("pk", flat=True)
        )
        if unknown:
            listed = ", ".join(map(str, sorted(unknown)))
            raise Invalid.field("stopped_queues", f"topic {topic} has no queue {listed}")
        # In order, so that the same queues are no change.
        values["stopped_queues"] = sorted(values["stopped_queues"])
    check_fits(group, group_row.mode, values)
    former = changed_values(subscription_row, values)
    if former:
        save_changes(
            subscription_row,
            former,
            values,
            actor=actor,
            kind="subscription",
            name=f"{group}/{topic}",
        )
        # Waiting pulls return when the generation rises, so a pause takes effect at once.
        rebalance.raise_generation(group_row.pk)
        record_change("subscription", subscription_row.pk)
        record_change("group", group_row.pk)
    return view_of(subscription_row)


@transactional
def mark_deleting(*, group: str, topic: str, actor: Actor) -> SubscriptionView:
    """Mark a subscription for deletion, so that members give its queues up. Needs
    `manage`.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    group_row = lock_group(group)
    subscription_row = _find_subscription_of(group_row, topic)
    before_state, subscription_row.state = (
        subscription_row.state,
        SubscriptionState.DELETING,
    )
    subscription_row.save(update_fields=("state",))
    # Retries of a subscription make no sense without it.
    _delete_retry_subscription(subscription_row)
    rebalance.request(group_row.pk, f"unsubscribed from {topic}")
    audit.record(
        actor=actor,
        verb=Verb.DELETE,
        kind="subscription",
        name=f"{group}/{topic}",
        before={"state": before_state},
    )
    record_change("subscription", subscription_row.pk)
    return view_of(subscription_row)


def _delete_retry_subscription(subscription: ConsumerGroupTopic) -> None:
    """Mark the subscription to the retry topic for deletion, too. The topic is deleted
    with it.
    """
    for retry_row in _retry_subscriptions(
        subscription.group_id, subscription.topic_id
    ).exclude(state=SubscriptionState.DELETING):
        retry_row.state = SubscriptionState.DELETING
        retry_row.save(update_fields=("state",))
        record_change("subscription", retry_row.pk)


def _retry_subscriptions(group_id: int, topic_id: int) -> QuerySet[ConsumerGroupTopic]:
    return ConsumerGroupTopic.objects.filter(
        group=group_id, topic__failure_group=group_id, topic__failure_of=topic_id
    )


def retry_subscription(view: SubscriptionView) -> SubscriptionView | None:
    with reachable():
        row = (
            _retry_subscriptions(view.group_id, view.topic_id)
            .select_related("group", "topic")
            .first()
        )
        return None if row is None else view_of(row)


@transactional
def abandon(subscription_id: int) -> bool:
    """Mark a subscription in state creating for deletion, so that its reader rows may be
    deleted.

    Return False if it is ready.
    """
    try:
        row = _lock_subscription(subscription_id)
    except NotFound:
        return True
    if row.state == SubscriptionState.CREATING:
        row.state = SubscriptionState.DELETING
        row.save(update_fields=("state",))
        _delete_retry_subscription(row)
        record_change("subscription", row.pk)
    return row.state == SubscriptionState.DELETING


@transactional
def remove(subscription_id: int, actor: Actor | None = None) -> None:
    """Delete a subscription that is not ready, with its positions, after its reader rows
    were deleted.
    """
    try:
        row = _lock_subscription(subscription_id)
    except NotFound:
        return
    if row.state == SubscriptionState.READY:
        raise Conflict(f"Group {row.group.name} reads {row.topic.name}.", code=Code.IN_USE)
    by = actor or job("subscriptions")
    name, group_id = f"{row.group.name}/{row.topic.name}", row.group_id
    QueueOffset.objects.filter(group_id=group_id, queue__topic_id=row.topic_id).delete()
    row.delete()
    topic_rows.end_failure_topic(row.topic, by)
    # Heartbeats must not return the queues of the former subscription any more.
    rebalance.raise_generation(group_id)
    audit.record(
        actor=by,
        verb=Verb.REMOVE,
        kind="subscription",
        name=name,
        before={"state": row.state},
    )
    record_change("subscription", subscription_id)
    record_change("group", group_id)


def find_subscription(*, group: str, topic: str, actor: Actor) -> SubscriptionView:
    """Return a subscription in any state. Needs any right on the group. Raises NotFound."""
    access.require_any_right(actor, group)
    with reachable():
        rows = ConsumerGroupTopic.objects.filter(
            group__name=group, group__deleted_at__isnull=True
        )
        row = rows.filter(topic__name=topic).select_related("group", "topic").first()
        if row is None or (row.group.name, row.topic.name) != (group, topic):
            raise _subscription_not_found(group, topic)
        return view_of(row)


def unfinished(older_than_s: float) -> Iterator[SubscriptionView]:
    """Yield subscriptions that a crash left in state creating for that time, and all in
    state deleting.
    """
    with reachable():
        created_before = before(database_now(), seconds=older_than_s)
        creating = ConsumerGroupTopic.objects.filter(
            state=SubscriptionState.CREATING, created_at__lt=created_before
        )
        deleting = ConsumerGroupTopic.objects.filter(state=SubscriptionState.DELETING)
    for page in read_in_pages((creating | deleting).select_related("group", "topic")):
        with reachable():
            views = [view_of(row) for row in page]
        yield from views


def views_of(group_ids: Sequence[int]) -> dict[int, tuple[SubscriptionView, ...]]:
    """Return the subscriptions of groups by group id, without those to retry topics."""
    rows = ConsumerGroupTopic.objects.filter(
        group_id__in=list(group_ids), topic__kind=TopicKind.NORMAL
    )
    ordered = list(rows.select_related("group", "topic").order_by("topic__name"))
    # The queues of all topics with one query.
    queues = _read_queue_ids({row.topic_id for row in ordered})
    views_by_group = grouped(
        (row.group_id, _to_view(row, queues.get(row.topic_id, ()))) for row in ordered
    )
    return {group: tuple(views) for group, views in views_by_group.items()}


def _lock_subscription(subscription_id: int) -> ConsumerGroupTopic:
    """Lock the group of a subscription and return the subscription. Raises NotFound."""
    unlocked_row = ConsumerGroupTopic.objects.filter(pk=subscription_id).first()
    if unlocked_row is not None:
        # The group is locked before its subscription, as in all transactions.
        ConsumerGroup.objects.select_for_update().filter(pk=unlocked_row.group_id).first()
    # Read again under the lock: the row may have changed or be deleted.
    row = (
        ConsumerGroupTopic.objects.select_related("group", "topic")
        .filter(pk=subscription_id)
        .first()
    )
    if row is None:
        raise NotFound("The subscription was removed.", code=Code.SUBSCRIPTION_NOT_FOUND)
    return row


def _find_subscription_of(group: ConsumerGroup, topic: str) -> ConsumerGroupTopic:
    """Return the subscription of a locked group to a topic, unless it is being deleted.

    Raises NotFound.
    """
    rows = group.subscriptions.filter(topic__name=topic).exclude(
        state=SubscriptionState.DELETING
    )
    row = rows.select_related("group", "topic").first()
    # The comparison of the database may ignore case; names do not.
    if row is None or row.topic.name != topic:
        raise _subscription_not_found(group.name, topic)
    return row


def _subscription_not_found(group: str, topic: str) -> NotFound:
    return NotFound(
        f"Group {group} does not subscribe to {topic}. Subscribe: catmq subscribe {group} {topic}",
        code=Code.SUBSCRIPTION_NOT_FOUND,
    )


def _read_queue_ids(topic_ids: set[int]) -> dict[int, list[int]]:
    rows = Queue.objects.filter(topic_id__in=topic_ids).exclude(state=QueueState.RETIRED)
    return grouped(rows.order_by("number").values_list("topic_id", "pk"))


def view_of(row: ConsumerGroupTopic) -> SubscriptionView:
    return _to_view(row, _read_queue_ids({row.topic_id}).get(row.topic_id, ()))


def _to_view(row: ConsumerGroupTopic, queues: Sequence[int]) -> SubscriptionView:
    return make_view(
        SubscriptionView,
        row,
        stopped_queues=tuple(row.stopped_queues),
        queues=tuple(queues),
        to_failures=row.topic.kind == TopicKind.FAILURE,
    )
