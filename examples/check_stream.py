"""Proves that a stream came through whole, once and in order, from nothing but what the
consumers printed.

    catmq consume changes --group check --idle-timeout 5 > a.jsonl     (as many at once as you like)
    python examples/check_stream.py a.jsonl b.jsonl --source events.jsonl.gz

Each line is one object of `catmq consume --output json`; its body is an event
`{"seq", "path", "added", "deleted", …}`. What must hold:

* every `seq` from 0 to n - 1 was received (n from --source, else --count, else the highest
  one seen + 1);
* no event lies in the topic twice: one `seq` has one (queue, offset);
* each consumer saw its queues' offsets, and each path's `seq`, rise, repeats of what it had
  left out;
* by offset, too, a path's `seq` rises, the running sum of `added - deleted` never falls
  below zero, and with
  --source it ends where the source says.

Redelivered messages (the same queue and offset again) are counted and allowed, unless
--exactly-once.
Exit code 0: all of it holds; 1: something does not; 2: the call is wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SHOWN = 10  # faults printed; the verdict has their number


class Place(NamedTuple):
    """Location of a stored message: the same place twice is the same message again."""

    topic: str
    queue: int
    offset: int


class Event(NamedTuple):
    """Change of one file, as a message tells it."""

    seq: int
    path: str
    change: int  # lines added - lines deleted


class Unreadable(Exception):
    """A line that is not what the consumer prints: the text names file, line and fault."""


@dataclass
class Stream:
    """Everything received so far, and what is wrong with it."""

    events: dict[Place, Event] = field(default_factory=dict)
    received: Counter[str] = field(default_factory=Counter)  # lines per file
    repeated: int = 0
    cut: int = 0  # last lines without an end: their consumer was killed while it wrote
    faults: list[str] = field(default_factory=list)


def event_of(text: str) -> Event:
    """The event in a message's body. Raises KeyError, TypeError or ValueError when it is
    none.
    """
    body = json.loads(text)
    return Event(
        int(body["seq"]), str(body["path"]), int(body["added"]) - int(body["deleted"])
    )


def parse(line: bytes) -> tuple[Place, Event]:
    """Place and event of one line of a consumer."""
    message: dict[str, Any] = json.loads(line)
    place = Place(str(message["topic"]), int(message["queue"]), int(message["offset"]))
    return place, event_of(message["body"])


def read(
    name: str, lines: Iterable[bytes], stream: Stream
) -> Iterator[tuple[Place, Event]]:
    """The messages of one consumer in the order it printed them. Raises Unreadable."""
    for number, line in enumerate(lines, 1):
        try:
            message = parse(line)
        except (ValueError, KeyError, TypeError) as error:
            if not line.endswith(b"\n"):
                stream.cut += 1
                continue
            reason = (
                f"{name} line {number}: not a line of `catmq consume --output json` "
                "with an event"
            )
            raise Unreadable(f"{reason} ({type(error).__name__}: {error})") from error
        yield message


def take(name: str, lines: Iterable[bytes], stream: Stream) -> None:
    """Adds what one consumer printed and checks its order."""
    highest: dict[tuple[str, int], int] = {}  # (topic, queue) → offset
    latest: dict[str, int] = {}  # path → seq
    mine: set[Place] = set()
    stream.received[name] += 0  # a consumer that got nothing has a share, too
    for place, event in read(name, lines, stream):
        stream.received[name] += 1
        remember(name, place, event, stream)
        if place in mine:
            continue
        mine.add(place)
        queue = (place.topic, place.queue)
        if place.offset < highest.get(queue, -1):
            stream.faults.append(
                f"{name}: offset {place.offset} of queue {place.queue} after {highest[queue]}"
            )
        if event.seq <= latest.get(event.path, -1):
            stream.faults.append(
                f"{name}: {event.path}: seq {event.seq} after {latest[event.path]}"
            )
        highest[queue] = max(place.offset, highest.get(queue, -1))
        latest[event.path] = event.seq


def remember(name: str, place: Place, event: Event, stream: Stream) -> None:
    """Keeps a message; one that is known already must say the same as before."""
    known = stream.events.setdefault(place, event)
    if known is event:
        return
    stream.repeated += 1
    if known != event:
        stream.faults.append(
            f"{name}: {place} is seq {event.seq} here and seq {known.seq} elsewhere"
        )


def completeness(stream: Stream, count: int) -> list[str]:
    """Faults: events missing, too many, or stored twice."""
    stored = Counter(event.seq for event in stream.events.values())
    faults = [f"seq {seq} was never received" for seq in range(count) if seq not in stored]
    faults += [
        f"seq {seq} was not expected (n = {count})"
        for seq in stored
        if not 0 <= seq < count
    ]
    faults += [
        f"seq {seq} is stored {times} times" for seq, times in stored.items() if times > 1
    ]
    return faults


def order_and_sums(stream: Stream) -> tuple[list[str], dict[str, int]]:
    """Faults in the stored order, and each path's sum of `added - deleted`."""
    faults: list[str] = []
    homes: dict[str, tuple[str, int]] = {}
    latest: dict[str, int] = {}
    sums: dict[str, int] = {}
    for place in sorted(stream.events):
        seq, path, change = stream.events[place]
        if homes.setdefault(path, place[:2]) != place[:2]:
            faults.append(
                f"{path}: lies in queues {homes[path][1]} and {place.queue}, a key has one"
            )
        elif seq <= latest.get(path, -1):
            faults.append(
                f"{path}: seq {seq} is stored after {latest[path]} (queue {place.queue})"
            )
        latest[path] = seq
        sums[path] = sums.get(path, 0) + change
        if sums[path] < 0:
            faults.append(
                f"{path}: {sums[path]} lines at seq {seq}, a file never has fewer than 0"
            )
    return faults, sums


