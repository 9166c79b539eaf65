"""The judge of trials: journals and tables together. Each thing that is wrong is named by
kind and place.

judge.py looks at journals alone, and at how long things take; here nothing depends on time,
so the same checks hold whatever was done to the system. `script/chaos selftest` plants
defects and shows that each is named.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from tests.support import judge
from tests.support.journal import Read
from tests.support.logs import Place
from tests.support.stored import Batch, Row, Stored, StoredQueue

SHOWN = 5  # findings of a kind in a message
RISING = {"committed": "commit_fell", "epoch": "epoch_fell", "head": "head_fell"}
KINDS = {
    "journal": "a journal that does not tell everything",
    "error": "an error that an application saw",
    "lost": "an acknowledged message that is not stored",
    "other_body": "a receipt for a place where another message is stored",
    "altered": "a stored body that nobody sent",
    "two_receipts": "a message with receipts for several places",
    "offset_twice": "an offset that several messages have a receipt for",
    "stored_twice": "a message that is stored twice in one queue",
    "in_two_queues": "a message that is stored in two queues",
    "batch_in_part": "a send without a receipt, of which a part is stored",
    "hole": "offsets below the head without a message, and no declared gap",
    "below_low": "messages below the log start offset of a queue that nothing was removed from",
    "head_behind": "a head that is not above the last message",
    "above_head": "a message above the head",
    "time_falls": "a message stored before the one in front of it",
    "batch_differs": "a batch whose digest is not that of its messages",
    "batch_count": "a batch that claims offsets without a message, or those of another batch",
    "unclaimed": "messages that no batch claims",
    "not_handled": "an acknowledged message that no handler returned for, not yet committed",
    "skipped": "an acknowledged message that no handler returned for, although it is committed",
    "handled_other": "a handler that got another message than is stored at the place",
    "former_owner": "a handler that started after one of a later epoch",
    "two_owners": "an epoch of a queue that two members had",
    "order": "handlers of an epoch that started out of order",
    "stored_order": "messages of a sender that lie in another order than they were sent",
    "commit_fell": "a committed offset that went back",
    "committed_above": "a committed offset above the head",
    "epoch_fell": "an epoch that went back",
    "head_fell": "a head that went back",
    "dead_lost": "a dead message that is not kept",
    "dead_twice": "a dead message that is kept twice",
    "delayed_lost": "a delayed message that neither waits nor is stored",
    "delayed_twice": "a delayed message that waits although it is stored, or waits twice",
    "log": "a line in a broker's log that nothing explains",
}


class Found(NamedTuple):
    """Something wrong: its kind, where it is, and a sentence with the figures."""

    kind: str
    place: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.place}: {self.sentence}"


@dataclass
class Evidence:
    """All that is known of a run. `killed`: members that were, with the time."""

    members: Mapping[str, Read]
    senders: Mapping[str, Read]
    watchers: Mapping[str, Read]
    stored: Stored
    killed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sent_lines = [line for one in self.senders.values() for line in one.lines]
        by_name = {name: one.lines for name, one in self.members.items()}
        self.story = judge.story(by_name, self.sent_lines, self.killed)
        self.asked = {one for line in self.told("asked") for one in line["numbers"]}
        self.ranges = [
            tuple(line["numbers"]) for line in self.told("left") if "numbers" in line
        ]
        # number → where it is stored
        self.places: dict[int, list[Place]] = defaultdict(list)
        self.rows: dict[Place, Row] = {}
        for queue in self.stored.queues.values():
            for row in queue.rows:
                self.rows[Place(queue.queue, row.offset)] = row
                if row.number is not None:
                    self.places[row.number].append(Place(queue.queue, row.offset))

        lines = [
            line
            for one in self.members.values()
            for line in one.lines
            if line["what"] == "dead"
        ]
        # what handlers gave up
        self.reported = {Place(line["queue"], line["offset"]) for line in lines}

    def told(self, what: str) -> list[dict[str, Any]]:
        """The senders' lines of one kind."""
        return [line for line in self.sent_lines if line["what"] == what]

    def was_sent(self, number: int | None) -> bool:
        """Return True if a sender knows this number."""
        if number is None or number in self.asked:
            return number is not None
        return any(first <= number < end for first, end in self.ranges)

    def promised(self) -> Iterator[tuple[Place, int]]:
        """The places and numbers of what must be handled: receipts, and delayed messages
        that came.
        """
        for line in self.told("sent"):
            yield Place(line["queue"], line["offset"]), line["number"]
        for line in self.told("delayed"):
            yield from (
                (place, line["number"]) for place in self.places.get(line["number"], [])[:1]
            )


