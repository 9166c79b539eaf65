"""Shapes of the management API's answers.

Newer brokers add fields; brokers of an older release omit some.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from catmq_client.admin.activity_shapes import ProcessReport


class QueueRow(TypedDict):
    """A queue of a topic. Without an answer of its node, `low` and `head` are None."""

    queue: int
    number: int
    node: str
    state: str
    # first offset that is still stored
    low: int | None
    # offset that the next message gets
    head: int | None


class Unread(TypedDict):
    """The number of messages that a group has not read."""

    group: str
    # None if the node does not answer; of the slowest instance of a broadcasting group
    messages: int | None


class ChangedQueue(TypedDict):
    """A queue that was added to a topic, or that drains."""

    # None if it is only planned
    queue: int | None
    number: int
    node: str
    state: str


class LayoutChange(TypedDict):
    """Changes that expanding or shrinking made, or with `dry_run` would make."""

    topic: str
    dry_run: bool
    layout_version: int
    queues: list[ChangedQueue]
    moved_slots: int
    # share of all keys that move to another queue, 0 to 1
    moved_share: float
    # messages in the queues that keys leave
    unread: list[Unread]


class TagMatches(TypedDict):
    """The number of a topic's last messages that match a filter."""

    looked_at: int
    matching: int
    # nodes that did not answer
    away: list[str]


class QueueState(QueueRow):
    """A queue with its share of the key slots."""

    # of 1,024
    slots: int
    # True until all groups have read it; then the queue is retired
    draining: bool
    unread: list[Unread]


class TopicSettings(TypedDict):
    """The fields of a topic that lists have, too."""

    name: str
    kind: str
    state: str
    keyed: str
    retention_days: int
    created_at_ms: int


class TopicRow(TopicSettings):
    """A topic in a list, with its number of queues."""

    queues: int


class Layout(TypedDict):
    """Queue of each of the 1,024 key slots."""

    version: int
    slots: list[int]


class Topic(TopicSettings):
    """A topic with its queues."""

    queues: list[QueueRow]
    layout: Layout
    on_unknown: str
    read_only: bool
    keep_unread_days: int
    retention_bytes: int | None
    max_messages_per_s: int | None
    max_bytes_per_s: int | None
    owners: str
    department: str
    alarm_emails: str
    description: str


class DelayedPage(TypedDict):
    """Delayed messages (message_id, due_at_ms, queue, key, body_bytes, …) and their number."""

    messages: list[dict[str, Any]]
    # `after` of the next page
    next: str | None
    count: int
    # nodes that did not answer, and whose messages are not counted
    away: list[str]


class Broker(TypedDict):
    """A broker, in service or drained."""

    name: str
    url: str
    # in service, or drained
    state: Literal["in", "out"]
    # heard within 10 s, and did not announce its end
    alive: bool
    version: str
    started_at_ms: int
    last_seen_at_ms: int
    stopped_at_ms: int | None


class Node(TypedDict):
    """A database that holds message tables. Passwords are never answered."""

    name: str
    kind: str
    engine: str
    host: str | None
    port: int | None
    database: str
    state: str
    dedicated: bool
    epoch: int
    queues: int
    schema_version: int | None
    upgrade_possible: bool


class FoundMessages(TypedDict):
    """Messages found by a search, with `body_bytes`."""

    messages: list[dict[str, Any]]
    scanned: int
    # `after` of the next search, None at the end of the topic
    next: str | None


class Key(TypedDict):
    """An API key without its secret, and its quota."""

    name: str
    rights: dict[str, list[str]]
    # None: no limit
    max_messages_per_s: int | None
    max_bytes_per_s: int | None
    created_at_ms: int


class SendToken(TypedDict):
    """A send token of a topic, which Java clients must name, without the token itself."""

    id: str
    created_at_ms: int


class NewSendToken(SendToken):
    """A send token that was just created, with the token itself."""

    token: str


Start = Literal["earliest", "latest"]


class Subscription(TypedDict):
    """A group's subscription to a topic."""

    group: str
    topic: str
    state: str
    start: Start
    start_at_ms: int | None
    stopped: bool
    stopped_queues: list[int]


class Member(TypedDict):
    """A consumer in a group, and the queues that it owns."""

    name: str
    instance_id: str | None
    address: str
    sdk: str
    joined_at_ms: int
    heartbeat_age_ms: int | None
    queues: list[int]
    # False for a member that stands by, beyond the group's max_active_members
    active: bool
    # Its last report and the report's age; None if it sent none. Brokers of an earlier
    # release omit both.
    process: NotRequired[ProcessReport | None]
    process_age_ms: NotRequired[int | None]


