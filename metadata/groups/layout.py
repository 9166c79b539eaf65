"""Queues of a topic that come and go: the rows. `messagestore.topology.queues` adds the
tables.

    creating ── plan_expand → tables and reader rows are made → make_ready ──▶ read_write
                                                    or give_up ─────────────▶ retired
    read_write ◀─ set_state ─▶ read_only ── retire, once shrink took its slots and all is
    read ──▶ retired
    retired ── three days → its table is dropped → remove

The layout changes only here: `make_ready` gives slots to new queues, `shrink` takes them
from draining ones, and a draining queue that is opened again gets its share back. Being
read-only never moves a slot. A verb that is only to be previewed (`dry_run`) does
everything and is rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction

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
from metadata.models import ConsumerGroup, DbNode, Queue, QueueOffset, Topic
from metadata.rules.topics.slots import Layout, moved_slots, spread_slots
from metadata.topics import routings
from metadata.topics.placement import choose_nodes
from metadata.topics.topic_rows import QueueView, TopicView, topic_view

STATES = ("read_only", "read_write")  # what set_state takes


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Effect of a change of queues on its topic: `queues` are those that it is about."""

    topic: TopicView
    queues: tuple[QueueView, ...]
    before: Layout
    after: Layout

    @property
    def slots(self) -> list[int]:
        return moved_slots(self.before, self.after)

    @property
    def losing(self) -> set[int]:
        return {self.before[slot] for slot in self.slots}


@transactional
def plan_expand(
    *, topic: str, queues: int, actor: Actor, node: str | None = None, dry_run: bool = False
) -> LayoutChange:
    """The rows of so many more queues, in state creating, and the layout to come. Needs
    `manage`.

    They are spread over the normal nodes, or all on `node`. Raises Invalid, NotFound,
    NoWritableQueue, and Conflict(in_use) while the topic or an earlier expansion of it is
    being made.
    """
    row = _shaped_by_hand(topic, actor)
    mine = list(row.queues.exclude(state=Queue.State.RETIRED))
    if any(one.state == Queue.State.CREATING for one in mine):
        raise Conflict(
            f"Topic {topic} is being expanded: try again in a moment.", code=Code.IN_USE
        )
    _check_number(topic, len(mine), queues)
    held: dict[int, int] = {}
    for one in mine:
        held[one.node_id] = held.get(one.node_id, 0) + 1
    placed, now = choose_nodes(queues, node=node, held=held), database_now()
    first = max(row.queues.values_list("number", flat=True), default=-1) + 1
    made = [
        Queue.objects.create(topic=row, node_id=node_id, number=number, state_since=now)
        for number, node_id in enumerate(placed, first)
    ]
    ids = [one.pk for one in made]
    after = {"queues": len(mine) + queues, "added": ids}
    before = {"queues": len(mine)}
    audit.record(
        actor=actor, verb="expand", kind="topic", name=topic, before=before, after=after
    )
    record_change("topic", row.pk)
    planned = _change(row, ids, _spread(row, gain=ids))
    transaction.set_rollback(dry_run)
    return planned


def _check_number(topic: str, there_are: int, more: int) -> None:
    most = config.max_topic_queues
    if more < 1:
        raise Invalid.field("queues", "must be 1 or more")
    if there_are + more > most:
        left = f"at most {most - there_are} more" if there_are < most else "no more"
        raise Invalid.field(
            "queues",
            f"{topic} has {there_are} queues of {most} that a topic may have: {left}",
        )


