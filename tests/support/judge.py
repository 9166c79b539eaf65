"""The judge of groups: from the journals of members and senders alone, whether promises
were kept.

Each check takes a Story, raises AssertionError with the evidence, and returns its figures.
Times are CLOCK_MONOTONIC in seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.logs import Place

Line = Mapping[str, Any]
SHOWN = 5  # pieces of evidence in a message
# a send that fails so late was tried again and again; delivery_timeout_ms is twice that
GIVEN_UP_S = 60.0
# requests one after the other that hand a queue over, from the order to the first message
STEPS = 6


@dataclass(frozen=True, slots=True)
class Handling:
    """One call of a handler; `ended` is None if it never returned."""

    member: str
    queue: int
    offset: int
    epoch: int
    begun: float
    ended: float | None
    wall_s: float = 0.0
    number: int | None = None  # the sender's own, from the body

    @property
    def place(self) -> Place:
        """The message."""
        return Place(self.queue, self.offset)

    @property
    def last_seen(self) -> float:
        """When it is known to have been at work last."""
        return self.begun if self.ended is None else self.ended


class Gain(NamedTuple):
    """A member acquired a queue."""

    member: str
    queue: int
    epoch: int
    at: float


class Sent(NamedTuple):
    """A message with a receipt; `late_s`: how long after its time the sender came to ask
    for it.
    """

    place: Place
    asked: float
    confirmed: float
    late_s: float
    took_s: float
    number: int | None = None


@dataclass
class Story:
    """What happened to one group. `deaths`: when members were killed or frozen, from
    outside.
    """

    handlings: list[Handling] = field(default_factory=list)  # by begun
    sent: dict[Place, Sent] = field(default_factory=dict)
    gains: list[Gain] = field(default_factory=list)
    deaths: dict[str, float] = field(default_factory=dict)
    joins: dict[str, list[str]] = field(default_factory=dict)  # member → its consumer ids
    errors: list[str] = field(default_factory=list)
    # sends that failed at the end of their time
    given_up: list[str] = field(default_factory=list)

    def by_queue(self) -> dict[int, list[Handling]]:
        """Queue → its handlings, by begun."""
        found: dict[int, list[Handling]] = defaultdict(list)
        for one in self.handlings:
            found[one.queue].append(one)
        return found

    def waits_from(self, one: Handling) -> float:
        """When the message could first be handled."""
        sent = self.sent.get(one.place)
        return sent.asked if sent else float("-inf")

    def dead_by(self, member: str, at: float) -> bool:
        """Whether the member had been killed or frozen by then."""
        return self.deaths.get(member, math.inf) <= at


def story(
    members: Mapping[str, Iterable[Line]],
    senders: Iterable[Line],
    deaths: Mapping[str, float],
) -> Story:
    """Reads the journals: those of members by name, and the lines of all senders."""
    told = Story(deaths=dict(deaths))
    for name, lines in members.items():
        _read_member(told, name, list(lines))
    for line in senders:
        if line["what"] == "sent":
            place = Place(line["queue"], line["offset"])
            late_s = line["asked"] - line["due"]
            number = line.get("number")
            told.sent[place] = Sent(
                place, line["asked"], line["at"], late_s, line["took_s"], number
            )
        elif line["what"] == "error":
            late = line.get("waited_s", 0.0) >= GIVEN_UP_S
            (told.given_up if late else told.errors).append(f"sender: {line['error']}")
    told.handlings.sort(key=lambda one: one.begun)
    told.gains.sort(key=lambda one: one.at)
    return told


def _read_member(told: Story, name: str, lines: Sequence[Line]) -> None:
    ends: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for line in lines:
        if line["what"] == "end":
            ends[line["queue"], line["offset"], line["epoch"]].append(line["at"])
        elif line["what"] == "gained":
            told.gains.append(Gain(name, line["queue"], line["epoch"], line["at"]))
        elif line["what"] == "joined" and line["consumer"]:
            told.joins.setdefault(name, []).append(line["consumer"])
        elif line["what"] == "error":
            told.errors.append(f"{name}: {line['error']}")
    for line in lines:
        if line["what"] == "begin":
            queue, offset, epoch = line["queue"], line["offset"], line["epoch"]
            ended = ends[queue, offset, epoch]
            done = ended.pop(0) if ended else None
            more = line.get("wall", 0.0), line.get("number")
            told.handlings.append(
                Handling(name, queue, offset, epoch, line["at"], done, *more)
            )


def one_owner(told: Story) -> int:
    """Checks that no handler started under a lower epoch after one had under a higher, and
    that each (queue, epoch) had one member; the number of handlings. One in flight when its
    queue moves may end late."""
    wrong = []
    for queue, handlings in told.by_queue().items():
        holders: dict[int, str] = {}
        highest = handlings[0]
        for one in handlings:
            if one.epoch < highest.epoch:
                late_ms = (one.begun - highest.begun) * 1000
                wrong.append(
                    f"queue {queue}: {one.member} started offset {one.offset} under epoch "
                    f"{one.epoch}, "
                    f"{late_ms:.1f} ms after {highest.member} had under epoch {highest.epoch}"
                )
            highest = max(highest, one, key=lambda it: it.epoch)
            holder = holders.setdefault(one.epoch, one.member)
            if holder != one.member:
                wrong.append(
                    f"queue {queue}: epoch {one.epoch} was {holder}'s and {one.member}'s"
                )
    _check(wrong, "times a queue had two owners")
    return len(told.handlings)


def all_handled(told: Story) -> int:
    """Checks that a handler returned for every message that has a receipt; how many there
    were.

    A message is known by its number, too: a place that was lost after somebody had read it,
    and then given to another message, would otherwise look as if that one had been handled.
    """
    done: dict[Place, set[int | None]] = defaultdict(set)
    for one in told.handlings:
        if one.ended is not None:
            done[one.place].add(one.number)
    missing = [
        f"queue {place.queue} offset {place.offset}"
        + (f": another message, {done[place]}" if seen else "")
        for place, sent in sorted(told.sent.items())
        if sent.number not in (seen := done.get(place, set()))
    ]
    _check(missing, "messages were not handled")
    return len(told.sent)


class Repeats(NamedTuple):
    """Messages handled again; `oldest_s`: how long before its member's death the oldest of
    them was begun.
    """

    count: int
    oldest_s: float


def repeats(told: Story) -> Repeats:
    """Checks that a message is handled again only when the member that handled it first had
    died since.
    """
    by_place: dict[Place, list[Handling]] = defaultdict(list)
    for one in told.handlings:
        by_place[one.place].append(one)
    wrong, count, oldest_s = [], 0, 0.0
    for place, handlings in by_place.items():
        for first, again in pairwise(handlings):
            count += 1
            if first.begun <= told.deaths.get(first.member, -math.inf) <= again.begun:
                oldest_s = max(oldest_s, told.deaths[first.member] - first.begun)
                continue
            wrong.append(
                f"queue {place.queue} offset {place.offset}: by {first.member} (epoch "
                f"{first.epoch}) and "
                f"{again.begun - first.begun:.3f} s later by {again.member} (epoch {again.epoch})"
            )
    _check(wrong, "messages were repeated although their first owner lived on")
    return Repeats(count, oldest_s)


class Standstill(NamedTuple):
    """How long a queue that had something to handle, and did not move, stood still."""

    queue: int
    seconds: float
    at: float  # when it went on


def standstills(
    told: Story, since: float = -math.inf, until: float = math.inf
) -> list[Standstill]:
    """One for each message handled by the same owner as the one before, if it was asked for
    in that time.

    It counts from when the message was asked for or the one before it was done, so a sender
    that is late does not make a queue stand still, but a broker that stores late does.
    """
    found = []
    for queue, handlings in told.by_queue().items():
        for before, one in pairwise(handlings):
            waits_from = told.waits_from(one)
            if (before.member, before.epoch) != (
                one.member,
                one.epoch,
            ) or not since <= waits_from < until:
                continue
            stood_s = one.begun - max(waits_from, before.last_seen)
            found.append(Standstill(queue, max(0.0, stood_s), one.begun))
    return found


def longest_waits(
    told: Story, since: float = -math.inf, until: float = math.inf
) -> dict[int, float]:
    """Queue → the longest time that it stood still, whoever owned it, while a message asked
    for in that time waited; seconds. Fails for a queue of which nothing was asked for in
    it."""
    longest: dict[int, float] = {}
    for queue, handlings in told.by_queue().items():
        for before, one in pairwise(handlings):
            waits_from = told.waits_from(one)
            if since <= waits_from < until:
                stood_s = one.begun - max(waits_from, before.last_seen)
                longest[queue] = max(longest.get(queue, 0.0), stood_s)
    missing = {place.queue for place in told.sent} - longest.keys()
    assert longest and not missing, (
        f"nothing was sent to queues {sorted(missing)} in that time"
    )
    return dict(sorted(longest.items()))


def no_standstill(
    calm: Sequence[Standstill], stormy: Sequence[Standstill], least_s: float = 0.5
) -> float:
    """Checks that nothing in `stormy` is over max(twice the 99.9 % of `calm`, `least_s`);
    that limit.
    """
    assert calm and stormy, f"{len(calm)} and {len(stormy)} messages: too little to compare"
    limit_s = max(2 * percentile([one.seconds for one in calm], 99.9), least_s)
    over = sorted(
        (one for one in stormy if one.seconds > limit_s), key=lambda one: -one.seconds
    )
    wrong = [
        f"queue {one.queue} for {one.seconds:.3f} s until {one.at:.3f}" for one in over
    ]
    _check(
        wrong, f"times a queue that did not move stood still for more than {limit_s:.3f} s"
    )
    return limit_s


class Move(NamedTuple):
    """A queue went from one member to another. `deaths`: how many owners in between died or
    never showed.
    """

    queue: int
    before: Handling
    after: Handling
    pause_s: float
    deaths: int


def moves(told: Story, *, patience_s: float) -> list[Move]:
    """Every change of owner that handlings show.

    The pause counts from when the last owner's work was done, or the next message asked
    for, to the first start under the new owner. An epoch that nobody handled under counts
    as a death if nobody acquired it, or who did had died, and if somebody had died within
    `patience_s` seconds before the queue went on.
    """
    gains = {(one.queue, one.epoch): one.member for one in told.gains}
    found = []
    for queue, handlings in told.by_queue().items():
        epoch: list[Handling] = []
        for before, after in pairwise(handlings):
            epoch.append(before)
            if before.epoch >= after.epoch:
                continue
            # What was in flight may end late.
            done = max(
                one.last_seen if one.last_seen <= after.begun else one.begun
                for one in epoch
            )
            epoch = []
            pause_s = max(0.0, after.begun - max(done, told.waits_from(after)))
            unseen = [
                gains.get((queue, epoch)) for epoch in range(before.epoch + 1, after.epoch)
            ]
            deaths = _deaths(told, [before.member, *unseen], after.begun, done - patience_s)
            found.append(Move(queue, before, after, pause_s, deaths))
    return found


def _deaths(told: Story, owners: Sequence[str | None], at: float, since: float) -> int:
    """How many of these owners were dead by `at`; None is one that never showed."""
    someone_died = any(since <= death <= at for death in told.deaths.values())
    return sum(someone_died if one is None else told.dead_by(one, at) for one in owners)


class Pauses(NamedTuple):
    """Pauses in seconds of queues that were handed over, and of those whose owner had died."""

    handed_over: list[float]
    after_death: list[float]


def pauses(told: Story, *, session_s: float, hand_over_s: float = 3.0) -> Pauses:
    """Checks that 99 % of the queues handed over pause for less than `hand_over_s` seconds,
    and those of dead owners for less than session timeout + `hand_over_s`, for each that
    died one after the other."""
    all_moves = moves(told, patience_s=session_s + hand_over_s)
    handed = sorted(one.pause_s for one in all_moves if not one.deaths)
    dead = [one for one in all_moves if one.deaths]
    wrong = [
        described(one) for one in dead if one.pause_s > one.deaths * (session_s + hand_over_s)
    ]  # fmt: skip
    if handed and percentile(handed, 99) >= hand_over_s:
        slow = sorted(
            (one for one in all_moves if not one.deaths), key=lambda one: -one.pause_s
        )
        wrong += [described(one) for one in slow if one.pause_s >= hand_over_s]
    _check(wrong, "moves of a queue took too long")
    return Pauses(handed, sorted(one.pause_s for one in dead))


def described(one: Move) -> str:
    """A move in words."""
    return (
        f"queue {one.queue}: {one.pause_s:.3f} s from {one.before.member} (epoch "
        f"{one.before.epoch}, until "
        f"{one.before.last_seen:.3f}) to {one.after.member} (epoch {one.after.epoch}, from "
        f"{one.after.begun:.3f}), {one.deaths} deaths"
    )


def nobody_moved(
    told: Story, since: float, until: float, *, but: Iterable[str] = ()
) -> int:
    """Checks that no queue got a new owner or epoch in that time, except by the members
    `but`.

    Returns how many handlings there were.
    """
    wrong = [
        f"queue {one.queue} went to {one.member} (epoch {one.epoch}) at {one.at - since:.3f} s"
        for one in told.gains
        if since <= one.at < until and one.member not in but
    ]
    inside = [one for one in told.handlings if since <= one.begun < until]
    _check(wrong, "times a queue moved although nobody had come or gone")
    assert inside, "nothing was handled in that time, which proves nothing"
    return len(inside)


def kept_ids(told: Story, members: Iterable[str]) -> None:
    """Checks that these members had one consumer id from first to last: nobody was expired
    or replaced.
    """
    wrong = [
        f"{name}: {told.joins.get(name, [])}"
        for name in members
        if len(told.joins.get(name, [])) != 1
    ]
    _check(wrong, "members did not keep their consumer id")


def receipts(told: Story, since: float, until: float) -> list[float]:
    """How long each send that was asked for in that time waited for its receipt."""
    return [
        one.confirmed - one.asked
        for one in told.sent.values()
        if since <= one.asked < until
    ]


def journeys(told: Story, since: float, until: float) -> list[float]:
    """How long after the asking each message sent in that time was first given to a
    handler, if it was.
    """
    first: dict[Place, float] = {}
    for one in told.handlings:  # by begun
        first.setdefault(one.place, one.begun)
    sent = [
        one
        for one in told.sent.values()
        if since <= one.asked < until and one.place in first
    ]
    return [first[one.place] - one.asked for one in sent]


def undisturbed(
    told: Story, calm: tuple[float, float], ill: tuple[float, float], least_s: float
) -> str:
    """Checks that p99 of receipts, ways to the handler in `ill` is at most max(2 x
    `calm`'s, `least_s`).
    """
    said, wrong = [], []
    for what, ways in (("receipts", receipts), ("ways to the handler", journeys)):
        before, during = (percentile(ways(told, *times), 99) for times in (calm, ill))
        said.append(f"{what} p99 {before * 1000:.0f} ms, then {during * 1000:.0f} ms")
        if during > max(2 * before, least_s):
            wrong.append(said[-1])
    _check(wrong, "times of a node that was well were disturbed")
    return "; ".join(said)


def hand_over_limit(
    told: Story, since: float, until: float, *, least_s: float = 3.0
) -> float:
    """How long a hand-over may take: `least_s`, more only where the calm shows that
    requests are slow.
    """
    return max(least_s, STEPS * percentile(receipts(told, since, until), 99.9))


def no_errors(told: Story, *, starved: bool = False) -> int:
    """Checks that no application saw an error; how many sends were given up.

    `starved`: a send may end with the end of its time, since the scenario leaves little of
    it to a node.
    """
    _check(
        told.errors + (told.given_up if not starved else []),
        "errors were seen by applications",
    )
    return len(told.given_up)


def sender_was_free(told: Story, since: float, until: float, *, limit_s: float) -> float:
    """Checks that asking for a send never kept the sender for longer than `limit_s`; the
    longest time.
    """
    took = [one.took_s for one in told.sent.values() if since <= one.asked < until]
    longest_s = max(took, default=0.0)
    assert longest_s <= limit_s, f"a send kept the application for {longest_s:.3f} s"
    return longest_s


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` per cent of all are not above (nearest rank).

    >>> percentile([4, 1, 3, 2], 50), percentile([4, 1, 3, 2], 99)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def spread(seconds: Sequence[float]) -> str:
    """The figures of a list of times.

    >>> spread([0.1, 0.2])
    '2: median 100, p99 200, p99.9 200, longest 200 ms'
    """
    if not seconds:
        return "0"
    shown = [f"{percentile(seconds, share) * 1000:.0f}" for share in (50, 99, 99.9, 100)]
    return (
        f"{len(seconds)}: median {shown[0]}, p99 {shown[1]}, p99.9 {shown[2]}, longest "
        f"{shown[3]} ms"
    )


def _check(wrong: Sequence[str], what: str) -> None:
    assert not wrong, f"{len(wrong)} {what}:\n  " + "\n  ".join(wrong[:SHOWN])
