"""Shapes of the management API's answers.

Newer brokers add fields; brokers of an older release omit some.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from catmq_client.admin.activity_shapes import ProcessReport


class QueueRow(TypedDict):
    """A queue of a topic: `low` is the first offset still stored, `head` the next to be
    assigned.

    Both are None if the node does not answer.
    """

    queue: int
    number: int
    node: str
    state: str
    low: int | None
    head: int | None


class Unread(TypedDict):
    """The number of messages that a group has not read, None if the node does not answer.

    For a broadcasting group it is that of the slowest instance.
    """

    group: str
    messages: int | None


class ChangedQueue(TypedDict):
    """A queue that a topic got, or that drains. `queue` is None if it is only planned."""

    queue: int | None
    number: int
    node: str
    state: str


class LayoutChange(TypedDict):
    """Changes that expanding or shrinking made, or with `dry_run` would make.

    `moved_share` is the share of all keys (0 to 1) that move to another queue; `unread`
    counts messages in the queues that they leave.
    """

    topic: str
    dry_run: bool
    layout_version: int
    queues: list[ChangedQueue]
    moved_slots: int
    moved_share: float
    unread: list[Unread]


class TagMatches(TypedDict):
    """A filter tried on the last `looked_at` messages. Nodes in `away` did not answer."""

    looked_at: int
    matching: int
    away: list[str]


class QueueState(QueueRow):
    """A queue with its share of the 1,024 slots.

    A `draining` queue is retired when all groups have read it.
    """

    slots: int
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
    """Delayed messages (message_id, due_at_ms, queue, key, body_bytes, …) and their number.

    Nodes in `away` did not answer and are not counted.
    """

    messages: list[dict[str, Any]]
    next: str | None
    count: int
    away: list[str]


class Broker(TypedDict):
    """A broker. It is `alive` if it was heard within 10 s and did not announce its end."""

    name: str
    url: str
    state: Literal["in", "out"]
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
    """Messages found by a search, with `body_bytes`, and the number of messages scanned."""

    messages: list[dict[str, Any]]
    scanned: int
    next: str | None


class Key(TypedDict):
    """An API key without its secret, and its quota per second (None: no limit)."""

    name: str
    rights: dict[str, list[str]]
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
    """A consumer in a group, and the queues that it owns. An inactive one stands by.

    `process` is its report of `process_age_ms` ago, None if it sent none. Brokers of an
    earlier release omit both.
    """

    name: str
    instance_id: str | None
    address: str
    sdk: str
    joined_at_ms: int
    heartbeat_age_ms: int | None
    queues: list[int]
    active: bool
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
    """Lag of a group in a queue.

    `lag_ms` is the age of the first unread message, None if the node does not answer.
    `instance` is set in a broadcasting group only. In a share group `in_flight` messages
    are leased, `redelivered` of them not for the first time, and the oldest lease began
    `oldest_lease_ms` ago.
    """

    topic: str
    queue: int
    number: int
    instance: str | None
    committed: int | None
    head: int | None
    low: int | None
    lag: int | None
    lag_ms: int | None
    owner: str | None
    epoch: int
    in_flight: NotRequired[int | None]
    redelivered: NotRequired[int | None]
    oldest_lease_ms: NotRequired[int | None]


class LeasedRun(TypedDict):
    """Offsets from `first` to before `end` that a member has leased, or that wait for a
    member.

    `messages` of them are not finished. `owner` is None if nobody has leased them;
    `lease_left_ms` is negative if the lease is over.
    """

    topic: str
    queue: int
    number: int
    first: int
    end: int
    owner: str | None
    deliveries: int
    messages: int
    finished: int
    lease_left_ms: int


class Leases(TypedDict):
    """Runs of a share group by queue and offset. Nodes in `away` did not answer."""

    runs: list[LeasedRun]
    away: list[str]


class Progress(TypedDict):
    """The trend of a group's lag. Rates are messages per second.

    `per_s` is the rate at which the lag grows or shrinks, where it does; the lag was
    `lag_before` messages `between_s` seconds ago.
    """

    state: str
    per_s: float | None
    catches_up_in_s: float | None
    sent_per_s: float
    pulled_per_s: float
    handled_per_s: float | None
    lag: int | None
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
        "asked": int | None,
        "kept": bool,
    },
)


class Moves(TypedDict):
    """Offsets that a reset moved, or with `dry_run` would move.

    `reset` is the id by which it can be undone.
    """

    dry_run: bool
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
    """A rebalance in the past. `assignment` has the queues meant for each member."""

    id: int
    generation: int
    cause: str
    at_ms: int
    assignment: dict[str, list[int]]
    moves: list[PastMove]


class PlannedQueue(TypedDict):
    """Location of a queue: offsets from `low` to before `head` of its table, without
    `gaps`.

    A gap is a pair of offsets, of which the second is not part of it.
    """

    queue: int
    number: int
    node: str
    table: str
    low: int
    head: int
    gaps: list[list[int]]


class PlannedNode(TypedDict):
    """A node as jobs reach it. User name and password are empty without a reader account."""

    name: str
    engine: str
    host: str
    port: int
    database: str
    identity: str
    min_release: str
    username: str
    password: str
    tls: str
    tls_ca: str


class ReadPlan(TypedDict):
    """Location of a topic's messages. It holds passwords: keep it out of logs."""

    topic: str
    queues: list[PlannedQueue]
    nodes: list[PlannedNode]
