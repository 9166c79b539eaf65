"""`script/bench wakeups`: how soon waiting consumers hear of a message, and what waiting
costs the database.

Starts a private MariaDB for one node and a whole server with metadata of its own.
Consumers, each the only one of its group, own queues: many of them those of a quiet topic,
a few all of others. What the node is asked is counted twice, before they poll and while all
of them wait. Then single messages are sent in three ways: through the process of the broker
in which their consumer waits, through another process of it, and from this process straight
into the node, as another broker does. Timed is from the moment that the sender knows of its
commit until the consumer has the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import bench
from benchmarks.figures import LATENCY_HEADS, Latencies, plain
from benchmarks.figures import machine as machine_facts
from benchmarks.gauges import Machine
from catmq_client.admin.api import Admin
from catmq_client.errors import CatmqError
from catmq_client.http.transport import HttpTransport, api_path, request_until
from tests.support.waiting import until

NODE = "waited"
WAIT_MS = 30_000
SESSION_MS = 300_000
BEAT_S, HEARTS = 60.0, 4  # heartbeats of all consumers, by so many threads
READY_S = 60.0
# of one topic: it is made within a request's time limit on a slow machine, too
MOST_QUEUES = 50
PAUSE_S = (0.05, 0.15)  # between two sends, at random
SETTLE_S = 10.0  # after something changed, until it is counted what the node is asked
ALIVE_EVERY_S = 3.0  # between two signs of life of the other broker
OPENED = 64  # connections, at most, to find one to each worker
SELECTS_TARGET = 25.0  # a second, for each worker, of 200 waiting consumers
SAME, OTHER, FOREIGN = "same process", "other process of the broker", "other broker"
LIMITS_MS = {SAME: 20.0, OTHER: 60.0, FOREIGN: 60.0}
Place = tuple[int, int]  # queue, offset
Store = Callable[[str, int], Place]  # stores a message in a queue of a topic


class Patient:
    """A transport that repeats what a busy server asks to be repeated; for making things
    ready.
    """

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport

    def request(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        """See Transport."""
        return request_until(self._transport, method, path, within_s=READY_S, **given)


class Line:
    """One kept connection to the broker, and the worker process at its other end."""

    def __init__(self, machine: Machine, url: str, api_key: str) -> None:
        self._machine, self._port = machine, urlsplit(url).port or 80
        self.transport = HttpTransport(
            url, api_key=api_key, max_connections=1, discover=False
        )
        before = machine.clients(self._port)
        self.transport.request("GET", "/api/v1")
        fresh = {
            pid: sockets - before[pid]
            for pid, sockets in machine.clients(self._port).items()
        }
        ((self.worker, (self._socket,)),) = [
            (pid, sockets) for pid, sockets in fresh.items() if sockets
        ]

    def is_kept(self) -> bool:
        """Whether it is still the same connection."""
        return self._socket in self._machine.clients(self._port)[self.worker]


class Waiter:
    """The only member of a group, with one poll after the other."""

    line: Line  # on which it polls

    def __init__(self, admin: Admin, ready: Patient, topic: str) -> None:
        self.topic = topic
        self.arrived: dict[Place, float] = {}
        group = f"g-{uuid.uuid4()}"
        admin.create_group(group, session_timeout_ms=SESSION_MS)
        admin.subscribe(group, topic)
        me = {"name": "one", "incarnation": str(uuid.uuid4())}
        joined = ready.request("POST", api_path("groups", group, "consumers"), body=me)
        self._path = ("consumers", str(joined["consumer_id"]))
        given = until(lambda: self._assigned(ready), limit_s=READY_S, every_s=0.2)
        self._generation = given["generation"]
        claims = self._claims = [
            {"queue": one["queue"], "epoch": one["epoch"]} for one in given["assigned"]
        ]
        acquired = ready.request(
            "POST", api_path(*self._path, "acquire"), body={"queues": claims}
        )["queues"]
        offsets = {one["queue"]: one["offset"] for one in acquired}
        self._positions = {
            one["queue"]: {**one, "offset": offsets[one["queue"]]} for one in claims
        }

    def wait(self, stopping: threading.Event) -> None:
        """Polls until it is stopped."""
        while not stopping.is_set():
            asked = {
                "generation": self._generation,
                "queues": list(self._positions.values()),
            }
            try:
                body = {**asked, "wait_ms": WAIT_MS}
                answer = self.line.transport.request(
                    "POST", api_path(*self._path, "pull"), body=body, timeout_s=60.0
                )
            except CatmqError:
                if stopping.is_set():
                    return  # the server is gone
                raise
            now = time.monotonic()
            for queue in answer["queues"]:
                for offset, *_ in queue["rows"]:
                    self.arrived[queue["queue"], offset] = now
                self._positions[queue["queue"]]["offset"] = queue["next_offset"]

    def beat(self, transport: HttpTransport) -> None:
        """Says that it lives, on another connection than that of its poll."""
        said = {"generation": self._generation, "owned": self._claims}
        transport.request("POST", api_path(*self._path, "heartbeat"), body=said)

    def _assigned(self, ready: Patient) -> dict[str, Any]:
        nothing: dict[str, Any] = {"generation": 0, "owned": []}
        given = ready.request("POST", api_path(*self._path, "heartbeat"), body=nothing)
        return given if given["assigned"] else {}


@contextmanager
def server() -> Iterator[tuple[dict[str, str], Machine]]:
    """A whole server, its node on a MariaDB that serves nothing else."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = stack.enter_context(bench.database(home / "database"))
        credentials = stack.enter_context(bench.server(home / "var", ""))
        parts = urlsplit(url)
        account = {"host": "127.0.0.1", "port": parts.port}
        account |= {"user": parts.username, "password": parts.password}
        bench.execute(account, f"CREATE DATABASE {NODE} CHARACTER SET utf8mb4")
        node = url.removesuffix(parts.path) + f"/{NODE}"
        command = [sys.executable, bench.HOME / "manage.py", "register_node", NODE, node]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        master = int((home / "var" / "broker.pid").read_text())
        pid = int((home / "database" / "server.pid").read_text())
        connection = stack.enter_context(closing(bench.connect(account)))
        yield credentials, Machine(master, pid, connection)


