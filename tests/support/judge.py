"""The judge of groups: decides from journals of members and senders alone whether
guarantees were kept.

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
# a send that fails this late was repeated many times; delivery_timeout_ms is twice as long
GIVEN_UP_S = 60.0
# successive requests of a hand-over, from the assignment to the first message
STEPS = 6


@dataclass(frozen=True, slots=True)
class Handling:
    """A call of a handler. `ended` is None if it never returned."""

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
        """The message's place."""
        return Place(self.queue, self.offset)

    @property
    def last_seen(self) -> float:
        """The last time at which it is known to have been running."""
        return self.begun if self.ended is None else self.ended


class Gain(NamedTuple):
    """A member acquired a queue."""

    member: str
    queue: int
    epoch: int
    at: float


class Sent(NamedTuple):
    """A message with a receipt. `late_s`: how long after its scheduled time the send was
    called.
    """

    place: Place
    asked: float
    confirmed: float
    late_s: float
    took_s: float
    number: int | None = None


@dataclass
class Story:
    """The events of a group. `deaths`: when members were killed or frozen from outside."""

    handlings: list[Handling] = field(default_factory=list)  # by begun
    sent: dict[Place, Sent] = field(default_factory=dict)
    gains: list[Gain] = field(default_factory=list)
    deaths: dict[str, float] = field(default_factory=dict)
    joins: dict[str, list[str]] = field(default_factory=dict)  # member → its consumer ids
    errors: list[str] = field(default_factory=list)
    # sends that failed at their delivery timeout
    given_up: list[str] = field(default_factory=list)

    def by_queue(self) -> dict[int, list[Handling]]:
        """Return the handlings by queue, sorted by their begin."""
        handlings: dict[int, list[Handling]] = defaultdict(list)
        for handling in self.handlings:
            handlings[handling.queue].append(handling)
        return handlings

    def waits_from(self, handling: Handling) -> float:
        """Return when the message could first be handled."""
        sent = self.sent.get(handling.place)
        return sent.asked if sent else float("-inf")

    def dead_by(self, member: str, at: float) -> bool:
        """Return True if the member had been killed or frozen by then."""
        return self.deaths.get(member, math.inf) <= at


def story(
    members: Mapping[str, Iterable[Line]],
    senders: Iterable[Line],
    deaths: Mapping[str, float],
) -> Story:
    """Build a story from journals: those of members by name, and the lines of all
    senders.
    """
    events = Story(deaths=dict(deaths))
    for name, lines in members.items():
        _read_member(events, name, list(lines))
    for line in senders:
        if line["what"] == "sent":
            place = Place(line["queue"], line["offset"])
            late_s = line["asked"] - line["due"]
            number = line.get("number")
            events.sent[place] = Sent(
                place, line["asked"], line["at"], late_s, line["took_s"], number
            )
        elif line["what"] == "error":
            # A send that failed at its delivery timeout may be right under a long fault.
            late = line.get("waited_s", 0.0) >= GIVEN_UP_S
            (events.given_up if late else events.errors).append(f"sender: {line['error']}")
    events.handlings.sort(key=lambda handling: handling.begun)
    events.gains.sort(key=lambda gain: gain.at)
    return events


def _read_member(events: Story, name: str, lines: Sequence[Line]) -> None:
    ends: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for line in lines:
        if line["what"] == "end":
            ends[line["queue"], line["offset"], line["epoch"]].append(line["at"])
        elif line["what"] == "gained":
            events.gains.append(Gain(name, line["queue"], line["epoch"], line["at"]))
        elif line["what"] == "joined" and line["consumer"]:
            events.joins.setdefault(name, []).append(line["consumer"])
        elif line["what"] == "error":
            events.errors.append(f"{name}: {line['error']}")
    for line in lines:
        if line["what"] == "begin":
            queue, offset, epoch = line["queue"], line["offset"], line["epoch"]
            ended = ends[queue, offset, epoch]
            # A message may be handled again under the same epoch: its ends belong to its
            # begins in order.
            end = ended.pop(0) if ended else None
            details = line.get("wall", 0.0), line.get("number")
            events.handlings.append(
                Handling(name, queue, offset, epoch, line["at"], end, *details)
            )


