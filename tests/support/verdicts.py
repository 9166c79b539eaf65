"""The judge of trials: examines journals and tables together, and reports each fault by
kind and place.

judge.py uses journals alone, and checks times. Nothing here depends on time, so the same
checks hold for every fault that a trial injects. `script/chaos selftest` plants defects and
shows that each is reported.
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


class Finding(NamedTuple):
    """A fault: its kind, its place, and a sentence with the figures."""

    kind: str
    place: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.place}: {self.sentence}"


@dataclass
class Evidence:
    """All evidence of a run. `killed`: when members were killed."""

    members: Mapping[str, Read]
    senders: Mapping[str, Read]
    watchers: Mapping[str, Read]
    stored: Stored
    killed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sent_lines = [
            line
            for sender_journal in self.senders.values()
            for line in sender_journal.lines
        ]
        by_name = {name: member.lines for name, member in self.members.items()}
        self.story = judge.story(by_name, self.sent_lines, self.killed)
        self.asked = {
            number for line in self.lines_of("asked") for number in line["numbers"]
        }
        self.ranges = [
            tuple(line["numbers"]) for line in self.lines_of("left") if "numbers" in line
        ]
        # number → places where it is stored
        self.places: dict[int, list[Place]] = defaultdict(list)
        self.rows: dict[Place, Row] = {}
        for queue in self.stored.queues.values():
            for row in queue.rows:
                self.rows[Place(queue.queue, row.offset)] = row
                if row.number is not None:
                    self.places[row.number].append(Place(queue.queue, row.offset))

        lines = [
            line
            for member in self.members.values()
            for line in member.lines
            if line["what"] == "dead"
        ]
        # messages that handlers reported as dead
        self.reported = {Place(line["queue"], line["offset"]) for line in lines}

    def lines_of(self, what: str) -> list[dict[str, Any]]:
        """Return the senders' lines of a kind."""
        return [line for line in self.sent_lines if line["what"] == what]

    def was_sent(self, number: int | None) -> bool:
        """Return True if a sender used this number."""
        if number is None or number in self.asked:
            return number is not None
        return any(first <= number < end for first, end in self.ranges)

    def promised(self) -> Iterator[tuple[Place, int]]:
        """Yield place and number of each message that must be handled: with a receipt, or
        delayed and delivered.
        """
        for line in self.lines_of("sent"):
            yield Place(line["queue"], line["offset"]), line["number"]
        for line in self.lines_of("delayed"):
            yield from (
                (place, line["number"]) for place in self.places.get(line["number"], [])[:1]
            )


Check = Callable[[Evidence], Iterator[Finding]]


def find_faults(evidence: Evidence) -> list[Finding]:
    """Return all faults."""
    return [finding for check in CHECKS for finding in check(evidence)]


def assert_no_findings(findings: Sequence[Finding]) -> None:
    """Raise AssertionError with the findings, if there are any."""
    kinds = Counter(finding.kind for finding in findings)
    by_kind = {
        kind: [finding for finding in findings if finding.kind == kind][:SHOWN]
        for kind in kinds
    }
    listed = "\n  ".join(
        str(finding) for of_kind in by_kind.values() for finding in of_kind
    )
    counted = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    assert not findings, f"{len(findings)} things are wrong ({counted}):\n  {listed}"


def describe_place(place: Place) -> str:
    """Return a description of a place."""
    return f"queue {place.queue} offset {place.offset}"


def _journals(evidence: Evidence) -> Iterator[Finding]:
    for journal in (
        *evidence.members.values(),
        *evidence.senders.values(),
        *evidence.watchers.values(),
    ):
        for line, fault in journal.wrong:
            yield Finding("journal", f"{journal.name} line {line}", fault)
    for error in (*evidence.story.errors, *evidence.story.given_up):
        yield Finding("error", error.partition(":")[0], error)


