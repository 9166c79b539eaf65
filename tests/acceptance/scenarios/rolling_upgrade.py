"""Two brokers of the previous release become brokers of this one under load, one after the
other; then the nodes are upgraded. docs/how-to/upgrade.md has the same order.

The metadata and the nodes are those of the previous release at first, and so are the
producer and the consumers, to the end. No send fails, no message is lost, and no queue has
two owners.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from messagestore.engine import schema_steps
from tests.acceptance.scenarios.crowd import Crowd
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge, previous
from tests.support import pair as pairs
from tests.support.environment import ROOT
from tests.support.mariadb import MariaDB
from tests.support.pair import NODES, Pair
from tests.support.waiting import until

QUEUES = 2  # on each node
SESSION_MS = 15_000
RATE = 500  # messages a second, in all
STEP_S = 2  # as many messages are handled between two steps


def run(
    nodes: MariaDB, home: Path, *, say: Callable[[str], None], rate: int = RATE
) -> float:
    """Upgrade a pair of the previous release, whose nodes are on a server of its own.

    Return the longest time in seconds that a message waited for a consumer.
    """
    code = previous.extracted(home / "previous")
    with pairs.running(home / "pair", nodes, root=code) as pair:
        stage = Stage(pair.first, home / "stage", say=say, urls=pair.urls)
        stage.terminal.environ["PYTHONPATH"] = f"{ROOT}:{code / 'client/src'}"
        try:
            return _upgrade(stage, pair, rate)
        finally:
            stage.terminal.close()


def _upgrade(stage: Stage, pair: Pair, rate: int) -> float:
    crowd = Crowd(
        stage, QUEUES, SESSION_MS, name="rolling", node=NODES[0], more_nodes=NODES[1:]
    )
    crowd.send(round(1000 * len(crowd.ids) / rate))
    crowd.await_shared([crowd.join(environ={}) for _ in range(2)])

    def handle_more() -> None:
        goal = crowd.handled() + STEP_S * rate
        until(lambda: crowd.handled() >= goal, limit_s=60, every_s=0.05)

    handle_more()
    for server in pair.servers:
        server.end()
        server.root = ROOT
        server.start()
        stage.say(f"{server.url} has the new release")
        handle_more()
    pair.first.manage("upgrade_nodes", "--pause-ms", "0")
    handle_more()

    def node_version(name: str) -> int:
        return int(pair.first.call("GET", f"/api/v1/nodes/{name}")[1]["schema_version"])

    # Brokers look at the version every few seconds.
    until(
        lambda: {node_version(name) for name in NODES} == {schema_steps.VERSION}, limit_s=30
    )

    story = crowd.finish(stall_s=30)
    judge.no_errors(story)
    judge.one_owner(story)
    judge.repeats(story)
    longest_s = max(judge.longest_waits(story).values())
    stage.say(
        f"OK: {judge.all_handled(story)} messages, the longest wait for a consumer was "
        f"{longest_s:.2f} s"
    )
    return longest_s
