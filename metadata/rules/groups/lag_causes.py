"""Causes of a group's lag: what the facts that are known of it say, the surest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from metadata.rules.groups.lag_trend import TrendState
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
HOT = 0.8  # of a topic's unread messages in one queue
HOT_LEAST = 20  # unread messages in it
HOT_KEY = 0.5  # of the messages that wait first in that queue
FAILING = 0.1  # of what was handled
# dead letters in an hour; one says nothing of a group that handles little
FAILING_LEAST = 3
MANY_REBALANCES = 3  # of ten minutes
LONG_MS = 60_000  # a handler that is at work for so long
HOUR_S = 3600
READ: tuple[TrendState, ...] = ("keeps_up", "nothing_sent")  # what is unread came just now
BEHIND: tuple[TrendState, ...] = (
    "stalled",
    "steady",
    "catches_up",
    "falls_behind",
    "too_little_data",
)


@dataclass(frozen=True, slots=True)
class ReadQueue:
    """A queue as the group reads it; `lag` None: its node does not answer. `is_retry`: it
    holds the retries of `topic`."""

    topic: str
    id: int
    lag: int | None
    owner: str | None = None
    stopped: bool = False
    corrupt: bool = False
    is_full: bool = False  # of a share group: as many leases as there may be
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """A member; `active`: it may own queues. `slowest`: its handler that is at work for the
    longest time.
    """

    name: str
    silent_ms: int | None = 0
    active: bool = True
    slowest: SlowHandler | None = None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts on a group: its trend, and rates of the last minutes a second (None: not
    known).

    `paused`: topics of it that are. `threads` and `ordered` are of its subscriptions that
    have unread messages. `rebalances` are those of the last ten minutes; `reset_by`: who
    moved its offsets then, or ''.
    `dead_last_hour`: dead letters. `keys`: those of the messages that wait first in the
    hottest queue.
    """

    trend: TrendState
    queues: Sequence[ReadQueue] = ()
    members: Sequence[Reader] = ()
    mode: str = "clustering"
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
        return sum(one.lag or 0 for one in self.queues)

    @property
    def waiting(self) -> list[ReadQueue]:
        """The queues with unread messages that are to be read."""
        return [
            one
            for one in self.queues
            if one.lag and not one.stopped and one.topic not in self.paused
        ]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: `about` names queues, topics or members, `words` are figures of it."""

    kind: Kind
    about: Sequence[str | int] = ()
    words: Mapping[str, float | str | None] = field(default_factory=dict)


def find_causes(facts: GroupFacts) -> list[Cause]:
    """Return why a group is behind; nothing of one that is not, or where no fact says why.

    >>> [one.kind for one in find_causes(GroupFacts("no_members", [ReadQueue("orders", 1, 9)]))]
    ['no_members']
    >>> find_causes(GroupFacts("keeps_up", [ReadQueue("orders", 1, 3, "m1")], [Reader("m1")]))
    []
    """
    found = [*_broken(facts), *_stopped(facts)]
    if facts.stopped:
        return found
    # else a hand-over or a late heartbeat would look like a cause
    if facts.trend not in READ:
        found += _unread(facts)
    if not facts.waiting or facts.trend not in BEHIND or found:
        return found
    long = list(_long_handlers(facts))
    if facts.trend == "stalled":
        return long or list(_stalled(facts))
    return long + (list(_slowed(facts)) or list(_too_slow(facts)))


def _broken(facts: GroupFacts) -> Iterator[Cause]:
    away = [one.id for one in facts.queues if one.lag is None]
    if away:
        yield Cause("away", away)
    corrupt = [one.id for one in facts.queues if one.corrupt and one.lag]
    if corrupt:
        yield Cause("corrupt", corrupt)


def _stopped(facts: GroupFacts) -> Iterator[Cause]:
    """Yield what somebody has paused and messages wait for."""
    if facts.stopped:
        if facts.lag:
            yield Cause("paused", words={"lag": facts.lag})
        return
    topics = [
        name
        for name in facts.paused
        if any(one.lag for one in facts.queues if one.topic == name)
    ]
    if topics:
        yield Cause("topics_paused", topics)
    queues = [
        one.id
        for one in facts.queues
        if one.stopped and one.lag and one.topic not in facts.paused
    ]
    if queues:
        yield Cause("queues_paused", queues)


def _unread(facts: GroupFacts) -> Iterator[Cause]:
    """Yield why nobody reads some queues."""
    waiting = facts.waiting
    if not waiting:
        return
    if not facts.members:
        yield Cause("no_members", words={"lag": facts.lag})
        return
    if not any(one.active for one in facts.members):
        yield Cause("standing_by", words={"members": len(facts.members)})
        return
    silent = _silent(facts)
    lost = [one.id for one in waiting if one.owner is None]
    if facts.mode == "clustering" and lost and not silent:
        yield Cause("no_owner", lost)
    if silent:
        yield Cause("silent_member", silent)
    full = [one.id for one in waiting if one.is_full]
    if full:
        yield Cause("unfinished_leases", full)


def _silent(facts: GroupFacts) -> list[str]:
    """The members that hold unread messages and were not heard for half of the time after
    which they go.
    """
    owners = {one.owner for one in facts.waiting}
    shares = facts.mode != "clustering"
    return [
        one.name
        for one in facts.members
        if (one.silent_ms or 0) > facts.session_timeout_ms / 2
        and (shares or one.name in owners)
    ]


def _long_handlers(facts: GroupFacts) -> Iterator[Cause]:
    """Yield the handler that is at work for the longest time, if that is long."""
    slow = [(one.slowest, one.name) for one in facts.members if one.slowest is not None]
    handler, member = max(slow, key=lambda one: one[0].running_ms, default=(None, ""))
    if handler is not None and handler.running_ms >= LONG_MS:
        words: dict[str, float | str | None] = {
            "offset": handler.offset,
            "member": member,
            "running_ms": handler.running_ms,
        }
        yield Cause("long_handler", [handler.queue], words)


def _stalled(facts: GroupFacts) -> Iterator[Cause]:
    """Yield why members finish nothing."""
    if not facts.pulled_per_s:
        yield Cause("no_pulls")
    elif facts.ordered:
        yield Cause("blocked_in_order")
    else:
        yield Cause("nothing_finished", words={"pulled": facts.pulled_per_s})


def _slowed(facts: GroupFacts) -> Iterator[Cause]:
    """Yield what takes a part of the members' work."""
    # So few messages may all lie in one queue by chance.
    hot = None if facts.trend == "too_little_data" else find_hot_queue(facts)
    if hot is not None:
        of_topic = sum(
            one.lag or 0
            for one in facts.waiting
            if one.topic == hot.topic and not one.is_retry
        )
        words = {"share": (hot.lag or 0) / of_topic, "owner": hot.owner}
        key, times = (Counter(facts.keys).most_common(1) or [(None, 0)])[0]
        if key is not None and times >= HOT_KEY * len(facts.keys):
            yield Cause(
                "hot_key", [hot.id, key], {**words, "of_keys": times / len(facts.keys)}
            )
        else:
            yield Cause("hot_queue", [hot.id], words)
    retries = sum(one.lag or 0 for one in facts.waiting if one.is_retry)
    if _many_die(facts) or retries > FAILING * facts.lag:
        yield Cause("failing", words={"dead": facts.dead_last_hour, "retries": retries})
    if facts.rebalances >= MANY_REBALANCES:
        yield Cause("rebalancing", words={"rebalances": facts.rebalances})
    if facts.reset_by:
        yield Cause("reset", [facts.reset_by])


