"""Internal topics by the topic that they belong to: retry topics, and those that Celery and
Django's tasks create for their own purposes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Max, Q

from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import Snapshot, TopicInfo
from metadata.db.transactions import reachable
from metadata.listing.topic_lists import check_look
from metadata.models import Topic
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.topics.names import celery_base, lane_base
from metadata.rules.topics.states import TopicState


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """An internal topic. `group` is the group whose failed messages a retry topic holds, ''
    for other topics. `lag` is that of the slowest group, None until a job has recorded it.
    """

    name: str
    group: str
    lag: int | None


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """Internal topics in order of name, by the topic that they belong to.

    `of_hosts` are those that belong to no topic, by virtual host of Celery.
    """

    of_topics: Mapping[str, Sequence[InternalTopic]] = field(default_factory=dict)
    of_hosts: Mapping[str, Sequence[InternalTopic]] = field(default_factory=dict)


def find_internal_topics(*, topics: Collection[str], actor: Actor) -> InternalTopics:
    """Return the internal topics that belong to `topics`, and those that belong to none."""
    check_look(actor)
    cluster = snapshot.current()
    names = {
        topic.name for topic in cluster.topics.values() if topic.state != TopicState.DELETED
    }
    by_base: dict[str, list[TopicInfo]] = defaultdict(list)
    for topic in sorted(cluster.topics.values(), key=lambda topic: topic.name):
        base = _base_of(cluster, topic, names)
        # A page of topics needs only its own; the others are on other pages.
        if (
            topic.state != TopicState.DELETED
            and base
            and (base in topics or base not in names)
        ):
            by_base[base].append(topic)
    lags = _read_lags([topic.name for belonging in by_base.values() for topic in belonging])
    rows = {
        base: [
            InternalTopic(topic.name, _group_of(cluster, topic), lags.get(topic.name))
            for topic in belonging
        ]
        for base, belonging in by_base.items()
    }
    return InternalTopics(
        {base: belonging for base, belonging in rows.items() if base in names},
        {base: belonging for base, belonging in rows.items() if base not in names},
    )


def _base_of(cluster: Snapshot, topic: TopicInfo, names: Collection[str]) -> str:
    """Return the topic or virtual host that a topic belongs to, '' for a user's topic."""
    if topic.failure_of is not None:
        origin = cluster.topics.get(topic.failure_of)
        return origin.name if origin else ""
    lane = lane_base(topic.name)
    # A name that looks like a lane may belong to an application.
    return lane if lane in names else celery_base(topic.name)


def _group_of(cluster: Snapshot, topic: TopicInfo) -> str:
    group = cluster.groups.get(topic.failure_group) if topic.failure_group else None
    return group.name if group else ""


def _read_lags(names: Collection[str]) -> dict[str, int | None]:
    lag = Max("subscriptions__lag", filter=Q(subscriptions__state=SubscriptionState.READY))
    with reachable():
        rows = Topic.objects.filter(name__in=names).order_by().annotate(largest_lag=lag)
        return dict(rows.values_list("name", "largest_lag"))
