"""Queues that a topic gains and loses: the rows. `messagestore.topology.queues` adds the tables.

    creating ── plan_expand → tables and reader rows are made → make_ready ──▶ read_write
                                                 or abandon_expansion ──────▶ retired
    read_write ◀─ set_state ─▶ read_only ── retire, after shrink took its slots and all
                                            messages were read ──▶ retired
    retired ── three days → its table is dropped → remove

Only these functions change the layout: `make_ready` gives slots to new queues, `shrink`
takes them from draining queues, and a draining queue that is opened again gets its share
back. Making a queue read-only never moves a slot. With `dry_run` a function does all its
work and is rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from django.db import transaction
from msgspec import Struct

from metadata.actors import Actor, job
from metadata.config import config
from metadata.db import access, audit
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.rows import find_by_name, no_topic, origin_of
from metadata.db.transactions import transactional
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.groups.subscribers import active_subscriptions
from metadata.membership import rebalance
from metadata.models import ConsumerGroup, Queue, QueueOffset, Topic
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.nodes import NodeState
from metadata.rules.rights import Right
from metadata.rules.topics.slots import Layout, moved_slots, spread_slots
from metadata.rules.topics.states import READABLE_STATES, QueueState, TopicKind, TopicState
from metadata.topics import routings
from metadata.topics.placement import choose_nodes
from metadata.topics.topic_rows import (
    QueueView,
    TopicView,
    initial_key_index,
    topic_view,
)


class LayoutChange(Struct, frozen=True):
    """The effect of a change on a topic; `queues` are the queues that were changed."""

    topic: TopicView
    queues: tuple[QueueView, ...]
    before: Layout
    after: Layout

    @property
    def slots(self) -> list[int]:
        """Return the slots that another queue serves afterwards."""
        return moved_slots(self.before, self.after)

    @property
    def losing(self) -> set[int]:
        """Return the ids of queues that lose slots."""
        return {self.before[slot] for slot in self.slots}


@transactional
def plan_expand(
    *, topic: str, queues: int, actor: Actor, node: str | None = None, dry_run: bool = False
) -> LayoutChange:
    """Insert more queues in state creating, and return the future layout. Needs `manage`.

    They are spread over the normal nodes, or are all on `node`. Raises Invalid,
    NotFound, NoWritableQueue, and Conflict(in_use) while the topic or a former
    expansion is being created.
    """
    topic_row = _lock_resizable_topic(topic, actor)
    live_queues = list(topic_row.queues.exclude(state=QueueState.RETIRED))
    if any(queue.state == QueueState.CREATING for queue in live_queues):
        raise Conflict(
            f"Topic {topic} is being expanded: try again in a moment.", code=Code.IN_USE
        )
    limit, existing = config.max_topic_queues, len(live_queues)
    if queues < 1:
        raise Invalid.field("queues", "must be 1 or more")
    if existing + queues > limit:
        remedy = f"at most {limit - existing} more" if existing < limit else "no more"
        raise Invalid.field(
            "queues",
            f"{topic} has {existing} queues of {limit} that a topic may have: {remedy}",
        )
    queues_per_node: dict[int, int] = {}
    for queue in live_queues:
        queues_per_node[queue.node_id] = queues_per_node.get(queue.node_id, 0) + 1
    node_ids, now = choose_nodes(queues, node=node, held=queues_per_node), database_now()
    # Retired queues count, so that no number is used twice while their tables exist.
    first = max(topic_row.queues.values_list("number", flat=True), default=-1) + 1
    new_queues = [
        Queue.objects.create(
            topic=topic_row,
            node_id=node_id,
            number=number,
            state_since=now,
            key_index=initial_key_index(topic_row),
        )
        for number, node_id in enumerate(node_ids, first)
    ]
    ids = [queue.pk for queue in new_queues]
    after = {"queues": existing + queues, "added": ids}
    before = {"queues": existing}
    audit.record(
        actor=actor, verb=Verb.EXPAND, kind="topic", name=topic, before=before, after=after
    )
    record_change("topic", topic_row.pk)
    planned = _describe_change(topic_row, ids, _spread_layout(topic_row, gain=ids))
    # A preview does all the work, so that its checks and its result are the real ones.
    transaction.set_rollback(dry_run)
    return planned


@transactional
def make_ready(
    *, topic_id: int, queues: Collection[int], prepared: Collection[int], actor: Actor
) -> LayoutChange | None:
    """Open new queues with their share of the slots, after tables and reader rows were
    created.

    Every group gets positions at the first epoch of its subscription, and is marked for
    a rebalance. Queues that are ready already stay as they are. Returns None without
    changes if a subscription is not in `prepared`, the subscriptions whose reader rows
    exist. Raises NotFound(topic_not_found), Conflict(in_use) if the expansion was
    abandoned.
    """
    # Groups first, then the topic: while they are locked, no subscription can begin or
    # end.
    _lock_groups(topic_id)
    topic = _lock_ready_topic(topic_id)
    subscriptions = active_subscriptions(topic_id)
    rows = list(topic.queues.filter(pk__in=list(queues)))
    if any(queue_row.state == QueueState.RETIRED for queue_row in rows) or len(rows) < len(
        queues
    ):
        raise Conflict(
            f"The expansion of {topic.name} was rolled back meanwhile.", code=Code.IN_USE
        )
    new_ids = [queue_row.pk for queue_row in rows if queue_row.state == QueueState.CREATING]
    if not new_ids:
        return _describe_change(topic, queues, _read_layout(topic))
    # A subscription that began meanwhile has no reader rows in the new queues yet.
    if {subscription.id for subscription in subscriptions} - set(prepared):
        return None
    QueueOffset.objects.bulk_create(
        QueueOffset(
            group_id=subscription.group_id, queue_id=queue, epoch=subscription.base_epoch
        )
        for subscription in subscriptions
        for queue in sorted(new_ids)
    )
    routings.keep_routing(topic)
    _set_states(new_ids, QueueState.READ_WRITE)
    change = _write_layout(
        topic, new_ids, _spread_layout(topic, gain=new_ids), verb=Verb.LAY_OUT, actor=actor
    )
    for subscription in subscriptions:
        if subscription.state == SubscriptionState.READY:
            rebalance.request(subscription.group_id, f"{topic.name} was expanded")
    record_change("topic", topic_id)
    return change


@transactional
def abandon_expansion(
    *, topic_id: int, queues: Collection[int], actor: Actor, taken: Collection[int] = ()
) -> None:
    """Retire those of the queues that are still in state creating; their tables are
    dropped later.

    Rows of queues in `taken`, whose tables belong to former queues, are deleted.
    """
    topic = Topic.objects.select_for_update().filter(pk=topic_id).first()
    rows = Queue.objects.filter(
        pk__in=list(queues), topic_id=topic_id, state=QueueState.CREATING
    )
    abandoned = sorted(rows.values_list("pk", flat=True))
    if topic is not None and abandoned:
        rows.filter(pk__in=list(taken)).delete()
        _set_states(abandoned, QueueState.RETIRED)
        before = {"queues": abandoned}
        audit.record(
            actor=actor, verb=Verb.GIVE_UP, kind="topic", name=topic.name, before=before
        )
        record_change("topic", topic_id)


@transactional
def shrink(
    *,
    topic: str,
    actor: Actor,
    queues: Sequence[int] | None = None,
    count: int | None = None,
    dry_run: bool = False,
) -> LayoutChange:
    """Make queues read-only and take their slots, so that they drain. Needs `manage`.

    These are the given queues, or the `count` newest ones with slots. The caller
    (`messagestore.topology.queues.shrink`) has closed them on their nodes. Raises
    Invalid, NotFound, and Conflict(last_queue) unless another queue stays writable.
    """
    topic_row = _lock_resizable_topic(topic, actor)
    chosen = _choose_queues(topic_row, queues, count)
    writable = _writable_queues(topic_row) - set(chosen)
    if not writable:
        raise _last_queue(topic, "would be left")
    before = _read_layout(topic_row)
    # Queues that are read-only already keep the time since which they are.
    closing = [
        queue.pk
        for queue in topic_row.queues.filter(pk__in=chosen, state=QueueState.READ_WRITE)
    ]
    _set_states(closing, QueueState.READ_ONLY)
    after = _spread_layout(topic_row, drained=chosen)
    if before != after:
        routings.keep_routing(topic_row)
    if closing or before != after:
        change = _write_layout(topic_row, chosen, after, verb=Verb.SHRINK, actor=actor)
        record_change("topic", topic_row.pk)
    else:
        change = _describe_change(topic_row, chosen, after)
    # A preview does all the work and is rolled back.
    transaction.set_rollback(dry_run)
    return change


def _choose_queues(
    topic: Topic, queues: Sequence[int] | None, count: int | None
) -> list[int]:
    states = dict(topic.queues.values_list("pk", "state"))
    if (queues is None) == (count is None):
        raise Invalid.field("queues", "give either the ids of queues, or count")
    if count is not None:
        if count < 1:
            raise Invalid.field("count", "must be 1 or more")
        slots = set(_read_layout(topic))
        open_rows = topic.queues.filter(state=QueueState.READ_WRITE).order_by("-number")
        # A queue that has no slots yet or any more would not make the topic smaller.
        candidates = [pk for pk in open_rows.values_list("pk", flat=True) if pk in slots]
        if count >= len(candidates):
            raise _last_queue(topic.name, "would be left")
        return sorted(candidates[:count])
    if not queues or len(set(queues)) < len(queues):
        raise Invalid.field("queues", "must be a list of different ids, at least one")
    unknown = sorted(set(queues) - states.keys())
    if unknown:
        listed = ", ".join(map(str, unknown))
        raise Invalid.field("queues", f"topic {topic.name} has no queue {listed}")
    for queue in sorted(queues):
        if states[queue] in (QueueState.CREATING, QueueState.RETIRED):
            raise Invalid.field("queues", f"queue {queue} is {states[queue]}")
    return sorted(queues)


@transactional
def set_state(
    *, topic: str, queue: int, state: str, actor: Actor, dry_run: bool = False
) -> QueueView:
    """Make a queue read-only or read-write. Needs `manage`.

    A draining queue gets slots back when it is opened. Raises Invalid,
    NotFound(topic_not_found, queue_not_found), Conflict(last_queue), and
    Conflict(in_use) if the queue is creating or retired.
    """
    topic_row = _lock_topic_by_name(topic, actor)
    if state not in READABLE_STATES:
        raise Invalid.field("state", f"must be one of {', '.join(READABLE_STATES)}")
    queue_row = topic_row.queues.filter(pk=queue).first()
    if queue_row is None:
        raise queue_not_found(topic, queue)
    if queue_row.state not in READABLE_STATES:
        raise Conflict(
            f"Queue {queue} of topic {topic} is {queue_row.state}.", code=Code.IN_USE
        )
    if queue_row.state != state:
        if state == QueueState.READ_ONLY and not _writable_queues(topic_row) - {queue}:
            raise _last_queue(topic, "takes messages")
        before = {"state": queue_row.state}
        _set_states([queue], state)
        if state == QueueState.READ_WRITE:
            Queue.objects.filter(pk=queue).update(reopened_at=database_now())
        after = {"state": state}
        name = f"{topic}/{queue}"
        audit.record(
            actor=actor,
            verb=Verb.UPDATE,
            kind="queue",
            name=name,
            before=before,
            after=after,
        )
        # A draining queue lost its slots when the topic was shrunk.
        if state == QueueState.READ_WRITE and queue not in _read_layout(topic_row):
            routings.keep_routing(topic_row)
            _write_layout(
                topic_row,
                [queue],
                _spread_layout(topic_row, gain=[queue]),
                verb=Verb.LAY_OUT,
                actor=actor,
            )
        record_change("topic", topic_row.pk)
    view = next(view for view in topic_view(topic_row).queues if view.queue == queue)
    # A preview does all the work and is rolled back.
    transaction.set_rollback(dry_run)
    return view


@transactional
def retire(*, topic_id: int, queue: int, read_by: Collection[int]) -> bool:
    """Retire a draining queue and delete its positions. Return False if it cannot be
    retired.

    That is if it was opened again, or has a subscription that is not in `read_by`, the
    subscriptions that have read all of it.
    """
    # Groups first, then the topic, as in all transactions.
    groups = _lock_groups(topic_id)
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=TopicState.READY)
        .first()
    )
    if (
        topic is None
        or not topic.queues.filter(pk=queue, state=QueueState.READ_ONLY).exists()
    ):
        return False
    if queue in _read_layout(topic) or {
        subscription.id for subscription in active_subscriptions(topic_id)
    } - set(read_by):
        return False
    # The queue is read to its end, so no position of it is needed any more.
    QueueOffset.objects.filter(queue=queue, group__in=groups).delete()
    routings.keep_routing(topic)
    _set_states([queue], QueueState.RETIRED)
    name, before, after = (
        f"{topic.name}/{queue}",
        {"state": QueueState.READ_ONLY},
        {"state": QueueState.RETIRED},
    )
    audit.record(
        actor=job("queues"),
        verb=Verb.RETIRE,
        kind="queue",
        name=name,
        before=before,
        after=after,
    )
    # Waiting pulls and heartbeats must not return the queue any more.
    for group_id in groups:
        rebalance.raise_generation(group_id)
        rebalance.request(group_id, f"queue {queue} of {topic.name} was retired")
    record_change("topic", topic_id)
    if groups:
        record_change("group", *groups)
    return True


@transactional
def remove(*, topic_id: int, queue: int) -> None:
    """Delete the row of a retired queue, after its table was dropped."""
    # Groups first, then the topic, as in all transactions.
    _lock_groups(topic_id)
    topic = _lock_ready_topic(topic_id)
    queue_row = topic.queues.filter(pk=queue, state=QueueState.RETIRED).first()
    if queue_row is None:
        return
    QueueOffset.objects.filter(queue=queue_row).delete()
    queue_row.delete()
    audit.record(
        actor=job("queues"),
        verb=Verb.REMOVE,
        kind="queue",
        name=f"{topic.name}/{queue}",
        before={"state": QueueState.RETIRED},
    )
    record_change("topic", topic_id)


def queue_not_found(topic: str, queue: int) -> NotFound:
    return NotFound(f"Topic {topic} has no queue {queue}.", code=Code.QUEUE_NOT_FOUND)


def _last_queue(topic: str, what: str) -> Conflict:
    return Conflict(f"No other queue of topic {topic} {what}.", code=Code.LAST_QUEUE)


def _lock_topic_by_name(name: str, actor: Actor) -> Topic:
    """Lock and return a ready topic. Needs `manage`.

    Raises NotFound, Forbidden, and Conflict(in_use) while it is being created.
    """
    access.require(actor, Right.MANAGE, name, what="topic")
    row = find_by_name(
        Topic.objects.select_for_update().exclude(state=TopicState.DELETED), name, no_topic
    )
    access.require_failure_origin(actor, Right.MANAGE, name, origin_of(row))
    if row.state == TopicState.CREATING:
        raise Conflict(
            f"Topic {name} is still being created: try again in a moment.", code=Code.IN_USE
        )
    return row


def _lock_resizable_topic(name: str, actor: Actor) -> Topic:
    row = _lock_topic_by_name(name, actor)
    # The queue of a retry is a function of its id and the queues, so these must not
    # change.
    if row.kind == TopicKind.FAILURE:
        raise Invalid.field(
            "topic", f"{name} is a retry topic: the number of its queues is fixed"
        )
    return row


def _lock_ready_topic(topic_id: int) -> Topic:
    row = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=TopicState.READY)
        .first()
    )
    if row is None:
        raise NotFound("The topic was removed.", code=Code.TOPIC_NOT_FOUND)
    return row


def _lock_groups(topic_id: int) -> list[int]:
    groups = sorted(
        {subscription.group_id for subscription in active_subscriptions(topic_id)}
    )
    # Groups are locked before the topic, as in all transactions, and in the order of ids.
    # The lock also keeps these groups from changing their subscriptions.
    list(ConsumerGroup.objects.select_for_update().filter(pk__in=groups).order_by("pk"))
    return groups


def _set_states(queues: Iterable[int], state: str) -> None:
    Queue.objects.filter(pk__in=list(queues)).update(
        state=state, state_since=database_now()
    )


def _writable_queues(topic: Topic) -> set[int]:
    """Return the ids of queues that take messages: queue and node are read-write."""
    rows = topic.queues.filter(
        state=QueueState.READ_WRITE, node__state=NodeState.READ_WRITE
    )
    return set(rows.values_list("pk", flat=True))


def _read_layout(topic: Topic) -> Layout:
    return tuple(json.loads(topic.layout))


def _spread_layout(
    topic: Topic, *, gain: Collection[int] = (), drained: Collection[int] = ()
) -> Layout:
    before = _read_layout(topic)
    writable = (_writable_queues(topic) | set(gain)) - set(drained)
    return spread_slots(
        before, open_queues=writable, closed=set(before) - writable - set(drained)
    )


def _write_layout(
    topic: Topic, queues: Collection[int], after: Layout, *, verb: str, actor: Actor
) -> LayoutChange:
    """Store the layout, under the next version if it differs, and write the audit row."""
    before, version = _read_layout(topic), topic.layout_version
    topic.layout, topic.layout_version = json.dumps(after), version + (before != after)
    topic.save(update_fields=("layout", "layout_version"))
    change = _describe_change(topic, queues, after, before)
    effect = {
        "queues": [queue.queue for queue in change.queues],
        "moved_slots": len(change.slots),
    }
    before_values, after_values = (
        {"layout_version": version},
        {"layout_version": topic.layout_version, **effect},
    )
    audit.record(
        actor=actor,
        verb=verb,
        kind="topic",
        name=topic.name,
        before=before_values,
        after=after_values,
    )
    return change


def _describe_change(
    topic: Topic, queues: Collection[int], after: Layout, before: Layout | None = None
) -> LayoutChange:
    view = topic_view(topic)
    changed_queues = tuple(queue for queue in view.queues if queue.queue in queues)
    return LayoutChange(view, changed_queues, before or _read_layout(topic), after)