Check = Callable[[Evidence], Iterator[Found]]


def found(evidence: Evidence) -> list[Found]:
    """Everything that is wrong."""
    return [one for check in CHECKS for one in check(evidence)]


def nothing(findings: Sequence[Found]) -> None:
    """Raises AssertionError with what was found."""
    kinds = Counter(one.kind for one in findings)
    by_kind = {
        kind: [one for one in findings if one.kind == kind][:SHOWN] for kind in kinds
    }
    listed = "\n  ".join(str(one) for some in by_kind.values() for one in some)
    counted = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    assert not findings, f"{len(findings)} things are wrong ({counted}):\n  {listed}"


def at(place: Place) -> str:
    """A place in words."""
    return f"queue {place.queue} offset {place.offset}"


def _journals(evidence: Evidence) -> Iterator[Found]:
    for one in (
        *evidence.members.values(),
        *evidence.senders.values(),
        *evidence.watchers.values(),
    ):
        for line, what in one.wrong:
            yield Found("journal", f"{one.name} line {line}", what)
    for error in (*evidence.story.errors, *evidence.story.given_up):
        yield Found("error", error.partition(":")[0], error)


def _receipts(evidence: Evidence) -> Iterator[Found]:
    """Each receipt names the one place where the message lies."""
    numbers: dict[int, set[Place]] = defaultdict(set)
    places: dict[Place, set[int]] = defaultdict(set)
    for line in (*evidence.told("sent"), *evidence.told("again")):
        place = Place(line["queue"], line["offset"])
        numbers[line["number"]].add(place)
        places[place].add(line["number"])
    for number, its in numbers.items():
        if len(its) > 1:
            listed = ", ".join(map(at, sorted(its)))
            yield Found(
                "two_receipts",
                f"message {number}",
                f"message {number} has receipts for {listed}",
            )
    for place, mine in sorted(places.items()):
        if len(mine) > 1:
            yield Found(
                "offset_twice", at(place), f"messages {sorted(mine)} have a receipt for it"
            )
        elif place.queue in evidence.stored.queues:
            yield from _kept(evidence, place, *mine)


def _kept(evidence: Evidence, place: Place, number: int) -> Iterator[Found]:
    row, elsewhere = evidence.rows.get(place), evidence.places.get(number, [])
    queue = evidence.stored.queues[place.queue]
    if any(first <= place.offset < end for first, end in queue.gaps):
        return  # lost, and everybody is told so
    if row is None:
        there = f"; it lies at {at(elsewhere[0])}" if elsewhere else ""
        yield Found("lost", at(place), f"message {number} has a receipt, and no row{there}")
    elif row.number != number and evidence.was_sent(row.number):
        yield Found(
            "other_body",
            at(place),
            f"message {number} has the receipt, {row.number} is stored",
        )


def _bodies(evidence: Evidence) -> Iterator[Found]:
    for place, row in evidence.rows.items():
        if not evidence.was_sent(row.number):
            yield Found("altered", at(place), f"nobody sent {row.body[:40]!r}")


def _once(evidence: Evidence) -> Iterator[Found]:
    for number, places in evidence.places.items():
        if len(places) == 1:
            continue
        listed = ", ".join(map(at, places))
        inside = len({place.queue for place in places}) == 1
        yield Found(
            "stored_twice" if inside else "in_two_queues",
            listed,
            f"message {number} lies there",
        )


def _whole_batches(evidence: Evidence) -> Iterator[Found]:
    """A send to one queue is stored whole or not at all, also when its outcome stays
    unknown.
    """
    acknowledged = {line["number"] for line in evidence.told("sent")}
    for line in evidence.told("asked"):
        stored = [number for number in line["numbers"] if number in evidence.places]
        if line["queue"] is None or acknowledged.intersection(line["numbers"]):
            continue  # may be in several queues; or what is missing is lost
        if 0 < len(stored) < len(line["numbers"]):
            missing = sorted(set(line["numbers"]) - set(stored))
            yield Found(
                "batch_in_part",
                f"batch {line['batch']}",
                f"{stored} are stored, {missing} are not",
            )


