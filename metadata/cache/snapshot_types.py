"""Parts of a snapshot: frozen copies of the rows that brokers need, and the maps over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeVar

from metadata.grouping import grouped
from metadata.rules.groups.delivery import Delivery
from metadata.rules.groups.filters import EVERYTHING, MessageFilter
from metadata.rules.rates import UNLIMITED, Rates
from metadata.rules.topics.routing_rules import queue_for_key

V = TypeVar("V")
_DEFAULTS = Delivery()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A DbNode; `password` in plain text, not in its repr. A node whose `disk` is full
    stores nothing.
    """

    id: int
    name: str
    kind: str
    engine: str
    host: str
    port: int
    database: str
    username: str
    password: str = field(repr=False)
    state: str
    dedicated: bool
    epoch: int
    capacity_gb: int | None
    replica_host: str = ""
    replica_port: int = 0
    tls: str = "off"
    tls_ca: str = ""
    identity: str = ""
    quarantined: str = ""
    disk: str = "ok"


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A Queue; `head_seen` may be minutes old, and its head was at least that high.

    `reopened_ms`: when it was last opened after it had been closed, ms since 1970; 0:
    never.
    """

    id: int
    topic_id: int
    number: int
    node_id: int
    state: str
    head_seen: int = 0
    reopened_ms: int = 0


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of messages that name no queue, for ids of batches up to a time (ms since
    1970).

    `queues` are those that an unkeyed one could go to, in order of number.
    """

    layout: tuple[int, ...] = field(repr=False)
    keyed: str
    queues: tuple[int, ...]
    until_ms: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A Topic; `layout` has 1,024 queue ids, or none while creating; `queues` are ids in
    order of number.

    `earlier`: its routings of the last days, the oldest first.
    """

    id: int
    name: str
    kind: str
    state: str
    keyed: str
    on_unknown: str
    layout: tuple[int, ...] = field(repr=False)
    layout_version: int
    queues: tuple[int, ...]
    retention_days: int
    retention_bytes: int | None
    # of a failure topic: whose failed messages, and of which topic
    failure_group: int | None = None
    failure_of: int | None = None
    rates: Rates = UNLIMITED
    earlier: tuple[Routing, ...] = ()
    read_only: bool = False
    send_tokens: frozenset[str] = field(default=frozenset(), repr=False)  # digests

    def queue_for(self, key: str) -> int:
        return queue_for_key(key, self.layout)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    id: int
    name: str
    mode: str
    stopped: bool
    session_timeout_ms: int
    generation: int
    lease_ms: int = 30_000
    run_messages: int = 10
    max_deliveries: int = 5
    member_count: int = 0  # as of its last change; kept up to date for share groups only

    @property
    def is_share(self) -> bool:
        return self.mode == "share"


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    id: int
    group_id: int
    topic_id: int
    state: str
    start: str
    stopped: bool
    stopped_queues: frozenset[int]
    delivery: Delivery = field(default_factory=Delivery)


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An ApiKey; `rights` maps a right to its name patterns."""

    id: int
    name: str
    digest: str = field(repr=False)
    rights: Mapping[str, tuple[str, ...]]
    rates: Rates = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All rows of a snapshot, or the changed ones, by kind and id."""

    nodes: Mapping[int, NodeInfo]
    topics: Mapping[int, TopicInfo]
    queues: Mapping[int, QueueInfo]
    groups: Mapping[int, GroupInfo]
    subscriptions: Mapping[int, SubscriptionInfo]
    keys: Mapping[int, KeyInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Content):
    """The metadata at one instant; nothing in it ever changes.

    `version` = (incarnation of the metadata database, number of its last change);
    `loaded_at` is
    time.monotonic() of the last look that found this version still current; `full_at` of
    its last full load.
    """

    version: tuple[str, int]
    loaded_at: float
    full_at: float
    nodes_by_name: Mapping[str, NodeInfo] = field(repr=False)
    topics_by_name: Mapping[str, TopicInfo] = field(repr=False)
    groups_by_name: Mapping[str, GroupInfo] = field(repr=False)
    keys_by_digest: Mapping[str, KeyInfo] = field(repr=False)
    subscriptions_by_group: Mapping[int, tuple[SubscriptionInfo, ...]] = field(repr=False)
    # by (group, topic)
    failure_topics: Mapping[tuple[int, int], TopicInfo] = field(repr=False)

    def topic(self, name: str) -> TopicInfo | None:
        """The topic called `name`, in any state but deleted."""
        return self.topics_by_name.get(name)

    def group(self, name: str) -> GroupInfo | None:
        return self.groups_by_name.get(name)

    def node(self, name: str) -> NodeInfo | None:
        return self.nodes_by_name.get(name)

    def key(self, digest: str) -> KeyInfo | None:
        return self.keys_by_digest.get(digest)

    def subscriptions_of(self, group_id: int) -> tuple[SubscriptionInfo, ...]:
        return self.subscriptions_by_group.get(group_id, ())

    def delivery(self, group_id: int, topic_id: int) -> Delivery:
        """Return a group's delivery settings for a topic; the defaults where it does not
        subscribe.
        """
        mine = (
            one.delivery
            for one in self.subscriptions_of(group_id)
            if one.topic_id == topic_id
        )
        return next(mine, _DEFAULTS)

    def queue_name(self, queue: int) -> str | None:
        """A queue as people call it, by its topic and its number there: orders/3; None if
        it is gone.
        """
        found = self.queues.get(queue)
        of = self.topics.get(found.topic_id) if found is not None else None
        return f"{of.name}/{found.number}" if found is not None and of is not None else None

    def queue_called(self, name: str) -> QueueInfo | None:
        """The queue of that name, such as orders/3."""
        topic, _slash, number = name.rpartition("/")
        of = self.topic(topic)
        mine = (
            [self.queues[one] for one in of.queues if one in self.queues]
            if of is not None
            else []
        )
        return next((one for one in mine if str(one.number) == number), None)

    def only(self, group_id: int, queue: int) -> MessageFilter:
        """The messages of a queue that a group takes."""
        info = self.queues.get(queue)
        return (
            self.delivery(group_id, info.topic_id).only if info is not None else EVERYTHING
        )

    def delay_s(self, group_id: int, queue: int) -> int:
        """Delay in seconds after a message of a queue was stored until a group gets it."""
        info = self.queues.get(queue)
        return self.delivery(group_id, info.topic_id).delay_s if info is not None else 0

    def stopped(self, group_id: int, queue: QueueInfo) -> bool:
        """Return True if an operator stopped the group, its subscription to the topic, or
        the queue in it.

        Who reads nothing of a topic gets no retries of its messages either.
        """
        group = self.groups.get(group_id)
        mine = self.subscriptions_of(group_id)
        return (group is not None and group.stopped) or any(
            one.stopped or queue.id in one.stopped_queues
            for one in mine
            if one.topic_id in (queue.topic_id, self.origin(queue.topic_id))
        )

    def origin(self, topic_id: int) -> int:
        """The topic whose failed messages a topic holds; of any but a failure topic itself."""
        topic = self.topics.get(topic_id)
        return topic_id if topic is None or topic.failure_of is None else topic.failure_of

    def holds_failures(self, queue: int) -> bool:
        info = self.queues.get(queue)
        topic = None if info is None else self.topics.get(info.topic_id)
        return topic is not None and topic.failure_of is not None

    def subscription(self, group_id: int, topic_id: int) -> SubscriptionInfo | None:
        """The group's subscription to a topic, in any state."""
        return next(
            (one for one in self.subscriptions_of(group_id) if one.topic_id == topic_id),
            None,
        )


