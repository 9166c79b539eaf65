"""The server of a failure node is killed with -9 while failures are stored: none is lost or
doubled.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from messagestore.pool import node_pools
from messagestore.tables import dead_letter_sql, delayed_sql
from metadata.cache import snapshot
from tests.support import failing, moving
from tests.support.failing import fail, failure_queues
from tests.support.mariadb import MariaDB, is_alive
from tests.support.waiting import until

COUNT = 12
KILLED_AT = 5  # the message at which the server dies


@pytest.fixture
def queue(ill: MariaDB, make_node: Callable[..., str]) -> Iterator[int]:
    """The queue of topic `orders` on a server that stays well; the failure node's is
    killed.
    """
    with ill.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": ill.port,
            "username": "catmq",
            "password": ill.password,
        }
        make_node("main")
        make_node("failure", kind="failure", engine="mysql", database=schema, **account)
        made = failing.billing()
        failing.send(*(b"%02d" % number for number in range(COUNT)))
        yield made
        node_pools.evict_all()


def killing(server: MariaDB, call: Callable[..., Any], moment: str) -> Callable[..., Any]:
    """The call, except that the server is killed before, during or after its KILLED_AT-th
    use.
    """
    used = 0

    def kill() -> None:
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not is_alive(server))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal used
        used += 1
        if used != KILLED_AT:
            return call(*args, **kwargs)
        if moment == "before":
            kill()
        if moment != "during":
            result = call(*args, **kwargs)
            kill()
            return result
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            return call(*args, **kwargs)
        finally:
            killer.join()

    return wrapped


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("step", ["insert_delayed", "insert_dead"])
def test_what_was_answered_is_there_and_the_rest_is_stored_by_the_repeat(
    queue: int, ill: MariaDB, moment: str, step: str
) -> None:
    failing.change(retries=0 if step == "insert_dead" else 5)
    who = failing.member()
    with pytest.MonkeyPatch.context() as patch:
        module = delayed_sql if step == "insert_delayed" else dead_letter_sql
        patch.setattr(module, step, killing(ill, getattr(module, step), moment))
        first = fail(who, queue, *range(COUNT))
    assert first.refused
    ill.start()
    node_pools.evict_all()
    snapshot.refresh()
    again = fail(who, queue, *range(COUNT), error="TypeError: another one")
    assert not again.refused
    assert len(again.retried) + len(again.dead) == COUNT
    assert stored() == [b"%02d" % number for number in range(COUNT)]


def stored() -> list[bytes]:
    """The bodies of all copies and of all dead messages."""
    place = failure_queues()[0]
    moving.make_due(place)
    while moving.mover(place).move():
        pass
    copies = [one.body for queue in failure_queues() for one in moving.stored(queue)]
    dead = [body for (body,) in failing.on_failure_node("SELECT body FROM dead_message")]
    return sorted(copies + dead)
