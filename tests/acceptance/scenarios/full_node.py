"""A node's disk is full (error 1114) while another node works: that one is not disturbed.

Whoever sends to the full node is told `node_full`, which is retriable, and its sends go
through once there is room again; nothing of what was refused is stored, and nothing
acknowledged is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from catmq_client import Producer, Receipt
from catmq_client.errors import CatmqError
from tests.acceptance.scenarios.crowd import Crowd
from tests.acceptance.scenarios.lost_nodes import (
    LEAST_S,
    QUEUES,
    SESSION_MS,
    Played,
    node_on,
)
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge, mariadb
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.waiting import until

# Bodies that fill it up. MariaDB 10.11.19 and 11.8 abort when one above 8 KB or so meets a
# full disk.
SIZE = 5_000
BATCH = 50
REFUSED_S = 1.0  # who was refused while the node was full waited longer than this
BACK_S = 20.0
SETTLE_S = 1.0  # to fill it is a load of its own for the machine


def options(most_mb: int) -> tuple[str, ...]:
    """A server with one tablespace for everything, which may take so many MB."""
    space = f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{most_mb}M"
    return ("--innodb-file-per-table=0", space, *mariadb.SMALL)


@contextmanager
def small_server(stage: Stage) -> Iterator[MariaDB]:
    """A database server with little room."""
    server = mariadb.start(
        stage.directory / "small-node", port=free_port(), options=options(24)
    )
    try:
        yield server
    finally:
        server.stop()


def fill(stage: Stage, node: str) -> str:
    """Sends to the node until it has no room even for a small message; the topic."""
    topic = stage.fresh("filler")
    stage.terminal.admin.create_topic(topic, queues=1, node=node)
    urls = stage.terminal.environ["CATMQ_URL"].split(",")
    producing = Producer(urls, api_key=stage.server.api_key, delivery_timeout_ms=1_000)
    with producing as producer:
        for messages in (BATCH, 1):  # one at a time only for the last of the room
            sent: list[Receipt | CatmqError] = []
            while not any(isinstance(one, CatmqError) for one in sent):
                sent = producer.send_batch(topic, [b"x" * SIZE] * messages)
    return topic


def run(stage: Stage, pair: Pair, *, watch_s: float) -> None:
    """The node is watched for so long before it is full, and while it is."""
    with small_server(stage) as server:
        node = node_on(stage, pair, server)
        full = Played(stage, Crowd(stage, QUEUES, SESSION_MS, name="full", node=node))
        well = Played(stage, Crowd(stage, QUEUES, SESSION_MS, name="well"))
        for play in (full, well):
            play.begin()
        calm = time.monotonic()
        until(lambda: time.monotonic() >= calm + watch_s, limit_s=watch_s + 60)
        begun = time.monotonic()
        topic = fill(stage, node)
        filled = time.monotonic() + SETTLE_S
        message = {"messages": [{"body": "x" * SIZE}]}
        status, problem = stage.server.call(
            "POST", f"/api/v1/topics/{topic}/messages", message
        )
        assert (status, problem["code"], problem["retriable"]) == (
            503,
            "node_full",
            True,
        ), problem
        until(lambda: time.monotonic() >= filled + watch_s, limit_s=watch_s + 60)
        over = time.monotonic()
        # a full tablespace refuses even what would make room in it: it is given more
        server.stop()
        replace(server, options=options(96)).start()
        full.more(2 * QUEUES, limit_s=BACK_S)
        back_s = time.monotonic() - over
        judge_both(stage, (full, well), (calm, begun, filled, over))
        stage.say(
            f"told: {problem['detail']} It went on {back_s:.2f} s after there was room"
        )


def judge_both(
    stage: Stage, plays: tuple[Played, Played], times: tuple[float, float, float, float]
) -> None:
    """Everything acknowledged was handled on both nodes, and the well one was as quick as
    before.
    """
    calm, begun, filled, over = times
    stories = [play.crowd.finish(stall_s=60) for play in plays]
    for told in stories:
        judge.no_errors(told)
        judge.one_owner(told)
        judge.all_handled(told)
    refused = judge.receipts(stories[0], filled, over)
    assert max(refused) > REFUSED_S, "no send met the full node"
    stage.say(
        f"the other node: {judge.undisturbed(stories[1], (calm, begun), (filled, over), LEAST_S)}"
    )