def _receipts(evidence: Evidence) -> Iterator[Finding]:
    """Check that each receipt names the only place of its message."""
    numbers: dict[int, set[Place]] = defaultdict(set)
    places: dict[Place, set[int]] = defaultdict(set)
    for line in (*evidence.lines_of("sent"), *evidence.lines_of("again")):
        place = Place(line["queue"], line["offset"])
        numbers[line["number"]].add(place)
        places[place].add(line["number"])
    for number, message_places in numbers.items():
        if len(message_places) > 1:
            listed = ", ".join(map(describe_place, sorted(message_places)))
            yield Finding(
                "two_receipts",
                f"message {number}",
                f"message {number} has receipts for {listed}",
            )
    for place, receipt_numbers in sorted(places.items()):
        if len(receipt_numbers) > 1:
            yield Finding(
                "offset_twice",
                describe_place(place),
                f"messages {sorted(receipt_numbers)} have a receipt for it",
            )
        elif place.queue in evidence.stored.queues:
            yield from _check_kept(evidence, place, *receipt_numbers)


def _check_kept(evidence: Evidence, place: Place, number: int) -> Iterator[Finding]:
    row, elsewhere = evidence.rows.get(place), evidence.places.get(number, [])
    queue = evidence.stored.queues[place.queue]
    if any(first <= place.offset < end for first, end in queue.gaps):
        return  # declared lost
    if row is None:
        other_place = f"; it lies at {describe_place(elsewhere[0])}" if elsewhere else ""
        yield Finding(
            "lost",
            describe_place(place),
            f"message {number} has a receipt, and no row{other_place}",
        )
    elif row.number != number and evidence.was_sent(row.number):
        yield Finding(
            "other_body",
            describe_place(place),
            f"message {number} has the receipt, {row.number} is stored",
        )


def _bodies(evidence: Evidence) -> Iterator[Finding]:
    for place, row in evidence.rows.items():
        if not evidence.was_sent(row.number):
            yield Finding(
                "altered", describe_place(place), f"nobody sent {row.body[:40]!r}"
            )


def _once(evidence: Evidence) -> Iterator[Finding]:
    for number, places in evidence.places.items():
        if len(places) == 1:
            continue
        listed = ", ".join(map(describe_place, places))
        is_same_queue = len({place.queue for place in places}) == 1
        yield Finding(
            "stored_twice" if is_same_queue else "in_two_queues",
            listed,
            f"message {number} lies there",
        )


def _whole_batches(evidence: Evidence) -> Iterator[Finding]:
    """Check that a send to a single queue is stored whole or not at all, also if its
    outcome is unknown.
    """
    acknowledged = {line["number"] for line in evidence.lines_of("sent")}
    for line in evidence.lines_of("asked"):
        stored = [number for number in line["numbers"] if number in evidence.places]
        if line["queue"] is None or acknowledged.intersection(line["numbers"]):
            continue  # may be in several queues; or the missing messages are lost
        if 0 < len(stored) < len(line["numbers"]):
            missing = sorted(set(line["numbers"]) - set(stored))
            yield Finding(
                "batch_in_part",
                f"batch {line['batch']}",
                f"{stored} are stored, {missing} are not",
            )


def _dense(evidence: Evidence) -> Iterator[Finding]:
    for queue in evidence.stored.queues.values():
        offsets = {row.offset for row in queue.rows}
        # A promotion declares the offsets of lost messages as gaps.
        excused = {offset for first, end in queue.gaps for offset in range(first, end)}
        for offset in range(queue.low, queue.head):
            if offset not in offsets and offset not in excused:
                yield Finding(
                    "hole",
                    describe_place(Place(queue.queue, offset)),
                    f"no message there, and the head is {queue.head}",
                )
        for offset in sorted(offset for offset in offsets if offset < queue.low):
            yield Finding(
                "below_low",
                describe_place(Place(queue.queue, offset)),
                f"the log starts at {queue.low}",
            )
        above = sorted(offset for offset in offsets if offset >= queue.head)
        for offset in above:
            # A message at the head's own offset: the head lags. Without it, others are stray.
            kind = "head_behind" if queue.head in offsets else "above_head"
            yield Finding(
                kind,
                describe_place(Place(queue.queue, offset)),
                f"the head is {queue.head}",
            )