def one_owner(events: Story) -> int:
    """Check that no handler started under an older epoch after a handler under a newer
    epoch had started.

    Also check that each (queue, epoch) had a single member. A handler in flight when its
    queue moves may end late. Return the number of handlings.
    """
    wrong = []
    for queue, handlings in events.by_queue().items():
        holders: dict[int, str] = {}
        highest = handlings[0]
        for handling in handlings:
            if handling.epoch < highest.epoch:
                late_ms = (handling.begun - highest.begun) * 1000
                wrong.append(
                    f"queue {queue}: {handling.member} started offset {handling.offset} "
                    f"under epoch {handling.epoch}, "
                    f"{late_ms:.1f} ms after {highest.member} had under epoch {highest.epoch}"
                )
            # An old owner may end late, but must not begin: only begins are compared.
            highest = max(highest, handling, key=lambda candidate: candidate.epoch)
            holder = holders.setdefault(handling.epoch, handling.member)
            if holder != handling.member:
                wrong.append(
                    f"queue {queue}: epoch {handling.epoch} was {holder}'s and {handling.member}'s"
                )
    _check(wrong, "times a queue had two owners")
    return len(events.handlings)


def all_handled(events: Story) -> int:
    """Check that a handler returned for every message with a receipt. Return the number of
    messages.

    Messages are compared by their numbers, too: if a place was lost after it was read, and
    then given to another message, that message would otherwise look handled.
    """
    handled_numbers: dict[Place, set[int | None]] = defaultdict(set)
    for handling in events.handlings:
        if handling.ended is not None:
            handled_numbers[handling.place].add(handling.number)
    missing = [
        f"queue {place.queue} offset {place.offset}"
        + (f": another message, {handled_numbers[place]}" if numbers else "")
        for place, sent in sorted(events.sent.items())
        if sent.number not in (numbers := handled_numbers.get(place, set()))
    ]
    _check(missing, "messages were not handled")
    return len(events.sent)


class Repeats(NamedTuple):
    """Messages handled again. `oldest_s`: the longest time between a repeated handling and
    its member's death.
    """

    count: int
    oldest_s: float


def repeats(events: Story) -> Repeats:
    """Check that a message is handled again only if its first member died in between."""
    by_place: dict[Place, list[Handling]] = defaultdict(list)
    for handling in events.handlings:
        by_place[handling.place].append(handling)
    wrong, count, oldest_s = [], 0, 0.0
    for place, handlings in by_place.items():
        for first, again in pairwise(handlings):
            count += 1
            # It may not have been committed at the death; then the next owner repeats it.
            if first.begun <= events.deaths.get(first.member, -math.inf) <= again.begun:
                oldest_s = max(oldest_s, events.deaths[first.member] - first.begun)
                continue
            wrong.append(
                f"queue {place.queue} offset {place.offset}: by {first.member} (epoch "
                f"{first.epoch}) and "
                f"{again.begun - first.begun:.3f} s later by {again.member} (epoch {again.epoch})"
            )
    _check(wrong, "messages were repeated although their first owner lived on")
    return Repeats(count, oldest_s)


class Standstill(NamedTuple):
    """How long a queue with unread messages stood still under the same owner."""

    queue: int
    seconds: float
    at: float  # when the next message was handled


def standstills(
    events: Story, since: float = -math.inf, until: float = math.inf
) -> list[Standstill]:
    """Return a standstill for each message whose owner also handled the message before it.

    Only messages sent in the given time count. The time runs from when the message was sent
    or the earlier message was finished. So a late sender does not make a queue stand still,
    but a broker that stores late does.
    """
    all_standstills = []
    for queue, handlings in events.by_queue().items():
        for before, after in pairwise(handlings):
            waits_from = events.waits_from(after)
            if (before.member, before.epoch) != (
                after.member,
                after.epoch,
            ) or not since <= waits_from < until:
                continue
            stood_s = after.begun - max(waits_from, before.last_seen)
            all_standstills.append(Standstill(queue, max(0.0, stood_s), after.begun))
    return all_standstills


def longest_waits(
    events: Story, since: float = -math.inf, until: float = math.inf
) -> dict[int, float]:
    """Return the longest time that each queue stood still while a message waited, in
    seconds.

    Only messages sent in the given time count, of every owner of the queue. Fails if
    nothing was sent to a queue.
    """
    longest: dict[int, float] = {}
    for queue, handlings in events.by_queue().items():
        for before, after in pairwise(handlings):
            waits_from = events.waits_from(after)
            if since <= waits_from < until:
                stood_s = after.begun - max(waits_from, before.last_seen)
                longest[queue] = max(longest.get(queue, 0.0), stood_s)
    # A queue without messages would pass any limit.
    missing = {place.queue for place in events.sent} - longest.keys()
    assert longest and not missing, (
        f"nothing was sent to queues {sorted(missing)} in that time"
    )
    return dict(sorted(longest.items()))


