"""Topics: their rows. `messagestore.topology.topics` combines these functions with the work
on tables.

    plan_topic (state creating) → tables are created → make_ready (state ready)
                                ↘ abandon (state deleted) → tables are dropped → remove
    mark_deleted (state deleted) → three days → tables are dropped → remove

Tables are dropped only while the topic is in the state deleted, which it never leaves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet
from msgspec import Struct

from metadata.actors import Actor, job
from metadata.config import config
from metadata.db import access, audit, paging, rows
from metadata.db.changes import record_change
from metadata.db.clock import before, database_now
from metadata.db.paging import Page, Window
from metadata.db.rows import lock_topic, make_view, no_topic, origin_of
from metadata.db.transactions import reachable, read_in_pages, transactional
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.models import Queue, QueueOffset, Topic
from metadata.monitoring.mail_domains import check_domains
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.rights import Right
from metadata.rules.settings import TOPIC, TopicSettings, check_settings
from metadata.rules.topics.names import check_confirmed, check_name, is_name
from metadata.rules.topics.slots import initial_layout
from metadata.rules.topics.states import KeyIndexState, QueueState, TopicKind, TopicState
from metadata.topics import routings
from metadata.topics.placement import choose_nodes

DROP_AFTER_DAYS = 3


class QueueView(Struct, frozen=True):
    """A queue. `queue` is its id, `number` its place in the topic. `bytes` is its size when
    it was last measured, `key_index` the state of the index on its keys.
    """

    queue: int
    number: int
    node: str
    node_id: int
    state: str
    bytes: int | None = None
    key_index: str = KeyIndexState.NONE


@dataclass(frozen=True, kw_only=True)
class TopicView(TopicSettings):
    """A topic. `layout` has 1,024 queue ids, none while it is being created. Times are in
    ms since 1970.
    """

    id: int
    name: str
    kind: str
    state: str
    layout_version: int
    layout: tuple[int, ...] = field(repr=False)
    created_at_ms: int
    deleted_at_ms: int | None
    queues: tuple[QueueView, ...]


@transactional
def plan_topic(
    *,
    name: str,
    queues: int,
    actor: Actor,
    node: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TopicView:
    """Create the rows of a topic and its queues, in the state creating. Needs `manage`; if
    owners are set, all rights of an owner.

    The queues are spread over the normal, non-dedicated, read-write nodes, emptier nodes
    first, or all on `node`. Raises Invalid, Conflict(already_exists),
    NotFound(node_not_found), NoWritableQueue.
    """
    check_name("topic", name)
    access.require(actor, Right.MANAGE, name, what="topic")
    if not 1 <= queues <= config.max_topic_queues:
        raise Invalid.field("queues", f"must be 1 to {config.max_topic_queues}")
    values = check_domains(check_settings(TOPIC, settings or {}))
    if values.get("owners"):
        access.require_ownership(actor, name)
    now = database_now()
    topic = rows.create(Topic.objects.all(), "Topic", name=name, created_at=now, **values)
    Queue.objects.bulk_create(
        [
            Queue(
                topic=topic,
                node_id=node_id,
                number=number,
                state_since=now,
                key_index=initial_key_index(topic),
            )
            for number, node_id in enumerate(choose_nodes(queues, node=node))
        ]
    )
    after = {"queues": queues, **values}
    audit.record(actor=actor, verb=Verb.CREATE, kind="topic", name=name, after=after)
    record_change("topic", topic.pk)
    return topic_view(topic)


def initial_key_index(topic: Topic) -> KeyIndexState:
    """Return the state of the key index of a new queue: its table is created with it."""
    return KeyIndexState.READY if topic.key_index else KeyIndexState.NONE


@transactional
def make_ready(topic_id: int) -> TopicView:
    """Make a topic ready with its first layout, once all its tables exist. A ready topic
    stays as it is.
    """
    # Locked: abandon() may delete the topic, which then must not become ready.
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id)
        .exclude(state=TopicState.DELETED)
        .first()
    )
    if topic is None:
        raise NotFound("The topic was removed.", code=Code.TOPIC_NOT_FOUND)
    if topic.state == TopicState.CREATING:
        ids = list(topic.queues.order_by("number").values_list("id", flat=True))
        topic.queues.update(state=QueueState.READ_WRITE, state_since=database_now())
        topic.layout, topic.layout_version = json.dumps(initial_layout(ids)), 1
        topic.state = TopicState.READY
        topic.save(update_fields=("layout", "layout_version", "state"))
        record_change("topic", topic_id)
    return topic_view(topic)


def queues_in_creation(queues: Collection[int]) -> list[int]:
    """Return the ids of the queues that are still being created, rising."""
    if not queues:
        return []
    with reachable():
        rows = Queue.objects.filter(pk__in=list(queues), state=QueueState.CREATING)
        return sorted(rows.values_list("pk", flat=True))


@transactional
def abandon(topic_id: int, actor: Actor | None = None) -> bool:
    """Delete a topic whose creation failed, so that its tables may be dropped. Return False
    if it is ready after all.

    The state changes under the row's lock, so a process that still creates its tables
    cannot make it ready any more.
    """
    topic = Topic.objects.select_for_update().filter(pk=topic_id).first()
    if topic is not None and topic.state == TopicState.READY:
        return False
    if topic is not None and topic.state == TopicState.CREATING:
        _delete(topic, verb=Verb.GIVE_UP, actor=actor or job("topics"))
    return True


@transactional
def remove(topic_id: int, actor: Actor | None = None) -> None:
    """Remove the rows of a deleted topic, after its tables were dropped.

    Raises Conflict(in_use) while rows of its subscriptions still exist.
    """
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=TopicState.DELETED)
        .first()
    )
    if topic is None:
        return
    dependents = (
        topic.subscriptions,
        topic.failure_topics,
        QueueOffset.objects.filter(queue__topic=topic),
    )
    # An error that names the topic, instead of the database's about a foreign key.
    if any(rows.exists() for rows in dependents):
        raise Conflict(f"Topic {topic.name} still has subscriptions.", code=Code.IN_USE)
    topic.queues.all().delete()
    topic.delete()
    audit.record(
        actor=actor or job("topics"),
        verb=Verb.REMOVE,
        kind="topic",
        name=topic.name,
        before={"state": topic.state},
    )
    record_change("topic", topic_id)


@transactional
def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> TopicView:
    """Change settings of a topic (rules.settings.TOPIC). Needs `manage`; to change its
    owners, all rights of an owner.
    """
    access.require(actor, Right.MANAGE, name, what="topic")
    values = check_domains(check_settings(TOPIC, settings))
    topic = lock_topic(name)
    access.require_failure_origin(actor, Right.MANAGE, name, origin_of(topic))
    before = rows.changed_values(topic, values)
    if "owners" in before:
        access.require_ownership(actor, name)
    if before:
        # Saved before the change: repeated sends must still find their first queue.
        # `keyed` decides which queue a message goes to, as the layout does.
        if "keyed" in before:
            routings.keep_routing(topic)
        rows.save_changes(topic, before, values, actor=actor, kind="topic", name=name)
        record_change("topic", topic.pk)
    return topic_view(topic)


@transactional
def mark_deleted(*, name: str, confirm: str | None, actor: Actor) -> TopicView:
    """Delete a topic. Its name is free at once, its tables are dropped after three days.
    Needs `manage`.

    Raises Invalid(not_confirmed), Conflict(in_use) while a group subscribes to it.
    """
    access.require(actor, Right.MANAGE, name, what="topic")
    topic = lock_topic(name)
    access.require_failure_origin(actor, Right.MANAGE, name, origin_of(topic))
    check_confirmed(name, confirm)
    subscriptions = topic.subscriptions.exclude(state=SubscriptionState.DELETING)
    groups = list(subscriptions.values_list("group__name", flat=True)[:5])
    if groups:
        raise Conflict(
            f"Topic {name} is read by {', '.join(groups)}: unsubscribe first.",
            code=Code.IN_USE,
        )
    _delete(topic, verb=Verb.DELETE, actor=actor)
    return topic_view(topic)


def _delete(topic: Topic, *, verb: str, actor: Actor) -> None:
    # No valid name has a ~, so the new name is free, and the old name at once, too.
    name = topic.name
    topic.name, topic.state, topic.deleted_at = (
        f"{name}~{topic.pk}",
        TopicState.DELETED,
        database_now(),
    )
    # Group and topic may get another failure topic, and the pair is unique.
    topic.failure_group = topic.failure_of = None
    topic.save(update_fields=("name", "state", "deleted_at", "failure_group", "failure_of"))
    before = {"id": topic.pk}
    audit.record(
        actor=actor,
        verb=verb,
        kind="topic",
        name=name,
        before=before,
        after={"name": topic.name},
    )
    record_change("topic", topic.pk)


def end_failure_topic(topic: Topic, actor: Actor) -> None:
    """Delete a failure topic whose subscription was deleted. Its tables stay for three more
    days.
    """
    if topic.kind == TopicKind.FAILURE and topic.state != TopicState.DELETED:
        _delete(topic, verb=Verb.DELETE, actor=actor)


def find_topic(*, name: str, actor: Actor) -> TopicView:
    """Return the topic called `name` unless it is deleted. Needs any right on it. Raises
    NotFound(topic_not_found).
    """
    if not access.may_see(actor, name):
        access.require(actor, Right.BROWSE, name, what="topic")
    with reachable():
        row = (
            Topic.objects.filter(name=name).exclude(state=TopicState.DELETED).first()
            if is_name(name)
            else None
        )
        if row is None or row.name != name:
            raise no_topic(name)
        return topic_view(row)


def list_topics(
    *, actor: Actor, window: Window, kind: str = TopicKind.NORMAL
) -> Page[TopicView]:
    """Return a page of the topics of a kind on which the actor has any right, by name,
    without deleted topics.
    """
    topics = Topic.objects.exclude(state=TopicState.DELETED).filter(kind=kind)
    rows, following = paging.select_page(topics, window=window, actor=actor)
    with reachable():
        return Page(tuple(_views(rows)), following)


def list_ready() -> list[TopicView]:
    with reachable():
        return _views(list(Topic.objects.filter(state=TopicState.READY).order_by("name")))


def iterate_unfinished(older_than_s: float) -> Iterator[TopicView]:
    """Yield topics whose creation began longer ago, because a crash interrupted it."""
    with reachable():
        limit = before(database_now(), seconds=older_than_s)
    return _paged(Topic.objects.filter(state=TopicState.CREATING, created_at__lt=limit))


def iterate_due_for_drop(after_days: float = DROP_AFTER_DAYS) -> Iterator[TopicView]:
    with reachable():
        limit = before(database_now(), seconds=after_days * 86_400)
    return _paged(Topic.objects.filter(state=TopicState.DELETED, deleted_at__lt=limit))


def _paged(rows: QuerySet[Topic]) -> Iterator[TopicView]:
    for list_topics in read_in_pages(rows):
        with reachable():
            views = _views(list_topics)
        yield from views


def topic_view(row: Topic) -> TopicView:
    return _views([row])[0]


def _views(rows: Sequence[Topic]) -> list[TopicView]:
    # The queues of all topics are read with a single query.
    queues: dict[int, list[QueueView]] = {topic.pk: [] for topic in rows}
    queue_rows = (
        Queue.objects.filter(topic_id__in=[*queues])
        .select_related("node")
        .order_by("topic_id", "number")
    )
    for row in queue_rows:
        queues[row.topic_id].append(
            QueueView(
                row.pk,
                row.number,
                row.node.name,
                row.node_id,
                row.state,
                row.bytes,
                row.key_index,
            )
        )
    return [
        make_view(
            TopicView,
            topic,
            layout=tuple(json.loads(topic.layout)) if topic.layout else (),
            queues=tuple(queues[topic.pk]),
        )
        for topic in rows
    ]
