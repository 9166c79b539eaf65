"""Reads snapshot content from the database: everything, or what the change log names.

Every function reads through the alias it is given; the caller holds one repeatable-read
transaction open around them, so that what they return fits together. `version` alone needs
none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from django.db.models import Count, Model, QuerySet

from metadata.cache.snapshot_types import (
    Content,
    GroupInfo,
    KeyInfo,
    NodeInfo,
    QueueInfo,
    Routing,
    Snapshot,
    SubscriptionInfo,
    TopicInfo,
    merge_rows,
)
from metadata.db.clock import ms
from metadata.db.rows import make_view
from metadata.db.secrets import Undecryptable, decrypt
from metadata.grouping import grouped
from metadata.models import (
    ApiKey,
    ChangeCounter,
    ChangeLog,
    ConsumerGroup,
    ConsumerGroupTopic,
    DbNode,
    Queue,
    Topic,
    TopicRouting,
)
from metadata.rules.rates import Rates

M = TypeVar("M", bound=Model)
Changes = Mapping[str, set[int]]  # kind → ids
log = logging.getLogger(__name__)

_VERSION = f"SELECT id, incarnation, n FROM {ChangeCounter._meta.db_table}"  # noqa: S608 - no value of anybody's
MAX_CHANGES = 2_000  # log rows; above it a full load is cheaper than long lists of ids


def read_version(alias: str) -> tuple[str, int]:
    """The database's incarnation and the number of its last change."""
    (row,) = ChangeCounter.objects.using(alias).raw(_VERSION)
    return row.incarnation, row.n


def read_changes(alias: str, *, above: int, upto: int) -> Changes | None:
    """Read what changed in numbers above+1 … upto; None when the log does not tell all of
    it, or too much.
    """
    rows = list(
        ChangeLog.objects.using(alias)
        .filter(n__gt=above, n__lte=upto)
        .values_list("n", "kind", "row")[: MAX_CHANGES + 1]
    )
    if len(rows) > MAX_CHANGES or len({n for n, _, _ in rows}) < upto - above:
        return None
    named: dict[str, set[int]] = {}
    for _, kind, row in rows:
        named.setdefault(kind, set()).add(row)
    return named


def load_all(alias: str) -> Content:
    return _content(alias, None)


def load_changed(alias: str, old: Snapshot, named: Changes) -> Content:
    """The content of `old` with the named rows read anew; a row that is gone leaves it."""
    fresh = _content(alias, named)
    topics = named.get("topic", set())
    queues = (
        {one.id for one in old.queues.values() if one.topic_id in topics}
        if topics
        else set()
    )
    return Content(
        nodes=merge_rows(old.nodes, fresh.nodes, asked=named.get("node", set())),
        topics=merge_rows(old.topics, fresh.topics, asked=topics),
        queues=merge_rows(old.queues, fresh.queues, asked=queues),
        groups=merge_rows(old.groups, fresh.groups, asked=named.get("group", set())),
        subscriptions=merge_rows(
            old.subscriptions, fresh.subscriptions, asked=named.get("subscription", set())
        ),
        keys=merge_rows(old.keys, fresh.keys, asked=named.get("key", set())),
    )


def _content(alias: str, named: Changes | None) -> Content:
    """Load what `named` names, everything if it is None; queues come with their topics."""
    topics = _rows(
        lambda: Topic.objects.using(alias).exclude(state="deleted"), named, "topic"
    )
    queues = _queues(alias, None if named is None else [one.pk for one in topics])
    of_topic = grouped((queue.topic_id, queue.id) for queue in queues)
    earlier = _routings(alias, None if named is None else [one.pk for one in topics])
    return Content(
        nodes={
            one.pk: _node(one)
            for one in _rows(DbNode.objects.using(alias).all, named, "node")
        },
        topics={
            one.pk: _topic(
                one, tuple(of_topic.get(one.pk, ())), tuple(earlier.get(one.pk, ()))
            )
            for one in topics
        },
        queues={one.id: one for one in queues},
        groups={
            one.pk: make_view(GroupInfo, one)
            for one in _rows(lambda: _groups(alias), named, "group")
        },
        subscriptions={
            one.pk: _subscription(one)
            for one in _rows(
                ConsumerGroupTopic.objects.using(alias).all, named, "subscription"
            )
        },
        keys={
            one.pk: _key(one)
            for one in _rows(ApiKey.objects.using(alias).all, named, "key")
        },
    )


