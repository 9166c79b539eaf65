"""`script/bench spark`: how fast Spark reads a topic, beside plain scans and beside Spark's
JDBC reader.

Starts a private MariaDB and a server, fills a topic of four queues by SQL, and reads it
round by round with as many processes or cores, all columns of all rows:

* plain: mysqlclient as it is, the same SELECTs in the same chunks; rows become Python
  values, thrown away
* bytes: the same, but nothing is converted, the least that mysqlclient can do
* catmq: the data source into Spark's `noop` sink, which takes every row and throws it away
* jdbc: the JDBC reader into that sink, where its driver is installed (Debian:
  libmariadb-java)
* memory: batches like those of catmq, but always the same one, into that sink: what Spark
  takes for itself

Processes of a scan are started in the measured time, Spark and its Python workers before
it. Prints rows a second, the ratio to the plain scan in each round, the CPU that a row
takes of MariaDB, of Python and of Java, and of catmq the memory of Java and of all Python
workers together at its highest, with a tenth of the rows, too.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.figures import machine
from benchmarks.measures import Setting
from benchmarks.memory import Memory
from benchmarks.processes import cpu_s, highest_memory

BODY_BYTES = 200
STEP = 200_000  # rows of one INSERT … SELECT
CHUNK = 10_000  # rows of one SELECT, as the data source reads
DRIVER = Path("/usr/share/java/mariadb-java-client.jar")
COLUMNS = "msg_offset, msg_key, tag, headers, body, trace_id, producer, attempt, stored_at"
WARM_UP = 100_000  # rows of each queue, at most
WAYS = ("plain", "bytes", "catmq", "jdbc", "memory")
TARGET = 0.70  # of a plain scan
Read = Callable[[int], object]  # of so many rows


def fill(setting: Setting, rows: int) -> None:
    """So many rows in all, as sends would have left them; two queues at once."""
    each = rows // len(setting.queues)
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda queue: fill_queue(setting.database, queue, each), setting.queues
            )
        )


def fill_queue(account: dict[str, Any], queue: int, each: int) -> None:
    """So many rows of a queue."""
    width = max(each // 50, 100_000)
    parts = ", ".join(
        f"PARTITION below_{end} VALUES LESS THAN ({end})"
        for end in range(width, each + 4 * width, width)
    )
    bench.execute(
        account, f"ALTER TABLE message_{queue} PARTITION BY RANGE (msg_offset) ({parts})"
    )
    columns = "msg_offset, msg_key, tag, headers, body, trace_id, producer, stored_at"
    values = (
        f"seq, CONCAT('key-', seq % 1000), 'tag', '{{\"a\": \"b\"}}', "
        f"REPEAT(CHAR(97 + seq % 26), {BODY_BYTES}), 'trace', 'bench', UTC_TIMESTAMP(3)"
    )
    for first in range(0, each, STEP):
        source = f"seq_{first}_to_{min(first + STEP, each) - 1}"
        bench.execute(
            account,
            f"INSERT INTO message_{queue} ({columns}) SELECT {values} FROM {source}",
        )
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


def plain(setting: Setting, processes: int, **options: object) -> Read:
    """A scan by so many processes."""

    def read(rows: int) -> None:
        account, each = {**setting.database, **options}, rows // len(setting.queues)
        work = [
            multiprocessing.get_context("fork").Process(
                target=scan, args=(account, setting.queues[number::processes], each)
            )
            for number in range(processes)
        ]
        for one in work:
            one.start()
        for one in work:
            one.join()

    return read


def into_nothing(frame: Any) -> None:
    """Has Spark make every column of every row."""
    frame.write.format("noop").mode("overwrite").save()


def by_source(spark: Any, setting: Setting) -> Read:
    """A read by the data source."""

    def read(rows: int) -> None:
        ends = json.dumps({queue: rows // len(setting.queues) for queue in setting.queues})
        options = {"topic": setting.topic, "endingOffsets": ends}
        into_nothing(spark.read.format("catmq").options(**options).load())

    return read


def from_memory(spark: Any) -> Read:
    """A read of as many rows that nobody has to fetch."""
    spark.dataSource.register(Memory)

    def read(rows: int) -> None:
        into_nothing(spark.read.format("memory").option("rows", rows).load())

    return read


def by_jdbc(spark: Any, setting: Setting) -> Read:
    """A read by JDBC, in as many partitions."""
    account = setting.database

    def read(rows: int) -> None:
        each = rows // len(setting.queues)
        frames = [
            spark.read.format("jdbc")
            .option(
                "url",
                f"jdbc:mysql://{account['host']}:{account['port']}/{account['database']}",
            )
            .option("driver", "org.mariadb.jdbc.Driver")
            .option("user", account["user"])
            .option("password", account["password"])
            .option(
                "dbtable",
                f"(SELECT {COLUMNS} FROM message_{queue} WHERE msg_offset < {each}) m",
            )
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
        into_nothing(whole)

    return read


@dataclass
class Way:
    """One way to read: what its rounds gave."""

    read: Read
    rates: list[float] = field(default_factory=list)  # rows/s
    cpu: list[dict[str, float]] = field(default_factory=list)  # µs a row
    memory_mb: dict[str, float] = field(default_factory=dict)

    def round(self, rows: int, database: int) -> None:
        """Reads so many rows."""
        before, begun = cpu_s(database), time.monotonic()
        with highest_memory() as memory:
            self.read(rows)
        seconds, after = time.monotonic() - begun, cpu_s(database)
        self.rates.append(rows / seconds)
        self.cpu.append(
            {name: (after[name] - before[name]) / rows * 1e6 for name in before}
        )
        self.memory_mb = {
            name: max(size, self.memory_mb.get(name, 0)) for name, size in memory.items()
        }

    def ratios(self, other: Way) -> list[float]:
        """Of another's rate, round by round."""
        return [mine / its for mine, its in zip(self.rates, other.rates, strict=True)]

    def figures(self) -> dict[str, Any]:
        """For machines."""
        return {"rates": self.rates, "cpu_us": self.cpu, "memory_mb": self.memory_mb}


