"""One of two nodes is killed while nothing is under way: what is sent then is stored on the
other, once.

The brokers' idle connections to it are dead by then. Who finds that out by using one must
not take it for a send whose outcome is unknown, which would have to wait for the node.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from catmq_client import Producer, Receipt
from tests.acceptance.scenarios.lost_nodes import node_on, own_server
from tests.acceptance.scenarios.stage import Stage
from tests.support import mariadb
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.waiting import until

QUEUES = 2  # on each of the two nodes
SENDERS = 12  # each with a producer that has sent before
WARM = 20  # messages of each before a kill
LIMIT_S = 5.0


def run(stage: Stage, pair: Pair, *, rounds: int) -> None:
    """Kills, sends and starts the node again so many times."""
    with own_server(stage) as server:
        node, topic = node_on(stage, pair, server), stage.fresh("dead")
        admin = stage.terminal.admin
        admin.create_topic(topic, queues=QUEUES, node="n1")
        admin.expand_topic(topic, queues=QUEUES, node=node)
        until(lambda: len(admin.topic(topic)["queues"]) == 2 * QUEUES)
        receipts: list[Receipt] = []
        slowest = 0.0
        for _ in range(rounds):
            with ExitStack() as stack:
                senders = [stack.enter_context(sender(stage)) for _ in range(SENDERS)]
                receipts += warm(senders, topic)
                slowest = max(slowest, after_the_kill(senders, topic, server, receipts))
            server.start()
        check(stage, topic, receipts)
        stage.say(
            f"{rounds} kills, {len(receipts)} receipts, the slowest after a kill took "
            f"{slowest:.2f} s"
        )


def sender(stage: Stage) -> Producer:
    """A producer that sends each message by itself."""
    return Producer(stage.urls, api_key=stage.server.api_key, linger_ms=0, batch_messages=1)


def warm(senders: Sequence[Producer], topic: str) -> list[Receipt]:
    """Sends at once from all, so that every worker has connections to both nodes, which
    idle afterwards.
    """
    sent = [one.send_async(topic, b"warm") for one in senders for _ in range(WARM)]
    return [one.result(60) for one in sent]


def after_the_kill(
    senders: Sequence[Producer], topic: str, server: MariaDB, receipts: list[Receipt]
) -> float:
    """The longest that a send takes while the node is dead, s; none may take longer than
    LIMIT_S.
    """
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not mariadb.is_connected(server), limit_s=10, every_s=0.001)
    begun = time.monotonic()
    sent = [one.send_async(topic, b"%d" % number) for number, one in enumerate(senders)]
    receipts += [one.result(LIMIT_S) for one in sent]
    return time.monotonic() - begun


def check(stage: Stage, topic: str, receipts: list[Receipt]) -> None:
    """As many messages are stored as were acknowledged, each at a place of its own."""
    places = Counter((one.queue, one.offset) for one in receipts)
    assert not [place for place, count in places.items() if count > 1]
    until(lambda: stage.stored(topic) == len(receipts), limit_s=30, every_s=0.2)