def longest_silence(receipts: Iterable[Line], *, since: float) -> float:
    """Return the longest time in seconds in which a queue got no receipt after `since`."""
    received_at: dict[int, list[float]] = defaultdict(lambda: [since])
    for line in receipts:
        if line["at"] > since:
            received_at[line["queue"]].append(line["at"])
    return max(
        after - before
        for times in received_at.values()
        for before, after in pairwise(sorted(times))
    )


def no_standstill(
    calm: Sequence[Standstill], stormy: Sequence[Standstill], least_s: float = 0.5
) -> float:
    """Check that no standstill of `stormy` exceeds max(2 x p99.9 of `calm`, `least_s`).

    Return that limit.
    """
    assert calm and stormy, f"{len(calm)} and {len(stormy)} messages: too little to compare"
    limit_s = max(
        2 * percentile([standstill.seconds for standstill in calm], 99.9), least_s
    )
    over = sorted(
        (standstill for standstill in stormy if standstill.seconds > limit_s),
        key=lambda standstill: -standstill.seconds,
    )
    wrong = [
        f"queue {standstill.queue} for {standstill.seconds:.3f} s until {standstill.at:.3f}"
        for standstill in over
    ]
    _check(
        wrong, f"times a queue that did not move stood still for more than {limit_s:.3f} s"
    )
    return limit_s


class Move(NamedTuple):
    """A queue moved from a member to another. `deaths`: owners in between that died or
    never appeared.
    """

    queue: int
    before: Handling
    after: Handling
    pause_s: float
    deaths: int


def moves(events: Story, *, patience_s: float) -> list[Move]:
    """Return all changes of owner that handlings show.

    The pause runs from when the last owner had finished, or the next message was sent, to
    the first handling under the new owner. An epoch without handlings counts as a death if
    no member acquired it, or the member that did had died, and if a member had died within
    `patience_s` seconds before the queue moved on.
    """
    gains = {(gain.queue, gain.epoch): gain.member for gain in events.gains}
    all_moves = []
    for queue, handlings in events.by_queue().items():
        epoch: list[Handling] = []
        for before, after in pairwise(handlings):
            epoch.append(before)
            if before.epoch >= after.epoch:
                continue
            # A handler in flight may end after the move.
            done = max(
                handling.last_seen if handling.last_seen <= after.begun else handling.begun
                for handling in epoch
            )
            epoch = []
            pause_s = max(0.0, after.begun - max(done, events.waits_from(after)))
            unseen = [
                gains.get((queue, epoch)) for epoch in range(before.epoch + 1, after.epoch)
            ]
            deaths = _deaths(
                events, [before.member, *unseen], after.begun, done - patience_s
            )
            all_moves.append(Move(queue, before, after, pause_s, deaths))
    return all_moves


def _deaths(events: Story, owners: Sequence[str | None], at: float, since: float) -> int:
    """Return how many of these owners were dead by `at`. None is an owner that never
    appeared.
    """
    any_death = any(since <= death <= at for death in events.deaths.values())
    return sum(
        any_death if owner is None else events.dead_by(owner, at) for owner in owners
    )


class Pauses(NamedTuple):
    """Pauses in seconds of queues that were handed over, and of queues whose owner had
    died.
    """

    handed_over: list[float]
    after_death: list[float]


def pauses(events: Story, *, session_s: float, hand_over_s: float = 3.0) -> Pauses:
    """Check the pauses of queues that moved.

    99 % of the queues handed over must pause less than `hand_over_s` seconds. Queues of
    dead owners must pause less than session timeout + `hand_over_s` for each owner that
    died in turn.
    """
    all_moves = moves(events, patience_s=session_s + hand_over_s)
    handed = sorted(move.pause_s for move in all_moves if not move.deaths)
    dead = [move for move in all_moves if move.deaths]
    wrong = [
        described(move) for move in dead if move.pause_s > move.deaths * (session_s + hand_over_s)
    ]  # fmt: skip
    if handed and percentile(handed, 99) >= hand_over_s:
        slow = sorted(
            (move for move in all_moves if not move.deaths), key=lambda move: -move.pause_s
        )
        wrong += [described(move) for move in slow if move.pause_s >= hand_over_s]
    _check(wrong, "moves of a queue took too long")
    return Pauses(handed, sorted(move.pause_s for move in dead))


