"""The metadata database on a list of servers: connections follow the one that accepts writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import MySQLdb
import pytest

from catmq_site.databases import MYSQL_SESSION
from catmq_site.mysql import servers
from catmq_site.mysql.base import DatabaseWrapper
from tests.support.asked_lock import AskedLock
from tests.support.mariadb import MariaDB
from tests.support.replication import await_caught_up, follow
from tests.support.waiting import until

THREADS = 6


@pytest.fixture
def listed(
    metadata_db: None, ill: MariaDB, replica: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, servers.Servers]:
    """A Django connection to a list that begins with the replica, and its servers."""
    monkeypatch.setattr(servers, "REVIEW_EVERY_S", 0.0)  # ask before each connection
    hosts = f"127.0.0.1:{replica.port},127.0.0.1:{ill.port}"
    settings: dict[str, Any] = {
        "ENGINE": "catmq_site.mysql",
        "NAME": "mysql",
        "HOST": hosts,
        "PORT": 3306,
        "USER": "catmq",
        "PASSWORD": ill.password,
        "OPTIONS": {"charset": "utf8mb4", "init_command": MYSQL_SESSION},
        "TIME_ZONE": None,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False,
        "AUTOCOMMIT": True,
        "ATOMIC_REQUESTS": False,
        "TEST": {},
    }
    return DatabaseWrapper(settings, "listed"), servers.of_list(MySQLdb, hosts)


def port_of(connection: Any) -> int:
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@port")
        return int(cursor.fetchone()[0])


def test_a_connection_goes_to_the_server_that_accepts_writes_and_follows_it(
    listed: tuple[Any, servers.Servers], ill: MariaDB, replica: MariaDB
) -> None:
    connection, _ = listed
    assert port_of(connection) == ill.port
    ill.execute("SET GLOBAL read_only = 1")
    await_caught_up(replica, ill)
    replica.execute("SET GLOBAL read_only = 0")
    # The idle connection to the former writer is not used again.
    assert port_of(connection) == replica.port
    ill.execute("SET GLOBAL read_only = 0")
    follow(replica, ill)
    assert port_of(connection) == ill.port


def test_without_a_writer_or_with_two_the_error_names_the_servers(
    listed: tuple[Any, servers.Servers], ill: MariaDB, replica: MariaDB
) -> None:
    connection, _ = listed
    connection.close()
    replica.execute("SET GLOBAL read_only = 0")
    try:
        with pytest.raises(Exception, match="all accept writes"):
            connection.connect()
    finally:
        replica.execute("SET GLOBAL read_only = 1")
    ill.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(Exception, match=f"127.0.0.1:{ill.port} is read-only"):
            connection.connect()
    finally:
        ill.execute("SET GLOBAL read_only = 0")
    connection.connect()
    connection.close()


def test_a_connection_that_fails_elsewhere_while_servers_are_asked_changes_no_answer(
    listed: tuple[Any, servers.Servers], ill: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may call forget() at any time, here between asking and returning."""
    connection, own_servers = listed
    ask = own_servers._ask

    def ask_and_forget(parameters: dict[str, Any]) -> Any:
        answer = ask(parameters)
        own_servers.forget()
        return answer

    monkeypatch.setattr(own_servers, "_ask", ask_and_forget)
    assert port_of(connection) == ill.port


def test_threads_that_wait_for_an_answer_take_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To ask takes seconds while servers are cut off: once for each thread is too slow."""
    own_servers = servers.Servers(MySQLdb, "127.0.0.1:1,127.0.0.1:2")
    lock, ask, asks = AskedLock(), own_servers._ask, list[dict[str, Any]]()
    monkeypatch.setattr(own_servers, "_asking", lock)

    def ask_when_all_wait(parameters: dict[str, Any]) -> Any:
        asks.append(parameters)
        until(lambda: lock.asked == THREADS, limit_s=60)
        return ask(parameters)

    monkeypatch.setattr(own_servers, "_ask", ask_when_all_wait)
    with ThreadPoolExecutor(THREADS) as threads:
        answers = [threads.submit(own_servers.find_writer, {}) for _ in range(THREADS)]
    assert {type(answer.exception()) for answer in answers} == {MySQLdb.OperationalError}
    assert len(asks) == 1
