"""Celery on CatMQ: workers are killed, broker and node are restarted, and a countdown
outlasts its lease.

What must hold: every task that was sent ends; one that a killed worker had begun is begun
again within its lease and a moment; repeats are no more than what was leased. A task with a
countdown of two hours runs once.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

from catmq_client.contrib.kombu.names import TopicNames
from tests.acceptance.scenarios.lost_nodes import node_on, own_server, restart_database
from tests.acceptance.scenarios.stage import Stage
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.server import Server
from tests.support.skew import wall_clock
from tests.support.terminal import Process
from tests.support.waiting import until

PROGRAM = "tests.acceptance.programs.celery_shop"
WORKERS, PROCESSES, LEASE_S = 3, 2, 5
SEND_EVERY_MS = 40
# A worker that starts needs a few seconds; what it leases ahead, one that is killed had
# leased.
MOMENT_S = 6.0
HELD = PROCESSES * 2 + PROCESSES
COUNTDOWN_S, LONG_LEASE_S = 7_200, 60


class Line(NamedTuple):
    """A line of the journal."""

    word: str
    number: int
    pid: int
    at: float


@dataclass
class Shop:
    """Workers, a sender, and their journal."""

    stage: Stage
    server: Server
    lease_s: int = LEASE_S
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.stage.fresh("celery")
        self.journal = self.stage.directory / f"{self.name}.journal"
        self.journal.touch()
        self._numbers = count(1)
        key, host = self.server.api_key, self.server.url.removeprefix("http://")
        self.environ = {
            "SHOP_JOURNAL": str(self.journal),
            "SHOP_BROKER": f"catmq://:{key}@{host}/{self.name}",
            "SHOP_LEASE_S": str(self.lease_s),
            **self.more,
        }

    def start(self, *words: str) -> Process:
        return self.stage.terminal.start(
            "-m", *words, environ=self.environ, start_new_session=True
        )

    def worker(self) -> Process:
        name = f"{self.name}-{next(self._numbers)}@chaos"
        words = (
            "worker",
            "-c",
            str(PROCESSES),
            "-n",
            name,
            "-l",
            "INFO",
            "--without-heartbeat",
        )
        return self.start("celery", "-A", PROGRAM, *words)

    def call(self, code: str) -> None:
        """Run Python where `work` is the task."""
        done = self.stage.terminal.start(
            "-c", f"from {PROGRAM} import work\n{code}", environ=self.environ
        )
        done.wait()

    def lines(self, word: str) -> list[Line]:
        found = (line.split() for line in self.journal.read_text().splitlines())
        lines = (Line(one[0], int(one[1]), int(one[2]), float(one[3])) for one in found)
        return [line for line in lines if line.word == word]

    def numbers(self, word: str) -> set[int]:
        return {line.number for line in self.lines(word)}

    def await_ready(self, worker: Process) -> None:
        until(
            lambda: " ready." in worker.err.read_text(errors="replace"),
            limit_s=90,
            every_s=0.1,
        )

    def end(self, worker: Process) -> None:
        worker.popen.send_signal(signal.SIGTERM)
        code = worker.popen.wait(60)
        assert code == 0, f"a worker ended with {code}: {worker.err}"


@dataclass
class Chaos:
    """One play: workers are killed `kills` times, then the broker is restarted `restarts`
    times.

    `node`: the database of the tasks, if it has one of its own; it is restarted `outages`
    times at the end.
    """

    shop: Shop
    kills: int
    restarts: int
    node: MariaDB | None = None
    outages: int = 0
    killed: dict[int, float] = field(default_factory=dict)

    def run(self) -> str:
        """Play, let all tasks end, and judge."""
        stage, shop = self.shop.stage, self.shop
        self.workers = [shop.worker() for _ in range(WORKERS)]
        for worker in self.workers:
            shop.await_ready(worker)
        sender = shop.start(PROGRAM, str(SEND_EVERY_MS))
        until(lambda: len(shop.numbers("ended")) > 20, limit_s=60, every_s=0.2)
        for _ in range(self.kills):
            time.sleep(stage.rng.uniform(0.2, 2.0))
            self.kill_one()
        for _ in range(self.restarts):
            time.sleep(2.0)
            stage.say("the broker is restarted")
            shop.server.restart_broker()
        for _ in range(self.outages):
            time.sleep(stage.rng.uniform(0.5, 3.0))
            assert self.node is not None, "name its database"
            restart_database(stage, "node", self.node)
        sender.popen.send_signal(signal.SIGTERM)
        sender.popen.wait(60)
        sent = shop.numbers("sent")
        until(lambda: sent <= shop.numbers("ended"), limit_s=120, every_s=0.5)
        for worker in self.workers:
            shop.end(worker)
        restarts = f"{self.restarts} restarts of the broker, {self.outages} of the node"
        verdict = (
            f"{len(sent)} tasks, {self.kills} workers killed, {restarts}; {self.judge()}"
        )
        stage.say(verdict)
        return verdict

    def kill_one(self) -> None:
        """kill -9 of a worker and its processes, and another one in its place."""
        victim = self.workers.pop(self.shop.stage.rng.randrange(len(self.workers)))
        os.killpg(victim.popen.pid, signal.SIGKILL)
        at = time.monotonic()
        victim.popen.wait()
        # its children are reaped by others
        until(lambda: not is_group(victim.popen.pid), limit_s=30)
        begun, ended = (
            self.shop.lines("begun"),
            {(one.number, one.pid) for one in self.shop.lines("ended")},
        )
        for one in begun:
            if (one.number, one.pid) not in ended and not Path(f"/proc/{one.pid}").exists():
                self.killed.setdefault(one.number, at)
        self.workers.append(self.shop.worker())
        self.shop.await_ready(self.workers[-1])

    def judge(self) -> str:
        """Raise AssertionError if something does not hold; return figures."""
        begins: dict[int, list[float]] = defaultdict(list)
        for line in self.shop.lines("begun"):
            begins[line.number].append(line.at)
        gaps = [0.0]
        for number, at in self.killed.items():
            later = [begun for begun in begins[number] if begun > at]
            assert later, (
                f"task {number} was at work in a killed worker, and was not begun again"
            )
            gaps.append(min(later) - at)
        assert max(gaps) <= LEASE_S + MOMENT_S, (
            f"a task was begun again only after {max(gaps):.1f} s"
        )
        assert self.killed or self.kills < 3, "no worker had a task when it was killed"
        twice = sum(len(one) - 1 for one in begins.values())
        most = HELD * (self.kills + (self.restarts + self.outages) * WORKERS)
        assert twice <= most, f"{twice} repeats; the killed workers held {most} at most"
        return (
            f"{len(self.killed)} were at work in killed workers, begun again after "
            f"{max(gaps):.1f} s at most "
            f"(lease {LEASE_S} s); {twice} repeats"
        )


def is_group(number: int) -> bool:
    """Return True if a process of that group exists, be it a zombie."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def run(stage: Stage, *, kills: int, restarts: int) -> str:
    return Chaos(Shop(stage, stage.server), kills, restarts).run()


