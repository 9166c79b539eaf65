"""Connections to metadata are lent to threads: many threads, few connections, none of them
stale.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.db import OperationalError, close_old_connections, connection, transaction

from catmq_site.mysql.idle import MAX_IDLE, IdleConnections, idle
from metadata.db.changes import record_change
from metadata.models import ChangeCounter, ChangeLog, DbNode, Topic
from tests.support import rows
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
    listed = mariadb.execute(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE db LIKE 'test%'"
    )
    assert listed[0][0] <= 3 * MAX_IDLE  # one set per alias


def test_the_next_request_takes_the_connection_of_the_last(metadata_db: None) -> None:
    def session() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID(), @@autocommit, @@sql_mode")
            number, autocommit, mode = cursor.fetchone()
            cursor.execute(
                "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')"
            )
            levels = {level for _, level in cursor.fetchall()}
        close_old_connections()
        assert (autocommit, levels) == (1, {"READ-COMMITTED"})
        assert "STRICT_ALL_TABLES" in mode
        return int(number)

    session()  # the first may have been one too many to keep
    assert session() == session()


def test_a_connection_that_the_server_closed_is_not_given_out(
    metadata_db: None, mariadb: MariaDB
) -> None:
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
        os.write(
            write, b"none" if mine.take("kind") is None and not raw.closed else b"some"
        )
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


def test_the_counter_of_changes_is_not_locked_before_a_transaction_commits(
    metadata_db: None, in_threads: Callable[..., list[Any]]
) -> None:
    """Who counted first may still be at work when the next one is done."""
    rows.node()
    row, done = DbNode.objects.get().pk, threading.Event()

    def slow() -> int:
        with transaction.atomic():
            record_change("node", row)
            assert done.wait(10)
        return ChangeCounter.objects.get().n

    def quick() -> int:
        with transaction.atomic():
            record_change("node", row)
        done.set()
        return ChangeCounter.objects.get().n

    before = ChangeCounter.objects.get().n
    last, first = in_threads([slow, quick])

    assert first <= last == before + 2
    logged = (
        ChangeLog.objects.filter(n__gt=before).order_by("n").values_list("n", "kind", "row")
    )
    assert list(logged) == [(before + 1, "node", row), (before + 2, "node", row)]


def test_a_transaction_that_is_rolled_back_counts_no_change_then_or_later(
    metadata_db: None,
) -> None:
    rows.node()
    row = DbNode.objects.get().pk
    before = ChangeCounter.objects.get().n

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        record_change("node", row)
        raise ZeroDivisionError
    with transaction.atomic():
        DbNode.objects.update(host="elsewhere")

    assert ChangeCounter.objects.get().n == before


def test_a_change_that_cannot_be_counted_undoes_the_transaction(
    metadata_db: None, mariadb: MariaDB
) -> None:
    rows.node()
    row = DbNode.objects.get()
    database = connection.settings_dict["NAME"]
    with closing(mariadb.connect()) as other, pytest.raises(OperationalError, match="1205"):
        other.query("START TRANSACTION")
        other.query(f"UPDATE {database}.metadata_changecounter SET n = n + 1")
        with transaction.atomic():
            DbNode.objects.update(name="renamed")
            record_change("node", row.pk)

    assert DbNode.objects.get().name == row.name
    with transaction.atomic():
        record_change("node", row.pk)