def _times(evidence: Evidence) -> Iterator[Finding]:
    for queue in evidence.stored.queues.values():
        for before, row in pairwise(queue.rows):
            if row.stored_at < before.stored_at:
                sentence = (
                    f"stored at {row.stored_at}, the one in front of it at "
                    f"{before.stored_at}"
                )
                yield Finding(
                    "time_falls", describe_place(Place(queue.queue, row.offset)), sentence
                )


def _batches(evidence: Evidence) -> Iterator[Finding]:
    for queue in evidence.stored.queues.values():
        rows = {row.offset: row for row in queue.rows}
        reached = queue.low
        for batch in queue.batches:
            yield from _batch(queue, batch, rows)
            if batch.first < reached:
                yield Finding(
                    "batch_count",
                    _claim(queue, batch),
                    f"offsets below {reached} are another batch's",
                )
            elif batch.first > reached and any(
                reached <= offset < batch.first for offset in rows
            ):
                yield Finding(
                    "unclaimed",
                    f"queue {queue.queue} offset {reached}",
                    f"no batch up to {batch.first}",
                )
            # Overlapping batches may end earlier than a former batch.
            reached = max(reached, batch.end)
        for offset in sorted(offset for offset in rows if offset >= reached):
            yield Finding(
                "unclaimed",
                describe_place(Place(queue.queue, offset)),
                "no batch claims it",
            )


def _claim(queue: StoredQueue, batch: Batch) -> str:
    return f"queue {queue.queue} offset {batch.first} … {batch.end - 1}"


def _batch(queue: StoredQueue, batch: Batch, rows: Mapping[int, Row]) -> Iterator[Finding]:
    stored_rows = [
        rows[offset] for offset in range(batch.first, batch.end) if offset in rows
    ]
    if len(stored_rows) < batch.size:
        sentence = f"{batch.size} messages, and only {len(stored_rows)} of them are stored"
        yield Finding("batch_count", _claim(queue, batch), sentence)
    elif digest(stored_rows) != batch.digest:
        yield Finding(
            "batch_differs",
            _claim(queue, batch),
            "the digest is another than that of the messages",
        )


def digest(rows: Iterable[Row]) -> bytes:
    """Return the digest of a batch, computed independently of the store's code."""
    parts = []
    for row in rows:
        # Headers are sorted: their order in the stored JSON is not part of the digest.
        headers = json.loads(row.headers) if row.headers else {}
        parts.append((row.body, row.key, row.tag, sorted(headers.items()), row.trace_id))
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()[:16]


def _handled(evidence: Evidence) -> Iterator[Finding]:
    """Check that every acknowledged message was handled, compared by number.

    A place may have held another message before.
    """
    handled_numbers: dict[Place, set[int | None]] = defaultdict(set)
    for handling in evidence.story.handlings:
        row = evidence.rows.get(handling.place)
        if handling.ended is not None:
            handled_numbers[handling.place].add(handling.number)
        if row is not None and row.number != handling.number:
            sentence = (
                f"{handling.member} got message {handling.number}, {row.number} is stored"
            )
            yield Finding("handled_other", describe_place(handling.place), sentence)
    for place, number in sorted(evidence.promised()):
        queue = evidence.stored.queues.get(place.queue)
        if number in handled_numbers[place] or queue is None or place in evidence.reported:
            continue
        # "skipped" is worse: no member will get the message any more.
        committed = max((position.committed for position in queue.positions), default=0)
        kind = "skipped" if committed > place.offset else "not_handled"
        sentence = f"message {number} was never handled; {committed} is committed"
        yield Finding(kind, describe_place(place), sentence)


