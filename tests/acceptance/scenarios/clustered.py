"""Rounds on a cluster of three database servers, under keyed sends and a group of consumers.

In each round the server that is written to is killed, frozen, cut off, and cut off one way,
so that the others hear it and it hears nothing. All members are restarted one after the
other, and a minority is left alone with the brokers. What is on the cluster is the node, the
metadata database, or both. Two brokers follow the writer without a hand. At the end of a
round journals and tables are judged as in every trial: nothing that was acknowledged is
lost, no offset is given twice, there is no gap and no second owner, and keys keep their
order.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.acceptance.scenarios.crowd import Crowd, Sender
from tests.acceptance.scenarios.stage import Stage
from tests.acceptance.scenarios.trial import (
    SESSION_MS,
    Database,
    Trial,
    kept_schema,
    register,
)
from tests.support import broker_logs, clusters, judge, mariadb, pair
from tests.support.clusters import Cluster
from tests.support.environment import free_port
from tests.support.pair import Brokers
from tests.support.waiting import until

KINDS = ("galera", "group")
KILL, FREEZE, CUT, ONE_WAY = "kill", "freeze", "cut", "one-way"
RESTART, MINORITY = "restart", "minority"
FAULTS = (KILL, FREEZE, CUT, ONE_WAY, RESTART, MINORITY)
NODE, METADATA, BOTH = "node", "metadata", "both"
PLACES = (NODE, METADATA, BOTH)
ROUNDS, PER_S = 10, 500
QUEUES = 4
# Without a hand: the longest time in which no queue gets a receipt. Galera suspects a silent
# member after 5 s, and has 10 s more. A group expels it after 10 s, and then elects.
RESUME_S = {"galera": 15.0, "group": 30.0}
METADATA_S = 30.0  # until all workers of both brokers reach the metadata again
REFUSE_S = 5.0  # for the answer of a broker that reaches only a minority
PROBES = 3  # sends to each of those brokers
AWAIT_S = 120.0  # longer than every limit, so that a failure has its figure
# Errors of clusters that may end a traceback: docs/reference/cluster-errors.md.
OF_CLUSTERS = (
    r"(django\.db\.utils|MySQLdb)\.\w*Error: "
    r"\(?(1047|1180|1290|1792|1836|3100|3101|378[1-3]|379\d)\b"
)
# The begin of a chain that ends in an outage: django-q looks for the row of a finished task
# before it writes it.
OF_DJANGO_Q = r"django_q\.models\.Task\.DoesNotExist\b"


@dataclass(frozen=True)
class Plan:
    """What is played: `place` is what is on the cluster, `per_s` the rate of sends."""

    kind: str
    place: str = NODE
    faults: Sequence[str] = FAULTS
    rounds: int = ROUNDS
    per_s: int = PER_S


class Pause(NamedTuple):
    """The effect of a fault, in seconds.

    `sends_s` is the longest time in which a queue got no receipt, `metadata_s` the time until
    both brokers reached the metadata, 0 if it is not on the cluster.
    """

    fault: str
    sends_s: float
    metadata_s: float


def run(
    home: Path, plan: Plan, *, rng: random.Random, say: Callable[[str], None]
) -> list[Pause]:
    """Play all rounds and return the pauses. Raises AssertionError; skips if the servers
    cannot be had.
    """
    pauses: list[Pause] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(clusters.running(plan.kind, home / "cluster"))
        if {CUT, ONE_WAY, MINORITY} & {*plan.faults}:
            clusters.require_links(cluster)
        database: Database = cluster
        metadata_url = cluster.url("catmq")
        if plan.place != BOTH:
            single = mariadb.start(home / "single", port=free_port(), options=mariadb.SMALL)
            stack.callback(single.stop)
            if plan.place == METADATA:
                database = single
            else:
                metadata_url = single.url
        environ = {"CATMQ_DATABASE_URL": metadata_url}
        brokers = stack.enter_context(pair.running_brokers(home, [environ, environ]))
        say(f"{plan.kind}: the {plan.place} on {cluster.addresses}")
        stack.callback(keep_logs, cluster, home)
        for number in range(1, plan.rounds + 1):
            stage = Stage(brokers.first, home / f"round-{number}", rng, say, brokers.urls)
            try:
                with prepared(stage, brokers, cluster, database) as trial:
                    pauses += Round(stage, plan, cluster, trial, number).run()
            finally:
                stage.terminal.close()
        for line in summary(plan, pauses):
            say(line)
    return pauses


def keep_logs(cluster: Cluster, home: Path) -> None:
    """Copy the servers' logs, since the cluster is deleted when a play has failed, too."""
    for log in cluster.directory.glob("*/error.log"):
        shutil.copy(log, home / f"member-{log.parent.name}.log")


def summary(plan: Plan, pauses: Sequence[Pause]) -> Iterator[str]:
    """Yield a line for each fault: the median and the longest pause."""
    for fault in plan.faults:
        of_fault = [pause for pause in pauses if pause.fault == fault]
        sends = [pause.sends_s for pause in of_fault]
        line = (
            f"{plan.kind}, {plan.place}, {fault}: {len(sends)} rounds, sends resumed after "
            f"{statistics.median(sends):.1f} s (median), {max(sends):.1f} s (longest)"
        )
        if plan.place != NODE:
            metadata = [pause.metadata_s for pause in of_fault]
            line += f"; metadata {statistics.median(metadata):.1f} s, {max(metadata):.1f} s"
        yield line