def _rows(rows: Callable[[], QuerySet[M]], named: Changes | None, kind: str) -> list[M]:
    """Load the named rows of a kind; no query is built for none, which would take longer
    than most loads.
    """
    if named is None:
        return list(rows().order_by("pk"))
    ids = named.get(kind)
    return list(rows().filter(pk__in=sorted(ids)).order_by("pk")) if ids else []


def _groups(alias: str) -> QuerySet[ConsumerGroup]:
    alive = ConsumerGroup.objects.using(alias).filter(deleted_at__isnull=True)
    return alive.annotate(member_count=Count("members"))


def _queues(alias: str, topics: Collection[int] | None) -> list[QueueInfo]:
    if topics is not None and not topics:
        return []
    rows = (
        Queue.objects.using(alias)
        .exclude(topic__state="deleted")
        .order_by("topic_id", "number")
    )
    if topics is not None:
        rows = rows.filter(topic_id__in=list(topics))
    columns = rows.values_list(
        "id", "topic_id", "number", "node_id", "state", "head_seen", "reopened_at"
    )
    return [
        QueueInfo(
            id,
            topic_id,
            number,
            node_id,
            state,
            head_seen,
            0 if reopened is None else ms(reopened),
        )
        for id, topic_id, number, node_id, state, head_seen, reopened in columns
    ]


def _routings(alias: str, topics: Collection[int] | None) -> dict[int, list[Routing]]:
    """The earlier routings of topics, the oldest first."""
    if topics is not None and not topics:
        return {}
    rows = TopicRouting.objects.using(alias).order_by("until_at", "pk")
    if topics is not None:
        rows = rows.filter(topic_id__in=list(topics))
    return grouped((row.topic_id, _routing(row)) for row in rows)


def _routing(row: TopicRouting) -> Routing:
    return Routing(
        tuple(json.loads(row.layout)), row.keyed, tuple(row.queues), ms(row.until_at)
    )


def _node(row: DbNode) -> NodeInfo:
    try:
        password = decrypt(row.password_encrypted)
    except Undecryptable:
        log.error(
            "The password of node %s cannot be decrypted: check CATMQ_ENCRYPTION_KEYS",
            row.name,
        )
        password = ""
    ports = {"port": row.port or 0, "replica_port": row.replica_port or 0}
    return make_view(NodeInfo, row, password=password, **ports)


def _topic(row: Topic, queues: tuple[int, ...], earlier: tuple[Routing, ...]) -> TopicInfo:
    return make_view(
        TopicInfo,
        row,
        layout=tuple(json.loads(row.layout)) if row.layout else (),
        queues=queues,
        failure_group=row.failure_group_id,
        failure_of=row.failure_of_id,
        rates=_rates(row),
        earlier=earlier,
        send_tokens=frozenset(one["digest"] for one in row.send_tokens or ()),
    )


def _subscription(row: ConsumerGroupTopic) -> SubscriptionInfo:
    return SubscriptionInfo(
        id=row.pk,
        group_id=row.group_id,
        topic_id=row.topic_id,
        state=row.state,
        start=row.start,
        stopped=row.stopped,
        stopped_queues=frozenset(row.stopped_queues),
        delivery=row.delivery,
    )


def _key(row: ApiKey) -> KeyInfo:
    rights = {right: tuple(patterns) for right, patterns in row.rights.items()}
    return KeyInfo(row.pk, row.name, row.digest, rights, _rates(row))


def _rates(row: Topic | ApiKey) -> Rates:
    return Rates(row.max_messages_per_s, row.max_bytes_per_s)
