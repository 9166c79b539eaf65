"""`script/bench spark`: how fast Spark reads a topic, beside plain scans and beside Spark's JDBC reader.

Starts a private MariaDB and a server, fills a topic of four queues by SQL, and reads it round by round with
as many processes or cores: a plain scan (mysqlclient, the same SELECT in the same chunks, rows thrown away),
the data source `catmq` and, where its driver is installed (Debian: libmariadb-java), the JDBC reader; both
with all columns into nothing. Prints rows a second, the ratio in each round, and the memory of Java and of
all Python workers together at its highest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.figures import machine
from benchmarks.measures import Setting

BODY_BYTES = 200
STEP = 200_000  # rows of one INSERT … SELECT
CHUNK = 10_000  # rows of one SELECT, as the data source reads
DRIVER = Path("/usr/share/java/mariadb-java-client.jar")
COLUMNS = (
    "msg_offset, msg_key, tag, headers, body, trace_id, producer, attempt, "
    "CAST(UNIX_TIMESTAMP(stored_at) * 1000000 AS SIGNED)"
)
TARGET = 0.70  # of a plain scan
Read = Callable[[], object]


def fill(setting: Setting, rows: int) -> None:
    """So many rows in all, as sends would have left them."""
    each = rows // len(setting.queues)
    for queue in setting.queues:
        width = max(each // 50, 100_000)
        ends = range(width, each + 4 * width, width)
        parts = ", ".join(f"PARTITION below_{end} VALUES LESS THAN ({end})" for end in ends)
        account = setting.database
        bench.execute(account, f"ALTER TABLE message_{queue} PARTITION BY RANGE (msg_offset) ({parts})")
        for first in range(0, each, STEP):
            values = (
                f"seq, CONCAT('key-', seq % 1000), 'tag', '{{\"a\": \"b\"}}', "
                f"REPEAT(CHAR(97 + seq % 26), {BODY_BYTES}), 'trace', 'bench', UTC_TIMESTAMP(3)"
            )
            columns = "msg_offset, msg_key, tag, headers, body, trace_id, producer, stored_at"
            source = f"seq_{first}_to_{min(first + STEP, each) - 1}"
            bench.execute(account, f"INSERT INTO message_{queue} ({columns}) SELECT {values} FROM {source}")
        bench.execute(account, f"UPDATE queue_head SET head = {each} WHERE queue_id = {queue}")


def scan(account: dict[str, Any], queues: Sequence[int], each: int) -> None:
    """Reads queues as one process."""
    connection = bench.connect(account)
    for queue in queues:
        for first in range(0, each, CHUNK):
            connection.query(
                f"SELECT {COLUMNS} FROM message_{queue} "
                f"WHERE msg_offset >= {first} AND msg_offset < {first + CHUNK} ORDER BY msg_offset"
            )
            result = connection.use_result()
            while result.fetch_row(1_000):
                pass


def plain(setting: Setting, rows: int, processes: int) -> Read:
    """A scan by so many processes, which are started before the clock."""

    def read() -> None:
        work = [
            multiprocessing.get_context("fork").Process(
                target=scan,
                args=(setting.database, setting.queues[number::processes], rows // len(setting.queues)),
            )
            for number in range(processes)
        ]
        for one in work:
            one.start()
        for one in work:
            one.join()

    return read


def by_source(spark: Any, setting: Setting) -> Read:
    """A read by the data source."""

    def read() -> None:
        frame = spark.read.format("catmq").option("topic", setting.topic).load()
        frame.write.format("noop").mode("overwrite").save()

    return read


def by_jdbc(spark: Any, setting: Setting, rows: int) -> Read:
    """A read by JDBC, in as many partitions."""
    account, each = setting.database, rows // len(setting.queues)
    names = COLUMNS.split(", CAST")[0] + ", stored_at"

    def read() -> None:
        frames = [
            spark.read.format("jdbc")
            .option("url", f"jdbc:mysql://{account['host']}:{account['port']}/{account['database']}")
            .option("driver", "org.mariadb.jdbc.Driver")
            .option("user", account["user"])
            .option("password", account["password"])
            .option("dbtable", f"(SELECT {names} FROM message_{queue}) m")
            .option("partitionColumn", "msg_offset")
            .option("lowerBound", 0)
            .option("upperBound", each)
            .option("numPartitions", max(1, each // 250_000))
            .option("fetchsize", CHUNK)
            .load()
            for queue in setting.queues
        ]
        whole = frames[0]
        for one in frames[1:]:
            whole = whole.unionAll(one)
        whole.write.format("noop").mode("overwrite").save()

    return read


@contextmanager
def highest_memory() -> Iterator[dict[str, float]]:
    """Measures while the block runs: MB of Java and of Python below this process, at their highest."""
    found = {"java": 0.0, "python": 0.0}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.3):
            now = {"java": 0.0, "python": 0.0}
            for pid in descendants(os.getpid()):
                name, size = resident_mb(pid)
                if name in now:
                    now[name] += size
            for name, size in now.items():
                found[name] = max(found[name], size)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def resident_mb(pid: int) -> tuple[str, float]:
    """(java, python or another name, MB that only this process holds)."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return "", 0.0
    kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return "python" if name.startswith("python") else name, kilobytes / 1024