def _dense(evidence: Evidence) -> Iterator[Found]:
    for one in evidence.stored.queues.values():
        offsets = {row.offset for row in one.rows}
        excused = {offset for first, end in one.gaps for offset in range(first, end)}
        for offset in range(one.low, one.head):
            if offset not in offsets and offset not in excused:
                yield Found(
                    "hole",
                    at(Place(one.queue, offset)),
                    f"no message there, and the head is {one.head}",
                )
        for offset in sorted(offset for offset in offsets if offset < one.low):
            yield Found(
                "below_low", at(Place(one.queue, offset)), f"the log starts at {one.low}"
            )
        above = sorted(offset for offset in offsets if offset >= one.head)
        for offset in above:
            kind = "head_behind" if one.head in offsets else "above_head"
            yield Found(kind, at(Place(one.queue, offset)), f"the head is {one.head}")


def _times(evidence: Evidence) -> Iterator[Found]:
    for one in evidence.stored.queues.values():
        for before, row in pairwise(one.rows):
            if row.stored_at < before.stored_at:
                what = f"stored at {row.stored_at}, the one in front of it at {before.stored_at}"
                yield Found("time_falls", at(Place(one.queue, row.offset)), what)


def _batches(evidence: Evidence) -> Iterator[Found]:
    for one in evidence.stored.queues.values():
        rows = {row.offset: row for row in one.rows}
        reached = one.low
        for batch in one.batches:
            yield from _batch(one, batch, rows)
            if batch.first < reached:
                yield Found(
                    "batch_count",
                    _claim(one, batch),
                    f"offsets below {reached} are another batch's",
                )
            elif batch.first > reached and any(
                reached <= offset < batch.first for offset in rows
            ):
                yield Found(
                    "unclaimed",
                    f"queue {one.queue} offset {reached}",
                    f"no batch up to {batch.first}",
                )
            reached = max(reached, batch.end)
        for offset in sorted(offset for offset in rows if offset >= reached):
            yield Found("unclaimed", at(Place(one.queue, offset)), "no batch claims it")


def _claim(queue: StoredQueue, batch: Batch) -> str:
    return f"queue {queue.queue} offset {batch.first} … {batch.end - 1}"


def _batch(queue: StoredQueue, batch: Batch, rows: Mapping[int, Row]) -> Iterator[Found]:
    mine = [rows[offset] for offset in range(batch.first, batch.end) if offset in rows]
    if len(mine) < batch.size:
        what = f"{batch.size} messages, and only {len(mine)} of them are stored"
        yield Found("batch_count", _claim(queue, batch), what)
    elif digest(mine) != batch.digest:
        yield Found(
            "batch_differs",
            _claim(queue, batch),
            "the digest is another than that of the messages",
        )


def digest(rows: Iterable[Row]) -> bytes:
    """Return what the store is to remember of a batch, by STORE's own words and not by its
    code.
    """
    parts = []
    for row in rows:
        headers = json.loads(row.headers) if row.headers else {}
        parts.append((row.body, row.key, row.tag, sorted(headers.items()), row.trace_id))
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()[:16]


def _handled(evidence: Evidence) -> Iterator[Found]:
    """Everything acknowledged was handled. Known by its number: a place may have held
    another message.
    """
    done: dict[Place, set[int | None]] = defaultdict(set)
    for one in evidence.story.handlings:
        row = evidence.rows.get(one.place)
        if one.ended is not None:
            done[one.place].add(one.number)
        if row is not None and row.number != one.number:
            what = f"{one.member} got message {one.number}, {row.number} is stored"
            yield Found("handled_other", at(one.place), what)
    for place, number in sorted(evidence.promised()):
        queue = evidence.stored.queues.get(place.queue)
        if number in done[place] or queue is None or place in evidence.reported:
            continue
        committed = max((one.committed for one in queue.positions), default=0)
        kind = "skipped" if committed > place.offset else "not_handled"
        what = f"message {number} was never handled; {committed} is committed"
        yield Found(kind, at(place), what)


