"""Types of a snapshot: frozen copies of the rows that brokers need, and look-ups over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeVar

from metadata.grouping import grouped
from metadata.rules.groups.delivery import Delivery
from metadata.rules.groups.filters import EVERYTHING, MessageFilter
from metadata.rules.groups.states import GroupMode
from metadata.rules.rates import UNLIMITED, Rates
from metadata.rules.tls import TlsMode
from metadata.rules.topics.routing_rules import queue_for_key

V = TypeVar("V")
_DEFAULTS = Delivery()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node (DbNode). `password` is plain text and left out of the repr. Sends to a node
    whose `disk` is `full` are refused.
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
    tls: str = TlsMode.OFF
    tls_ca: str = ""
    identity: str = ""
    quarantined: str = ""
    disk: str = "ok"
    # Of several servers the one that is written to. A fact for clusters, whose brokers
    # choose it; an order for servers without a cluster, where only a promotion moves it.
    writer: str = ""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue. `head_seen` is a lower bound of its log end offset, which may be minutes old.

    `reopened_ms` is the time when the queue was last opened after it had been closed, in ms
    since 1970, 0 if never. `key_indexed`: searches may use the index on its keys.
    """

    id: int
    topic_id: int
    number: int
    node_id: int
    state: str
    head_seen: int = 0
    reopened_ms: int = 0
    key_indexed: bool = False


@dataclass(frozen=True, slots=True)
class Routing:
    """A former routing of messages that name no queue. It holds for batch ids made up to
    `until_ms` (since 1970), so that a repeated send finds the queue of its first try.

    `queues` are the queues that an unkeyed message could go to, in order of number.
    """

    layout: tuple[int, ...] = field(repr=False)
    keyed: str
    queues: tuple[int, ...]
    until_ms: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `layout` has 1,024 queue ids, none while the topic is being created. `queues`
    are ids in order of number. `earlier` are the routings of the last days, oldest first.
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
    # Ids of the group and topic whose failed messages a failure topic holds.
    failure_group: int | None = None
    failure_of: int | None = None
    rates: Rates = UNLIMITED
    earlier: tuple[Routing, ...] = ()
    read_only: bool = False
    send_tokens: frozenset[str] = field(default=frozenset(), repr=False)  # their digests

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
    member_count: int = 0  # at the last change of the group; current for share groups only

    @property
    def is_share(self) -> bool:
        return self.mode == GroupMode.SHARE


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
    """An API key. `rights` maps a right to its name patterns."""

    id: int
    name: str
    digest: str = field(repr=False)
    rights: Mapping[str, tuple[str, ...]]
    rates: Rates = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All rows of a snapshot, or only the changed rows, by kind and id."""

    nodes: Mapping[int, NodeInfo]
    topics: Mapping[int, TopicInfo]
    queues: Mapping[int, QueueInfo]
    groups: Mapping[int, GroupInfo]
    subscriptions: Mapping[int, SubscriptionInfo]
    keys: Mapping[int, KeyInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Content):
    """The metadata at an instant. It is never changed, so threads share it without locks.

    `version` is (incarnation of the metadata database, number of its last change). Times
    are time.monotonic(): `loaded_at` of the last read that found this version current,
    `full_at` of the last full load.
    """

    version: tuple[str, int]
    loaded_at: float
    full_at: float
    nodes_by_name: Mapping[str, NodeInfo] = field(repr=False)
    topics_by_name: Mapping[str, TopicInfo] = field(repr=False)
    groups_by_name: Mapping[str, GroupInfo] = field(repr=False)
    keys_by_digest: Mapping[str, KeyInfo] = field(repr=False)
    subscriptions_by_group: Mapping[int, tuple[SubscriptionInfo, ...]] = field(repr=False)
    # by (group id, topic id)
    failure_topics: Mapping[tuple[int, int], TopicInfo] = field(repr=False)

    def topic(self, name: str) -> TopicInfo | None:
        """Return the topic called `name`, in any state but deleted."""
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
        """Return a group's delivery settings for a topic, the defaults if the group does not
        subscribe to it.
        """
        subscription = self.subscription(group_id, topic_id)
        return _DEFAULTS if subscription is None else subscription.delivery

    def queue_name(self, queue: int) -> str | None:
        """Return the display name of a queue, its topic and its number: orders/3. None if it
        was deleted.
        """
        info = self.queues.get(queue)
        topic = self.topics.get(info.topic_id) if info is not None else None
        return (
            f"{topic.name}/{info.number}"
            if info is not None and topic is not None
            else None
        )

    def find_queue_by_name(self, name: str) -> QueueInfo | None:
        """Return the queue with a display name such as orders/3."""
        topic_name, _slash, number = name.rpartition("/")
        topic = self.topic(topic_name)
        queues = (
            [self.queues[queue] for queue in topic.queues if queue in self.queues]
            if topic is not None
            else []
        )
        return next((info for info in queues if str(info.number) == number), None)

    def message_filter(self, group_id: int, queue: int) -> MessageFilter:
        """Return the filter of a group for the messages of a queue."""
        info = self.queues.get(queue)
        return (
            self.delivery(group_id, info.topic_id).only if info is not None else EVERYTHING
        )

    def delay_s(self, group_id: int, queue: int) -> int:
        """Return the delay of a group for messages of a queue, in seconds after the send."""
        info = self.queues.get(queue)
        return self.delivery(group_id, info.topic_id).delay_s if info is not None else 0

    def is_stopped(self, group_id: int, queue: QueueInfo) -> bool:
        """Return True if an operator stopped the group, its subscription to the topic, or
        the queue in it.
        """
        group = self.groups.get(group_id)
        subscriptions = self.subscriptions_of(group_id)
        # A stopped subscription also stops the retries of its messages, which are in the
        # failure topic.
        return (group is not None and group.stopped) or any(
            subscription.stopped or queue.id in subscription.stopped_queues
            for subscription in subscriptions
            if subscription.topic_id in (queue.topic_id, self.origin_topic(queue.topic_id))
        )

    def origin_topic(self, topic_id: int) -> int:
        """Return the topic whose failed messages a failure topic holds. Any other topic is
        its own origin.
        """
        topic = self.topics.get(topic_id)
        return topic_id if topic is None or topic.failure_of is None else topic.failure_of

    def holds_failures(self, queue: int) -> bool:
        """Return True if the queue belongs to a failure topic."""
        info = self.queues.get(queue)
        topic = None if info is None else self.topics.get(info.topic_id)
        return topic is not None and topic.failure_of is not None

    def subscription(self, group_id: int, topic_id: int) -> SubscriptionInfo | None:
        """Return the group's subscription to a topic, in any state."""
        return next(
            (
                subscription
                for subscription in self.subscriptions_of(group_id)
                if subscription.topic_id == topic_id
            ),
            None,
        )


