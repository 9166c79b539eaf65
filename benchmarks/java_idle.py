"""`script/bench java-idle`: what Java clients cost that have nothing to read.

Starts a private MariaDB and a whole server on it, lets clients that speak as PMQ's do join
their groups and read a few messages, then watches them. From 20 s after its start each of
them commits all its queues half a second after the last answer. The clients are threads of
this process, whose own share of the processor is printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gauges import Machine
from benchmarks.groups import make_topics, server
from catmq_client import Producer
from catmq_client.admin.api import Admin
from catmq_client.http.transport import HttpTransport
from tests.support.java_client import JavaClient
from tests.support.waiting import until

MEMBERS = 10  # of a group
WARM_S = 25.0  # from then on they commit every queue at every tick
TARGET = 10.0  # % of a core


def start(
    url: str, admin: Admin, topics: tuple[str, ...], api_key: str
) -> list[JavaClient]:
    """The clients, each of which has read its queues to the end."""
    clients: list[JavaClient] = []
    read: list[int] = []  # threads append to it

    def handle(message: dict[str, Any], queue: dict[str, Any]) -> bool:
        read.append(message["id"])
        return True

    for topic in topics:
        admin.create_group(f"of-{topic}")
        admin.subscribe(f"of-{topic}", topic)
        clients += [
            JavaClient(url, {f"of-{topic}": [topic]}, handle) for _ in range(MEMBERS)
        ]
    for one in clients:
        one.start()
    with Producer(url, api_key=api_key) as producer:
        for topic in topics:
            for queue in admin.topic(topic)["queues"]:
                producer.send(topic, b"x", queue=queue["queue"])
    expected = sum(len(admin.topic(topic)["queues"]) for topic in topics)
    until(lambda: len(read) >= expected, limit_s=120, every_s=0.5)
    return clients


def measure(chosen: argparse.Namespace) -> dict[str, float]:
    """The figures of one run."""
    with server(chosen.engine) as (credentials, machine):
        url, api_key = credentials["CATMQ_URL"], credentials["CATMQ_API_KEY"]
        admin = Admin(HttpTransport(url, api_key=api_key))
        count = chosen.clients // MEMBERS
        topics = make_topics(admin, "t", count=count, queues=MEMBERS * chosen.queues)
        clients = start(url, admin, topics, api_key) if topics else []
        time.sleep(WARM_S)
        found = watch(machine, clients, chosen.seconds)
        stop(clients)
    return found


def watch(machine: Machine, clients: list[JavaClient], seconds: float) -> dict[str, float]:
    """Rates and shares of the processor over so many seconds."""
    calls, before = total(clients), machine.sample()
    time.sleep(seconds)
    after = machine.sample()
    made = total(clients) - calls
    rates = {f"{name} a second": number / seconds for name, number in sorted(made.items())}
    waiting = {
        f"{name}, mean": sum(each) / len(each)
        for name, each in machine.workers_now().items()
    }
    found = {
        **after.since(before),
        **rates,
        **waiting,
        "requests a second": made.total() / seconds,
    }
    if made.total():
        spent_s = sum(after.workers_s) - sum(before.workers_s)
        found["CPU of workers a request, ms"] = 1000 * spent_s / made.total()
    return found


def total(clients: list[JavaClient]) -> Counter[str]:
    """The calls that all clients made so far."""
    return sum((Counter(one.calls) for one in clients), Counter())


def stop(clients: list[JavaClient]) -> None:
    """Ask all of them to stop; the server is stopped after them."""
    for one in clients:
        one.stopped.set()


def main() -> int:
    """Runs it; 1 if the workers take more than the target."""
    parser = argparse.ArgumentParser(prog="script/bench java-idle", description=__doc__)
    parser.add_argument(
        "--clients",
        type=int,
        default=100,
        help="ten in each group (default 100); 0: the cost of the workers alone",
    )
    parser.add_argument("--queues", type=int, default=3, help="of each client (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of watching (default 60)"
    )
    parser.add_argument("--engine", choices=("mysql", "sqlite"), default="mysql")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))
    os.environ["CATMQ_JAVA_NETWORKS"] = "127.0.0.0/8"
    found = measure(chosen)
    for name, value in found.items():
        print(f"{name:40} {value:12,.1f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    passed = found["CPU of workers, %"] <= TARGET
    print("PASS" if passed else f"FAIL: the workers may take {TARGET:.0f} % of a core")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