def _owners(evidence: Evidence) -> Iterator[Found]:
    for queue, handlings in evidence.story.by_queue().items():
        holders: dict[int, str] = {}
        last: dict[int, int] = {}
        highest = handlings[0]
        for one in handlings:
            if one.epoch < highest.epoch:
                late_ms = (one.begun - highest.begun) * 1000
                who = f"{one.member} started under epoch {one.epoch}"
                what = (
                    f"{who}, {late_ms:.1f} ms after {highest.member} had under epoch "
                    f"{highest.epoch}"
                )
                yield Found("former_owner", at(one.place), what)
            highest = max(highest, one, key=lambda it: it.epoch)
            holder = holders.setdefault(one.epoch, one.member)
            if holder != one.member:
                yield Found(
                    "two_owners",
                    at(one.place),
                    f"epoch {one.epoch} was {holder}'s and {one.member}'s",
                )
            elif one.offset <= last.get(one.epoch, -1):
                what = f"{one.member} started it after offset {last[one.epoch]} of queue {queue}"
                yield Found("order", at(one.place), what)
            last[one.epoch] = one.offset


def _sent_order(evidence: Evidence) -> Iterator[Found]:
    """The first receipts of a sender rise with its numbers in every queue, and so must what
    is stored.
    """
    for name, sender in evidence.senders.items():
        numbers = {line["number"] for line in sender.lines if line["what"] == "sent"}
        for queue in evidence.stored.queues.values():
            mine = [
                row
                for row in queue.rows
                if row.number in numbers and row.number is not None
            ]
            for before, row in pairwise(mine):
                if row.number < before.number:  # type: ignore[operator]
                    what = f"message {row.number} of {name} lies behind message {before.number}"
                    yield Found("stored_order", at(Place(queue.queue, row.offset)), what)


def _positions(evidence: Evidence) -> Iterator[Found]:
    """Return what was seen of reader and head rows only rises, up to what they say at the
    end.
    """
    seen: dict[tuple[int, str], int] = {}
    for line in (line for one in evidence.watchers.values() for line in one.lines):
        if line["what"] == "position":
            for name, kind in RISING.items():
                yield from _fell(seen, (line["queue"], name), line[name], kind)
    for queue in evidence.stored.queues.values():
        yield from _fell(seen, (queue.queue, "head"), queue.head, RISING["head"])
        for position in queue.positions:
            if position.committed > queue.head:
                what = f"{position.committed} is committed, the head is {queue.head}"
                yield Found(
                    "committed_above",
                    f"queue {queue.queue} committed {position.committed}",
                    what,
                )


def _fell(
    seen: dict[tuple[int, str], int], what: tuple[int, str], now: int, kind: str
) -> Iterator[Found]:
    before = seen.get(what, now)
    seen[what] = now
    if now < before:
        queue, name = what
        yield Found(
            kind,
            f"queue {queue} {name} {now}",
            f"the {name} was {before} before it was {now}",
        )


def _dead(evidence: Evidence) -> Iterator[Found]:
    kept = [Place(*one) for one in evidence.stored.dead]
    for place in sorted(evidence.reported):
        if place not in kept:
            yield Found(
                "dead_lost",
                at(place),
                "its handler was told that it is dead, and it is nowhere",
            )
    for place in sorted({one for one in kept if kept.count(one) > 1}):
        yield Found(
            "dead_twice", at(place), f"{kept.count(place)} dead messages came from there"
        )


def _delayed(evidence: Evidence) -> Iterator[Found]:
    waiting = evidence.stored.waiting
    for line in evidence.told("delayed"):
        number, where = line["number"], f"delayed message {line['id']}"
        copies = waiting.count(number) + (number in evidence.places)
        if copies == 0:
            yield Found(
                "delayed_lost", where, f"message {number} neither waits nor is stored"
            )
        elif copies > 1:
            stored = ", and is stored, too" if number in evidence.places else ""
            yield Found(
                "delayed_twice",
                where,
                f"message {number} waits {waiting.count(number)} times{stored}",
            )


CHECKS: tuple[Check, ...] = (
    _journals,
    _receipts,
    _bodies,
    _once,
    _whole_batches,
    _dense,
    _times,
    _batches,
    _handled,
    _owners,
    _sent_order,
    _positions,
    _dead,
    _delayed,
)
