"""`script/bench pipeline`: a large topic is archived, purged and replayed while others send into it.

Starts a private MariaDB and a server, sends the real input (examples/data) keyed by path, and multiplies it
by SQL to so many rows over five past days. Then, while one sender keeps a pace: nothing else; the job
`archive` with local[1], nice and a row rate limit; purge; and `archive` of another, equal topic with
local[*] and no limit. Prints the latencies of sends in each phase. Afterwards `verify` must pass, sums per
path must be equal in the source (SQL) and in the archive (pyarrow alone), and again after a replay into a
new topic.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.figures import percentile
from benchmarks.measures import Setting
from catmq_client import Producer

HOME = Path(__file__).resolve().parent.parent
INPUT = HOME / "examples/data/nats-server-file-changes.jsonl.gz"
DAYS = 5
QUEUES = 4
LIMIT_MS = 100.0  # p99 of sends while the pipeline works
Sums = dict[str, int]  # path → lines added - lines deleted


class Sender:
    """Sends a message into a topic so many times a second, and notes how long each send took."""

    def __init__(self, setting: Setting, topic: str, pace: int) -> None:
        self._setting, self._topic, self._pace = setting, topic, pace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.took_ms: list[float] = []
        self.errors: list[str] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        due = time.monotonic()
        with Producer(self._setting.url, api_key=self._setting.api_key, linger_ms=0) as producer:
            while not self._over.is_set():
                begun = time.monotonic()
                try:
                    producer.send(self._topic, b"{}", key=f"live-{len(self.took_ms) % 97}")
                    self.took_ms.append((time.monotonic() - begun) * 1000)
                except Exception as error:  # noqa: BLE001 - every failure is a finding
                    self.errors.append(repr(error))
                due = max(due + 1 / self._pace, time.monotonic() - 1)
                self._over.wait(max(0.0, due - time.monotonic()))

    def __str__(self) -> str:
        rising = sorted(self.took_ms)
        p50, p99 = percentile(rising, 50), percentile(rising, 99)
        return f"{len(rising):,} sends, p50 {p50:.1f} ms, p99 {p99:.1f} ms, errors {len(self.errors)}"


def fill(setting: Setting, topic: str, rows: int) -> int:
    """The topic with about so many rows; how many, exactly."""
    with Producer(setting.url, api_key=setting.api_key) as producer, gzip.open(INPUT, "rt") as lines:
        for line in lines:
            producer.send_async(topic, line.strip().encode(), key=json.loads(line)["path"])
        producer.flush()
    total = 0
    for queue in queues_of(setting, topic):
        total += multiply(setting, queue, rows)
    return total


def multiply(setting: Setting, queue: int, rows: int) -> int:
    """Copies a queue's rows behind themselves, day by day up to yesterday; how many there are then."""
    (count,) = ask(setting, f"SELECT COUNT(*) FROM message_{queue}")[0]
    copies = max(DAYS, rows // 20_000)
    width = max(count * copies // 50, 10_000)
    ends = range(width, count * copies + 20 * width, width)
    parts = ", ".join(f"PARTITION below_{end} VALUES LESS THAN ({end})" for end in ends)
    run(setting, f"ALTER TABLE message_{queue} PARTITION BY RANGE (msg_offset) ({parts})")
    for copy in range(copies - 1, -1, -1):  # the rows that are copied go last
        day = f"UTC_DATE() - INTERVAL {DAYS - copy * DAYS // copies} DAY + INTERVAL 1 HOUR"
        if copy == 0:
            run(setting, f"UPDATE message_{queue} SET stored_at = {day} WHERE msg_offset < {count}")
            continue
        columns = "msg_key, tag, headers, body, trace_id, producer"
        run(
            setting,
            f"INSERT INTO message_{queue} (msg_offset, stored_at, {columns}) "
            f"SELECT msg_offset + {copy * count}, {day}, {columns} FROM message_{queue} "
            f"WHERE msg_offset < {count}",
        )
    run(setting, f"UPDATE queue_head SET head = {count * copies} WHERE queue_id = {queue}")
    return int(count * copies)


def ask(setting: Setting, statement: str) -> list[Any]:
    """The rows of a statement."""
    connection = bench.connect(setting.database)
    cursor = connection.cursor()
    cursor.execute(statement)
    found = list(cursor.fetchall())
    connection.close()
    return found


def run(setting: Setting, statement: str) -> None:
    """Runs a statement."""
    bench.execute(setting.database, statement)


def queues_of(setting: Setting, topic: str) -> list[int]:
    """The ids of a topic's queues."""
    from messagestore import topics
    from metadata.actors import command

    return [one.queue.queue for one in topics.describe(name=topic, actor=command("bench")).queues]


def create(topic: str) -> None:
    """A topic on node `bench` that keeps everything for a month."""
    from messagestore import topics
    from metadata.actors import command

    settings = {"retention_days": 30}
    topics.create(name=topic, queues=QUEUES, node="bench", settings=settings, actor=command("bench"))


def source_sums(setting: Setting, topic: str, *, before_today: bool) -> tuple[int, Sums]:
    """(rows, sums per path) of a topic's messages, by SQL on the node alone."""
    rows, sums = 0, Counter[str]()
    old = "AND stored_at < UTC_DATE()" if before_today else ""
    for queue in queues_of(setting, topic):
        found = ask(
            setting,
            f"SELECT msg_key, COUNT(*), SUM(JSON_VALUE(CONVERT(body USING utf8mb4), '$.added') "
            f"- JSON_VALUE(CONVERT(body USING utf8mb4), '$.deleted')) "
            f"FROM message_{queue} WHERE msg_key NOT LIKE 'live-%' {old} GROUP BY msg_key",
        )
        for path, count, change in found:
            rows += count
            sums[path] += int(change)
    return rows, dict(sums)


def archive_sums(directory: Path, topic: str) -> tuple[int, Sums]:
    """The same of an archive, by pyarrow alone."""
    import pyarrow.parquet as parquet

    rows, sums = 0, Counter[str]()
    for manifest in sorted((directory / topic).glob("day=*/manifest.json")):
        for part in json.loads(manifest.read_text())["parts"]:
            for file in part["files"]:
                source = parquet.ParquetFile(manifest.parent / part["directory"] / file["name"])
                for batch in source.iter_batches(columns=["key", "body"]):
                    for key, body in zip(batch["key"].to_pylist(), batch["body"].to_pylist(), strict=True):
                        event = json.loads(body)
                        sums[key] += event["added"] - event["deleted"]
                        rows += 1
    return rows, dict(sums)


def manage(*arguments: str, nice: int = 0) -> str:
    """What a management command prints."""
    command = [sys.executable, str(HOME / "manage.py"), *arguments]
    done = subprocess.run(["nice", "-n", str(nice), *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout.strip()


@contextmanager
def phase(name: str, setting: Setting, topic: str, pace: int) -> Iterator[None]:
    """Sends while the block runs, and says how it went."""
    begun = time.monotonic()
    with Sender(setting, topic, pace) as sender:
        yield
    print(f"{name}: {time.monotonic() - begun:.0f} s; {sender}", flush=True)


def equal(what: str, found: Iterable[object]) -> bool:
    """Whether all are the same; says so."""
    first, *others = found
    same = all(first == one for one in others)
    print(f"{what}: {'equal' if same else 'DIFFERENT'}", flush=True)
    return same


def play(setting: Setting, home: Path, chosen: argparse.Namespace) -> bool:
    """All phases; whether everything was equal."""
    for topic in ("big", "second", "again"):
        create(topic)
    rows = fill(setting, "big", chosen.rows)
    fill(setting, "second", chosen.rows)
    print(f"{rows:,} rows in each of two topics", flush=True)
    archive = home / "archive"
    before = source_sums(setting, "big", before_today=True)
    with phase("undisturbed", setting, "big", chosen.pace):
        time.sleep(chosen.seconds)
    rate = str(chosen.rows_per_second)
    with phase("archive, local[1], nice, limited", setting, "big", chosen.pace):
        manage("archive", "big", str(archive), "--master", "local[1]", "--rows-per-second", rate, nice=19)
    with phase("purge", setting, "big", chosen.pace):
        print(manage("purge", "big", "--archive", str(archive)).splitlines()[-1], flush=True)
    with phase("archive, local[*]", setting, "second", chosen.pace):
        manage("archive", "second", str(archive))
    print(manage("verify", "big").splitlines()[-1], flush=True)
    good = equal("sums per path, source and archive", [before, archive_sums(archive, "big")])
    manage("replay", str(archive), "big", "again")
    after = source_sums(setting, "again", before_today=False)
    return equal("sums per path, archive and replay", [before, after]) and good


def main() -> int:
    """Plays and prints; 1 if something differs."""
    parser = argparse.ArgumentParser(
        prog="script/bench pipeline", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the topic (default %(default)s)")
    parser.add_argument("--rows-per-second", type=int, default=50_000, help="of the limited archive job")
    parser.add_argument("--pace", type=int, default=50, help="sends a second meanwhile")
    parser.add_argument("--seconds", type=float, default=30.0, help="of undisturbed sends")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = stack.enter_context(bench.mariadb(home / "mariadb"))
        credentials = stack.enter_context(bench.server(home / "var", url))
        os.environ |= {name: credentials[name] for name in ("CATMQ_URL", "CATMQ_API_KEY")}
        setting = bench.prepare(url, credentials, "")
        account = setting.database
        os.environ["CATMQ_NODE_BENCH_URL"] = (
            f"mysql://{account['user']}:{account['password']}@{account['host']}:{account['port']}/bench"
        )
        return 0 if play(setting, home, chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