def _many_die(facts: GroupFacts) -> bool:
    """Return if many of the messages that are handled become dead letters.

    Where none is handled now none fails either: they died earlier in the hour.
    """
    if not facts.handled_per_s or facts.dead_last_hour < FAILING_LEAST:
        return False
    return facts.dead_last_hour > FAILING * facts.handled_per_s * HOUR_S


def find_hot_queue(facts: GroupFacts) -> ReadQueue | None:
    """Return the queue that has most of its topic's unread messages, if one of several has."""
    mine = [one for one in facts.waiting if not one.is_retry]
    if not mine or facts.mode == "broadcasting":
        return None
    first = max(mine, key=lambda one: one.lag or 0)
    others = [one for one in facts.queues if one.topic == first.topic and not one.is_retry]
    of_topic = sum(one.lag or 0 for one in others)
    is_hot = len(others) > 1 and (first.lag or 0) >= max(HOT_LEAST, HOT * of_topic)
    return first if is_hot else None


def _too_slow(facts: GroupFacts) -> Iterator[Cause]:
    """Yield that members handle less than is sent, or did so for a while."""
    if facts.trend == "catches_up":
        yield Cause(
            "more_was_sent",
            words={"handled": facts.handled_per_s, "sent": facts.sent_per_s},
        )
    if facts.trend not in ("falls_behind", "steady") or not facts.handled_per_s:
        return
    active = sum(one.active for one in facts.members)
    queues = sum(not one.is_retry for one in facts.queues)
    words: dict[str, float | str | None] = {
        "handled": facts.handled_per_s,
        "sent": facts.sent_per_s,
        "members": active,
        "threads": facts.threads,
        "queues": queues,
        "message_ms": 1000 * active * facts.threads / facts.handled_per_s
        if facts.threads
        else None,
        "has_room": "yes" if facts.mode == "share" or active < queues else "",
    }
    yield Cause("slow_handler", words=words)
