"""Members of one share group, each a process of its own: the cost of their waiting, and how
much they handle.

The handler sleeps instead of computing. The limit of the machine is what the same processes
do without a broker.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks import wakeups
from benchmarks.gauges import Machine
from catmq_client import NewMessage, Producer, ShareConsumer, ShareMessage
from catmq_client.admin.api import Admin
from catmq_client.http.transport import HttpTransport
from tests.support.waiting import until

WORK_S = 0.1
TOPIC, GROUP = "jobs", "workers"
HANDLED_TARGET = 0.9  # of what the same members do without a broker
SELECTS_TARGET = 25.0  # a second, for each worker of the broker
BATCH = 1_000


def _work(message: object) -> None:
    time.sleep(WORK_S)


def _member(url: str, api_key: str, handled: Synchronized[int], stop: Event) -> None:
    consumer = ShareConsumer(url, api_key=api_key, group=GROUP, topics=[TOPIC])

    def handle(message: ShareMessage) -> None:
        _work(message)
        with handled.get_lock():
            handled.value += 1

    def end() -> None:
        stop.wait()
        consumer.stop()

    with consumer:
        threading.Thread(target=end, daemon=True).start()
        consumer.run(handle, threads=1)


def _alone(handled: Synchronized[int], stop: Event) -> None:
    while not stop.is_set():
        _work(None)
        with handled.get_lock():
            handled.value += 1


class Crowd:
    """Processes that count what they handle."""

    def __init__(self, count: int, target: Any, *words: object) -> None:
        # Members are forked: a hundred interpreters that start would take minutes of two
        # cores.
        context = multiprocessing.get_context("fork")
        self._stop = context.Event()
        self.handled: Synchronized[int] = context.Value("q", 0)
        self._members = [
            context.Process(
                target=target, args=(*words, self.handled, self._stop), daemon=True
            )
            for _ in range(count)
        ]
        for one in self._members:
            one.start()

    def rate(self, seconds: float) -> float:
        """Messages handled a second from now on."""
        before, begun = self.handled.value, time.monotonic()
        time.sleep(seconds)
        return float(self.handled.value - before) / (time.monotonic() - begun)

    def end(self) -> None:
        """Stop all."""
        self._stop.set()
        for one in self._members:
            one.join(60)


def measure(home: Path, chosen: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The cost of waiting, then the rate of handling, beside that of the same processes
    without a broker.
    """
    seconds = 3.0 if chosen.quick else max(20.0, chosen.seconds)
    workers = int(os.environ.setdefault("CATMQ_WORKERS", "2"))
    with wakeups.server() as (credentials, machine):
        place = credentials["CATMQ_URL"], credentials["CATMQ_API_KEY"]
        admin = Admin(HttpTransport(place[0], api_key=place[1]))
        admin.create_topic(TOPIC, queues=1, node=wakeups.NODE)
        idle = _selects(machine, seconds)
        admin.create_group(GROUP, mode="share")
        crowd = Crowd(chosen.members, _member, *place)
        until(
            lambda: len(admin.group(GROUP)["members"]) == chosen.members,
            limit_s=120,
            every_s=0.5,
        )
        time.sleep(wakeups.SETTLE_S)
        cost = (_selects(machine, seconds) - idle) / workers
        print(
            f"{chosen.members} members wait: {cost:.1f} SELECTs a second for each worker "
            "of the broker"
        )
        _send(place, int(chosen.members / WORK_S * (seconds + 15)))
        time.sleep(5.0)
        before = machine.sample()
        rate = crowd.rate(seconds)
        spent = machine.sample().since(before)
        crowd.end()
    print(
        ", ".join(
            f"{name} {share:.0f}" for name, share in spent.items() if name.startswith("CPU")
        )
    )
    alone = Crowd(chosen.members, _alone)
    limit = alone.rate(5.0)
    alone.end()
    print(
        f"{chosen.members} members handle {rate:,.0f} messages a second of "
        f"{1000 * WORK_S:.0f} ms each; ",
        end="",
    )
    print(f"without a broker {limit:,.0f}: {rate / limit:.2f}")
    missed = ["the cost of waiting"] if cost >= SELECTS_TARGET else []
    missed += ["messages handled"] if rate < HANDLED_TARGET * limit else []
    return {"selects_per_worker": cost, "handled": rate, "alone": limit}, missed


def _selects(machine: Machine, seconds: float) -> float:
    before = machine.sample()
    time.sleep(seconds)
    return machine.sample().since(before)["Com_select a second"]


def _send(place: tuple[str, str], count: int) -> None:
    """Send more than the members can handle."""
    with Producer(place[0], api_key=place[1]) as producer:
        for first in range(0, count, BATCH):
            producer.send_batch(TOPIC, [NewMessage(b"x" * 200)] * min(BATCH, count - first))