def build_snapshot(
    *, version: tuple[str, int], at: float, full_at: float, content: Content
) -> Snapshot:
    """Return a snapshot of `content`, with its look-up maps. `at` and `full_at` are
    time.monotonic().
    """
    by_group = grouped(
        (subscription.group_id, subscription)
        for subscription in content.subscriptions.values()
    )
    return Snapshot(
        version=version,
        loaded_at=at,
        full_at=full_at,
        **{
            kind.name: MappingProxyType(getattr(content, kind.name))
            for kind in fields(content)
        },
        nodes_by_name=MappingProxyType(
            {node.name: node for node in content.nodes.values()}
        ),
        topics_by_name=MappingProxyType(
            {topic.name: topic for topic in content.topics.values()}
        ),
        groups_by_name=MappingProxyType(
            {group.name: group for group in content.groups.values()}
        ),
        keys_by_digest=MappingProxyType({key.digest: key for key in content.keys.values()}),
        subscriptions_by_group=MappingProxyType(
            {group_id: tuple(subscriptions) for group_id, subscriptions in by_group.items()}
        ),
        failure_topics=MappingProxyType(
            {
                (topic.failure_group, topic.failure_of): topic
                for topic in content.topics.values()
                if topic.failure_group is not None and topic.failure_of is not None
            }
        ),
    )


def merge_rows(
    old: Mapping[int, V], loaded: Mapping[int, V], *, changed: set[int]
) -> dict[int, V]:
    """Return `old` with the `changed` rows replaced by the `loaded` rows. Changed rows that
    were not loaded were deleted, and are left out.
    """
    return {
        **{row: info for row, info in old.items() if row not in changed},
        **loaded,
    }
