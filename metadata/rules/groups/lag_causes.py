"""Causes of the lag of a group, from the known facts; the most certain first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from metadata.rules.groups.lag_trend import TrendState
from metadata.rules.groups.states import GroupMode
from metadata.rules.membership.process_report import SlowHandler

Kind = Literal[
    "away",
    "corrupt",
    "paused",
    "topics_paused",
    "queues_paused",
    "no_members",
    "standing_by",
    "no_owner",
    "silent_member",
    "unfinished_leases",
    "no_pulls",
    "blocked_in_order",
    "nothing_finished",
    "long_handler",
    "hot_key",
    "hot_queue",
    "failing",
    "rebalancing",
    "reset",
    "slow_handler",
    "more_was_sent",
]
HOT = 0.8  # share of the unread messages of a topic that makes a queue hot
HOT_MIN_MESSAGES = 20  # least unread messages in a hot queue
HOT_KEY = 0.5  # share of the first unread messages of the hot queue with the same key
FAILING = 0.1  # share of handled messages that fail
# Least dead letters in an hour: a single dead letter means little in a group with few messages.
FAILING_MIN = 3
MANY_REBALANCES = 3  # in ten minutes
LONG_MS = 60_000  # a handler call that takes this long
HOUR_S = 3600
READ_STATES = (
    TrendState.KEEPS_UP,
    TrendState.NOTHING_SENT,
)  # unread messages are only seconds old
LAGGING_STATES = (
    TrendState.STALLED,
    TrendState.STEADY,
    TrendState.CATCHES_UP,
    TrendState.FALLS_BEHIND,
    TrendState.TOO_LITTLE_DATA,
)


class ReadQueue(Struct, frozen=True):
    """A queue that the group reads; `lag` is None if its node is unavailable.

    `is_retry`: it holds the retries of `topic`.
    """

    topic: str
    id: int
    lag: int | None
    owner: str | None = None
    stopped: bool = False
    corrupt: bool = False
    is_full: bool = False  # share groups: it has the maximum number of leases
    is_retry: bool = False


class Reader(Struct, frozen=True):
    """A member; `active`: it may own queues. `slowest`: its handler call that takes the
    longest.
    """

    name: str
    silent_ms: int | None = 0
    active: bool = True
    slowest: SlowHandler | None = None


class GroupFacts(Struct, frozen=True):
    """Facts on a group: its trend, its queues and members, and rates per second of the
    last minutes.

    `paused`: its paused topics. `threads` and `ordered` are those of its subscriptions
    with unread messages. `rebalances` and `reset_by` (who moved its offsets, or '') are
    of the last ten minutes. `dead_last_hour` counts dead letters. `keys` are those of
    the first unread messages in the hottest queue. None: not known.
    """

    trend: TrendState
    queues: Sequence[ReadQueue] = ()
    members: Sequence[Reader] = ()
    mode: str = GroupMode.CLUSTERING
    stopped: bool = False
    paused: Sequence[str] = ()
    session_timeout_ms: int = 15_000
    handled_per_s: float | None = None
    pulled_per_s: float | None = None
    sent_per_s: float | None = None
    threads: int | None = None
    ordered: bool = False
    rebalances: int = 0
    reset_by: str = ""
    dead_last_hour: int = 0
    keys: Sequence[str | None] = ()

    @property
    def lag(self) -> int:
        return sum(queue.lag or 0 for queue in self.queues)

    @property
    def waiting(self) -> list[ReadQueue]:
        """Return the queues with unread messages that are not paused."""
        return [
            queue
            for queue in self.queues
            if queue.lag and not queue.stopped and queue.topic not in self.paused
        ]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause; `about` names queues, topics or members, `figures` are the values in its text."""

    kind: Kind
    about: Sequence[str | int] = ()
    figures: Mapping[str, float | str | None] = field(default_factory=dict)


def find_causes(facts: GroupFacts) -> list[Cause]:
    """Return why a group has a lag; [] if it has none, or no fact explains it.

    >>> facts = GroupFacts(TrendState.NO_MEMBERS, [ReadQueue("orders", 1, 9)])
    >>> [cause.kind for cause in find_causes(facts)]
    ['no_members']
    >>> queues = [ReadQueue("orders", 1, 3, "m1")]
    >>> find_causes(GroupFacts(TrendState.KEEPS_UP, queues, [Reader("m1")]))
    []
    """
    causes = []
    if unavailable := [queue.id for queue in facts.queues if queue.lag is None]:
        causes.append(Cause("away", unavailable))
    if corrupt := [queue.id for queue in facts.queues if queue.corrupt and queue.lag]:
        causes.append(Cause("corrupt", corrupt))
    causes += _find_pauses(facts)
    if facts.stopped:
        return causes
    # Otherwise a hand-over or a late heartbeat would look like a cause.
    if facts.trend not in READ_STATES:
        causes += _find_missing_readers(facts)
    # What follows is less certain, so it counts only if nothing else explains the lag.
    if not facts.waiting or facts.trend not in LAGGING_STATES or causes:
        return causes
    long_handlers = list(_find_long_handler(facts))
    if facts.trend == TrendState.STALLED:
        if long_handlers:
            return long_handlers
        if not facts.pulled_per_s:
            return [Cause("no_pulls")]
        if facts.ordered:
            return [Cause("blocked_in_order")]
        return [Cause("nothing_finished", figures={"pulled": facts.pulled_per_s})]
    return long_handlers + (list(_find_slowdowns(facts)) or list(_compare_rates(facts)))