@dataclass
class Found:
    """What was measured on so many cores."""

    cores: int
    ways: dict[str, Way]
    tenth_mb: dict[str, float]  # memory of catmq with a tenth of the rows


def measure(
    setting: Setting, rows: int, cores: int, *, rounds: int, names: Sequence[str]
) -> Found:
    """Each way, round by round, on so many cores."""
    from spark_tasks import sessions

    conf = {"spark.jars": str(DRIVER)} if DRIVER.exists() else {}
    spark = sessions.start("bench", master=f"local[{cores}]", memory="1g", conf=conf)
    reads = {
        "plain": plain(setting, cores),
        "bytes": plain(setting, cores, conv={}, use_unicode=False, charset="utf8mb4"),
        "catmq": by_source(spark, setting),
        "memory": from_memory(spark),
    }
    if DRIVER.exists():
        reads["jdbc"] = by_jdbc(spark, setting)
    ways = {name: Way(reads[name]) for name in names if name in reads}
    for name, way in ways.items():
        print(f"  {cores} cores: warming up {name}", file=sys.stderr)
        way.read(min(rows, WARM_UP * len(setting.queues)))
    with highest_memory() as tenth:
        reads["catmq"](rows // 10)
    database = pid_of(setting.database)
    for number in range(rounds):
        for name, way in ways.items():
            way.round(rows, database)
            cpu = ", ".join(f"{part} {spent:.2f}" for part, spent in way.cpu[-1].items())
            rate = f"{way.rates[-1]:,.0f} rows/s, µs of CPU a row: {cpu}"
            print(f"  {cores} cores, round {number + 1}: {name} {rate}", file=sys.stderr)
    spark.stop()
    return Found(cores, ways, tenth)


def pid_of(account: dict[str, Any]) -> int:
    """The process of the database server."""
    with bench.connect(account).cursor() as cursor:
        cursor.execute("SELECT @@pid_file")
        return int(Path(cursor.fetchone()[0]).read_text())


def table(found: Sequence[Found]) -> Iterator[str]:
    """The result, for people."""
    yield (
        "| cores | way | rows/s, median | of a plain scan, median (lowest) "
        "| CPU, µs a row: MariaDB / Python / Java | memory, MB: Java / Python | with a "
        "tenth of the rows |"
    )
    yield "|---|---|---|---|---|---|---|"
    for one in found:
        for name, way in one.ways.items():
            ratios = way.ratios(one.ways["plain"])
            cpu = " / ".join(
                f"{statistics.median(each[part] for each in way.cpu):.2f}"
                for part in ("database", "python", "java")
            )
            memory = [
                f"{size['java']:.0f} / {size['python']:.0f}"
                for size in (way.memory_mb, one.tenth_mb)
            ]
            yield (
                f"| {one.cores} | {name} | {statistics.median(way.rates):,.0f} | "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}) | {cpu} | "
                f"{' | '.join(memory if name == 'catmq' else ['', ''])} |"
            )


def main() -> int:
    """Measures and prints; 1 if the data source is below its target."""
    parser = argparse.ArgumentParser(
        prog="script/bench spark", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=2_000_000,
        help="rows of the topic (default %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=WAYS,
        help="plain and catmq are always read",
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    chosen = parser.parse_args()
    names = [name for name in WAYS if name in {*chosen.ways, "plain", "catmq"}]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = stack.enter_context(bench.database(home / "database"))
        credentials = stack.enter_context(bench.server(home / "var", url))
        os.environ |= {name: credentials[name] for name in ("CATMQ_URL", "CATMQ_API_KEY")}
        setting = bench.prepare(url, credentials, "")
        account = setting.database
        os.environ["CATMQ_NODE_BENCH_URL"] = (
            f"mysql://{account['user']}:{account['password']}@{account['host']}:{account['port']}/bench"
        )
        print(f"filling {chosen.rows:,} rows", file=sys.stderr)
        fill(setting, chosen.rows)
        found = [
            measure(setting, chosen.rows, cores, rounds=chosen.rounds, names=names)
            for cores in chosen.cores
        ]
    print("\n".join(table(found)))
    if chosen.json:
        results = [
            {
                "cores": one.cores,
                "tenth_mb": one.tenth_mb,
                **{name: way.figures() for name, way in one.ways.items()},
            }
            for one in found
        ]
        result = {"machine": machine(), "rows": chosen.rows, "results": results}
        chosen.json.write_text(json.dumps(result, indent=1))
    worst = min(
        statistics.median(one.ways["catmq"].ratios(one.ways["plain"])) for one in found
    )
    return 0 if worst >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
