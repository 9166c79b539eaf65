"""`script/bench dead`: how long lists of very many dead messages take, and how fast the
dead come back.

Starts a private MariaDB with durable settings, fills the table of dead messages with SQL, a
tenth of them of a rare kind of error, and times each act: the first page, a page from the
middle, one by kind of error, the counts, a redrive at a limited rate while pages are
listed, its stop, and a redrive at full speed. Fails if a page or a count takes longer than
a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.figures import machine, percentile
from benchmarks.retention import store

REPEATS = 20
TARGET_S = 1.0
COLUMNS = (
    "(batch_id, group_id, topic_id, died_at, attempts, error_class, error, origin, "
    "msg_key, body, producer)"
)


def make(account: dict[str, Any], rows: int) -> None:
    """Topic `orders`, group `billing`, a failure node, and so many dead messages, one a
    second.
    """
    from messagestore.nodes import registry
    from messagestore.topology import subscriptions, topics
    from metadata.actors import command
    from metadata.cache import snapshot
    from metadata.groups import groups

    me = command("bench")
    bench.execute(account, "CREATE DATABASE failures CHARACTER SET utf8mb4")
    registry.register(
        name="failures", kind="failure", engine="mysql", database="failures",
        username=account["user"],
        host=account["host"], port=account["port"], password=account["password"], actor=me,
    )  # fmt: skip
    topic = topics.create(name="orders", queues=1, actor=me)
    group = groups.create(name="billing", actor=me)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=me)
    snapshot.refresh()
    kind = "IF(seq % 10, 'ValueError', 'KeyError')"
    values = (
        f"UNHEX(MD5(seq)), {group.id}, {topic.topic.id}, UTC_TIMESTAMP(3) - INTERVAL seq "
        "SECOND, 17, "
        f"{kind}, CONCAT({kind}, ': no ', seq), "
        f'CONCAT(\'{{"topic":"orders","queue":{topic.queues[0].queue.queue},"offset":\', seq, '
        '\',"first_failed_at_ms":1,"error":""}\'), CONCAT(\'key-\', seq), '
        "REPEAT('x', 1000), 'bench'"
    )
    into = {**account, "database": "failures"}
    bench.execute(
        into, f"INSERT INTO dead_message {COLUMNS} SELECT {values} FROM seq_1_to_{rows}"
    )


def timed(act: Callable[[], object]) -> list[float]:
    """How long an act takes, s, rising."""
    took = []
    for _ in range(REPEATS):
        begun = time.monotonic()
        act()
        took.append(time.monotonic() - begun)
    return sorted(took)


def page(**which: Any) -> Any:
    """A page of a hundred."""
    from messagestore.retries import dead_letters
    from metadata.actors import command

    return dead_letters.page(
        group="billing", actor=command("bench"), limit=100, **{"after": "", **which}
    )


def middle(rows: int) -> str:
    """What a page from the middle asks after."""
    from messagestore import sweeping
    from messagestore.pool import node_pools
    from messagestore.tables import dead_letter_sql
    from metadata.cache import snapshot

    (node,) = map(node_pools.node, sweeping.retry_nodes())
    kept = dead_letter_sql.DeadFilter(snapshot.find_group("billing").id)
    with node.reading() as session:
        places = dead_letter_sql.list_dead_positions(
            session,
            selection=kept,
            after=dead_letter_sql.DeadPosition(0, 0),
            upto=1 << 60,
            most=rows // 2,
        )
    return f"{places[-1].died_at_ms}-{node.info.id}-{places[-1].id}"


def lists(rows: int) -> dict[str, list[float]]:
    """How long lists and counts take."""
    from messagestore.retries import dead_letters
    from metadata.actors import command

    me, half = command("bench"), middle(rows)
    return {
        "first page": timed(page),
        "page from the middle": timed(lambda: page(after=half)),
        "page of a kind of error": timed(lambda: page(error="KeyError")),
        "page of a kind and topic": timed(lambda: page(error="KeyError", topic="orders")),
        "page of a key": timed(lambda: page(key=f"key-{rows // 2}")),
        "page of an unknown kind": timed(lambda: page(error="NoSuchError")),
        "counts": timed(lambda: dead_letters.summary(group="billing", actor=me)),
    }


def redriven(seconds: float, *, rate: int) -> dict[str, Any]:
    """A redrive of all, as a broker's loop makes it, with pages listed beside it, and its
    stop.
    """
    from messagestore.retries import redrives
    from metadata import redrive_rows
    from metadata.actors import command

    me = command("bench")
    asked = time.monotonic()
    made = redrives.request(
        group="billing", to="group", everything=True, rate=rate, actor=me
    )
    asked_s = time.monotonic() - asked
    ended = threading.Event()

    def loop() -> None:
        redriver = redrives.Redriver()
        while not ended.is_set():
            redriver.run_once()
            ended.wait(redrives.EVERY_S)

    working = threading.Thread(target=loop)
    begun = time.monotonic()
    working.start()
    took = []
    while time.monotonic() - begun < seconds:
        at = time.monotonic()
        page()
        took.append(time.monotonic() - at)
    lasted = time.monotonic() - begun
    at = time.monotonic()
    redrive_rows.stop_redrive(group="billing", redrive=made.id, actor=me)
    ended.set()
    working.join()
    stopped_s = time.monotonic() - at
    done = redrive_rows.find_redrive(group="billing", redrive=made.id, actor=me).redriven
    return {
        "request s": asked_s,
        "messages a second": done / lasted,
        "page beside it, p99 s": percentile(sorted(took), 99),
        "stopped after s": stopped_s,
    }


def main() -> int:
    """Measures and prints; 1 if a list takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=100_000, help="dead messages (default 100000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of each redrive (default 10)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        account = stack.enter_context(store(home))
        make(account, chosen.rows)
        found = lists(chosen.rows)
        runs = {rate: redriven(chosen.seconds, rate=rate) for rate in (200, 10_000)}
    print(f"{chosen.rows:,} dead messages; ms, median and slowest of {REPEATS}")
    for name, took in found.items():
        print(f"{name:28} {percentile(took, 50) * 1000:8.1f} {took[-1] * 1000:8.1f}")
    for rate, figures in runs.items():
        print(
            f"redrive at {rate} a second: {', '.join(f'{k} {v:.3f}' for k, v in figures.items())}"
        )
    if chosen.json:
        figures = {
            "rows": chosen.rows,
            "machine": machine(),
            "lists": found,
            "redrives": runs,
        }
        chosen.json.write_text(json.dumps(figures, indent=1))
    return int(max(took[-1] for took in found.values()) > TARGET_S)


if __name__ == "__main__":
    sys.exit(main())
