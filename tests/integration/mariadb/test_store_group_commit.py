"""Senders of one queue who come while a transaction of it runs share the next one, and each
its fate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any
from uuid import UUID

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce import group_commit
from messagestore.produce.publish import Receipt, publish
from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import Conflict, OutcomeUnknown
from tests.support import commits
from tests.support.mariadb import MariaDB
from tests.support.waiting import until

ACTOR = command("test")


class Crowd:
    """Senders of the only queue of topic `orders`, held up until all of them are there."""

    def __init__(self, server: MariaDB, queue: int, pool: ThreadPoolExecutor) -> None:
        self.server, self.queue, self.pool = server, queue, pool
        self.schema = node_pools.node_of(queue).info.database
        self.sent = 0

    def send(
        self, count: int = 1, batch_id: UUID | None = None, name: int = 0
    ) -> Future[Any]:
        """A batch in a thread of its own; `name` tells it from others."""
        self.sent += 1
        messages = [
            NewMessage(body=b"%d-%d" % (name or self.sent, index)) for index in range(count)
        ]
        return self.pool.submit(
            publish, topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR
        )

    def together(self, *sends: Callable[[], Future[Any]]) -> list[Future[Any]]:
        """The first is held up in the database until all others wait for the next
        transaction.
        """
        with closing(self.server.connect(db=self.schema)) as foreign:
            foreign.autocommit(False)
            foreign.cursor().execute("SELECT head FROM queue_head FOR UPDATE")
            futures = [self.send()]
            until(lambda: group_commit.coalescer_of(self.queue)._has_leader)
            for number, send in enumerate(sends, 1):
                futures.append(send())
                until(
                    lambda number=number: (
                        group_commit.coalescer_of(self.queue).waiting() == number
                    )
                )  # type: ignore[misc]
            foreign.rollback()
        return futures

    def rows(self, statement: str) -> list[Any]:
        return self.server.execute(statement.format(s=self.schema, q=self.queue))

    def bodies(self) -> list[bytes]:
        found = self.rows(
            "SELECT msg_offset, body FROM {s}.message_{q} ORDER BY msg_offset"
        )
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert int(self.rows("SELECT head FROM {s}.queue_head")[0][0]) == len(found)
        return [body for _, body in found]


@pytest.fixture
def crowd(mariadb: MariaDB, node: str) -> Iterator[Crowd]:
    """Nobody has sent yet."""
    queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    with ThreadPoolExecutor(16) as pool:
        yield Crowd(mariadb, queue, pool)


def begun(server: MariaDB) -> int:
    """How many transactions the server has begun."""
    return int(server.execute("SHOW GLOBAL STATUS LIKE 'Com_begin'")[0][1])


def test_those_who_wait_share_a_transaction_and_each_gets_its_own_offsets(
    crowd: Crowd,
) -> None:
    before = begun(crowd.server)
    futures = crowd.together(*[lambda size=size: crowd.send(size) for size in (1, 3, 2)])
    receipts = [future.result(20) for future in futures]
    assert begun(crowd.server) - before == 2
    assert [[one.offset for one in mine] for mine in receipts] == [
        [0],
        [1],
        [2, 3, 4],
        [5, 6],
    ]
    assert crowd.bodies() == [b"1-0", b"2-0", b"3-0", b"3-1", b"3-2", b"4-0", b"4-1"]
    stored = crowd.rows(
        "SELECT first_offset, message_count FROM {s}.sent_batch ORDER BY first_offset"
    )
    assert stored == [(0, 1), (1, 1), (2, 3), (5, 2)]


def test_nobody_waits_for_a_crowd_that_is_too_large(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MOST_BYTES", 12)  # each batch has nine
    before = begun(crowd.server)
    futures = crowd.together(*[lambda: crowd.send(3)] * 3)
    assert [future.result(20)[0].offset for future in futures] == [0, 1, 4, 7]
    assert begun(crowd.server) - before == 4


def test_a_batch_that_spoils_a_shared_transaction_fails_alone(crowd: Crowd) -> None:
    known, repeated = batch_ids.new(), batch_ids.new()
    crowd.send(2, known).result(20)
    first = crowd.send(1, repeated, name=50).result(20)
    _, again, good, bad, last = crowd.together(
        lambda: crowd.send(1, repeated, name=50),
        crowd.send,
        lambda: crowd.send(1, known),
        crowd.send,
    )
    assert again.result(20) == first
    with pytest.raises(Conflict, match="batch_id"):
        bad.result(20)
    assert isinstance(good.result(20)[0], Receipt) and isinstance(
        last.result(20)[0], Receipt
    )
    assert len(crowd.bodies()) == 2 + 1 + 1 + 2


def test_a_shared_transaction_whose_end_was_not_seen_is_cleared_up_for_each(
    crowd: Crowd,
) -> None:
    with ExitStack() as stack:
        futures = crowd.together(*[crowd.send] * 4, lambda: _block(stack, crowd))
        running = f"db = '{crowd.schema}' AND state LIKE '%{commits.STATE}%'"
        listed = f"SELECT id FROM {commits.PROCESSLIST} WHERE {running}"
        for _ in range(2):  # the first sender's own transaction, then the shared one
            ((victim,),) = until(lambda: crowd.server.execute(listed))
            crowd.server.execute(f"KILL CONNECTION {victim}")
            until(lambda victim=victim: (victim,) not in crowd.server.execute(listed))  # type: ignore[misc]
    for future in futures:
        try:
            assert isinstance(future.result(30)[0], Receipt)
        except OutcomeUnknown:
            continue
    bodies = crowd.bodies()
    assert len(set(bodies)) == len(bodies), "nothing is stored twice"
    answered = [
        future.result()[0].offset for future in futures if future.exception() is None
    ]
    assert len(set(answered)) == len(answered)


def _block(stack: ExitStack, crowd: Crowd) -> Future[Any]:
    """One more sender; from now on no commit gets through soon."""
    future = crowd.send()
    stack.enter_context(commits.held_up(crowd.server))
    return future
