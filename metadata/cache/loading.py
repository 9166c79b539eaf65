"""Loads snapshot content from the database: everything, or the rows that the change log
names.

Every function reads through the database alias that it gets. The caller holds a
repeatable-read transaction open around them, so that their results fit together. Only
read_version() needs no transaction.
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
from metadata.rules.topics.states import KeyIndexState, TopicState

M = TypeVar("M", bound=Model)
Changes = Mapping[str, set[int]]  # kind → ids of changed rows
log = logging.getLogger(__name__)

_VERSION = f"SELECT id, incarnation, n FROM {ChangeCounter._meta.db_table}"  # noqa: S608 - table names only
MAX_CHANGES = 2_000  # log rows; above it a full load is cheaper than long lists of ids


def read_version(alias: str) -> tuple[str, int]:
    """Return the database's incarnation and the number of its last change."""
    (row,) = ChangeCounter.objects.using(alias).raw(_VERSION)
    return row.incarnation, row.n


def read_changes(alias: str, *, above: int, upto: int) -> Changes | None:
    """Return the rows of the changes numbered above+1 … upto. None if the log does not have
    all of these changes any more, or if they are too many.
    """
    rows = list(
        ChangeLog.objects.using(alias)
        .filter(n__gt=above, n__lte=upto)
        .values_list("n", "kind", "row")[: MAX_CHANGES + 1]
    )
    # A number without a row was pruned from the log, so its change is unknown.
    if len(rows) > MAX_CHANGES or len({n for n, _, _ in rows}) < upto - above:
        return None
    changed: dict[str, set[int]] = {}
    for _, kind, row in rows:
        changed.setdefault(kind, set()).add(row)
    return changed


def load_all(alias: str) -> Content:
    return _load(alias, None)


def load_changed(alias: str, old: Snapshot, changed: Changes) -> Content:
    """Return the content of `old` with the changed rows loaded. Deleted rows are left out."""
    loaded = _load(alias, changed)
    # All queues of a changed topic count as changed, so that deleted queues disappear.
    topics = changed.get("topic", set())
    queues = (
        {queue.id for queue in old.queues.values() if queue.topic_id in topics}
        if topics
        else set()
    )
    return Content(
        nodes=merge_rows(old.nodes, loaded.nodes, changed=changed.get("node", set())),
        topics=merge_rows(old.topics, loaded.topics, changed=topics),
        queues=merge_rows(old.queues, loaded.queues, changed=queues),
        groups=merge_rows(old.groups, loaded.groups, changed=changed.get("group", set())),
        subscriptions=merge_rows(
            old.subscriptions,
            loaded.subscriptions,
            changed=changed.get("subscription", set()),
        ),
        keys=merge_rows(old.keys, loaded.keys, changed=changed.get("key", set())),
    )


def _load(alias: str, changed: Changes | None) -> Content:
    """Load the changed rows, or everything if `changed` is None. A changed topic includes its
    queues.
    """
    topics = _load_rows(
        lambda: Topic.objects.using(alias).exclude(state=TopicState.DELETED),
        changed,
        "topic",
    )
    # Queues and routings have no changes of their own: a topic's change covers them.
    topic_ids = None if changed is None else [topic.pk for topic in topics]
    queues = _load_queues(alias, topic_ids)
    queues_by_topic = grouped((queue.topic_id, queue.id) for queue in queues)
    routings = _load_routings(alias, topic_ids)
    return Content(
        nodes={
            node.pk: _node_info(node)
            for node in _load_rows(DbNode.objects.using(alias).all, changed, "node")
        },
        topics={
            topic.pk: make_view(
                TopicInfo,
                topic,
                layout=tuple(json.loads(topic.layout)) if topic.layout else (),
                queues=tuple(queues_by_topic.get(topic.pk, ())),
                failure_group=topic.failure_group_id,
                failure_of=topic.failure_of_id,
                rates=_rates(topic),
                earlier=tuple(routings.get(topic.pk, ())),
                send_tokens=frozenset(token["digest"] for token in topic.send_tokens or ()),
            )
            for topic in topics
        },
        queues={info.id: info for info in queues},
        groups={
            group.pk: make_view(GroupInfo, group)
            for group in _load_rows(
                lambda: (
                    ConsumerGroup.objects.using(alias)
                    .filter(deleted_at__isnull=True)
                    .annotate(member_count=Count("members"))
                ),
                changed,
                "group",
            )
        },
        subscriptions={
            subscription.pk: make_view(
                SubscriptionInfo,
                subscription,
                stopped_queues=frozenset(subscription.stopped_queues),
            )
            for subscription in _load_rows(
                ConsumerGroupTopic.objects.using(alias).all, changed, "subscription"
            )
        },
        keys={
            key.pk: KeyInfo(
                key.pk,
                key.name,
                key.digest,
                {right: tuple(patterns) for right, patterns in key.rights.items()},
                _rates(key),
            )
            for key in _load_rows(ApiKey.objects.using(alias).all, changed, "key")
        },
    )


def _load_rows(
    rows: Callable[[], QuerySet[M]], changed: Changes | None, kind: str
) -> list[M]:
    """Load the changed rows of a kind, all if `changed` is None.

    `rows` is a function because most loads concern a single kind, and to build a query set
    for each other kind takes longer than the load.
    """
    if changed is None:
        return list(rows().order_by("pk"))
    ids = changed.get(kind)
    return list(rows().filter(pk__in=sorted(ids)).order_by("pk")) if ids else []


def _load_queues(alias: str, topics: Collection[int] | None) -> list[QueueInfo]:
    if topics is not None and not topics:
        return []
    rows = (
        Queue.objects.using(alias)
        .exclude(topic__state=TopicState.DELETED)
        .order_by("topic_id", "number")
    )
    if topics is not None:
        rows = rows.filter(topic_id__in=list(topics))
    # Plain tuples, because a full load reads every queue and instances of models cost more.
    columns = rows.values_list(
        "id",
        "topic_id",
        "number",
        "node_id",
        "state",
        "head_seen",
        "reopened_at",
        "key_index",
    )
    return [
        QueueInfo(
            id,
            topic_id,
            number,
            node_id,
            state,
            head_seen,
            0 if reopened_at is None else ms(reopened_at),
            key_index == KeyIndexState.READY,
        )
        for id, topic_id, number, node_id, state, head_seen, reopened_at, key_index in columns
    ]


def _load_routings(alias: str, topics: Collection[int] | None) -> dict[int, list[Routing]]:
    """Return the former routings of topics, oldest first, by topic id."""
    if topics is not None and not topics:
        return {}
    rows = TopicRouting.objects.using(alias).order_by("until_at", "pk")
    if topics is not None:
        rows = rows.filter(topic_id__in=list(topics))
    return grouped(
        (
            row.topic_id,
            Routing(
                tuple(json.loads(row.layout)),
                row.keyed,
                tuple(row.queues),
                ms(row.until_at),
            ),
        )
        for row in rows
    )


def _node_info(row: DbNode) -> NodeInfo:
    try:
        password = decrypt(row.password_encrypted)
    except Undecryptable:
        log.error(
            "The password of node %s cannot be decrypted: check CATMQ_ENCRYPTION_KEYS",
            row.name,
        )
        # The broker serves all other nodes; connections to this node fail.
        password = ""
    ports = {"port": row.port or 0, "replica_port": row.replica_port or 0}
    return make_view(NodeInfo, row, password=password, **ports)


def _rates(row: Topic | ApiKey) -> Rates:
    return Rates(row.max_messages_per_s, row.max_bytes_per_s)
