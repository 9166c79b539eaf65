"""The metadata database on a cluster: connections leave a writer that was killed, and see what
was committed before.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError

from catmq_site.background.metadata_writer import WriterNotes
from catmq_site.databases import MYSQL_SESSION
from catmq_site.mysql import servers
from catmq_site.mysql.base import DatabaseWrapper
from metadata.db.transactions import written_on
from metadata.models import Alarm, AuditLog
from tests.support.clusters import Cluster
from tests.support.waiting import until


def test_connections_leave_a_writer_that_was_killed(
    metadata_db: None, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "REVIEW_EVERY_S", 0.0)  # ask before each connection
    members = cluster.members
    schema = f"test_{uuid4().hex[:12]}"
    cluster.writer.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    settings: dict[str, Any] = {
        "ENGINE": "catmq_site.mysql",
        "NAME": schema,
        "HOST": ",".join(f"{member.host}:{member.port}" for member in members.values()),
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
