"""`script/bench matrix`: rates and latencies by size of messages, the questions of
OpenMessaging's benchmark.

For each size a topic of four queues, two publishing processes and one consumer that waits
in long polls:

single    a fixed rate of 200 requests a second, one message each
max       as fast as it goes
half      half of what `max` reached, the consumer beside it: end-to-end p99 should be below 50 ms
cleaning  the same while retention removes old messages of the same queues
drain     a backlog, published while nobody reads, is read by one consumer

Publish latency is from when a send was due to its receipt, end-to-end from when it was due
until the consumer's poll returned the message. The beginning of each phase is left out.
Absolute figures belong to the machine and its load.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import bench, retention
from benchmarks.figures import LATENCY_HEADS, Latencies, machine, plain
from benchmarks.loads import Load, Publishers, Reader, Times
from benchmarks.measures import Setting

TARGET_MS = 50.0  # end-to-end p99 at half of the maximum
QUEUES = 4
SINGLE_RATE = 200.0
OLD_ROWS = 100_000  # of each queue, for retention to remove
CATCH_UP_S = 60.0


@dataclass(frozen=True)
class Size:
    """A size of bodies, bytes, and how many messages a request carries."""

    name: str
    size: int
    batch: int


SIZES = (Size("100 B", 100, 100), Size("1 KB", 1024, 100), Size("64 KB", 64 << 10, 4))


@dataclass(frozen=True)
class Row:
    """What one phase came to; rates are messages a second. None: not measured in it."""

    size: str
    phase: str
    batch: int
    wanted: float | None
    published: float | None = None
    received: float | None = None
    publish: Latencies | None = None
    end_to_end: Latencies | None = None
    note: str = ""


@dataclass(frozen=True)
class Lab:
    """A running server with its node, and how long each phase is."""

    setting: Setting
    admin: Any
    home: Path
    seconds: float
    publishers: int
    old_rows: int

    def topic(self, size: Size) -> Load:
        """A new topic of four queues with old messages; what to send there."""
        name = f"matrix-{size.size}"
        settings = {"retention_days": 1, "keep_unread_days": 0}
        made = self.admin.create_topic(name, queues=QUEUES, node="bench", **settings)
        queues = tuple(queue["queue"] for queue in made["queues"])
        for queue in queues:
            retention.fill(self.setting.database, queue, rows=self.old_rows, slices=2)
        return Load(
            self.setting.url, self.setting.api_key, name, queues, size.size, size.batch
        )

    def group(self, load: Load) -> str:
        """A new group that reads what is sent from now on."""
        name = f"bench-{uuid.uuid4()}"
        self.admin.create_group(name)
        self.admin.subscribe(name, load.topic, start="latest")
        return name

    def play(self, size: Size, phase: str, load: Load) -> Row:
        """A phase in which both sides work."""
        sending = Publishers(load, count=self.publishers)
        reader = Reader(load, self.group(load))
        reader.await_ready()
        sending.begin()
        begun = time.monotonic()
        time.sleep(self.seconds)
        ended = time.monotonic()
        stored, sends = sending.end()
        caught_up = reader.await_count(stored, limit_s=CATCH_UP_S)
        note = behind(time.monotonic() - ended if caught_up else None)
        figures = timed(load, sends, reader.end(), window=(begun + self.seconds / 5, ended))
        return Row(size.name, phase, load.batch, load.rate, note=note, **figures)

    def drain(self, size: Size, load: Load) -> Row:
        """Publishes a backlog, then reads it."""
        group = self.group(load)
        sending = Publishers(load, count=self.publishers)
        sending.begin()
        time.sleep(self.seconds)
        stored, _ = sending.end()
        begun = time.monotonic()
        reader = Reader(load, group)
        reader.await_ready()
        reader.await_count(stored, limit_s=4 * CATCH_UP_S)
        took = time.monotonic() - begun
        received = list(reader.end()[1::2])
        rate = len(received) / (received[-1] - received[0])
        note = f"{len(received):,} messages in {took:.1f} s, the start of the consumer included"
        return Row(size.name, "drain", size.batch, None, received=rate, note=note)

    @contextmanager
    def cleaning(self, load: Load) -> Iterator[list[str]]:
        """Retention drops old partitions of the topic during the block; afterwards it tells
        how many rows.
        """
        from messagestore.retention.cleaning import REST_S

        told: list[str] = []
        command = [
            sys.executable,
            str(bench.HOME / "manage.py"),
            "cleanup",
            "--topic",
            load.topic,
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + CATCH_UP_S
            while not sum(self._lows(load)) and time.monotonic() < end:
                time.sleep(0.1)
            time.sleep(REST_S)  # what reads the old messages may end; then they go
            before = self._oldest(load)
            yield told
            told.append(f"{self._oldest(load) - before:,} old messages were dropped")
        finally:
            process.terminate()
            process.wait(60)

    def _lows(self, load: Load) -> list[int]:
        return [queue["low"] or 0 for queue in self.admin.topic(load.topic)["queues"]]

    def _oldest(self, load: Load) -> int:
        """The offsets of the oldest rows of all queues, added up."""
        with closing(bench.connect(self.setting.database)) as connection:
            cursor = connection.cursor()
            found = 0
            for queue in load.queues:
                cursor.execute(f"SELECT COALESCE(MIN(msg_offset), 0) FROM message_{queue}")
                found += int(cursor.fetchone()[0])
        return found


def behind(seconds: float | None) -> str:
    """What to say of a consumer that got the last message so long after it was sent; None:
    it did not.

    >>> behind(0.3), behind(4.0), behind(None)
    ('', 'the consumer was 4.0 s behind in the end', 'not all was read 60 s after the last
    send')
    """
    if seconds is None:
        return f"not all was read {CATCH_UP_S:.0f} s after the last send"
    return f"the consumer was {seconds:.1f} s behind in the end" if seconds > 1 else ""


def within(times: Sequence[float], window: tuple[float, float]) -> list[float]:
    """How long those took that ended within the window; `times` are (due, ended), one after
    the other.

    >>> within([0.0, 1.0, 1.5, 2.0, 2.5, 9.0], (1.5, 3.0))
    [0.5]
    """
    pairs = zip(times[::2], times[1::2], strict=True)
    return [ended - due for due, ended in pairs if window[0] <= ended <= window[1]]


def timed(
    load: Load, sends: Times[float], messages: Times[float], *, window: tuple[float, float]
) -> dict[str, Any]:
    """Of a phase: rates within the window; latencies of sends that ended, of messages due
    within it.
    """
    seconds = window[1] - window[0]
    stored = within(sends, window)
    pairs = zip(messages[::2], messages[1::2], strict=True)
    due_then = [ended - due for due, ended in pairs if window[0] <= due <= window[1]]
    return {
        "published": len(stored) * load.batch / seconds,
        "received": len(within(messages, window)) / seconds,
        "publish": Latencies.of(stored),
        "end_to_end": Latencies.of(due_then),
    }


def measure(lab: Lab, size: Size) -> Iterator[Row]:
    """All phases of a size."""
    load = lab.topic(size)
    yield lab.play(size, "single", replace(load, batch=1, rate=SINGLE_RATE))
    most = lab.play(size, "max", load)
    yield most
    assert most.published is not None
    half = replace(load, rate=most.published / 2)
    yield lab.play(size, "half", half)
    with lab.cleaning(load) as told:
        row = lab.play(size, "cleaning", half)
    yield replace(row, note="; ".join(filter(None, [row.note, *told])))
    yield lab.drain(size, load)


def shown(row: Row) -> str:
    """A row for people."""
    rates = "".join(
        "         -" if one is None else f"{one:10,.0f}"
        for one in (row.published, row.received)
    )
    head = f"{row.size:7}{row.phase:9}{row.batch:5}{rates}"
    lines = [f"{head}  publish   {row.publish}" if row.publish else f"{head}  {row.note}"]
    if row.end_to_end:
        lines.append(f"{'':{len(head)}}  end to end{row.end_to_end}   {row.note}".rstrip())
    return "\n".join(lines)


def missed(rows: Sequence[Row]) -> list[str]:
    """Sizes whose end-to-end p99 at half of the maximum is not below the target."""
    halves = [row for row in rows if row.phase == "half"]
    return [
        row.size
        for row in halves
        if row.end_to_end is None or row.end_to_end.p99 >= TARGET_MS
    ]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/bench matrix", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short phases: shows that everything runs"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each phase (default 20)"
    )
    parser.add_argument(
        "--publishers", type=int, default=2, choices=(1, 2, 4), help="processes (default 2)"
    )
    parser.add_argument(
        "--binlog", action="store_true", help="with a binary log, synced at each commit"
    )
    bench.add_server(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    return parser.parse_args()


def main() -> int:
    """Runs it; 1 if an end-to-end p99 at half of the maximum is not below the target."""
    chosen = arguments()
    facts = machine() | {"binary log": chosen.binlog}
    seconds, old_rows = (2.0, 5_000) if chosen.quick else (chosen.seconds, OLD_ROWS)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        database_url = stack.enter_context(
            bench.database(home / "database", binlog=chosen.binlog, version=chosen.server)
        )
        credentials = stack.enter_context(bench.server(home / "var", database_url))
        setting = bench.prepare(database_url, credentials, "")
        from catmq_client.admin.api import Admin
        from catmq_client.http.transport import HttpTransport

        admin = Admin(HttpTransport(setting.url, api_key=setting.api_key))
        lab = Lab(setting, admin, home, seconds, chosen.publishers, old_rows)
        print(
            f"{'size':7}{'phase':9}{'batch':>5}{'published':>10}{'received':>10}{'':12}{LATENCY_HEADS}"
        )
        rows = []
        for size in SIZES:
            for row in measure(lab, size):
                rows.append(row)
                print(shown(row), flush=True)
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"machine": facts, "rows": plain(rows)}, indent=1)
        )
    late = missed(rows)
    if late:
        print(
            f"end-to-end p99 at half of the maximum is {TARGET_MS:.0f} ms or more: "
            f"{', '.join(late)}"
        )
    return int(bool(late) and not chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
