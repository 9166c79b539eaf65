"""Topics: the rows. `messagestore.topology.topics` composes these verbs with the work on
tables.

plan (rows, creating) → tables are made → make_ready; or give_up → tables are dropped →
remove. mark_deleted → three days → tables are dropped → remove. Tables are dropped only of
what is deleted for good.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from metadata.actors import Actor, job
from metadata.config import config
from metadata.db import access, audit, paging, rows
from metadata.db.changes import record_change
from metadata.db.clock import before, database_now
from metadata.db.paging import Page, Window
from metadata.db.rows import lock_topic, no_topic, origin_of
from metadata.db.transactions import reachable, read_in_pages, transactional
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.models import ConsumerGroupTopic, Queue, QueueOffset, Topic
from metadata.monitoring.mail_domains import check_domains
from metadata.rules.settings import TOPIC, TopicSettings, check_settings
from metadata.rules.topics.names import check_confirmed, check_name, is_name
from metadata.rules.topics.slots import initial_layout
from metadata.topics import routings
from metadata.topics.placement import choose_nodes

DROP_AFTER_DAYS = 3


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue: its id, its place in the topic, the name of its node, its size when it was
    last measured.
    """

    queue: int
    number: int
    node: str
    node_id: int
    state: str
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class TopicView(TopicSettings):
    """A topic; `layout` has 1,024 queue ids, or none while creating. Times in ms since
    1970.
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
    """The rows of a new topic and its queues, in state creating. Needs `manage`, with
    owners all rights.

    Spreads the queues over the normal, non-dedicated, read-write nodes, the emptier first,
    or puts all on `node`. Raises Invalid, Conflict(already_exists),
    NotFound(node_not_found), NoWritableQueue.
    """
    check_name("topic", name)
    access.require(actor, "manage", name, what="topic")
    if not 1 <= queues <= config.max_topic_queues:
        raise Invalid.field("queues", f"must be 1 to {config.max_topic_queues}")
    values = check_domains(check_settings(TOPIC, settings or {}))
    if values.get("owners"):
        access.require_ownership(actor, name)
    now = database_now()
    topic = rows.create(Topic.objects.all(), "Topic", name=name, created_at=now, **values)
    Queue.objects.bulk_create(
        [
            Queue(topic=topic, node_id=node_id, number=number, state_since=now)
            for number, node_id in enumerate(choose_nodes(queues, node=node))
        ]
    )
    after = {"queues": queues, **values}
    audit.record(actor=actor, verb="create", kind="topic", name=name, after=after)
    record_change("topic", topic.pk)
    return topic_view(topic)


@transactional
def make_ready(topic_id: int) -> TopicView:
    """The topic, ready with its first layout, once all its tables exist; a ready one stays
    as it is.
    """
    topic = _locked(topic_id)
    if topic.state == Topic.State.CREATING:
        ids = list(topic.queues.order_by("number").values_list("id", flat=True))
        topic.queues.update(state=Queue.State.READ_WRITE, state_since=database_now())
        topic.layout, topic.layout_version = json.dumps(initial_layout(ids)), 1
        topic.state = Topic.State.READY
        topic.save(update_fields=("layout", "layout_version", "state"))
        record_change("topic", topic_id)
    return topic_view(topic)


def queues_in_creation(queues: Collection[int]) -> list[int]:
    """Return those of some queues that are not ready yet, rising."""
    if not queues:
        return []
    with reachable():
        rows = Queue.objects.filter(pk__in=list(queues), state=Queue.State.CREATING)
        return sorted(rows.values_list("pk", flat=True))


@transactional
def abandon(topic_id: int, actor: Actor | None = None) -> bool:
    """Claim a topic that is not ready, so that its tables may be dropped: False if it is
    ready after all.

    creating → deleted, under the row's lock; whoever still makes its tables cannot make it
    ready any more.
    """
    topic = Topic.objects.select_for_update().filter(pk=topic_id).first()
    if topic is not None and topic.state == Topic.State.READY:
        return False
    if topic is not None and topic.state == Topic.State.CREATING:
        _delete(topic, verb="give up", actor=actor or job("topics"))
    return True


@transactional
def remove(topic_id: int, actor: Actor | None = None) -> None:
    """Remove the rows of a deleted topic, after its tables were dropped.

    Raises Conflict(in_use) while a subscription of it still has to be taken down.
    """
    topic = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id, state=Topic.State.DELETED)
        .first()
    )
    if topic is None:
        return
    waits_for = (
        topic.subscriptions,
        topic.failure_topics,
        QueueOffset.objects.filter(queue__topic=topic),
    )
    if any(rows.exists() for rows in waits_for):
        raise Conflict(f"Topic {topic.name} still has subscriptions.", code=Code.IN_USE)
    _erase(topic, verb="remove", actor=actor or job("topics"))


def _erase(topic: Topic, *, verb: str, actor: Actor) -> None:
    topic_id = topic.pk
    topic.queues.all().delete()
    topic.delete()
    audit.record(
        actor=actor, verb=verb, kind="topic", name=topic.name, before={"state": topic.state}
    )
    record_change("topic", topic_id)


@transactional
def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> TopicView:
    """The topic with some settings changed (rules.settings.TOPIC). Needs `manage`, and for
    other owners all that these get.
    """
    access.require(actor, "manage", name, what="topic")
    values = check_domains(check_settings(TOPIC, settings))
    topic = lock_topic(name)
    access.require_failure_origin(actor, "manage", name, origin_of(topic))
    before = rows.changed_values(topic, values)
    if "owners" in before:
        access.require_ownership(actor, name)
    if before:
        if "keyed" in before:
            routings.keep_routing(topic)
        rows.save_changes(topic, before, values, actor=actor, kind="topic", name=name)
        record_change("topic", topic.pk)
    return topic_view(topic)


@transactional
def mark_deleted(*, name: str, confirm: str | None, actor: Actor) -> TopicView:
    """The topic, deleted: its name is free at once, its tables are dropped after three
    days. Needs `manage`.

    Raises Invalid(not_confirmed), Conflict(in_use) while a group subscribes to it.
    """
    access.require(actor, "manage", name, what="topic")
    topic = lock_topic(name)
    access.require_failure_origin(actor, "manage", name, origin_of(topic))
    check_confirmed(name, confirm)
    using = topic.subscriptions.exclude(state=ConsumerGroupTopic.State.DELETING)
    groups = list(using.values_list("group__name", flat=True)[:5])
    if groups:
        raise Conflict(
            f"Topic {name} is read by {', '.join(groups)}: unsubscribe first.",
            code=Code.IN_USE,
        )
    _delete(topic, verb="delete", actor=actor)
    return topic_view(topic)


def _delete(topic: Topic, *, verb: str, actor: Actor) -> None:
    name = topic.name
    topic.name, topic.state, topic.deleted_at = (
        f"{name}~{topic.pk}",
        Topic.State.DELETED,
        database_now(),
    )
    topic.failure_group = topic.failure_of = None  # the pair may get another one
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
    """Delete a failure topic whose subscription is gone; its tables stay for three more
    days.
    """
    if topic.kind == Topic.Kind.FAILURE and topic.state != Topic.State.DELETED:
        _delete(topic, verb="delete", actor=actor)


def find_topic(*, name: str, actor: Actor) -> TopicView:
    """The topic called `name`, not deleted. Needs any right on it; raises
    NotFound(topic_not_found).
    """
    if not access.may_see(actor, name):
        access.require(actor, "browse", name, what="topic")
    with reachable():
        row = (
            Topic.objects.filter(name=name).exclude(state="deleted").first()
            if is_name(name)
            else None
        )
        if row is None or row.name != name:
            raise no_topic(name)
        return topic_view(row)


def list_topics(*, actor: Actor, window: Window, kind: str = "normal") -> Page[TopicView]:
    """Topics of a kind by name, without the deleted, those the actor has any right on."""
    there_are = Topic.objects.exclude(state="deleted").filter(kind=kind)
    rows, following = paging.select_page(there_are, window=window, actor=actor)
    with reachable():
        return Page(tuple(_views(rows)), following)


def list_ready() -> list[TopicView]:
    with reachable():
        return _views(list(Topic.objects.filter(state="ready").order_by("name")))


def iterate_unfinished(older_than_s: float) -> Iterator[TopicView]:
    """Topics that have been creating for longer than that: a crash left them."""
    with reachable():
        limit = before(database_now(), seconds=older_than_s)
    return _paged(Topic.objects.filter(state="creating", created_at__lt=limit))


def iterate_due_for_drop(after_days: float = DROP_AFTER_DAYS) -> Iterator[TopicView]:
    with reachable():
        limit = before(database_now(), seconds=after_days * 86_400)
    return _paged(Topic.objects.filter(state="deleted", deleted_at__lt=limit))


def _paged(rows: QuerySet[Topic]) -> Iterator[TopicView]:
    for list_topics in read_in_pages(rows):
        with reachable():
            views = _views(list_topics)
        yield from views


def _locked(topic_id: int) -> Topic:
    row = (
        Topic.objects.select_for_update()
        .filter(pk=topic_id)
        .exclude(state="deleted")
        .first()
    )
    if row is None:
        raise NotFound("The topic was removed.", code=Code.TOPIC_NOT_FOUND)
    return row


def topic_view(row: Topic) -> TopicView:
    return _views([row])[0]


def _views(rows: Sequence[Topic]) -> list[TopicView]:
    """Views of rows, with all their queues read at once."""
    queues: dict[int, list[QueueView]] = {row.pk: [] for row in rows}
    found = (
        Queue.objects.filter(topic_id__in=[*queues])
        .select_related("node")
        .order_by("topic_id", "number")
    )
    for one in found:
        queues[one.topic_id].append(
            QueueView(one.pk, one.number, one.node.name, one.node_id, one.state, one.bytes)
        )
    return [_as_view(row, tuple(queues[row.pk])) for row in rows]


def _as_view(row: Topic, queues: tuple[QueueView, ...]) -> TopicView:
    layout = tuple(json.loads(row.layout)) if row.layout else ()
    return rows.make_view(TopicView, row, layout=layout, queues=queues)