def another_broker() -> Store:
    """Stores a message without the broker's knowledge, as another one does, and registers
    as one: a broker that is alone reads a node less often."""
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
    django.setup()
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.publish import Receipt, publish
    from metadata.actors import command
    from metadata.brokers.registration import BrokerIdentity, heartbeat

    identity = BrokerIdentity("bench", "http://127.0.0.1:9", "0", uuid.uuid4().hex)

    def live() -> None:
        while True:
            heartbeat(identity=identity, held=True)
            time.sleep(ALIVE_EVERY_S)

    threading.Thread(target=live, daemon=True).start()
    time.sleep(ALIVE_EVERY_S)  # the broker reads of it

    def store(topic: str, queue: int) -> Place:
        messages = [NewMessage(body=b"x" * 200, queue=queue)]
        (receipt,) = publish(
            topic=topic, messages=messages, batch_id=None, actor=command("bench")
        )
        assert isinstance(receipt, Receipt), receipt
        return receipt.queue, receipt.offset

    return store


def through(line_of: Mapping[str, Line]) -> Store:
    """Sends a message through the broker, on the topic's line."""

    def send(topic: str, queue: int) -> Place:
        body = {"messages": [{"body_bytes": b"x" * 200, "queue": queue}]}
        transport = line_of[topic].transport
        (result,) = transport.request(
            "POST", api_path("topics", topic, "messages"), body=body
        )["results"]
        return result["queue"], result["offset"]

    return send


def timed(
    store: Store, queues: Sequence[tuple[str, int]], waiters: Sequence[Waiter], count: int
) -> Latencies:
    """Stores so many messages one after the other; how long after that each was there."""
    stored: dict[Place, float] = {}
    for _ in range(count):
        place = store(*random.choice(queues))
        stored[place] = time.monotonic()
        time.sleep(random.uniform(*PAUSE_S))
    until(
        lambda: stored.keys() <= {place for one in waiters for place in one.arrived},
        limit_s=30,
    )
    arrived = {place: at for one in waiters for place, at in one.arrived.items()}
    return Latencies.of([max(0.0, arrived[place] - at) for place, at in stored.items()])


@dataclass(frozen=True, slots=True)
class Way:
    """How messages come in, and those of which topics."""

    name: str
    store: Store
    topics: Collection[str]


