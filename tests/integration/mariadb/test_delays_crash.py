"""MariaDB is killed before each statement of a move, and after its commit: every message
comes once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from messagestore.engine.mysql_session import MySqlSession
from messagestore.pool import node_pools
from messagestore.topology import topics
from messagestore.verify import verify
from metadata.actors import command
from metadata.errors import CatmqError
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB, start
from tests.support.moving import bodies, delay, make_due, mover, waiting
from tests.support.waiting import until

ACTOR = command("test")
STEPS = (
    "GROUP BY queue_id",
    "ORDER BY due_at",
    "FOR UPDATE SKIP LOCKED",
    "DELETE FROM delayed",
    "COMMIT",
)


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[MariaDB]:
    """A server of this test's own, with a synced binary log."""
    options = ["--log-bin", "--sync-binlog=1", "--server-id=1", "--binlog-format=ROW"]
    server = start(tmp_path / "crashing", port=free_port(), options=options)
    yield server
    server.stop()


def test_kill_9_of_the_server_at_any_step_of_a_move_loses_and_doubles_nothing(
    crashing: MariaDB, make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing.schema() as schema:
        account = {"host": "127.0.0.1", "port": crashing.port, "username": "catmq"}
        make_node(
            "crashing",
            engine="mysql",
            database=schema,
            password=crashing.password,
            **account,
        )
        queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
        expected: list[bytes] = []
        for after in (False, True):
            for step in STEPS:
                body = f"{step} {after}".encode()
                expected.append(body)
                delay("orders", body)
                make_due(queue)
                with monkeypatch.context() as patch:
                    _kill_at(crashing, step.encode(), patch, after=after)
                    with suppress(CatmqError):
                        mover(queue).move()
                node_pools.evict_all()
                while mover(queue).move():
                    pass
                assert (bodies(queue), waiting(queue)) == (expected, []), (step, after)
        assert verify(topics=["orders"], actor=ACTOR, digests=True).findings == ()


def _kill_at(
    server: MariaDB, step: bytes, patch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """The server dies at the next string that contains `step`: before it, or when it was
    answered.
    """
    send = MySqlSession.send
    armed = True

    def dying(session: MySqlSession, text: bytes, **more: bool) -> object:
        nonlocal armed
        if not armed or step not in text:
            return send(session, text, **more)
        armed = False
        answer = send(session, text, **more) if after else None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: _dead(server), limit_s=10)
        server.start()
        return answer if after else send(session, text, **more)

    patch.setattr(MySqlSession, "send", dying)


def _dead(server: MariaDB) -> bool:
    try:
        return (
            "Z"
            in Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
        )
    except OSError:
        return True
