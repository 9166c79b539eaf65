"""`script/bench wakeups`: how soon waiting consumers hear of a message, and what waiting costs the database.

Starts a private MariaDB for one node and a whole server with metadata of its own, lets many consumers wait
for quiet topics and a few for all queues of others, counts what the node is asked meanwhile, then sends
single messages in two ways: through the broker, and from this process straight into the node, as another
broker does. Timed is from the moment that the sender knows of its commit until the consumer has the answer.
With `--workers 1` whoever waits and whoever stores are in one process.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import bench
from benchmarks.figures import LATENCY_HEADS, Latencies
from benchmarks.gauges import Machine
from catmq_client.admin import Admin
from catmq_client.errors import CatmqError
from catmq_client.transport import HttpTransport, api_path
from tests.support.waiting import until

NODE = "waited"
WAIT_MS = 30_000
SESSION_MS = 300_000  # nobody sends heartbeats
MOST_QUEUES = 50  # of one topic: it is made within a request's time limit on a slow machine, too
PAUSE_S = (0.05, 0.15)  # between two sends, at random
Place = tuple[int, int]  # queue, offset


class Waiter:
    """The only member of a group, with one poll after the other."""

    def __init__(self, admin: Admin, transport: HttpTransport, topic: str) -> None:
        self._transport = transport
        self.arrived: dict[Place, float] = {}
        group = f"g-{uuid.uuid4()}"
        admin.create_group(group, session_timeout_ms=SESSION_MS)
        admin.subscribe(group, topic)
        me = {"name": "one", "incarnation": str(uuid.uuid4())}
        joined = transport.request("POST", api_path("groups", group, "consumers"), body=me)
        self._path = ("consumers", str(joined["consumer_id"]))
        given = until(self._assigned, limit_s=60)
        self._generation = given["generation"]
        claims = [{"queue": one["queue"], "epoch": one["epoch"]} for one in given["assigned"]]
        acquired = self._post("acquire", {"queues": claims})["queues"]
        offsets = {one["queue"]: one["offset"] for one in acquired}
        self._positions = {one["queue"]: {**one, "offset": offsets[one["queue"]]} for one in claims}

    def wait(self, stopping: threading.Event) -> None:
        """Polls until it is stopped."""
        while not stopping.is_set():
            asked = {"generation": self._generation, "queues": list(self._positions.values())}
            try:
                answer = self._post("pull", {**asked, "wait_ms": WAIT_MS})
            except CatmqError:
                if stopping.is_set():
                    return  # the server is gone
                raise
            now = time.monotonic()
            for queue in answer["queues"]:
                for offset, *_ in queue["rows"]:
                    self.arrived[queue["queue"], offset] = now
                self._positions[queue["queue"]]["offset"] = queue["next_offset"]

    def _assigned(self) -> dict[str, Any]:
        given = self._post("heartbeat", {"generation": 0, "owned": []})
        return given if given["assigned"] else {}

    def _post(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._transport.request("POST", api_path(*self._path, verb), body=body, timeout_s=60.0)


@contextmanager
def server() -> Iterator[tuple[dict[str, str], Machine]]:
    """A whole server, its node on a MariaDB that serves nothing else."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = stack.enter_context(bench.mariadb(home / "mariadb"))
        credentials = stack.enter_context(bench.server(home / "var", ""))
        parts = urlsplit(url)
        account = {"host": "127.0.0.1", "port": parts.port}
        account |= {"user": parts.username, "password": parts.password}
        bench.execute(account, f"CREATE DATABASE {NODE} CHARACTER SET utf8mb4")
        node = url.removesuffix(parts.path) + f"/{NODE}"
        command = [sys.executable, bench.HOME / "manage.py", "register_node", NODE, node]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        master = int((home / "var" / "broker.pid").read_text())
        pid = int((home / "mariadb" / "server.pid").read_text())
        connection = stack.enter_context(closing(bench.connect(account)))
        yield credentials, Machine(master, pid, connection)


def another_broker() -> Callable[[str, int], Place]:
    """Stores a message without the broker's knowledge, as another one does."""
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
    django.setup()
    from messagestore.messages import NewMessage
    from messagestore.publish import Receipt, publish
    from metadata.actors import command

    def store(topic: str, queue: int) -> Place:
        messages = [NewMessage(body=b"x" * 200, queue=queue)]
        (receipt,) = publish(topic=topic, messages=messages, batch_id=None, actor=command("bench"))
        assert isinstance(receipt, Receipt), receipt
        return receipt.queue, receipt.offset

    return store


def through(transport: HttpTransport) -> Callable[[str, int], Place]:
    """Sends a message through the broker."""

    def send(topic: str, queue: int) -> Place:
        body = {"messages": [{"body_bytes": b"x" * 200, "queue": queue}]}
        (result,) = transport.request("POST", api_path("topics", topic, "messages"), body=body)["results"]
        return result["queue"], result["offset"]

    return send


def timed(
    store: Callable[[str, int], Place],
    queues: Sequence[tuple[str, int]],
    waiters: Sequence[Waiter],
    count: int,
) -> Latencies:
    """Stores so many messages one after the other; how long after that each was there."""
    stored: dict[Place, float] = {}
    for _ in range(count):
        place = store(*random.choice(queues))
        stored[place] = time.monotonic()
        time.sleep(random.uniform(*PAUSE_S))
    until(lambda: stored.keys() <= {place for one in waiters for place in one.arrived}, limit_s=30)
    arrived = {place: at for one in waiters for place, at in one.arrived.items()}
    return Latencies.of([max(0.0, arrived[place] - at) for place, at in stored.items()])


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="script/bench wakeups", description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="of the broker (default 2)")
    parser.add_argument("--waiters", type=int, default=200, help="consumers of quiet topics (default 200)")
    parser.add_argument("--heads", type=int, default=2000, help="queues that are waited for (default 2000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the quiet (default 30)")
    parser.add_argument("--sends", type=int, default=300, help="of each kind (default 300)")
    chosen = parser.parse_args()
    os.environ["CATMQ_WORKERS"] = str(chosen.workers)
    with server() as (credentials, machine):
        url, key = credentials["CATMQ_URL"], credentials["CATMQ_API_KEY"]
        transport = HttpTransport(url, api_key=key, max_connections=2 * chosen.waiters, discover=False)
        admin = Admin(transport)
        admin.create_topic("quiet", queues=4, node=NODE)
        queues: list[tuple[str, int]] = []
        for first in range(0, chosen.heads, MOST_QUEUES):
            name = f"busy-{first}"
            made = admin.create_topic(name, queues=min(MOST_QUEUES, chosen.heads - first), node=NODE)
            queues += [(name, one["queue"]) for one in made["queues"]]
        listening = [Waiter(admin, transport, topic) for topic in sorted({topic for topic, _ in queues})]
        quiet = [Waiter(admin, transport, "quiet") for _ in range(chosen.waiters)]
        stopping = threading.Event()
        for one in (*listening, *quiet):
            threading.Thread(target=one.wait, args=(stopping,), daemon=True).start()
        time.sleep(3)  # until all of them wait
        before = machine.sample()
        time.sleep(chosen.seconds)
        for name, rate in machine.sample().since(before).items():
            print(
                f"{chosen.waiters + len(listening)} waiting for {chosen.heads + 4} queues: {name} {rate:.1f}"
            )
        print(f"{'hears of it':34}{LATENCY_HEADS}")
        for kind, store in (
            ("sent through its broker", through(transport)),
            ("stored by another", another_broker()),
        ):
            print(f"{kind:34}{timed(store, queues, listening, chosen.sends)}", flush=True)
        stopping.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
