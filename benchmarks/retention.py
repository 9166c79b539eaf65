"""`script/bench retention`: what cleaning a large queue costs those who write to it.

Starts a private MariaDB with durable settings and fills one queue with SQL, in slices of
which each is a day older than the next. Sends at full speed into it are compared with those
into an empty queue, and so are pulls of what was just sent; pulls from the middle of the
large queue are shown beside them. Then, round by round, writers send for a while
undisturbed, and at the same pace while one more slice is removed by
`messagestore.retention`. Prints how long sends took in both, their ratio in each round, and
the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import bench
from benchmarks.figures import machine, percentile, ratios
from benchmarks.reading import Span, head_of, pulled_a_second

BODY = bytes(range(200))
BATCH = 20  # messages in one send
PARTS = 50  # partitions that the rows lie in
STEP = 100_000  # rows of one INSERT … SELECT
DAY_S = 86_400
TARGET = 2.0  # p99 while cleaning, beside p99 undisturbed
Sends = list[tuple[float, float]]  # (when it ended, how long it took), s


@dataclass(frozen=True)
class Window:
    """From when to when, by the clock that all processes share, s."""

    begun: float
    ended: float

    def of(self, sends: Sends) -> list[float]:
        """How long the sends took that ended within it, rising."""
        return sorted(took for at, took in sends if self.begun <= at <= self.ended)


@dataclass(frozen=True)
class Round:
    """Latencies of one round, ms, and how long the cleaning took, s."""

    calm: list[float]
    cleaning: list[float]
    rows: int
    seconds: float

    @property
    def ratio(self) -> float:
        """p99 while cleaning / p99 undisturbed."""
        return percentile(self.cleaning, 99) / percentile(self.calm, 99)


@contextmanager
def store(home: Path) -> Iterator[dict[str, Any]]:
    """Metadata in a file, one MariaDB node called `bench`; the arguments that reach its
    database.
    """
    with bench.database(home / "database") as url:
        os.environ["CATMQ_DATA_DIR"] = str(home / "var")
        os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
        import django

        django.setup()
        from django.core.management import call_command

        from messagestore.nodes import registry
        from metadata.actors import command

        call_command("migrate", verbosity=0)
        parts = urlsplit(url)
        account = {"host": "127.0.0.1", "port": parts.port, "password": parts.password}
        bench.execute(
            {**account, "user": parts.username},
            "CREATE DATABASE bench CHARACTER SET utf8mb4",
        )
        registry.register(
            name="bench", engine="mysql", database="bench", username=str(parts.username),
            host="127.0.0.1", port=parts.port, password=str(parts.password), actor=command("bench"),
        )  # fmt: skip
        yield {**account, "user": parts.username, "database": "bench"}


def make_queue(topic: str) -> int:
    """A topic of one queue that keeps everything for now; the queue."""
    from messagestore.topology import topics
    from metadata.actors import command
    from metadata.cache import snapshot

    # the group that pulls holds nothing back
    settings = {"retention_days": 3650, "keep_unread_days": 0}
    made = topics.create(name=topic, queues=1, settings=settings, actor=command("bench"))
    snapshot.refresh()
    return made.queues[0].queue.queue


def fill(account: dict[str, Any], queue: int, *, rows: int, slices: int) -> None:
    """Rows 0 … rows-1 as old sends would have left them; slice i of `slices` is `slices -
    i` days old.
    """
    width = max(rows // PARTS, 1)
    ends = range(width, rows + 20 * width + 1, width)
    parts = ", ".join(f"PARTITION below_{end} VALUES LESS THAN ({end})" for end in ends)
    bench.execute(
        account, f"ALTER TABLE message_{queue} PARTITION BY RANGE (msg_offset) ({parts})"
    )
    columns = "(msg_offset, msg_key, body, producer, stored_at)"
    for first in range(0, rows, STEP):
        last = min(first + STEP, rows) - 1
        age = (
            f"INTERVAL ({slices} - msg.seq DIV {-(-rows // slices)}) * {DAY_S} - "
            f"{DAY_S // 2} SECOND"
        )
        values = (
            f"msg.seq, CONCAT('key-', msg.seq), REPEAT('x', {len(BODY)}), 'bench', "
            f"UTC_TIMESTAMP(3) - {age}"
        )
        source = f"seq_{first}_to_{last} msg"
        bench.execute(
            account, f"INSERT INTO message_{queue} {columns} SELECT {values} FROM {source}"
        )
        print(f"  filled {last + 1:,} of {rows:,}", end="\r", file=sys.stderr)
    bench.execute(account, f"UPDATE queue_head SET head = {rows} WHERE queue_id = {queue}")
    bench.execute(account, f"ANALYZE TABLE message_{queue}")
    print(file=sys.stderr)


def write(where: tuple[str, int], pause_s: float, stop: Event, out: Any) -> None:
    """A process that sends to (topic, queue) with pauses; hands over its sends at the end."""
    import django

    django.setup()
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.publish import publish
    from metadata.actors import command

    topic, queue = where
    messages = [
        NewMessage(body=BODY, key=f"key-{number}", queue=queue) for number in range(BATCH)
    ]
    actor, sends = command("bench"), Sends()
    while not stop.is_set():
        begun = time.monotonic()
        publish(topic=topic, messages=messages, batch_id=None, actor=actor)
        ended = time.monotonic()
        sends.append((ended, ended - begun))
        time.sleep(pause_s)
    out.send(sends)


class Writers:
    """Processes that send to a queue until they are stopped."""

    def __init__(self, topic: str, queue: int, *, count: int, pause_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._ways, self._processes = [], []
        for _ in range(count):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=write,
                args=((topic, queue), pause_s, self._stop, theirs),
                daemon=True,
            )
            process.start()
            self._ways.append(mine)
            self._processes.append(process)

    def stop(self) -> Sends:
        """All sends of all writers."""
        self._stop.set()
        sends = [one for way in self._ways for one in way.recv()]
        for process in self._processes:
            process.join(30)
        return sends


def rest(seconds: float) -> Window:
    """A window in which nothing is done."""
    begun = time.monotonic()
    time.sleep(seconds)
    return Window(begun, time.monotonic())


def remove(topic: str, *, keep_days: int, least_s: float) -> tuple[Window, int, float]:
    """Cleans what is older; the window, at least so long, how many messages went, and how
    long it took.
    """
    from messagestore import retention
    from metadata.actors import command
    from metadata.topics import topic_rows

    topic_rows.update(
        name=topic, settings={"retention_days": keep_days}, actor=command("bench")
    )
    begun = time.monotonic()
    (done,) = retention.clean(topic=topic, rest_s=0.0, actor=command("bench"))
    took = time.monotonic() - begun
    if done.problem or not done.dropped:
        raise SystemExit(f"Nothing was dropped: {done}")
    time.sleep(max(0.0, least_s - took))
    return Window(begun, time.monotonic()), done.plan.messages, took


def measure(
    topic: str, queue: int, *, rounds: int, seconds: float, writers: int, pause_s: float
) -> list[Round]:
    """One round for each slice that is removed; the newest half of the slices stays."""
    sending = Writers(topic, queue, count=writers, pause_s=pause_s)
    time.sleep(max(2.0, seconds))  # until all have started and the caches are warm
    seen = []
    for number in range(rounds):
        calm = rest(seconds)
        cleaning, rows, took = remove(
            topic, keep_days=2 * rounds - number - 1, least_s=seconds
        )
        seen.append((calm, cleaning, rows, took))
    sends = sending.stop()
    return [
        Round(
            [1000 * one for one in calm.of(sends)],
            [1000 * one for one in cleaning.of(sends)],
            rows,
            took,
        )
        for calm, cleaning, rows, took in seen
    ]


def rates(full: int, empty: int, *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Sends a second at full speed, one writer, into the full queue and into an empty one,
    in turn.
    """
    found: dict[str, list[float]] = {"full": [], "empty": []}
    for _ in range(rounds):
        for name, queue in (("full", full), ("empty", empty)):
            sending = Writers(name, queue, count=1, pause_s=0.0)
            time.sleep(2.0)
            window = rest(seconds)
            found[name].append(len(window.of(sending.stop())) / seconds)
    return found


