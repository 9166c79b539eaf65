"""`script/bench keys`: how long the search for a key takes in a topic of many messages, by
its key index.

A private MariaDB with durable settings, and a server. Half of the
keys that are searched for are sent before the topic is filled by SQL and half after it, so
they lie at both ends of their queues. Each is searched through the API and on the portal's
page; so are keys that no message has, for which all queues are asked.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import requests

from benchmarks import bench
from benchmarks.figures import machine, percentile
from benchmarks.measures import Setting
from benchmarks.multiplying import admin, ask, partition, queues_of, run
from benchmarks.processes import end_by_signals
from catmq_client import Producer

TOPIC = "keys"
AT_ONCE = 2  # queues that the database fills
STEP = 50_000  # rows of a statement
COLUMNS = "(msg_offset, msg_key, body, producer, stored_at)"


def send(setting: Setting, keys: list[str]) -> None:
    """Sends a message of each key."""
    with Producer(setting.url, api_key=setting.api_key) as producer:
        for key in keys:
            producer.send_async(TOPIC, b"x" * 200, key=key)
        producer.flush()


def fill(setting: Setting, queue: int, *, rows: int, partitions: int) -> None:
    """Adds rows behind a queue's messages, each with a key of its own."""
    ((first,),) = ask(setting, f"SELECT head FROM queue_head WHERE queue_id = {queue}")
    end = first + rows
    partition(setting, queue, end, width=max(1, -(-end // partitions)))
    for begin in range(first, end, STEP):
        last = min(begin + STEP, end) - 1
        run(
            setting,
            f"INSERT INTO message_{queue} {COLUMNS} SELECT seq, "
            f"LEFT(MD5(CONCAT({queue}, '-', seq)), 20), REPEAT('x', 200), 'bench', "
            f"UTC_TIMESTAMP(3) FROM seq_{begin}_to_{last}",
        )
    run(setting, f"UPDATE queue_head SET head = {end} WHERE queue_id = {queue}")


def log_in(setting: Setting, name: str, password: str) -> requests.Session:
    """Returns a session of the portal."""
    session = requests.Session()
    page = session.get(f"{setting.url}/login")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token, f"no login form at {page.url}"
    fields = {"username": name, "password": password, "csrfmiddlewaretoken": token[1]}
    answer = session.post(page.url, data=fields, headers={"Referer": page.url})
    answer.raise_for_status()
    return session


def timed(keys: list[str], search: Callable[[str], None]) -> list[float]:
    """Returns how long the search for each key takes in ms, rising."""
    times_ms = []
    for key in keys:
        begun = time.monotonic()
        search(key)
        times_ms.append((time.monotonic() - begun) * 1000)
    return sorted(times_ms)


def show(name: str, times_ms: list[float]) -> None:
    figures = (percentile(times_ms, 50), percentile(times_ms, 95), times_ms[-1])
    print(f"{name:22}" + "".join(f"{figure:9.1f}" for figure in figures), flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="script/bench keys", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for option, default in (("rows", 20_000_000), ("queues", 64), ("partitions", 100)):
        parser.add_argument(
            f"--{option}", type=int, default=default, help="default %(default)s"
        )
    parser.add_argument("--keys", type=int, default=100, help="default %(default)s")
    chosen = parser.parse_args()
    end_by_signals()
    print(machine())
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = stack.enter_context(bench.database(home / "database"))
        credentials = stack.enter_context(bench.server(home / "server", url))
        setting = bench.prepare(url, credentials, "")
        admin(setting).create_topic(
            TOPIC, queues=chosen.queues, node="bench", key_index=True, retention_days=3650
        )
        old_keys = [f"old-{number}" for number in range(chosen.keys // 2)]
        new_keys = [f"new-{number}" for number in range(chosen.keys // 2)]
        send(setting, old_keys)
        begun = time.monotonic()
        rows = chosen.rows // chosen.queues
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(
                pool.map(
                    lambda queue: fill(
                        setting, queue, rows=rows, partitions=chosen.partitions
                    ),
                    queues_of(setting, TOPIC),
                )
            )
        send(setting, new_keys)
        print(
            f"{rows * chosen.queues:,} messages in {chosen.queues} queues of "
            f"{chosen.partitions} partitions, filled in {time.monotonic() - begun:.0f} s"
        )
        portal = log_in(
            setting, credentials["CATMQ_ADMIN_USER"], credentials["CATMQ_ADMIN_PASSWORD"]
        )

        def by_api(key: str, *, count: int = 1) -> None:
            # A search that has a message ends its page early, with queues left to search.
            answer = admin(setting).find(TOPIC, key=key)
            assert len(answer["messages"]) == count, answer
            assert answer["searched_by"] == "index", answer

        def by_portal(key: str, *, count: int = 1) -> None:
            page = portal.get(
                f"{setting.url}/messages", params={"topic": TOPIC, "key": key}
            )
            page.raise_for_status()
            assert (f"/messages/{TOPIC}/" in page.text) == bool(count), page.text

        absent = [f"absent-{number}" for number in range(chosen.keys // 5)]
        print(f"load {machine()['load']}; ms: median, p95, slowest", flush=True)
        show("a key, API", timed([*old_keys, *new_keys], by_api))
        show("a key, portal", timed([*old_keys, *new_keys], by_portal))
        show("no such key, API", timed(absent, lambda key: by_api(key, count=0)))
        show("no such key, portal", timed(absent, lambda key: by_portal(key, count=0)))


if __name__ == "__main__":
    main()