@transactional
def make_ready(
    *, topic_id: int, queues: Collection[int], prepared: Collection[int], actor: Actor
) -> LayoutChange | None:
    """The queues, open and with their share of the slots, once tables and reader rows
    exist.

    Every group gets positions at the epoch where its subscription began, and is marked for
    a rebalance. None, and nothing done, if a subscription is not among those whose reader
    rows were
    `prepared`. Queues
    that are ready stay as they are. Raises NotFound(topic_not_found), Conflict(in_use) if
    they were given up.
    """
    _lock_groups(topic_id)
    topic = _locked(topic_id)
    reading = active_subscriptions(topic_id)
    rows = list(topic.queues.filter(pk__in=list(queues)))
    if any(one.state == Queue.State.RETIRED for one in rows) or len(rows) < len(queues):
        raise Conflict(
            f"The expansion of {topic.name} was rolled back meanwhile.", code=Code.IN_USE
        )
    new = [one.pk for one in rows if one.state == Queue.State.CREATING]
    if not new:
        return _change(topic, queues, _layout(topic))
    if {one.id for one in reading} - set(prepared):
        return None
    QueueOffset.objects.bulk_create(
        QueueOffset(group_id=one.group_id, queue_id=queue, epoch=one.base_epoch)
        for one in reading
        for queue in sorted(new)
    )
    routings.keep_routing(topic)
    _set_states(new, Queue.State.READ_WRITE)
    done = _relayout(topic, new, _spread(topic, gain=new), verb="lay out", actor=actor)
    for one in reading:
        if one.state == "ready":
            rebalance.request(one.group_id, f"{topic.name} was expanded")
    record_change("topic", topic_id)
    return done


