"""`script/bench delays`: how late delayed messages come while others are sent.

Starts a private MariaDB and a whole server on it (or the embedded engine). Delayed
messages, due evenly over the seconds of the run, are stored first; then publishers send at
a fixed rate to the same queues until all are due. How late one came is the difference
between when it was due and its `stored_at`, both by the clock of its node; its commit
follows within milliseconds. Fails when one is missing or there twice.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.figures import LATENCY_HEADS, Latencies, machine, plain
from benchmarks.groups import server
from benchmarks.loads import Load, Publishers
from catmq_client import HttpTransport, NewMessage, Producer
from catmq_client.admin.api import Admin
from catmq_client.http.wire import body_of

TOPIC, TAG = "delays", "delayed"
QUEUES = 4
AHEAD_S = 15.0  # so long before the first one is due they are stored
CATCH_UP_S = 60.0
TARGET_MS = 250.0


def store(url: str, api_key: str, *, count: int, seconds: float) -> float:
    """Stores the delayed messages; when the first is due (time.time)."""
    first, step_s = time.time() + AHEAD_S, seconds / count
    begin = datetime.fromtimestamp(first, UTC)
    with Producer(url, api_key=api_key) as producer:
        for begun in range(0, count, 500):
            messages = [
                NewMessage(
                    str(number), key=f"key-{number}", tag=TAG,
                    deliver_at=begin + timedelta(seconds=step_s * number),
                )
                for number in range(begun, min(begun + 500, count))
            ]  # fmt: skip
            for outcome in producer.send_batch(TOPIC, messages):
                if isinstance(outcome, Exception):
                    raise outcome
    return first


def came(transport: HttpTransport) -> Iterator[Mapping[str, Any]]:
    """The delayed messages in the queues."""
    params: dict[str, Any] = {"tag": TAG, "limit": 1000}
    while True:
        answer = transport.request(
            "GET", f"/api/v1/topics/{TOPIC}/messages", params=params, timeout_s=30
        )
        yield from answer["messages"]
        if answer["next"] is None:
            return
        params["after"] = answer["next"]


def run(
    chosen: argparse.Namespace, url: str, api_key: str
) -> tuple[Latencies, float, list[str]]:
    """One run: how late they came, messages a second beside them, and what is wrong."""
    transport = HttpTransport(url, api_key=api_key)
    made = Admin(transport).create_topic(TOPIC, queues=QUEUES)
    queues = tuple(one["queue"] for one in made["queues"])
    load = Load(url, api_key, TOPIC, queues, chosen.size, chosen.batch, rate=chosen.rate)
    publishers = Publishers(load, count=2)
    first = store(url, api_key, count=chosen.messages, seconds=chosen.seconds)
    publishers.begin()
    begun, pause = time.monotonic(), threading.Event()
    pause.wait(max(0.0, first + chosen.seconds + 1.0 - time.time()))
    sent, _ = publishers.end()
    rate = sent / (time.monotonic() - begun)
    end = time.monotonic() + CATCH_UP_S
    while Admin(transport).delayed(TOPIC, limit=1)["count"] and time.monotonic() < end:
        pause.wait(0.2)
    found = [(int(body_of(one)), one["stored_at_ms"]) for one in came(transport)]
    due_ms = {
        number: 1000 * (first + chosen.seconds * number / chosen.messages)
        for number, _ in found
    }
    wrong = []
    if sorted(number for number, _ in found) != list(range(chosen.messages)):
        wrong.append(
            f"{len(found)} messages came, {len(due_ms)} different ones, of {chosen.messages}"
        )
    late = Latencies.of(
        [(stored_ms - due_ms[number]) / 1000 for number, stored_ms in found]
    )
    return late, rate, wrong


def main() -> int:
    """Runs it and prints the figures."""
    parser = argparse.ArgumentParser(prog="script/bench delays", description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=10_000, help="delayed ones (default 10,000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="over which they are due (default 60)"
    )
    parser.add_argument(
        "--rate", type=float, default=5_000.0, help="others a second (default 5,000)"
    )
    parser.add_argument(
        "--batch", type=int, default=50, help="of them in a request (default 50)"
    )
    parser.add_argument(
        "--size", type=int, default=200, help="of their bodies, bytes (default 200)"
    )
    parser.add_argument("--engine", choices=("mysql", "sqlite"), default="mysql")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there, too"
    )
    chosen = parser.parse_args()
    with server(chosen.engine) as (credentials, _):
        late, rate, wrong = run(
            chosen, credentials["CATMQ_URL"], credentials["CATMQ_API_KEY"]
        )
    print(
        f"{chosen.messages:,} delayed messages over {chosen.seconds:g} s, {rate:,.0f} "
        "others a second"
    )
    print(f"{'late':8}{LATENCY_HEADS}\n{'':8}{late}", *wrong, sep="\n")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"late": plain(late), "rate": rate, "machine": machine()}, indent=2)
        )
    return 1 if wrong or late.p99 > TARGET_MS else 0


if __name__ == "__main__":
    sys.exit(main())
