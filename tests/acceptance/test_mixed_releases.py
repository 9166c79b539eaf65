"""Brokers of two releases work together: a short form of `script/chaos mixed-releases`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from catmq_client import Consumer, HttpTransport, Producer
from catmq_client.errors import InvalidRequest
from catmq_client.reading import pull_commits
from tests.acceptance.scenarios import mixed_releases, rolling_upgrade
from tests.acceptance.scenarios.stage import Stage
from tests.support import previous
from tests.support.environment import ROOT
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.server import Server
from tests.support.waiting import until

BATCH = 50
# The client of the previous release: reads a batch, and commits it.
FORMER_CLIENT = """
import sys
from catmq_client import Consumer
with Consumer(sys.argv[1], group="former", topics=["t"], api_key=sys.argv[2]) as consumer:
    got = 0
    while got < int(sys.argv[3]):
        got += len(consumer.poll(10, timeout_s=1.0))
        consumer.commit()
print(consumer.__class__.__module__, got)
"""


def test_brokers_of_two_releases_lose_nothing_while_nodes_are_upgraded_under_them(
    on_pair: Stage, pair: Pair, tmp_path: Path
) -> None:
    mixed_releases.run_short(on_pair, pair, tmp_path / "previous")


def test_two_brokers_and_their_nodes_are_upgraded_one_by_one_under_load(
    mariadb: MariaDB, tmp_path: Path
) -> None:
    rolling_upgrade.run(mariadb, tmp_path, say=print, rate=100)


class Watched:
    """A transport that counts the pulls with commits that were answered, and refused."""

    def __init__(self, url: str, api_key: str) -> None:
        self.transport = HttpTransport(url, api_key=api_key)
        self.answered = self.refused = 0

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        carries = path.endswith("/pull") and "commit" in more["body"]
        try:
            answer = self.transport.request(method, path, **more)
        except InvalidRequest:
            self.refused += carries
            raise
        self.answered += carries
        return answer


def test_a_client_commits_with_pulls_only_at_brokers_that_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(pull_commits, "ASK_AGAIN_S", 0.0)
    former = previous.extracted(tmp_path / "previous")
    server = Server(tmp_path / "server", root=former, from_nothing=True).start()
    request.addfinalizer(lambda: server.end())
    server.call("POST", "/api/v1/topics", {"name": "t", "queues": 2})
    watched = Watched(server.url, server.api_key)
    options = {"auto_commit_interval_ms": 0, "max_poll_records": 10}
    got: list[bytes] = []

    def move_on(root: Path) -> None:
        """The other release takes over; a batch is sent, read and committed."""
        if server.root != root:
            server.end()
            server.root = root
            server.start()
        with Producer(server.url, api_key=server.api_key) as producer:
            producer.send_batch("t", [b"%d" % (len(got) + n) for n in range(BATCH)])
        goal = len(got) + BATCH
        until(
            lambda: (
                got.extend(m.body for m in consumer.poll(10, timeout_s=0.5))
                or (len(got) >= goal and committed() == goal)
            ),
            limit_s=60,
        )

    def committed() -> int:
        _, answer = server.call("GET", "/api/v1/groups/g/offsets")
        return sum(queue["committed"] for queue in answer["queues"])

    with Consumer(group="g", topics=["t"], transport=watched, **options) as consumer:
        move_on(former)
        assert (watched.answered, watched.refused) == (0, 0)
        while not watched.answered:
            move_on(ROOT)
        monkeypatch.setattr(pull_commits, "ASK_AGAIN_S", 600.0)
        assert watched.refused == 0
        carried = watched.answered
        move_on(former)
        move_on(former)
        assert watched.refused <= 1, "once refused, the field is left out"
        assert watched.answered <= carried + 1, "at most one pull was on its way"
    assert sorted(set(got), key=int) == [b"%d" % n for n in range(len(set(got)))]
    assert len(got) == len(set(got)), "nothing was read twice"
    server.end()
    server.root = ROOT
    server.start()
    told = subprocess.run(
        [sys.executable, "-c", FORMER_CLIENT, server.url, server.api_key, str(len(got))],
        env={"PYTHONPATH": str(former / "client/src")},
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert told.split() == ["catmq_client.consumer", str(len(got))]