class Group(TypedDict):
    """A consumer group; lists leave out `subscriptions` and `members`."""

    name: str
    mode: str
    stopped: bool
    session_timeout_ms: int
    allow_addresses: str
    deny_addresses: str
    max_active_members: int | None
    # of share groups only
    lease_ms: NotRequired[int]
    run_messages: NotRequired[int]
    max_deliveries: NotRequired[int]
    alarm_lag: int | None
    alarm_lag_s: int | None
    generation: int
    description: str
    subscriptions: list[Subscription]
    members: list[Member]
    created_at_ms: int


class QueueLag(TypedDict):
    """Lag of a group in a queue."""

    topic: str
    queue: int
    number: int
    # set in a broadcasting group only
    instance: str | None
    committed: int | None
    head: int | None
    low: int | None
    lag: int | None
    # age of the oldest unread message; None if the node does not answer
    lag_ms: int | None
    owner: str | None
    epoch: int
    # In a share group: leased messages, those leased not for the first time, and the time
    # since the oldest lease began.
    in_flight: NotRequired[int | None]
    redelivered: NotRequired[int | None]
    oldest_lease_ms: NotRequired[int | None]


class LeasedRun(TypedDict):
    """Offsets that a member of a share group has leased, or that wait for a member."""

    topic: str
    queue: int
    number: int
    # from `first` to before `end`
    first: int
    end: int
    # None if no member has leased it
    owner: str | None
    deliveries: int
    # not finished yet
    messages: int
    finished: int
    # negative if the lease is over
    lease_left_ms: int


class Leases(TypedDict):
    """Runs of a share group by queue and offset."""

    runs: list[LeasedRun]
    # nodes that did not answer
    away: list[str]


class Progress(TypedDict):
    """The trend of a group's lag. Rates are messages per second."""

    state: str
    # rate at which the lag grows or shrinks
    per_s: float | None
    catches_up_in_s: float | None
    sent_per_s: float
    pulled_per_s: float
    handled_per_s: float | None
    lag: int | None
    # the lag `between_s` seconds ago
    lag_before: int | None
    between_s: float


class GroupLag(TypedDict):
    """The positions of a group. Brokers of an earlier release omit `progress`."""

    group: str
    lag: int | None
    lag_ms: int | None
    progress: NotRequired[Progress | None]
    queues: list[QueueLag]


Move = TypedDict(
    "Move",
    {
        "topic": str,
        "queue": int,
        "number": int,
        "from": int,
        "to": int,
        "skipped": int,
        "repeated": int,
        # the requested offset, if only the nearest one (`to`) was possible
        "asked": int | None,
        # True if the other group has no offset, so that this one stays
        "kept": bool,
    },
)


class Moves(TypedDict):
    """Offsets that a reset moved, or with `dry_run` would move."""

    dry_run: bool
    # id by which the reset can be undone
    reset: str | None
    moves: list[Move]


PlannedMove = TypedDict(
    "PlannedMove",
    {"queue": int, "topic": str, "from": str | None, "to": str | None, "at_once": bool},
)
PastMove = TypedDict(
    "PastMove",
    {
        "queue": int,
        "topic": str,
        "from": str | None,
        "to": str | None,
        "pause_ms": int | None,
    },
)


class Plan(TypedDict):
    """Queues that a rebalance moved, or with `dry_run` would move, between members.

    The member is None for a queue without one.
    """

    dry_run: bool
    generation: int
    moves: list[PlannedMove]


class Rebalance(TypedDict):
    """A rebalance in the past."""

    id: int
    generation: int
    cause: str
    at_ms: int
    # queues by member
    assignment: dict[str, list[int]]
    moves: list[PastMove]


class PlannedQueue(TypedDict):
    """Table of a queue, and the offsets that are stored in it."""

    queue: int
    number: int
    node: str
    table: str
    # from `low` to before `head`
    low: int
    head: int
    # pairs of offsets without messages: from, and before
    gaps: list[list[int]]


class PlannedNode(TypedDict):
    """A node as jobs reach it."""

    name: str
    engine: str
    host: str
    port: int
    database: str
    identity: str
    min_release: str
    # empty if the node has no reader account
    username: str
    password: str
    tls: str
    tls_ca: str


class ReadPlan(TypedDict):
    """Location of a topic's messages. It holds passwords: keep it out of logs."""

    topic: str
    queues: list[PlannedQueue]
    nodes: list[PlannedNode]