def _owners(evidence: Evidence) -> Iterator[Finding]:
    for queue, handlings in evidence.story.by_queue().items():
        holders: dict[int, str] = {}
        last: dict[int, int] = {}
        highest = handlings[0]
        for handling in handlings:
            if handling.epoch < highest.epoch:
                late_ms = (handling.begun - highest.begun) * 1000
                late_start = f"{handling.member} started under epoch {handling.epoch}"
                sentence = (
                    f"{late_start}, {late_ms:.1f} ms after {highest.member} had under epoch "
                    f"{highest.epoch}"
                )
                yield Finding("former_owner", describe_place(handling.place), sentence)
            highest = max(highest, handling, key=lambda candidate: candidate.epoch)
            holder = holders.setdefault(handling.epoch, handling.member)
            if holder != handling.member:
                yield Finding(
                    "two_owners",
                    describe_place(handling.place),
                    f"epoch {handling.epoch} was {holder}'s and {handling.member}'s",
                )
            elif handling.offset <= last.get(handling.epoch, -1):
                sentence = (
                    f"{handling.member} started it after offset {last[handling.epoch]} "
                    f"of queue {queue}"
                )
                yield Finding("order", describe_place(handling.place), sentence)
            last[handling.epoch] = handling.offset


def _sent_order(evidence: Evidence) -> Iterator[Finding]:
    """Check that a sender's messages lie in the order of their numbers in every queue."""
    for name, sender in evidence.senders.items():
        # Only messages with a receipt: repeats after an unknown outcome may be stored
        # later.
        numbers = {line["number"] for line in sender.lines if line["what"] == "sent"}
        for queue in evidence.stored.queues.values():
            sender_rows = [
                row
                for row in queue.rows
                if row.number in numbers and row.number is not None
            ]
            for before, row in pairwise(sender_rows):
                if row.number < before.number:  # type: ignore[operator]
                    sentence = f"message {row.number} of {name} lies behind message {before.number}"
                    yield Finding(
                        "stored_order",
                        describe_place(Place(queue.queue, row.offset)),
                        sentence,
                    )


def _positions(evidence: Evidence) -> Iterator[Finding]:
    """Check that reader and head rows never fell, up to their final values."""
    last_values: dict[tuple[int, str], int] = {}
    for line in (line for watcher in evidence.watchers.values() for line in watcher.lines):
        if line["what"] == "position":
            for name, kind in RISING.items():
                yield from _check_rise(last_values, (line["queue"], name), line[name], kind)
    for queue in evidence.stored.queues.values():
        yield from _check_rise(
            last_values, (queue.queue, "head"), queue.head, RISING["head"]
        )
        for position in queue.positions:
            if position.committed > queue.head:
                sentence = f"{position.committed} is committed, the head is {queue.head}"
                yield Finding(
                    "committed_above",
                    f"queue {queue.queue} committed {position.committed}",
                    sentence,
                )


def _check_rise(
    last_values: dict[tuple[int, str], int],
    value_key: tuple[int, str],
    value: int,
    kind: str,
) -> Iterator[Finding]:
    # The first value of a key is compared with itself.
    last_value = last_values.get(value_key, value)
    last_values[value_key] = value
    if value < last_value:
        queue, name = value_key
        yield Finding(
            kind,
            f"queue {queue} {name} {value}",
            f"the {name} was {last_value} before it was {value}",
        )


def _dead(evidence: Evidence) -> Iterator[Finding]:
    origins = [Place(*origin) for origin in evidence.stored.dead]
    for place in sorted(evidence.reported):
        if place not in origins:
            yield Finding(
                "dead_lost",
                describe_place(place),
                "its handler was told that it is dead, and it is nowhere",
            )
    for place in sorted({origin for origin in origins if origins.count(origin) > 1}):
        yield Finding(
            "dead_twice",
            describe_place(place),
            f"{origins.count(place)} dead messages came from there",
        )


def _delayed(evidence: Evidence) -> Iterator[Finding]:
    waiting = evidence.stored.waiting
    for line in evidence.lines_of("delayed"):
        number, place_name = line["number"], f"delayed message {line['id']}"
        # A message must be in exactly 1 place: delayed, or stored in its queue.
        copies = waiting.count(number) + (number in evidence.places)
        if copies == 0:
            yield Finding(
                "delayed_lost", place_name, f"message {number} neither waits nor is stored"
            )
        elif copies > 1:
            stored = ", and is stored, too" if number in evidence.places else ""
            yield Finding(
                "delayed_twice",
                place_name,
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
