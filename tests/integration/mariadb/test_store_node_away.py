"""A MariaDB server that is frozen or killed: few find out, others are answered at once,
nobody restarts.

Two nodes on two servers; one of them is the session's and stays well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PullQueue
from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import MySqlSession
from messagestore.nodes import registry
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import queue_sql
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import consumer_ids
from metadata.errors import CatmqError, Code
from metadata.groups import groups
from metadata.membership import consumers
from tests.support.mariadb import MariaDB, is_connected
from tests.support.waiting import until

ACTOR = command("test")
CALLERS = 60
SLEEPING = (
    "SELECT COUNT(*) FROM information_schema.processlist WHERE info = 'DO SLEEP(300)'"
)
# an answer without the node takes microseconds; the machine does other things, too
AT_ONCE_S = 1.0


@pytest.fixture
def queues(
    ill: MariaDB, watched: None, make_node: Callable[..., str]
) -> Iterator[dict[str, int]]:
    """Node name → its queue of topic `orders`, with a message; the loop of circuits runs as
    in workers.
    """
    with ill.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": ill.port,
            "username": "catmq",
            "password": ill.password,
        }
        make_node("ill", engine="mysql", database=schema, **account)
        make_node("well")
        made = topics.create(name="orders", queues=2, actor=ACTOR)
        snapshot.refresh()
        found = {one.queue.node: one.queue.queue for one in made.queues}
        for queue in found.values():
            send(queue)
        yield found
        node_pools.evict_all()


def freeze(server: MariaDB) -> None:
    """Stops a server; returns when it stands still."""
    os.kill(server.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{server.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")


def send(queue: int, size: int = 1) -> Any:
    messages = [NewMessage(body=b"x", queue=queue)] * size
    return publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)[0]


def refusal(queue: int) -> tuple[CatmqError, float]:
    """What a send is refused with, and how long that took."""
    begun = time.monotonic()
    with pytest.raises(CatmqError) as caught:
        send(queue)
    return caught.value, time.monotonic() - begun


def takes(queue: int) -> bool:
    try:
        send(queue)
    except CatmqError:
        return False
    return True


def test_a_frozen_node_holds_few_threads_and_others_are_answered_at_once(
    ill: MariaDB, queues: dict[str, int]
) -> None:
    freeze(ill)
    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            waiting = [pool.submit(takes, queues["ill"]) for _ in range(CALLERS)]
            until(lambda: node_pools.unreachable_nodes() == ["ill"], limit_s=20)
            # Those inside a statement wait for its outcome; nobody waits for a place any
            # more.
            until(
                lambda: sum(not one.done() for one in waiting) <= config.pool_size,
                limit_s=20,
            )
            error, took_s = refusal(queues["ill"])
            assert (error.code, error.retriable) == (Code.NODE_UNAVAILABLE, True)
            assert error.retry_after_ms is not None
            assert took_s < AT_ONCE_S
            assert takes(queues["well"])
            os.kill(ill.pid, signal.SIGCONT)
            assert any(one.result(30) for one in waiting), "what was inside ends well"
        until(lambda: takes(queues["ill"]), limit_s=20)
        assert node_pools.unreachable_nodes() == []
    finally:
        os.kill(ill.pid, signal.SIGCONT)


@pytest.fixture
def member(queues: dict[str, int]) -> consumer_ids.ConsumerId:
    """The only member of a group that reads both queues."""
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    return consumer_ids.check(joined.consumer_id)


def test_a_pull_answers_for_other_nodes_and_says_which_queues_are_unavailable(
    ill: MariaDB, queues: dict[str, int], member: consumer_ids.ConsumerId
) -> None:
    assigned = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    claims = [Claim(one.queue, one.epoch) for one in assigned]
    assert {one.state for one in positions.acquire(consumer=member, queues=claims)} == {
        "ok"
    }
    asked = [PullQueue(claim.queue, claim.epoch, 0) for claim in claims]
    ends = [CommitOffset(claim.queue, claim.epoch, 1) for claim in claims]
    states = {queues["ill"]: "unavailable", queues["well"]: "ok"}
    freeze(ill)
    try:
        for _ in range(3):
            begun = time.monotonic()
            answers = pull.pull(
                consumer=member, queues=asked, max_messages=10, max_bytes=1 << 20
            )
            assert time.monotonic() - begun < AT_ONCE_S, "also before anybody found out"
            assert {one.queue: len(one.messages) for one in answers} == {
                queues["ill"]: 0,
                queues["well"]: 1,
            }
            assert {one.queue: one.head for one in answers} == {
                queues["ill"]: None,
                queues["well"]: 1,
            }
        committed = positions.commit(consumer=member, offsets=ends)
        assert {one.queue: one.state for one in committed} == states
        acquired = positions.acquire(consumer=member, queues=claims)
        assert {one.queue: one.state for one in acquired} == states
        until(lambda: node_pools.unreachable_nodes() == ["ill"], limit_s=20)
        answers = pull.pull(
            consumer=member, queues=asked, max_messages=10, max_bytes=1 << 20
        )
        assert {one.queue: one.state for one in answers} == states
    finally:
        os.kill(ill.pid, signal.SIGCONT)
    until(lambda: node_pools.unreachable_nodes() == [], limit_s=20)
    answers = pull.pull(consumer=member, queues=asked, max_messages=10, max_bytes=1 << 20)
    assert {one.state for one in answers} == {"ok"}


def test_a_late_answer_keeps_its_connection_and_the_node_is_asked_again_when_it_came(
    ill: MariaDB, queues: dict[str, int]
) -> None:
    node = node_pools.node_of(queues["ill"])
    freeze(ill)
    try:
        with pytest.raises(db_errors.SlowNode), node.reading(within_s=0.05) as session:
            queue_sql.read_heads(session, queues=None)
        with pytest.raises(db_errors.SlowNode), node.reading(within_s=9.0):
            pytest.fail("a node in doubt is not asked")
        assert node.pool.busy
    finally:
        os.kill(ill.pid, signal.SIGCONT)
    until(lambda: not node.pool.busy, limit_s=20)
    with node.reading(within_s=9.0) as again:
        assert again is session
        assert queue_sql.read_heads(again, queues=None) == {queues["ill"]: 1}


def test_reads_from_a_silent_node_are_not_waited_for(
    ill: MariaDB, queues: dict[str, int]
) -> None:
    node = node_pools.node_of(queues["ill"])
    freeze(ill)
    try:
        begun = time.monotonic()
        with pytest.raises(CatmqError) as caught:
            registry.ping(node.info.id)
        assert caught.value.code == Code.NODE_UNAVAILABLE
        assert time.monotonic() - begun < 9, "well below the time limit of a statement"
    finally:
        os.kill(ill.pid, signal.SIGCONT)
    until(lambda: takes(queues["ill"]), limit_s=20)


def test_a_write_ends_when_another_server_is_written_to(
    ill: MariaDB, queues: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = partial(session_pool.connect, read_timeout_s=300)
    monkeypatch.setattr(session_pool, "connect", patient)
    node = node_pools.node_of(queues["ill"])
    node.pool.discard()  # sessions with the usual timeout

    def write() -> None:
        with node.writing() as session:
            assert isinstance(session, MySqlSession)
            session.send(b"DO SLEEP(300)", statements=1)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(write)
        until(lambda: ill.execute(SLEEPING) == [(1,)], limit_s=20)
        node.pool.leave_server()
        # Not after 300 s, and with an unknown outcome.
        assert isinstance(waiting.exception(60), db_errors.Ambiguous)


def test_a_killed_node_is_answered_for_at_once_and_used_again_when_it_is_back(
    ill: MariaDB, queues: dict[str, int]
) -> None:
    os.kill(ill.pid, signal.SIGKILL)
    until(
        lambda: not Path(f"/proc/{ill.pid}/stat").exists() or not takes(queues["ill"]),
        limit_s=20,
    )
    until(
        lambda: not takes(queues["ill"]) and node_pools.unreachable_nodes() == ["ill"],
        limit_s=20,
    )
    error, took_s = refusal(queues["ill"])
    assert (error.code, took_s < AT_ONCE_S) == (Code.NODE_UNAVAILABLE, True)
    assert takes(queues["well"])
    ill.start()
    until(lambda: takes(queues["ill"]), limit_s=20)


def test_messages_that_may_go_anywhere_go_to_the_node_that_is_well(
    ill: MariaDB, queues: dict[str, int]
) -> None:
    os.kill(ill.pid, signal.SIGKILL)
    until(
        lambda: not takes(queues["ill"]) and node_pools.unreachable_nodes() == ["ill"],
        limit_s=20,
    )
    for _ in range(8):
        receipt = publish(
            topic="orders", messages=[NewMessage(body=b"x")], batch_id=None, actor=ACTOR
        )[0]
        assert receipt.queue == queues["well"]  # type: ignore[union-attr]
    ill.start()
    until(lambda: takes(queues["ill"]), limit_s=20)


def test_the_first_send_after_a_node_was_killed_is_refused_and_not_in_doubt(
    ill: MariaDB, queues: dict[str, int]
) -> None:
    idle = node_pools.node_of(queues["ill"]).pool._free
    assert idle, "there is a connection that the death of the node has closed"
    os.kill(ill.pid, signal.SIGKILL)
    try:
        until(lambda: not is_connected(ill))
        messages = [NewMessage(body=b"x", queue=queues["ill"])]
        with pytest.raises(CatmqError) as caught:
            publish(
                topic="orders", messages=messages, batch_id=batch_ids.new(), actor=ACTOR
            )
        assert (caught.value.code, caught.value.retriable) == (Code.NODE_UNAVAILABLE, True)
    finally:
        ill.start()
    until(lambda: takes(queues["ill"]), limit_s=20)
