"""Shapes of consumer groups in the management API: members, positions, rebalances; api.py has the calls."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Start = Literal["earliest", "latest"]


class Subscription(TypedDict):
    """A group's subscription to a topic."""

    group: str
    topic: str
    state: str
    start: Start
    stopped: bool
    stopped_queues: list[int]


class Member(TypedDict):
    """A consumer in a group, and the queues that it owns; one that is not active stands by."""

    name: str
    instance_id: str | None
    address: str
    sdk: str
    joined_at_ms: int
    heartbeat_age_ms: int | None
    queues: list[int]
    active: bool


class Group(TypedDict):
    """A consumer group; lists leave out `subscriptions` and `members`."""

    name: str
    mode: str
    stopped: bool
    session_timeout_ms: int
    allow_addresses: str
    deny_addresses: str
    max_active_members: int | None
    alarm_lag: int | None
    alarm_lag_s: int | None
    generation: int
    description: str
    subscriptions: list[Subscription]
    members: list[Member]
    created_at_ms: int


class QueueLag(TypedDict):
    """Lag of a group in a queue. `lag_ms`: age of the first unread message; None: node down.

    `instance`: whose position it is in a broadcasting group, else None.
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


class Progress(TypedDict):
    """The trend of a group: `state` is one of the API's words, rates are messages a second.

    `per_s`: by so many the lag grows or shrinks, where it does; the lag was `lag_before` `between_s` ago.
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
    """The positions of a group; a broker of an earlier version tells no progress."""

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
    },
)


class Moves(TypedDict):
    """Offsets that a reset moved, or with `dry_run` would move; `reset` is what it is undone by."""

    dry_run: bool
    reset: str | None
    moves: list[Move]


PlannedMove = TypedDict(
    "PlannedMove", {"queue": int, "topic": str, "from": str | None, "to": str | None, "at_once": bool}
)
PastMove = TypedDict(
    "PastMove", {"queue": int, "topic": str, "from": str | None, "to": str | None, "pause_ms": int | None}
)


class Plan(TypedDict):
    """Queues that a rebalance moved, or with `dry_run` would move, from member to member (None: nobody)."""

    dry_run: bool
    generation: int
    moves: list[PlannedMove]


class Rebalance(TypedDict):
    """A rebalance of the past. `assignment`: the queues meant for each member."""

    id: int
    generation: int
    cause: str
    at_ms: int
    assignment: dict[str, list[int]]
    moves: list[PastMove]
