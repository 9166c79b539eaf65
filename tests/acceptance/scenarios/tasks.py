"""Tasks of a Django project: its workers are killed, brokers and databases are restarted.

What must hold: a task exists if and only if its order does; each ends; one whose worker
died is begun again within its lease and a moment.
"""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.acceptance.scenarios.lost_nodes import node_on, own_server, restart_database
from tests.acceptance.scenarios.stage import Stage
from tests.support import mariadb
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.terminal import Process
from tests.support.waiting import until

WORKSHOP = "tests/acceptance/programs/workshop"
CLERKS, WORKERS, LEASE_S = 2, 3, 5.0
# A task lasts 50 ms. A short play is one of many tests at a time, so that a worker may come
# late.
MOMENT_S, BUSY_S, MANY = 1.0, 2.0, 10
END_S = 120


@dataclass
class Workshop:
    """One play: workers are killed `kills` times, the broker is restarted `restarts` times,
    then each of
    `databases` as often as `outages`, by SIGTERM or by kill -9. The topics lie on `node`,
    if there is one.
    """

    stage: Stage
    database: str
    kills: int = 20
    restarts: int = 2
    databases: Mapping[str, MariaDB] = field(default_factory=dict)
    outages: int = 0
    node: str | None = None
    workers: list[Process] = field(default_factory=list)
    killed_at: list[float] = field(default_factory=list)  # by time.time()

    def __post_init__(self) -> None:
        self._seeds = count(1)
        self.group = self.stage.fresh("makers")
        self.environ = {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.programs.workshop.settings",
            "SHOP_DATABASE": self.database,
            "SHOP_GROUP": self.group,
            "SHOP_PREFIX": f"{self.group}.",
        }

    def run(self) -> str:
        """Play, let all tasks end, and judge."""
        self.manage("migrate", "--run-syncdb", "--verbosity", "0")
        for lane in ("", ".high", ".low") if self.node else ():
            self.stage.terminal.admin.create_topic(
                f"{self.group}.default{lane}", queues=4, node=self.node
            )
        self.manage("catmq_tasks", "setup")
        self.stage.terminal.admin.change_group(self.group, lease_ms=int(LEASE_S * 1000))
        clerks = [
            self.start(f"{WORKSHOP}/clerk.py", str(next(self._seeds)))
            for _ in range(CLERKS)
        ]
        self.workers = [self.worker() for _ in range(WORKERS)]
        for one in [*clerks, *self.workers]:
            until(lambda one=one: one.out.read_bytes(), limit_s=60)  # type: ignore[misc]
        for _ in range(self.kills):
            time.sleep(self.stage.rng.uniform(0.2, 2.0))
            self.kill_one()
        killed = self.settled("after the kills")
        self.restart_all()
        for clerk in clerks:
            clerk.end()
        told = self.settled("at the end")
        for worker in self.workers:  # their logs have the tracebacks of tasks
            worker.popen.send_signal(signal.SIGTERM)
            assert worker.popen.wait(60) == 0, worker.err
        done = f"{self.kills} workers killed, {self.restarts} restarts of the broker"
        done += f", {self.outages} of each database" if self.databases else ""
        verdict = f"{len(told['orders'])} orders, {done}; {self.judge(told, killed)}"
        self.stage.say(verdict)
        return verdict

    def kill_one(self) -> None:
        """kill -9 of a worker that runs tasks by now, and another one in its place."""
        victim = self.workers.pop(self.stage.rng.randrange(WORKERS))
        until(lambda: b"state=RUNNING" in victim.err.read_bytes(), limit_s=60)
        victim.kill()
        self.killed_at.append(time.time())
        self.workers.append(self.worker())

    def restart_all(self) -> None:
        """Restart the broker, then the databases in turn."""
        for _ in range(self.restarts):
            time.sleep(1.0)
            self.stage.server.restart_broker()
        for _ in range(self.outages):
            for name, database in self.databases.items():
                time.sleep(self.stage.rng.uniform(0.5, 3.0))
                restart_database(self.stage, name, database)

    def worker(self) -> Process:
        return self.start("-m", "django", "catmq_worker", "--threads", "4", "--no-setup")

    def start(self, *words: str) -> Process:
        return self.stage.terminal.start(*words, environ=self.environ)

    def manage(self, *words: str) -> None:
        """Run a management command."""
        self.start("-m", "django", *words).wait()

    def settled(self, when: str) -> dict[str, Any]:
        """Wait until all tasks of now have ended; return what there is then."""
        report = self.start(f"{WORKSHOP}/report.py", str(END_S))
        report.wait()
        told: dict[str, Any] = json.loads(report.out.read_text())
        self.stage.say(f"{when}: {told['ended']} tasks have ended")
        return told

    def judge(self, told: dict[str, Any], killed: dict[str, Any]) -> str:
        """Raise AssertionError if something does not hold; return figures."""
        orders, tasks = set(told["orders"]), [one[0] for one in told["tasks"]]
        assert orders == set(tasks) and len(tasks) == len(orders), (
            "a task exists if its order does, and once"
        )
        assert {one[1] for one in told["tasks"]} == {"SUCCESSFUL"}, "every task ends"
        begins: dict[str, dict[int, tuple[float, int]]] = defaultdict(dict)
        for order, attempt, at, token in told["begins"]:
            begins[order][attempt] = at, token
        assert begins.keys() == orders
        is_short = self.kills < MANY
        late_s = MOMENT_S + (BUSY_S if is_short else 0.0)
        lost, gaps = 0, [0.0]
        for order, _, errors, _ in killed["tasks"]:
            for number, error in enumerate(errors, 1):
                if not error["exception_class_path"].endswith("WorkerLost"):
                    continue
                lost += 1
                # Without a beginning the worker was killed between its claim and the task.
                if number in begins[order] and number + 1 in begins[order]:
                    gap_s, leases = self.waited(
                        begins[order][number], begins[order][number + 1]
                    )
                    assert gap_s <= leases * LEASE_S + late_s, (
                        f"a task was RUNNING without a worker for {gap_s:.1f} s, {leases} leases"
                    )
                    gaps.append(gap_s / leases)
        assert lost or is_short, "no worker had a task when it was killed"
        return (
            f"{lost} attempts lost, begun again after {max(gaps):.1f} s at most (lease "
            f"{LEASE_S:.0f} s)"
        )

    def waited(
        self, first: tuple[float, int], second: tuple[float, int]
    ) -> tuple[float, int]:
        """Return the seconds between two attempts, and how many leases passed, each for a
        worker's death.

        A worker that is killed before it has claimed a task has had its message for a
        lease, too.
        """
        deaths = sum(first[0] <= at <= second[0] for at in self.killed_at)
        leases = second[1] - first[1]
        assert 1 <= leases <= deaths, (
            f"{leases} leases passed, and {deaths} workers were killed"
        )
        return second[0] - first[0], leases


def run(stage: Stage, database: str, *, kills: int, restarts: int) -> str:
    return Workshop(stage, database, kills=kills, restarts=restarts).run()


def run_on_databases(
    stage: Stage, pair: Pair, *, kills: int, restarts: int, outages: int
) -> str:
    """Play with a MariaDB of its own for the application, and one for the node; both are
    restarted, too.
    """
    with own_server(stage, binlog=False) as node:
        application = mariadb.start(
            stage.directory / "application", port=free_port(), options=mariadb.NO_BINLOG
        )
        try:
            return Workshop(
                stage,
                application.url,
                kills=kills,
                restarts=restarts,
                databases={"node": node, "application": application},
                outages=outages,
                node=node_on(stage, pair, node),
            ).run()
        finally:
            application.stop()