def described(move: Move) -> str:
    """Return a description of a move."""
    return (
        f"queue {move.queue}: {move.pause_s:.3f} s from {move.before.member} (epoch "
        f"{move.before.epoch}, until "
        f"{move.before.last_seen:.3f}) to {move.after.member} (epoch {move.after.epoch}, from "
        f"{move.after.begun:.3f}), {move.deaths} deaths"
    )


def nobody_moved(
    events: Story, since: float, until: float, *, but: Iterable[str] = ()
) -> int:
    """Check that no queue got a new owner or epoch in that time, except by the members
    `but`.

    Return the number of handlings in that time.
    """
    wrong = [
        f"queue {gain.queue} went to {gain.member} (epoch {gain.epoch}) at "
        f"{gain.at - since:.3f} s"
        for gain in events.gains
        if since <= gain.at < until and gain.member not in but
    ]
    inside = [handling for handling in events.handlings if since <= handling.begun < until]
    _check(wrong, "times a queue moved although nobody had come or gone")
    assert inside, "nothing was handled in that time, which proves nothing"
    return len(inside)


def kept_ids(events: Story, members: Iterable[str]) -> None:
    """Check that each member kept its consumer id, so that none was expired or replaced."""
    wrong = [
        f"{name}: {events.joins.get(name, [])}"
        for name in members
        if len(events.joins.get(name, [])) != 1
    ]
    _check(wrong, "members did not keep their consumer id")


def receipts(events: Story, since: float, until: float) -> list[float]:
    """Return how long each send of that time waited for its receipt."""
    return [
        sent.confirmed - sent.asked
        for sent in events.sent.values()
        if since <= sent.asked < until
    ]


def journeys(events: Story, since: float, until: float) -> list[float]:
    """Return how long each message sent in that time took to its first handler."""
    first: dict[Place, float] = {}
    for handling in events.handlings:  # by begun
        first.setdefault(handling.place, handling.begun)
    sent_messages = [
        sent
        for sent in events.sent.values()
        if since <= sent.asked < until and sent.place in first
    ]
    return [first[sent.place] - sent.asked for sent in sent_messages]


def undisturbed(
    events: Story, calm: tuple[float, float], ill: tuple[float, float], least_s: float
) -> str:
    """Check that p99 of receipts and of journeys in `ill` is at most max(2 x `calm`'s,
    `least_s`).
    """
    figures, wrong = [], []
    for name, measure in (("receipts", receipts), ("ways to the handler", journeys)):
        before, during = (percentile(measure(events, *times), 99) for times in (calm, ill))
        figures.append(f"{name} p99 {before * 1000:.0f} ms, then {during * 1000:.0f} ms")
        if during > max(2 * before, least_s):
            wrong.append(figures[-1])
    _check(wrong, "times of a node that was well were disturbed")
    return "; ".join(figures)


def hand_over_limit(
    events: Story, since: float, until: float, *, least_s: float = 3.0
) -> float:
    """Return how long a hand-over may take: `least_s`, more only if requests are slow in
    calm times.
    """
    return max(least_s, STEPS * percentile(receipts(events, since, until), 99.9))


def no_errors(events: Story, *, starved: bool = False) -> int:
    """Check that no application got an error. Return the number of sends that timed out.

    `starved`: sends may time out, because the scenario leaves a node little time.
    """
    _check(
        events.errors + (events.given_up if not starved else []),
        "errors were seen by applications",
    )
    return len(events.given_up)


def sender_was_free(events: Story, since: float, until: float, *, limit_s: float) -> float:
    """Check that no call of send blocked longer than `limit_s`. Return the longest time."""
    took = [sent.took_s for sent in events.sent.values() if since <= sent.asked < until]
    longest_s = max(took, default=0.0)
    assert longest_s <= limit_s, f"a send kept the application for {longest_s:.3f} s"
    return longest_s


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` per cent of all do not exceed (nearest rank).

    >>> percentile([4, 1, 3, 2], 50), percentile([4, 1, 3, 2], 99)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def spread(seconds: Sequence[float]) -> str:
    """Return the figures of a list of times as a text.

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


def _check(wrong: Sequence[str], problem: str) -> None:
    assert not wrong, f"{len(wrong)} {problem}:\n  " + "\n  ".join(wrong[:SHOWN])