@contextmanager
def prepared(
    stage: Stage, brokers: Brokers, cluster: Cluster, database: Database
) -> Iterator[Trial]:
    """Register a node of the round's own on the cluster, or on a single server, with a topic."""
    with kept_schema(database) as schema:
        name = stage.fresh("round")
        node = {"name": name, "database": schema}
        if isinstance(database, mariadb.MariaDB):
            node |= {"host": f"127.0.0.1:{database.port}", "password": database.password}
        else:
            node |= {"host": cluster.addresses, "password": cluster.password}
        register(brokers, node)
        crowd = Crowd(stage, QUEUES, SESSION_MS, name="cluster", node=name)
        expected = (*broker_logs.UNAVAILABLE_ERRORS, OF_CLUSTERS, OF_DJANGO_Q)
        yield Trial(stage, brokers, crowd, database, (name,), (schema,), (), (), expected)
        # Or brokers would go on asking for the schema that is dropped now.
        brokers.first.call("PATCH", f"/api/v1/nodes/{name}", {"state": "offline"})


@dataclass
class Round:
    """All faults of a plan, one after the other, in one trial."""

    stage: Stage
    plan: Plan
    cluster: Cluster
    trial: Trial
    number: int

    def run(self) -> list[Pause]:
        """Play and judge."""
        self.trial.begin(senders=0, raw=1)
        self.sender: Sender = self.trial.crowd.send_keyed(self.plan.per_s)
        pauses = []
        for fault in self.plan.faults:
            self.await_receipts(time.monotonic())
            self.stage.note(f"round {self.number} of {self.plan.rounds}: {fault}")
            pauses.append(self.strike(fault))
        self.trial.finish()
        return pauses

    def strike(self, fault: str) -> Pause:
        """Play a fault, wait until everything has resumed and the cluster is whole."""
        started_at = time.monotonic()
        if fault == RESTART:
            for member in self.cluster.members:
                self.cluster.stop(member)
                self.cluster.start(member)
        elif fault == MINORITY:
            self.leave_minority_alone()
            started_at = time.monotonic()
            self.cluster.heal()
        elif fault == ONE_WAY:
            self.cluster.cut(self.cluster.find_written().member, "--one-way")
        else:
            getattr(self.cluster, fault)(self.cluster.find_written().member)
        struck_at = time.monotonic()
        self.await_receipts(struck_at)
        metadata_s = 0.0
        if self.plan.place != NODE:
            until(self.trial.pair.reach_metadata, limit_s=AWAIT_S, every_s=0.2)
            metadata_s = time.monotonic() - struck_at
            self.let_member_come_and_go()
        self.trial.more(4 * QUEUES, limit_s=AWAIT_S)
        self.cluster.await_whole()
        # The writer may move once more when the former one is back.
        self.await_receipts(time.monotonic())
        sends_s = judge.longest_silence(self.sender.told("sent"), since=started_at)
        pause = Pause(fault, sends_s, metadata_s)
        self.stage.say(
            f"  sends paused for {pause.sends_s:.1f} s"
            + (f", metadata for {metadata_s:.1f} s" if metadata_s else "")
        )
        limit_s = RESUME_S[self.plan.kind]
        assert pause.sends_s <= limit_s, (
            f"{fault}: a queue got no receipt for {pause.sends_s:.1f} s, the limit is {limit_s} s"
        )
        assert metadata_s <= METADATA_S, f"{fault}: no metadata for {metadata_s:.1f} s"
        return pause

    def leave_minority_alone(self) -> None:
        """Cut the writer off from the other members, and these from the brokers.

        Then every send is refused in time.
        """
        # A send that waits in COMMIT when the others vanish may be stored, so these sends are
        # not among those that are judged.
        topic = f"{self.trial.crowd.topic}-minority"
        body = {"name": topic, "queues": 1, "node": self.trial.nodes[0]}
        status, answer = self.trial.pair.first.call("POST", "/api/v1/topics", body)
        assert status in (201, 409), answer
        alone = self.cluster.find_written().member
        for member in self.cluster.members:
            if member != alone:
                self.cluster.cut(member, "--only-clients")
        self.cluster.cut(alone)
        self.cluster.await_state(lambda members: not members[alone].primary)
        if self.plan.place == METADATA:
            return  # the node is not on the cluster, so sends go on
        longest_s = 0.0
        for server in self.trial.pair.servers * PROBES:
            asked_at = time.monotonic()
            status, answer = server.call(
                "POST",
                f"/api/v1/topics/{topic}/messages",
                {"messages": [{"body": "to a minority"}]},
            )
            took_s = time.monotonic() - asked_at
            longest_s = max(longest_s, took_s)
            assert status in (503, 504), f"a minority answered {status}: {answer}"
            assert took_s <= REFUSE_S, f"refused after {took_s:.1f} s: {answer}"
        self.stage.say(f"  a minority refuses sends, within {longest_s:.1f} s")

    def let_member_come_and_go(self) -> None:
        """Show that the metadata takes writes: a new member gets queues, and gives them back."""
        crowd, members = self.trial.crowd, self.trial.members
        newcomer = crowd.join()
        crowd.await_shared([*members, newcomer], limit_s=AWAIT_S)
        crowd.leave(newcomer)
        newcomer.await_end()
        crowd.await_shared(members, limit_s=AWAIT_S)

    def await_receipts(self, since: float) -> None:
        """Wait until each queue has a receipt for a message that was sent after `since`."""
        queues = set(self.trial.crowd.ids)

        def has_resumed() -> bool:
            recent = [line for line in self.sender.told("sent") if line["asked"] > since]  # type: ignore[operator]
            return queues <= {line["queue"] for line in recent}

        until(has_resumed, limit_s=AWAIT_S, every_s=0.2)
