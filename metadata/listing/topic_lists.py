"""Lists of the portal: topics, groups and subscriptions, with the lag that a job recorded and
the messages of the last minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import Count, Max, Q, QuerySet, Sum
from msgspec import Struct, structs

from metadata.actors import Actor
from metadata.db.access import may
from metadata.db.rows import make_view
from metadata.db.transactions import reachable
from metadata.errors import Forbidden
from metadata.listing import minutes
from metadata.listing.pages import ListLayout, ListPage, ListQuery, select_page
from metadata.models import (
    ConsumerGroup,
    ConsumerGroupConsumer,
    ConsumerGroupTopic,
    Queue,
    Topic,
)
from metadata.monitoring import lag_trends
from metadata.monitoring.lag_trends import GroupProgress
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.rights import Right
from metadata.rules.topics.names import INTERNAL_MARK, lane_base
from metadata.rules.topics.states import QueueState, TopicKind, TopicState

_READY = Q(subscriptions__state=SubscriptionState.READY)
TOPICS = ListLayout(
    search_in=("name", "owners", "department", "description"),
    sorts={
        "name": "name",
        "lag": "lag",
        "age": "lag_ms",
        "days": "retention_days",
        "created": "created_at",
    },
    default="name",
    figures={
        "lag": Max("subscriptions__lag", filter=_READY),
        "lag_ms": Max("subscriptions__lag_ms", filter=_READY),
    },
)
GROUPS = ListLayout(
    search_in=("name", "owners", "department", "description"),
    sorts={"name": "name", "lag": "lag", "age": "lag_ms", "created": "created_at"},
    default="name",
    figures={
        "lag": Sum("subscriptions__lag", filter=_READY),
        "lag_ms": Max("subscriptions__lag_ms", filter=_READY),
    },
)
SUBSCRIPTIONS = ListLayout(
    search_in=("group__name", "topic__name"),
    sorts={"group": "group__name", "topic": "topic__name", "lag": "lag", "age": "lag_ms"},
    default="group",
)


class TopicRow(Struct, frozen=True):
    """A topic in a list. `lag` is that of its slowest group, `lag_ms` the age of the oldest
    unread message, `bytes` the size of its queues. These are None until a job has recorded
    them. `minutes` are the messages sent in each of the last minutes.
    """

    name: str
    state: str
    kind: str
    queues: int
    groups: int
    bytes: int | None
    lag: int | None
    lag_ms: int | None
    retention_days: int
    owners: str
    department: str
    created_at_ms: int
    minutes: tuple[int, ...]


class GroupRow(Struct, frozen=True):
    """A group in a list. `lag` is the sum of its subscriptions, `lag_ms` the age of the
    oldest unread message. `minutes` are the messages handled in each of the last minutes.
    `progress` is the trend of its lag, None if unknown.
    """

    pk: int
    name: str
    mode: str
    stopped: bool
    members: int
    topics: int
    lag: int | None
    lag_ms: int | None
    owners: str
    department: str
    minutes: tuple[int, ...]
    progress: GroupProgress | None


class SubscriptionRow(Struct, frozen=True):
    """A subscription in a list. `minutes` are the messages of the topic that the group
    handled in each of the last minutes, `members` the number of members of the group.
    """

    group: str
    topic: str
    state: str
    start: str
    stopped: bool
    stopped_queues: int
    lag: int | None
    lag_ms: int | None
    created_at_ms: int
    minutes: tuple[int, ...]
    members: int


def check_look(actor: Actor) -> None:
    """Raise Forbidden unless the actor is a portal user or may do everything. API keys may
    not see these lists.
    """
    if not may(actor, Right.LOOK, "*"):
        raise Forbidden(f"{actor.kind} {actor.name} may not see these lists.")


def topics(
    *, query: ListQuery, actor: Actor, kind: str = TopicKind.NORMAL
) -> ListPage[TopicRow]:
    """Return topics of a kind: normal, internal (see `_is_internal`) or failure (retry
    topics).

    A search among the normal topics finds topics of all kinds: a user who knows a name need
    not know the kind.
    """
    check_look(actor)
    # The two long columns are not shown in the list.
    rows = Topic.objects.exclude(state=TopicState.DELETED).defer("layout", "description")
    with reachable():
        if kind == TopicKind.FAILURE:
            rows = rows.filter(kind=TopicKind.FAILURE)
        elif kind == "internal":
            rows = rows.filter(_is_internal(), kind=TopicKind.NORMAL)
        elif not query.search:
            rows = rows.filter(~_is_internal(), kind=TopicKind.NORMAL)
    page = select_page(rows, query=query, layout=TOPICS)
    ids = [row.pk for row in page.items]
    # Three queries, because a query with all three joins would multiply the rows.
    with reachable():
        queues = _counts(
            Queue.objects.filter(topic__in=ids).exclude(state=QueueState.RETIRED),
            "topic_id",
        )
        groups = _counts(
            ConsumerGroupTopic.objects.filter(topic__in=ids, state=SubscriptionState.READY),
            "topic_id",
        )
        sizes = dict(
            Queue.objects.filter(topic__in=ids)
            .order_by()
            .values_list("topic_id")
            .annotate(bytes=Sum("bytes"))
        )
    lines = minutes.sent_by_topic(topic_ids=ids)
    return page.map(
        lambda row: make_view(
            TopicRow,
            row,
            queues=queues.get(row.pk, 0),
            groups=groups.get(row.pk, 0),
            bytes=sizes.get(row.pk),
            minutes=tuple(lines.get(row.pk, ())),
        )
    )


def count_by_kind(*, actor: Actor) -> dict[str, int]:
    """Return the number of topics that the list of normal topics leaves out: internal,
    failure.
    """
    check_look(actor)
    with reachable():
        rows = Topic.objects.exclude(state=TopicState.DELETED)
        return {
            "internal": rows.filter(_is_internal(), kind=TopicKind.NORMAL).count(),
            TopicKind.FAILURE: rows.filter(kind=TopicKind.FAILURE).count(),
        }


def count_internal_subscriptions(*, actor: Actor) -> int:
    """Return the number of subscriptions that the list of normal topics leaves out."""
    check_look(actor)
    with reachable():
        return (
            _subscriptions()
            .filter(_is_internal("topic__"), topic__kind=TopicKind.NORMAL)
            .count()
        )


def _is_internal(path: str = "") -> Q:
    """Return the condition for topics that Celery and Django's tasks make for their own
    purposes.

    `path` leads from the row to its topic, such as `topic__`.
    """
    names = Topic.objects.filter(kind=TopicKind.NORMAL).exclude(state=TopicState.DELETED)
    # Lanes of Django's tasks are called like their topic, with a suffix for the priority.
    suffixes = Q(name__contains=".low") | Q(name__contains=".high")
    bases = {
        name: lane_base(name)
        for name in names.filter(suffixes).values_list("name", flat=True)
    }
    existing = set(
        names.filter(name__in=set(bases.values())).values_list("name", flat=True)
    )
    # A name with such a suffix alone may belong to an application.
    lanes = [name for name, base in bases.items() if base in existing]
    return Q(**{f"{path}name__contains": INTERNAL_MARK}) | Q(**{f"{path}name__in": lanes})


def _subscriptions() -> QuerySet[ConsumerGroupTopic]:
    rows = ConsumerGroupTopic.objects.filter(group__deleted_at__isnull=True)
    return rows.select_related("group", "topic").defer(
        "topic__layout", "topic__description", "group__description"
    )


def _counts(rows: Any, field: str) -> dict[int, int]:
    return dict(rows.order_by().values_list(field).annotate(n=Count("pk")))


def groups(
    *,
    query: ListQuery,
    actor: Actor,
    lines: bool = True,
    among: Collection[int] | None = None,
) -> ListPage[GroupRow]:
    """Return groups, only those with ids `among` if it is set. Without `lines` their
    `minutes` are empty, which take longest to read.
    """
    check_look(actor)
    rows = ConsumerGroup.objects.filter(deleted_at__isnull=True).defer("description")
    rows = rows if among is None else rows.filter(pk__in=among)
    page = select_page(rows, query=query, layout=GROUPS)
    ids = [row.pk for row in page.items]
    with reachable():
        members = _counts(ConsumerGroupConsumer.objects.filter(group__in=ids), "group_id")
        subscribed = ConsumerGroupTopic.objects.filter(
            group__in=ids, state=SubscriptionState.READY, topic__kind=TopicKind.NORMAL
        )
        topics = _counts(subscribed, "group_id")
    handled = minutes.handled_by_group(group_ids=ids) if lines else {}
    trends = lag_trends.read_progress_of_groups(ids)
    return page.map(
        lambda row: make_view(
            GroupRow,
            row,
            members=members.get(row.pk, 0),
            topics=topics.get(row.pk, 0),
            minutes=tuple(handled.get(row.pk, ())),
            progress=trends.get(row.pk),
        )
    )


def with_minutes(rows: Collection[GroupRow]) -> tuple[GroupRow, ...]:
    """Return the groups with their `minutes`, for rows that were read without them."""
    handled = minutes.handled_by_group(group_ids=[row.pk for row in rows])
    return tuple(
        structs.replace(row, minutes=tuple(handled.get(row.pk, ()))) for row in rows
    )


def subscriptions(
    *, query: ListQuery, actor: Actor, topic: str | None = None, internal: bool = False
) -> ListPage[SubscriptionRow]:
    """Return subscriptions of all groups, or those to one topic, in a fixed number of
    queries.

    A subscription to a retry topic is part of another one, so it is returned for its topic
    only. Those to internal topics are returned if `internal` is set, for their topic, or if
    the search finds them.
    """
    check_look(actor)
    rows = _subscriptions()
    with reachable():
        if topic is not None:
            rows = rows.filter(topic__name=topic)
        else:
            rows = rows.filter(topic__kind=TopicKind.NORMAL)
            if internal:
                rows = rows.filter(_is_internal("topic__"))
            elif not query.search:
                rows = rows.exclude(_is_internal("topic__"))
    page = select_page(rows, query=query, layout=SUBSCRIPTIONS)
    # Only for the groups of this page, because a count over all members takes long.
    with reachable():
        group_members = ConsumerGroupConsumer.objects.filter(
            group__in={row.group_id for row in page.items}
        )
        members = _counts(group_members, "group_id")
    lines = minutes.handled_by_subscription(
        pairs=[(row.group_id, row.topic_id) for row in page.items]
    )
    return page.map(
        lambda row: make_view(
            SubscriptionRow,
            row,
            stopped=row.stopped or row.group.stopped,
            stopped_queues=len(row.stopped_queues),
            minutes=tuple(lines.get((row.group_id, row.topic_id), ())),
            members=members.get(row.group_id, 0),
        )
    )


def topic_names(*, most: int, actor: Actor) -> tuple[str, ...]:
    """Return the first `most` names of normal topics, in order."""
    check_look(actor)
    with reachable():
        rows = (
            Topic.objects.filter(kind=TopicKind.NORMAL)
            .exclude(state=TopicState.DELETED)
            .order_by("name")
        )
        return tuple(rows.values_list("name", flat=True)[:most])