@transactional
def abandon_expansion(
    *, topic_id: int, queues: Collection[int], actor: Actor, taken: Collection[int] = ()
) -> None:
    """Retire those of the queues that are not ready; their tables go like those of other
    retired ones.

    Rows of queues that are `taken`, whose tables belong to earlier ones, are removed.
    """
    topic = Topic.objects.select_for_update().filter(pk=topic_id).first()
    rows = Queue.objects.filter(
        pk__in=list(queues), topic_id=topic_id, state=Queue.State.CREATING
    )
    left = sorted(rows.values_list("pk", flat=True))
    if topic is not None and left:
        rows.filter(pk__in=list(taken)).delete()
        _set_states(left, Queue.State.RETIRED)
        before = {"queues": left}
        audit.record(
            actor=actor, verb="give up", kind="topic", name=topic.name, before=before
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
    """The queues, or the `count` newest with slots, read-only and without slots: they
    drain. Needs `manage`.

    `messagestore.topology.queues.shrink` has closed them on their nodes. Raises Invalid,
    NotFound, and Conflict(last_queue) unless another queue takes messages.
    """
    row = _shaped_by_hand(topic, actor)
    chosen = _chosen(row, queues, count)
    writable = _writable(row) - set(chosen)
    if not writable:
        raise _last(topic, "would be left")
    before = _layout(row)
    closing = [
        one.pk for one in row.queues.filter(pk__in=chosen, state=Queue.State.READ_WRITE)
    ]
    _set_states(closing, Queue.State.READ_ONLY)
    after = _spread(row, drained=chosen)
    if before != after:
        routings.keep_routing(row)
    if closing or before != after:
        done = _relayout(row, chosen, after, verb="shrink", actor=actor)
        record_change("topic", row.pk)
    else:
        done = _change(row, chosen, after)
    transaction.set_rollback(dry_run)
    return done


def _chosen(topic: Topic, queues: Sequence[int] | None, count: int | None) -> list[int]:
    states = dict(topic.queues.values_list("pk", "state"))
    if (queues is None) == (count is None):
        raise Invalid.field("queues", "give either the ids of queues, or count")
    if queues is None:
        return _newest(topic, count or 0)
    if not queues or len(set(queues)) < len(queues):
        raise Invalid.field("queues", "must be a list of different ids, at least one")
    foreign = sorted(set(queues) - states.keys())
    if foreign:
        named = ", ".join(map(str, foreign))
        raise Invalid.field("queues", f"topic {topic.name} has no queue {named}")
    for queue in sorted(queues):
        if states[queue] in (Queue.State.CREATING, Queue.State.RETIRED):
            raise Invalid.field("queues", f"queue {queue} is {states[queue]}")
    return sorted(queues)


def _newest(topic: Topic, count: int) -> list[int]:
    if count < 1:
        raise Invalid.field("count", "must be 1 or more")
    slots = set(_layout(topic))
    rows = (
        topic.queues.filter(state=Queue.State.READ_WRITE)
        .order_by("-number")
        .values_list("pk", flat=True)
    )
    candidates = [queue for queue in rows if queue in slots]
    if count >= len(candidates):
        raise _last(topic.name, "would be left")
    return sorted(candidates[:count])


@transactional
def set_state(
    *, topic: str, queue: int, state: str, actor: Actor, dry_run: bool = False
) -> QueueView:
    """The queue, read-only or read-write. Needs `manage`.

    One that drained gets slots back when it is opened. Raises Invalid,
    NotFound(topic_not_found, queue_not_found), Conflict(last_queue), Conflict(in_use) for
    one that is creating or retired.
    """
    row = _changeable(topic, actor)
    if state not in STATES:
        raise Invalid.field("state", f"must be one of {', '.join(STATES)}")
    one = row.queues.filter(pk=queue).first()
    if one is None:
        raise queue_not_found(topic, queue)
    if one.state not in STATES:
        raise Conflict(f"Queue {queue} of topic {topic} is {one.state}.", code=Code.IN_USE)
    if one.state != state:
        if state == Queue.State.READ_ONLY and not _writable(row) - {queue}:
            raise _last(topic, "takes messages")
        before = {"state": one.state}
        _set_states([queue], state)
        if state == Queue.State.READ_WRITE:
            Queue.objects.filter(pk=queue).update(reopened_at=database_now())
        after = {"state": state}
        name = f"{topic}/{queue}"
        audit.record(
            actor=actor, verb="update", kind="queue", name=name, before=before, after=after
        )
        if state == Queue.State.READ_WRITE and queue not in _layout(row):
            routings.keep_routing(row)
            _relayout(row, [queue], _spread(row, gain=[queue]), verb="lay out", actor=actor)
        record_change("topic", row.pk)
    view = next(view for view in topic_view(row).queues if view.queue == queue)
    transaction.set_rollback(dry_run)
    return view


@transactional
def retire(*, topic_id: int, queue: int, read_by: Collection[int]) -> bool:
    """Retire a draining queue and delete its positions; whether it did.

    Not if it was opened again, or if there is a subscription that is not in `read_by`:
    those whose groups have read all of it.
    """
    groups = _lock_groups(topic_id)
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=Topic.State.READY)
        .first()
    )
    if (
        topic is None
        or not topic.queues.filter(pk=queue, state=Queue.State.READ_ONLY).exists()
    ):
        return False
    if queue in _layout(topic) or {one.id for one in active_subscriptions(topic_id)} - set(
        read_by
    ):
        return False
    QueueOffset.objects.filter(queue=queue, group__in=groups).delete()
    routings.keep_routing(topic)
    _set_states([queue], Queue.State.RETIRED)
    name, before, after = (
        f"{topic.name}/{queue}",
        {"state": "read_only"},
        {"state": "retired"},
    )
    audit.record(
        actor=job("queues"),
        verb="retire",
        kind="queue",
        name=name,
        before=before,
        after=after,
    )
    for group_id in groups:
        rebalance.raise_generation(group_id)
        rebalance.request(group_id, f"queue {queue} of {topic.name} was retired")
    record_change("topic", topic_id)
    if groups:
        record_change("group", *groups)
    return True


@transactional
def remove(*, topic_id: int, queue: int) -> None:
    """Remove the row of a retired queue, once its table was dropped."""
    _lock_groups(topic_id)
    topic = _locked(topic_id)
    row = topic.queues.filter(pk=queue, state=Queue.State.RETIRED).first()
    if row is None:
        return
    QueueOffset.objects.filter(queue=row).delete()
    row.delete()
    name = f"{topic.name}/{queue}"
    audit.record(
        actor=job("queues"),
        verb="remove",
        kind="queue",
        name=name,
        before={"state": "retired"},
    )
    record_change("topic", topic_id)