def build_snapshot(
    *, version: tuple[str, int], at: float, full_at: float, content: Content
) -> Snapshot:
    """A snapshot of `content`, with its lookup maps; `at` and `full_at` are
    time.monotonic().
    """
    by_group = grouped((one.group_id, one) for one in content.subscriptions.values())
    return Snapshot(
        version=version,
        loaded_at=at,
        full_at=full_at,
        **{
            kind.name: MappingProxyType(getattr(content, kind.name))
            for kind in fields(content)
        },
        nodes_by_name=MappingProxyType({one.name: one for one in content.nodes.values()}),
        topics_by_name=MappingProxyType({one.name: one for one in content.topics.values()}),
        groups_by_name=MappingProxyType({one.name: one for one in content.groups.values()}),
        keys_by_digest=MappingProxyType({one.digest: one for one in content.keys.values()}),
        subscriptions_by_group=MappingProxyType(
            {group: tuple(ones) for group, ones in by_group.items()}
        ),
        failure_topics=MappingProxyType(
            {
                (one.failure_group, one.failure_of): one
                for one in content.topics.values()
                if one.failure_group is not None and one.failure_of is not None
            }
        ),
    )


def merge_rows(
    old: Mapping[int, V], fresh: Mapping[int, V], *, asked: set[int]
) -> dict[int, V]:
    """`old` with the rows `asked` for replaced by `fresh`; those that are no longer there
    are left out.
    """
    return {**{row: info for row, info in old.items() if row not in asked}, **fresh}
