"""Connections to metadata are lent to threads: many threads, few connections, none of them stale."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from django.db import close_old_connections, connection, transaction

from catmq_site.mysql.idle import MAX_IDLE, IdleConnections, idle
from metadata.models import Topic
from tests.support.mariadb import MariaDB


def request() -> int:
    """What a request does: a few queries, then the connection goes back."""
    with transaction.atomic():
        found = Topic.objects.count()
    close_old_connections()
    return found


def test_a_hundred_threads_leave_a_handful_of_connections(
    metadata_db: None, mariadb: MariaDB, in_threads: Callable[..., list[Any]]
) -> None:
    in_threads([request] * 100)
    close_old_connections()
    listed = mariadb.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE db LIKE 'test%'")
    assert listed[0][0] <= 3 * MAX_IDLE  # one set per alias


def test_the_next_request_takes_the_connection_of_the_last(metadata_db: None) -> None:
    def session() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID(), @@autocommit, @@tx_isolation, @@sql_mode")
            row = cursor.fetchone()
        close_old_connections()
        assert row[1:3] == (1, "READ-COMMITTED")
        assert "STRICT_ALL_TABLES" in row[3]
        return int(row[0])

    session()  # the first may have been one too many to keep
    assert session() == session()


def test_a_connection_that_the_server_closed_is_not_given_out(metadata_db: None, mariadb: MariaDB) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        number = cursor.fetchone()[0]
    close_old_connections()
    mariadb.execute(f"KILL {number}")
    age_all()
    assert request() == 0


def test_a_connection_left_in_a_transaction_is_closed(metadata_db: None) -> None:
    connection.ensure_connection()
    raw = connection.connection
    connection.set_autocommit(False)
    connection.close()
    assert raw not in [one for stack in idle._stacks.values() for one, _ in stack]


def test_a_forked_child_neither_uses_nor_closes_its_parents_connections() -> None:
    class Raw:
        closed = False

        def close(self) -> None:
            self.closed = True

    mine, raw = IdleConnections(), Raw()
    mine.give("kind", raw)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"none" if mine.take("kind") is None and not raw.closed else b"some")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 4) == b"none"
    os.close(read)
    os.close(write)
    assert mine.take("kind") is raw


def age_all() -> None:
    """Makes every idle connection look as if it had rested for a while."""
    for stack in idle._stacks.values():
        stack[:] = [(raw, since - 60) for raw, since in stack]
