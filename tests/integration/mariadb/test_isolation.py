"""Transactions at REPEATABLE READ, as users may run them: MariaDB 11.6 and later ends some
of them (1020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connection, connections

from catmq_client import Message
from catmq_client.contrib.django_outbox import claims
from catmq_client.contrib.django_outbox.inbox import handled_once
from catmq_client.contrib.django_outbox.models import InboxMessage, OutboxRelay
from catmq_client.message import Source, make_row
from tests.support import outboxes
from tests.support.mariadb import MariaDB
from tests.support.outboxes import Relays
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

LEVEL = "SET SESSION TRANSACTION ISOLATION LEVEL {}"


@pytest.fixture
def relays(django_db_setup: None, django_db_blocker: Any) -> Iterator[Relays]:
    """Relays on an empty outbox."""
    broker = SimulatedBroker()
    broker.create_topic("t", queues=1, nodes=["a"])
    with django_db_blocker.unblock():
        outboxes.forget_all()
        yield Relays(broker)
        outboxes.forget_all()
        connections.close_all()


@contextmanager
def repeatable_read() -> Iterator[None]:
    """This thread's connection at the level that servers have by default; Django's own is
    READ COMMITTED.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(LEVEL.format("REPEATABLE READ"))
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(LEVEL.format("READ COMMITTED"))


def other(server: MariaDB, statement: str) -> None:
    """Somebody else's statement on the same database, committed."""
    with closing(server.connect(db=connection.settings_dict["NAME"])) as connected:
        connected.cursor().execute(statement)


def refuses_stale_writes(server: MariaDB) -> bool:
    """Return True if the server refuses to change a row that changed since the
    transaction's first read.
    """
    return ("ON",) in [
        row[1:] for row in server.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
    ]


def message() -> Message:
    view = {
        "offset": 0,
        "message_id": "7-0",
        "body_bytes": b"",
        "headers": None,
        "stored_at_ms": 0,
    }
    return Message(Source("t", 7, 1), make_row(view))


def test_a_handler_whose_row_changed_since_it_was_read_is_called_again(
    relays: Relays, mariadb: MariaDB
) -> None:
    relays.new("first")
    seen: list[str] = []

    @handled_once(scope="s")
    def handle(_: Message) -> None:
        relay = OutboxRelay.objects.get(pk=1)
        seen.append(relay.holder)
        if len(seen) == 1:
            other(mariadb, "UPDATE catmq_outbox_outboxrelay SET holder = 'second'")
        relay.holder += " and this"
        relay.save()

    with repeatable_read():
        handle(message())
    again = refuses_stale_writes(mariadb)
    assert seen == (["first", "second"] if again else ["first"])
    assert OutboxRelay.objects.get(pk=1).holder == f"{seen[-1]} and this"
    assert InboxMessage.objects.count() == 1


@pytest.mark.parametrize("verb", ["retry", "relay"])
def test_outbox_and_relay_read_nothing_before_they_lock_the_lease(
    verb: str, relays: Relays, mariadb: MariaDB, in_threads: Callable[..., list[Any]]
) -> None:
    relay = relays.new()
    outboxes.commit("one")

    def work() -> object:
        with repeatable_read():
            return claims.retry(None) if verb == "retry" else relay.run_once().sent

    def hold() -> None:
        with closing(mariadb.connect(db=connection.settings_dict["NAME"])) as holding:
            holding.autocommit(False)
            holding.cursor().execute(
                "UPDATE catmq_outbox_outboxrelay SET seen_at = UTC_TIMESTAMP(3)"
            )
            held.append(True)
            waiting = (
                "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state "
                "= 'LOCK WAIT'"
            )
            # the server looks no more often
            until(lambda: mariadb.execute(waiting) == [(1,)], every_s=0.15)
            holding.commit()

    held: list[bool] = []
    _, done = in_threads([hold, lambda: until(lambda: held) and work()])
    assert done == (0 if verb == "retry" else 1)
