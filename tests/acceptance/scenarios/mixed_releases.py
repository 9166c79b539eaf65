"""Brokers of two releases on the same metadata and nodes, which are upgraded while both of
them work.

The metadata is that of this release, and so is one node. The other one has the tables that
the previous release makes. Whatever happens: nothing is lost, no queue has two owners,
nobody meets an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import MySQLdb

from messagestore.engine import schema_steps
from tests.acceptance.scenarios.crowd import Crowd
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge, previous
from tests.support.environment import ROOT
from tests.support.pair import NODES, Pair
from tests.support.server import Server
from tests.support.waiting import until

QUEUES = 2  # on each node
EVERY_MS = 25
SESSION_MS = 15_000
MORE = 100  # messages that are handled between two events


@dataclass
class Mixed:
    """One play. `code` is where the previous release lies."""

    stage: Stage
    pair: Pair
    code: Path

    def run(self, events: Callable[[Mixed], None]) -> None:
        """Plays with the second broker at the previous release, and brings it back."""
        self.restart(self.pair.second, self.code)
        try:
            crowd = self.crowd = Crowd(
                self.stage,
                QUEUES,
                SESSION_MS,
                name="mixed",
                node=NODES[0],
                more_nodes=NODES[1:],
            )
            crowd.send(EVERY_MS)
            crowd.send_raw(EVERY_MS, urls=f"{self.pair.second.url},{self.pair.first.url}")
            here = [crowd.join() for _ in range(2)]
            crowd.await_shared(here)
            events(self)
            self.judge(crowd.finish(stall_s=30))
        finally:
            self.restart(self.pair.second, ROOT)

    def restart(self, server: Server, root: Path) -> None:
        """Ends a server, if it is not of that release, and starts the other release in its
        place.
        """
        if server.root != root:
            server.end()
            server.root = root
            server.start()
        node = server.call("GET", f"/api/v1/nodes/{NODES[0]}")[1]
        assert ("writer" in node) == (root == ROOT), (
            f"{server.url} is not the release it should be"
        )

    def work(self) -> None:
        """Returns when some more messages went through."""
        handled = self.crowd.handled()
        until(lambda: self.crowd.handled() >= handled + MORE, limit_s=60, every_s=0.05)

    def roll(self) -> None:
        """Each broker goes up to this release, and down again, while the other one works."""
        for server in (self.pair.second, self.pair.first):
            for root in (ROOT, self.code):
                self.restart(server, root)
                self.work()
        self.restart(self.pair.first, ROOT)

    def make_former(self, node: int) -> None:
        """Gives a node the version of the previous release; its tables differ only in the
        index of dead letters, of which a node for topics has none.
        """
        self.on_node(
            node, f"UPDATE node_identity SET schema_version = {schema_steps.VERSION - 1}"
        )

    def upgrade(self) -> None:
        """Upgrades the nodes while both releases work."""
        said = self.pair.first.manage("upgrade_nodes", "--pause-ms", "0")
        self.stage.say(said.strip().splitlines()[-1])
        for node in range(len(NODES)):
            found = self.on_node(node, "SELECT * FROM node_identity")
            assert len(found) == 1 and found[0][1:] == (schema_steps.VERSION, ""), (
                f"node {NODES[node]} has {found}"
            )

    def on_node(self, node: int, statement: str) -> tuple[tuple[object, ...], ...]:
        """The rows of a statement in a node's database."""
        server = self.pair.nodes
        with closing(
            MySQLdb.connect(
                host="127.0.0.1", port=server.port, user="catmq", passwd=server.password,
                db=self.pair.schemas[node], autocommit=True,
            )
        ) as connection:  # fmt: skip
            cursor = connection.cursor()
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    def judge(self, told: judge.Story) -> None:
        """What the journals show."""
        judge.no_errors(told)
        judge.one_owner(told)
        handled, repeated = judge.all_handled(told), judge.repeats(told)
        self.stage.say(f"OK: {handled} messages handled, {repeated.count} repeated")


def run_short(stage: Stage, pair: Pair, code: Path) -> None:
    """Both releases work, on nodes of both; the nodes are upgraded under them."""

    def events(play: Mixed) -> None:
        play.make_former(1)
        play.work()
        play.upgrade()
        play.work()

    Mixed(stage, pair, previous.extracted(code)).run(events)


def run(stage: Stage, pair: Pair, *, rounds: int) -> None:
    """The same, with each broker going up to this release and down again, before the
    upgrade and after it.
    """

    def events(play: Mixed) -> None:
        for number in range(rounds):
            stage.note(f"round {number + 1} of {rounds}: nodes of the previous release")
            play.make_former(0)
            play.make_former(1)
            play.roll()
            stage.note(f"round {number + 1} of {rounds}: nodes are upgraded")
            play.upgrade()
            play.roll()

    Mixed(stage, pair, previous.extracted(stage.directory.parent / "previous")).run(events)
