"""`script/bench indexes`: what an index for look-ups costs every send, and what it saves a
look-up.

Tables with our columns, their offsets given as the store gives them, differ in their
secondary indexes only. One connection each fills them in turn, 100 rows a transaction, keys
and trace ids nearly all different; the order of the tables changes every round. Then one
key is looked for, again and again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.bench import database

COLUMNS = """msg_offset BIGINT NOT NULL PRIMARY KEY, msg_key VARCHAR(200), tag VARCHAR(100),
    headers MEDIUMTEXT, body MEDIUMBLOB NOT NULL, trace_id VARCHAR(100),
    producer VARCHAR(100) NOT NULL,
    stored_at DATETIME(3) NOT NULL, attempt SMALLINT NOT NULL DEFAULT 0, origin TEXT"""
INSERT = """INSERT INTO {} (msg_offset, msg_key, tag, body, trace_id, producer, stored_at)
    VALUES (%s, %s, %s, %s, %s, 'bench', '2026-01-01 00:00:00.000')"""
VARIANTS = {
    "none": "",
    "key": ", KEY (msg_key)",
    "trace id": ", KEY (trace_id)",
    "key and trace id": ", KEY (msg_key), KEY (trace_id)",
    "key, trace id and tag": ", KEY (msg_key), KEY (trace_id), KEY (tag)",
}
BODY = bytes(range(200))
TAGS = ("new", "paid", "sent", "done")
LOOKS = 20


class Table:
    """One variant, and how fast it was filled in each round."""

    def __init__(self, connection: Any, number: int, indexes: str) -> None:
        self.name = f"looked_{number}"
        self.rows = 0
        self.rates: list[float] = []
        self._connection = connection
        connection.cursor().execute(
            f"CREATE TABLE {self.name} ({COLUMNS}{indexes}) ENGINE=InnoDB"
        )

    def fill(self, rows: int, batch: int) -> float:
        """Stores so many more rows; rows a second."""
        cursor, begun = self._connection.cursor(), time.perf_counter()
        for first in range(self.rows, self.rows + rows, batch):
            given = [
                (
                    offset,
                    f"order-{random.getrandbits(48)}",
                    TAGS[offset % 4],
                    BODY,
                    uuid.uuid4().hex,
                )
                for offset in range(first, first + batch)
            ]
            cursor.executemany(INSERT.format(self.name), given)
            self._connection.commit()
        self.rows += rows
        return rows / (time.perf_counter() - begun)

    def look_ms(self) -> float:
        """How long it takes to find the rows of one key, the median."""
        cursor, taken = self._connection.cursor(), []
        for _ in range(LOOKS):
            cursor.execute(
                f"SELECT msg_key FROM {self.name} WHERE msg_offset = {random.randrange(self.rows)}"
            )
            key = cursor.fetchone()[0]
            begun = time.perf_counter()
            cursor.execute(
                f"SELECT msg_offset FROM {self.name} WHERE msg_key = %s ORDER BY msg_offset",
                [key],
            )
            assert cursor.fetchall()
            taken.append((time.perf_counter() - begun) * 1000)
        return statistics.median(taken)


def run(
    connection: Any, *, rows: int, rounds: int, batch: int
) -> list[tuple[str, float, float, float, float]]:
    """(indexes, rows a second: median, min, max; ms of a look-up) of every variant."""
    tables = {
        name: Table(connection, number, text)
        for number, (name, text) in enumerate(VARIANTS.items())
    }
    for table in tables.values():
        table.fill(rows, batch)  # an empty table's indexes are in memory whatever they are
    for _ in range(rounds):
        for table in random.sample([*tables.values()], len(tables)):
            table.rates.append(table.fill(rows // rounds, batch))
    return [
        (name, statistics.median(one.rates), min(one.rates), max(one.rates), one.look_ms())
        for name, one in tables.items()
    ]


def main() -> None:
    """Runs and prints a table."""
    parser = argparse.ArgumentParser(prog="script/bench indexes", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=300_000, help="before, and once more measured (300,000)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument(
        "--batch", type=int, default=100, help="rows of a transaction (default 100)"
    )
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="catmq-bench-") as directory,
        database(Path(directory)) as url,
    ):
        import MySQLdb

        where = urlsplit(url)
        connection = MySQLdb.connect(
            host=where.hostname,
            port=where.port,
            user=where.username,
            password=unquote(where.password or ""),
            database=where.path.strip("/"),
        )
        found = run(connection, rows=chosen.rows, rounds=chosen.rounds, batch=chosen.batch)
    print(
        f"{'indexes':24} {'rows/s':>9} {'min':>9} {'max':>9} {'of none':>8} {'look-up, ms':>12}"
    )
    for name, median, least, most, look_ms in found:
        share = median / found[0][1]
        print(
            f"{name:24} {median:9,.0f} {least:9,.0f} {most:9,.0f} {share:8.2f} {look_ms:12.2f}"
        )


if __name__ == "__main__":
    main()