def differences(sums: dict[str, int], expected: dict[str, int]) -> list[str]:
    """Faults: paths whose sum is not the source's."""
    return [
        f"{path}: sum {sums.get(path)}, the source says {expected.get(path)}"
        for path in sorted(sums.keys() | expected.keys())
        if sums.get(path) != expected.get(path)
    ]


def source_of(path: Path) -> tuple[int, dict[str, int]]:
    """Number of events and sum per path of the original file (JSON lines, or those with
    gzip).
    """
    opener = gzip.open if path.suffix == ".gz" else open
    sums: dict[str, int] = {}
    count = 0
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            count += 1
            event = event_of(line)
            sums[event.path] = sums.get(event.path, 0) + event.change
    return count, sums


def collect(files: list[str]) -> Stream:
    """Everything that the named files ("-" or none: standard input) hold. Raises OSError,
    Unreadable.
    """
    stream = Stream()
    for name in files or ["-"]:
        if name == "-":
            take("stdin", sys.stdin.buffer, stream)
        else:
            with Path(name).open("rb") as lines:
                take(name, lines, stream)
    return stream


def verify(stream: Stream, options: argparse.Namespace) -> tuple[int, list[str]]:
    """Number of paths, and everything that does not hold."""
    faults, sums = order_and_sums(stream)
    if options.source:
        count, expected = source_of(options.source)
        faults += differences(sums, expected)
    else:
        count = (
            options.count
            or max((event.seq for event in stream.events.values()), default=-1) + 1
        )
    faults = stream.faults + completeness(stream, count) + faults
    if not stream.events:
        faults.append("no message was received")
    if options.exactly_once and stream.repeated:
        faults.append(f"{stream.repeated} messages were delivered again (--exactly-once)")
    total = sum(stream.received.values())
    faults += [
        f"{name}: {number} of {total} messages, less than {options.min_share:g} %"
        for name, number in stream.received.items()
        if 100 * number < options.min_share * total
    ]
    return len(sums), faults


def verdict(stream: Stream, paths: int, faults: list[str]) -> str:
    """The one line that says it all."""
    total = sum(stream.received.values()) or 1
    shares = ", ".join(
        f"{name} {100 * number / total:.1f} %" for name, number in stream.received.items()
    )
    facts = f"{len(stream.events)} events, {paths} paths, {stream.repeated} redelivered"
    if stream.cut:
        facts += f", {stream.cut} lines cut off"
    facts += f"; {shares or 'nothing received'}"
    return f"FAILED: {len(faults)} faults; {facts}" if faults else f"OK: {facts}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description="Checks what consumers printed: nothing lost, in order, once."
    )
    made.add_argument(
        "files",
        nargs="*",
        help="what `catmq consume` printed, one a consumer; - or none: stdin",
    )
    made.add_argument(
        "--source",
        type=Path,
        help="the file that was sent: gives the count and the sums to expect",
    )
    made.add_argument(
        "--count", type=int, help="number of events to expect, when there is no --source"
    )
    made.add_argument(
        "--exactly-once", action="store_true", help="refuse redelivered messages"
    )
    made.add_argument(
        "--min-share",
        type=float,
        default=0,
        metavar="PERCENT",
        help="what each file must at least hold",
    )
    return made


def main() -> int:
    """Checks, prints the faults on stderr and the verdict on stdout."""
    options = parser().parse_args()
    try:
        stream = collect(options.files)
        paths, faults = verify(stream, options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"check_stream: {error}: give readable files of JSON lines", file=sys.stderr)
        return 2
    except Unreadable as error:
        print(f"FAILED: {error}")
        return 1
    for fault in faults[:SHOWN]:
        print(f"check_stream: {fault}", file=sys.stderr)
    print(verdict(stream, paths, faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
