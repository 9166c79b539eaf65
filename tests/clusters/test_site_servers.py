"""The metadata database on a cluster: connections leave a writer that was killed, and see what
was committed before.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError

from catmq_site.background.metadata_writer import WriterNotes
from catmq_site.databases import MYSQL_SESSION
from catmq_site.mysql import servers
from catmq_site.mysql.base import DatabaseWrapper
from metadata.db.transactions import may_be_repeated, written_on
from metadata.models import Alarm, AuditLog
from tests.support.clusters import Cluster
from tests.support.waiting import until


def settings_of(cluster: Cluster, schema: str) -> dict[str, Any]:
    """Return the settings of a database on all members."""
    members = cluster.members.values()
    return {
        "ENGINE": "catmq_site.mysql",
        "NAME": schema,
        "HOST": ",".join(f"{member.host}:{member.port}" for member in members),
        "PORT": 3306,
        "USER": "catmq",
        "PASSWORD": cluster.writer.password,
        "OPTIONS": {
            "charset": "utf8mb4",
            "init_command": MYSQL_SESSION,
            "connect_timeout": 2,
            "read_timeout": 2,
        },
        "TIME_ZONE": None,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False,
        "AUTOCOMMIT": True,
        "ATOMIC_REQUESTS": False,
        "TEST": {},
    }


def test_a_change_that_another_member_ends_in_its_last_words_is_not_acknowledged(
    metadata_db: None, cluster: Cluster
) -> None:
    """MariaDB would go on with the next of these statements, and answer the COMMIT."""
    if cluster.kind == "group":
        pytest.skip("a group has one member that takes writes")
    schema = f"test_{uuid4().hex[:12]}"
    writer = cluster.writer
    writer.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    writer.execute(f"CREATE TABLE {schema}.counter (n INT PRIMARY KEY)")
    writer.execute(f"CREATE TABLE {schema}.kept (n INT PRIMARY KEY)")
    writer.execute(f"INSERT INTO {schema}.counter VALUES (0)")
    connection = DatabaseWrapper(settings_of(cluster, schema), "listed")
    connection.ensure_connection()
    host = connection.connection.get_host_info().split()[0]
    other, *_ = (member for member in cluster.members.values() if member.host != host)
    (own,) = (member for member in cluster.members.values() if member.host == host)
    connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO kept VALUES (1)")
    connection.last_words = [
        "UPDATE counter SET n = n + 1",
        "DO SLEEP(3)",
        "INSERT INTO kept VALUES (2)",
    ]
    sleeping = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'"
    )

    def end_it() -> None:
        until(lambda: own.execute(sleeping) == [(1,)])
        other.execute(f"UPDATE {schema}.counter SET n = 7")

    with ThreadPoolExecutor(1) as threads:
        ending = threads.submit(end_it)
        with pytest.raises(OperationalError) as ended:
            connection.commit()
        ending.result(60)
    connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'wsrep_retry_autocommit'")
        _, retries = cursor.fetchone()
    connection.close()
    # The server would answer an INSERT … RETURNING with the rows of all its tries.
    assert retries == "0"
    assert may_be_repeated(ended.value)
    assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(0,)]
    writer.execute(f"DROP DATABASE {schema}")


def test_connections_leave_a_writer_that_was_killed(
    metadata_db: None, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "REVIEW_EVERY_S", 0.0)  # ask before each connection
    members = cluster.members
    schema = f"test_{uuid4().hex[:12]}"
    cluster.writer.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    settings = settings_of(cluster, schema)
    connection = DatabaseWrapper(settings, "listed")

    def ask(statement: str) -> list[Any]:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall() or [()])
        except DatabaseError as error:  # as Django wraps those of the driver
            print(statement, error)  # noqa: T201 - shown if the test fails
            return []
        finally:
            connection.close()

    assert until(
        lambda: ask("CREATE TABLE IF NOT EXISTS kept (n INT PRIMARY KEY)"), limit_s=30
    )
    assert ask("INSERT INTO kept VALUES (1)")
    notes = WriterNotes(settings["HOST"])
    notes.run_once()
    former = connection.settings_dict["HOST"]
    writer = servers.of_list(connection.Database, former).find_writer(
        connection.get_connection_params()
    )
    number = next(
        n for n, m in members.items() if (m.host, m.port) == tuple(writer.address)
    )
    cluster.kill(number)
    assert until(lambda: ask("SELECT n FROM kept"), limit_s=30, every_s=0.2) == [(1,)]
    assert until(lambda: ask("INSERT INTO kept VALUES (2)"), limit_s=30, every_s=0.2)
    notes.run_once()
    WriterNotes(settings["HOST"]).run_once()  # another process, which finds the entry
    *_, first, second = AuditLog.objects.filter(verb="follow").order_by("id")
    assert first.after == second.before == {"writer": str(writer.address)}
    assert second.after not in (None, first.after)
    alarm = Alarm.objects.get(kind="metadata_moved")
    assert alarm.detail == (
        f"metadata is written to {second.after['writer']} now, before it was {writer.address}"
    )
    assert written_on() == second.after["writer"]
    cluster.await_whole()
    assert ask("SELECT n FROM kept ORDER BY n") == [(1,), (2,)]
    cluster.writer.execute(f"DROP DATABASE {schema}")