def run_on_database(stage: Stage, pair: Pair, *, kills: int, outages: int) -> str:
    """Play with a node of its own for the tasks, whose database is restarted."""
    with own_server(stage, binlog=False) as database:
        shop = Shop(stage, stage.server)
        topic = TopicNames(shop.name).topic("celery")
        stage.terminal.admin.create_topic(
            topic, queues=4, node=node_on(stage, pair, database)
        )
        return Chaos(shop, kills, 0, database, outages).run()


def run_countdown(stage: Stage) -> str:
    """A countdown of two hours with a lease of 60 s; the clock of all is moved, and nothing
    waits for it.
    """
    clock = wall_clock(stage.directory, "celery")
    server = Server(stage.directory / "clocked", environ=clock.environ).start()
    try:
        shop = Shop(stage, server, lease_s=LONG_LEASE_S, more=clock.environ)
        worker = shop.worker()
        shop.await_ready(worker)
        shop.call(
            f"work.apply_async((1, 0.1), countdown={COUNTDOWN_S}); work.delay(2, 0.1)"
        )
        until(lambda: shop.numbers("ended") == {2}, limit_s=30)
        for passed_s in (LONG_LEASE_S + 5, COUNTDOWN_S // 2, COUNTDOWN_S - 100):
            clock.set(passed_s)
            time.sleep(4.0)
            assert shop.numbers("begun") == {2}, (
                f"the task began {COUNTDOWN_S - passed_s} s early"
            )
        clock.set(COUNTDOWN_S)
        until(lambda: 1 in shop.numbers("ended"), limit_s=30, every_s=0.2)
        clock.set(COUNTDOWN_S + 3 * LONG_LEASE_S)
        time.sleep(4.0)
        shop.end(worker)
        begun = Counter(line.number for line in shop.lines("begun"))
        assert begun == {1: 1, 2: 1}, f"begun so often, by task: {begun}"
    finally:
        server.clear_away()
    verdict = f"a countdown of {COUNTDOWN_S} s with leases of {LONG_LEASE_S} s ran once"
    stage.say(verdict)
    return verdict