def pulls(full: int, empty: int, *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Messages pulled a second, in turn: the newest of the full queue, all of the other
    one, which was empty before the sends, and as many from the middle of the full one,
    where nothing is cached."""
    end, sent = head_of(full), head_of(empty)
    spans = {
        "full": Span("full", full, end - sent, end),
        "empty": Span("empty", empty, 0, sent),
        "middle": Span("full", full, (end - sent) // 2, end),
    }
    found: dict[str, list[float]] = {name: [] for name in spans}
    for _ in range(rounds):
        for name, span in spans.items():
            found[name].append(pulled_a_second(span, seconds=seconds))
    return found


def beside(what: str, rates: dict[str, list[float]]) -> list[float]:
    """Prints what the full queue gives beside the empty one; the ratios of the rounds."""
    found = ratios(rates["full"], rates["empty"])
    medians = ", ".join(
        f"{name} {statistics.median(values):,.0f}" for name, values in rates.items()
    )
    middle, shown = statistics.median(found), [f"{one:.2f}" for one in found]
    print(f"{what} a second, full / empty queue: median {middle:.2f} {shown}; {medians}")
    return found


def table(rounds: Sequence[Round]) -> float:
    """Prints the rounds; the median of their ratios."""
    print(f"{'':8}{'sends':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}   while cleaning")
    for number, one in enumerate(rounds, 1):
        for name, values in (("calm", one.calm), ("cleaned", one.cleaning)):
            line = (
                f"{name:8}{len(values):8,}{percentile(values, 50):9.2f}"
                f"{percentile(values, 99):9.2f}"
            )
            more = (
                f"{one.rows:,} rows in {one.seconds:.2f} s"
                if name == "cleaned"
                else f"round {number}"
            )
            print(f"{line}{values[-1]:9.2f}   {more}")
    ratios = [one.ratio for one in rounds]
    middle = statistics.median(ratios)
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(
        f"p99 while cleaning / undisturbed: median {middle:.2f} (target below "
        f"{TARGET:.1f}; rounds: {shown})"
    )
    return middle


def main() -> int:
    """Runs it; 1 if the median is above the target."""
    parser = argparse.ArgumentParser(prog="script/bench retention", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=20_000_000, help="in the queue, half go (default 20 M)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="in how many steps (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of each window, at least (default 5)"
    )
    parser.add_argument(
        "--writers", type=int, default=2, help="sending processes (default 2)"
    )
    parser.add_argument(
        "--pause-ms", type=float, default=5.0, help="between the sends of each (default 5)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    facts = machine()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        account = stack.enter_context(store(home))
        queue, empty = make_queue("full"), make_queue("empty")
        fill(account, queue, rows=chosen.rows, slices=2 * chosen.rounds)
        speed = rates(queue, empty, rounds=chosen.rounds, seconds=chosen.seconds)
        sends = beside("sends of 20 messages", speed)
        reading = pulls(queue, empty, rounds=chosen.rounds, seconds=chosen.seconds)
        read = beside("messages pulled", reading)
        rounds = measure(
            "full", queue, rounds=chosen.rounds, seconds=chosen.seconds, writers=chosen.writers,
            pause_s=chosen.pause_ms / 1000,
        )  # fmt: skip
    middle = table(rounds)
    if chosen.json:
        found = {"cleaning": [one.ratio for one in rounds], "sends": sends, "pulls": read}
        rows = {
            "rows": chosen.rows,
            "machine": facts,
            "rates": {"sends": speed, "pulls": reading},
        }
        chosen.json.write_text(json.dumps({**rows, "ratios": found}, indent=1))
    return int(middle > TARGET)


if __name__ == "__main__":
    sys.exit(main())