def _find_pauses(facts: GroupFacts) -> Iterator[Cause]:
    if facts.stopped:
        if facts.lag:
            yield Cause("paused", figures={"lag": facts.lag})
        return
    topics = [
        name
        for name in facts.paused
        if any(queue.lag for queue in facts.queues if queue.topic == name)
    ]
    if topics:
        yield Cause("topics_paused", topics)
    queues = [
        queue.id
        for queue in facts.queues
        if queue.stopped and queue.lag and queue.topic not in facts.paused
    ]
    if queues:
        yield Cause("queues_paused", queues)


def _find_missing_readers(facts: GroupFacts) -> Iterator[Cause]:
    waiting = facts.waiting
    if not waiting:
        return
    if not facts.members:
        longest = max(waiting, key=lambda queue: queue.lag or 0)
        yield Cause("no_members", [longest.topic], {"lag": facts.lag})
        return
    if not any(member.active for member in facts.members):
        yield Cause("standing_by", figures={"members": len(facts.members)})
        return
    owners = {queue.owner for queue in waiting}
    # Silent for half of the session timeout. In a share group every member may lease any
    # message; elsewhere only owners of queues with unread messages count.
    silent = [
        member.name
        for member in facts.members
        if (member.silent_ms or 0) > facts.session_timeout_ms / 2
        and (facts.mode != GroupMode.CLUSTERING or member.name in owners)
    ]
    unowned = [queue.id for queue in waiting if queue.owner is None]
    # A silent member explains queues without an owner: they are free when it expires.
    if facts.mode == GroupMode.CLUSTERING and unowned and not silent:
        yield Cause("no_owner", unowned)
    if silent:
        yield Cause("silent_member", silent)
    full_queues = [queue.id for queue in waiting if queue.is_full]
    if full_queues:
        yield Cause("unfinished_leases", full_queues)


def _find_long_handler(facts: GroupFacts) -> Iterator[Cause]:
    handlers = [(m.slowest, m.name) for m in facts.members if m.slowest is not None]
    handler, member = max(
        handlers, key=lambda entry: entry[0].running_ms, default=(None, "")
    )
    if handler is not None and handler.running_ms >= LONG_MS:
        figures: dict[str, float | str | None] = {
            "offset": handler.offset,
            "member": member,
            "running_ms": handler.running_ms,
        }
        yield Cause("long_handler", [handler.queue], figures)


def _find_slowdowns(facts: GroupFacts) -> Iterator[Cause]:
    # With too little data, all messages may be in the same queue by chance.
    hot_queue = None if facts.trend == TrendState.TOO_LITTLE_DATA else find_hot_queue(facts)
    if hot_queue is not None:
        topic_lag = sum(
            queue.lag or 0
            for queue in facts.waiting
            if queue.topic == hot_queue.topic and not queue.is_retry
        )
        figures = {"share": (hot_queue.lag or 0) / topic_lag, "owner": hot_queue.owner}
        key, times = (Counter(facts.keys).most_common(1) or [(None, 0)])[0]
        if key is not None and times >= HOT_KEY * len(facts.keys):
            yield Cause(
                "hot_key",
                [hot_queue.id, key],
                {**figures, "of_keys": times / len(facts.keys)},
            )
        else:
            yield Cause("hot_queue", [hot_queue.id], figures)
    retries = sum(queue.lag or 0 for queue in facts.waiting if queue.is_retry)
    # If no message is handled now, none fails now: those died earlier in the hour.
    many_died = (
        bool(facts.handled_per_s)
        and facts.dead_last_hour >= FAILING_MIN
        and facts.dead_last_hour > FAILING * (facts.handled_per_s or 0) * HOUR_S
    )
    if many_died or retries > FAILING * facts.lag:
        yield Cause("failing", figures={"dead": facts.dead_last_hour, "retries": retries})
    if facts.rebalances >= MANY_REBALANCES:
        yield Cause("rebalancing", figures={"rebalances": facts.rebalances})
    if facts.reset_by:
        yield Cause("reset", [facts.reset_by])


def find_hot_queue(facts: GroupFacts) -> ReadQueue | None:
    """Return the queue with most of the unread messages of its topic, None if there is
    none.
    """
    candidates = [queue for queue in facts.waiting if not queue.is_retry]
    if not candidates or facts.mode == GroupMode.BROADCASTING:
        return None
    # Compared within its topic only, because topics differ in their rates.
    longest = max(candidates, key=lambda queue: queue.lag or 0)
    topic_queues = [
        queue
        for queue in facts.queues
        if queue.topic == longest.topic and not queue.is_retry
    ]
    is_hot = len(topic_queues) > 1 and (longest.lag or 0) >= max(
        HOT_MIN_MESSAGES, HOT * sum(queue.lag or 0 for queue in topic_queues)
    )
    return longest if is_hot else None


def _compare_rates(facts: GroupFacts) -> Iterator[Cause]:
    if facts.trend == TrendState.CATCHES_UP:
        yield Cause(
            "more_was_sent",
            figures={"handled": facts.handled_per_s, "sent": facts.sent_per_s},
        )
    if (
        facts.trend not in (TrendState.FALLS_BEHIND, TrendState.STEADY)
        or not facts.handled_per_s
    ):
        return
    active_members = sum(member.active for member in facts.members)
    queue_count = sum(not queue.is_retry for queue in facts.queues)
    figures: dict[str, float | str | None] = {
        "handled": facts.handled_per_s,
        "sent": facts.sent_per_s,
        "members": active_members,
        "threads": facts.threads,
        "queues": queue_count,
        "message_ms": 1000 * active_members * facts.threads / facts.handled_per_s
        if facts.threads
        else None,
        "has_room": "yes"
        if facts.mode == GroupMode.SHARE or active_members < queue_count
        else "",
    }
    yield Cause("slow_handler", figures=figures)