class Lab:
    """A server with consumers."""

    def __init__(self, machine: Machine, url: str, api_key: str) -> None:
        self.machine = machine
        self._broker = (machine, url, api_key)
        self._ready = Patient(HttpTransport(url, api_key=api_key, discover=False))
        self.admin = Admin(self._ready)
        self.queues: list[tuple[str, int]] = []

    def line(self) -> Line:
        """A new connection."""
        return Line(*self._broker)

    def make_queues(self, count: int) -> None:
        """Makes topics with so many queues in all."""
        for first in range(0, count, MOST_QUEUES):
            name = f"busy-{first}"
            made = self.admin.create_topic(
                name, queues=min(MOST_QUEUES, count - first), node=NODE
            )
            self.queues += [(name, one["queue"]) for one in made["queues"]]

    def join(self, topics: Sequence[str]) -> list[Waiter]:
        """A consumer for each of the topics; several join at once."""
        with ThreadPoolExecutor(HEARTS) as joining:
            return list(
                joining.map(lambda topic: Waiter(self.admin, self._ready, topic), topics)
            )

    def begin(self, waiters: Sequence[Waiter], stopping: threading.Event) -> None:
        """Lets all of them poll, and sends their heartbeats, until it is stopped."""
        _, url, api_key = self._broker
        transport = HttpTransport(
            url, api_key=api_key, max_connections=HEARTS, discover=False
        )

        def beat() -> None:
            with ThreadPoolExecutor(HEARTS) as hearts:
                while not stopping.wait(BEAT_S):
                    hearts.map(lambda one: one.beat(transport), waiters)

        for one in waiters:
            one.line = self.line()
            threading.Thread(target=one.wait, args=(stopping,), daemon=True).start()
        threading.Thread(target=beat, daemon=True).start()

    def ways(self, waiters: Sequence[Waiter]) -> Iterator[Way]:
        """All ways in; with one worker there is no other process of the broker."""
        lines: dict[int, Line] = {}
        workers = set(self.machine.workers())
        for _ in range(OPENED):
            line = self.line()
            lines.setdefault(line.worker, line)
            if lines.keys() == workers:
                break
        where = {one.topic: one.line.worker for one in waiters if one.line.is_kept()}
        same = {topic: lines[worker] for topic, worker in where.items() if worker in lines}
        other = {
            topic: lines[pid]
            for topic, worker in where.items()
            for pid in lines
            if pid != worker
        }
        if same:
            yield Way(SAME, through(same), same)
        if other:
            yield Way(OTHER, through(other), other)
        yield Way(FOREIGN, another_broker(), {one.topic for one in waiters})

    def heard(
        self, waiters: Sequence[Waiter], sends: int
    ) -> Iterator[tuple[str, Latencies]]:
        """Each way, and how soon its messages were there; says it."""
        for way in self.ways(waiters):
            queues = [place for place in self.queues if place[0] in way.topics]
            found = timed(way.store, queues, waiters, sends)
            print(f"{way.name:34}{found}{LIMITS_MS[way.name]:10.0f}", flush=True)
            yield way.name, found

    def asked(self, seconds: float, what: str) -> float:
        """SELECTs a second that the node is asked during that time, after it has settled;
        says it.
        """
        time.sleep(SETTLE_S)
        before = self.machine.sample()
        time.sleep(seconds)
        rates = self.machine.sample().since(before)
        for name, rate in rates.items():
            print(f"{what}: {name} {rate:.1f}", flush=True)
        return rates["Com_select a second"]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/bench wakeups", description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="of the broker (default 2)")
    parser.add_argument(
        "--waiters", type=int, default=200, help="consumers of quiet topics (default 200)"
    )
    parser.add_argument(
        "--heads", type=int, default=2000, help="queues that are waited for (default 2000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of each count (default 60)"
    )
    parser.add_argument("--sends", type=int, default=300, help="of each kind (default 300)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    return parser.parse_args()


def main() -> int:
    """Runs the benchmark; 1 if the waiting is too dear, or the median of a way above its
    limit.
    """
    chosen = arguments()
    os.environ["CATMQ_WORKERS"] = str(chosen.workers)
    facts = machine_facts()
    with server() as (credentials, machine):
        lab = Lab(machine, credentials["CATMQ_URL"], credentials["CATMQ_API_KEY"])
        lab.admin.create_topic("quiet", queues=4, node=NODE)
        lab.make_queues(chosen.heads)
        topics = sorted({topic for topic, _ in lab.queues})
        waiters = lab.join([*topics, *["quiet"] * chosen.waiters])
        listening = waiters[: len(topics)]
        idle = lab.asked(chosen.seconds, "nobody waits")
        stopping = threading.Event()
        lab.begin(waiters, stopping)
        count = f"{len(waiters)} wait for {chosen.heads + 4} queues"
        cost = (lab.asked(chosen.seconds, count) - idle) / chosen.workers
        print(
            f"waiting costs {cost:.1f} SELECTs a second for each worker (target below "
            f"{SELECTS_TARGET:.0f})"
        )
        print(f"{'hears of what came through':34}{LATENCY_HEADS}{'target':>10}")
        told = dict(lab.heard(listening, chosen.sends))
        stopping.set()
    missed = ["the cost of waiting"] if cost >= SELECTS_TARGET else []
    missed += [name for name, found in told.items() if found.p50 > LIMITS_MS[name]]
    if chosen.json:
        figures = {
            "machine": facts,
            "selects_idle": idle,
            "selects_per_worker": cost,
            "ways": plain(told),
        }
        chosen.json.write_text(json.dumps(figures, indent=1))
    print(f"load average {facts['load']} before, {machine_facts()['load']} after")
    if missed:
        print(f"missed: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