def queue_not_found(topic: str, queue: int) -> NotFound:
    return NotFound(f"Topic {topic} has no queue {queue}.", code=Code.QUEUE_NOT_FOUND)


def _last(topic: str, what: str) -> Conflict:
    return Conflict(f"No other queue of topic {topic} {what}.", code=Code.LAST_QUEUE)


def _changeable(name: str, actor: Actor) -> Topic:
    """The ready topic called so, locked, if the actor may manage it."""
    access.require(actor, "manage", name, what="topic")
    row = find_by_name(
        Topic.objects.select_for_update().exclude(state=Topic.State.DELETED), name, no_topic
    )
    access.require_failure_origin(actor, "manage", name, origin_of(row))
    if row.state == Topic.State.CREATING:
        raise Conflict(
            f"Topic {name} is still being created: try again in a moment.", code=Code.IN_USE
        )
    return row


def _shaped_by_hand(name: str, actor: Actor) -> Topic:
    """The same, unless it is a failure topic: which of its queues a copy goes to must not
    change.
    """
    row = _changeable(name, actor)
    if row.kind == Topic.Kind.FAILURE:
        raise Invalid.field(
            "topic", f"{name} is a retry topic: the number of its queues is fixed"
        )
    return row


def _locked(topic_id: int) -> Topic:
    row = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=Topic.State.READY)
        .first()
    )
    if row is None:
        raise NotFound("The topic was removed.", code=Code.TOPIC_NOT_FOUND)
    return row


def _lock_groups(topic_id: int) -> list[int]:
    """Lock the groups that read the topic, before the topic itself: that keeps others from
    beginning to.
    """
    groups = sorted({one.group_id for one in active_subscriptions(topic_id)})
    list(ConsumerGroup.objects.select_for_update().filter(pk__in=groups).order_by("pk"))
    return groups


def _set_states(queues: Iterable[int], state: str) -> None:
    Queue.objects.filter(pk__in=list(queues)).update(
        state=state, state_since=database_now()
    )


def _writable(topic: Topic) -> set[int]:
    """The queues that take messages: open, on nodes that are."""
    rows = topic.queues.filter(
        state=Queue.State.READ_WRITE, node__state=DbNode.State.READ_WRITE
    )
    return set(rows.values_list("pk", flat=True))


def _layout(topic: Topic) -> Layout:
    return tuple(json.loads(topic.layout))


def _spread(
    topic: Topic, *, gain: Collection[int] = (), drained: Collection[int] = ()
) -> Layout:
    """The layout with the queues in `gain` as further ones, and without those that are
    `drained`.
    """
    before = _layout(topic)
    writable = (_writable(topic) | set(gain)) - set(drained)
    return spread_slots(
        before, open_queues=writable, closed=set(before) - writable - set(drained)
    )


def _relayout(
    topic: Topic, queues: Collection[int], after: Layout, *, verb: str, actor: Actor
) -> LayoutChange:
    """Write the layout, under the next version if it differs."""
    before, version = _layout(topic), topic.layout_version
    topic.layout, topic.layout_version = json.dumps(after), version + (before != after)
    topic.save(update_fields=("layout", "layout_version"))
    done = _change(topic, queues, after, before)
    effect = {"queues": [one.queue for one in done.queues], "moved_slots": len(done.slots)}
    old, new = (
        {"layout_version": version},
        {"layout_version": topic.layout_version, **effect},
    )
    audit.record(
        actor=actor, verb=verb, kind="topic", name=topic.name, before=old, after=new
    )
    return done


def _change(
    topic: Topic, queues: Collection[int], after: Layout, before: Layout | None = None
) -> LayoutChange:
    view = topic_view(topic)
    mine = tuple(one for one in view.queues if one.queue in queues)
    return LayoutChange(view, mine, before or _layout(topic), after)