def timed(read: Read) -> float:
    """Seconds."""
    begun = time.monotonic()
    read()
    return time.monotonic() - begun


def measure(setting: Setting, rows: int, cores: int, rounds: int) -> dict[str, Any]:
    """Rows a second of each way, round by round, on so many cores."""
    from spark_tasks import sessions

    conf = {"spark.jars": str(DRIVER)} if DRIVER.exists() else {}
    spark = sessions.start("bench", master=f"local[{cores}]", memory="1g", conf=conf)
    ways = {"plain": plain(setting, rows, cores), "catmq": by_source(spark, setting)}
    if DRIVER.exists():
        ways["jdbc"] = by_jdbc(spark, setting, rows)
    for name, read in ways.items():
        print(f"  {cores} cores: warming up {name}", file=sys.stderr)
        read()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    memory = {"java": 0.0, "python": 0.0}
    for _ in range(rounds):
        for name, read in ways.items():
            with highest_memory() as found:
                rates[name].append(rows / timed(read))
            if name == "catmq":
                memory = {kind: max(size, memory[kind]) for kind, size in found.items()}
    spark.stop()
    ratios = {
        name: [mine / scan for mine, scan in zip(rates[name], rates["plain"], strict=True)] for name in rates
    }
    return {"cores": cores, "rates": rates, "ratios": ratios, "memory_mb": memory}


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The result, for people."""
    yield "| cores | way | rows/s, median | of a plain scan, median (lowest) | memory, MB: Java / Python |"
    yield "|---|---|---|---|---|"
    for one in found:
        for name, rates in one["rates"].items():
            ratios = one["ratios"][name]
            memory = f"{one['memory_mb']['java']:.0f} / {one['memory_mb']['python']:.0f}"
            yield (
                f"| {one['cores']} | {name} | {statistics.median(rates):,.0f} | "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}) | {memory if name == 'catmq' else ''} |"
            )


def main() -> int:
    """Measures and prints; 1 if the data source is below its target."""
    parser = argparse.ArgumentParser(prog="script/bench spark", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the topic (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
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
        print(f"filling {chosen.rows:,} rows", file=sys.stderr)
        fill(setting, chosen.rows)
        found = [measure(setting, chosen.rows, cores, chosen.rounds) for cores in chosen.cores]
    print("\n".join(table(found)))
    if chosen.json:
        result = {"machine": machine(), "rows": chosen.rows, "results": found}
        chosen.json.write_text(json.dumps(result, indent=1))
    worst = min(statistics.median(one["ratios"]["catmq"]) for one in found)
    return 0 if worst >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
