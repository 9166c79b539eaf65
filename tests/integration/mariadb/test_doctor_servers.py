"""The doctor finds every fault that is planted in a server, its accounts and its replica."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from messagestore.doctor import diagnosis, node_checks
from messagestore.engine import mysql_session
from messagestore.engine.messages import NewMessage
from messagestore.nodes import encryption, server_checks
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.cache import snapshot
from metadata.models import DbNode
from metadata.rules import engines, tls
from tests.support import doctored
from tests.support.doctored import ACTOR, findings, keys, only
from tests.support.environment import IS_MYSQL
from tests.support.mariadb import MariaDB
from tests.support.posing import Posing
from tests.support.replication import await_caught_up, follow

only_mariadb = pytest.mark.skipif(IS_MYSQL, reason="a variable of MariaDB")


@pytest.fixture
def schema(ill: MariaDB, make_node: Callable[..., str]) -> Iterator[str]:
    """Node `far` on a server of its own, a retry node, and a live broker."""
    with ill.schema() as name:
        make_node("failure", kind="failure", capacity_gb=100)
        make_node(
            "far",
            engine="mysql",
            host="127.0.0.1",
            port=ill.port,
            database=name,
            username="catmq",
            password=ill.password,
            capacity_gb=100,
        )
        with doctored.live_broker():
            yield name
        node_pools.evict_all()


@contextmanager
def changed(server: MariaDB, **variables: Any) -> Iterator[None]:
    """Change global variables of a server for the block."""
    former = {name: server.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in variables}
    for name, value in variables.items():
        server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for name, value in reversed(former.items()):
            text = value if isinstance(value, int | float) else f"'{value}'"
            server.execute(f"SET GLOBAL {name} = {text}")


def change_node(**columns: Any) -> None:
    """Change node `far` in metadata without any check."""
    DbNode.objects.filter(name="far").update(**columns)
    snapshot.evict()


def test_nothing_is_found_on_a_server_with_a_binary_log(schema: str) -> None:
    assert findings() == []


VARIABLES = {
    "flush": {"innodb_flush_log_at_trx_commit": 2},
    "binlog": {"sync_binlog": 0},
    "row_image": {"binlog_row_image": "MINIMAL"},
    "read_only": {"read_only": 1},
    "packet": {"max_allowed_packet": 1 << 20},
}


@pytest.mark.parametrize("key", VARIABLES)
def test_a_wrong_variable(schema: str, ill: MariaDB, key: str) -> None:
    with changed(ill, **VARIABLES[key]):
        finding = only(key)
    assert finding.name == "far"


def test_replication_by_statements(schema: str, ill: MariaDB) -> None:
    with changed(ill, binlog_format="STATEMENT"):
        found = findings()
    # Such a server refuses rows at READ COMMITTED, which looks like a missing right.
    assert {"statement"} <= {finding.key for finding in found} <= {"statement", "no_right"}


@only_mariadb
@pytest.mark.parametrize(
    ("key", "variables"),
    [
        ("statement_limit", {"max_statement_time": 5}),
        ("idle_limit", {"wait_timeout": 30}),
    ],
)
def test_a_limit_that_is_too_low(
    schema: str, ill: MariaDB, key: str, variables: dict[str, Any]
) -> None:
    with changed(ill, **variables):
        only(key)


@only_mariadb
def test_semi_synchronous_replication_that_waits_too_late_and_for_nobody(
    schema: str, ill: MariaDB
) -> None:
    semi_sync = {
        "rpl_semi_sync_master_wait_no_slave": 0,
        "rpl_semi_sync_master_wait_point": "AFTER_COMMIT",
        "rpl_semi_sync_master_enabled": 1,
    }
    with changed(ill, **semi_sync):
        assert set(keys()) - {"semi_fallback"} == {"semi_point"}


def test_connections_that_do_not_suffice(schema: str, ill: MariaDB) -> None:
    with changed(ill, max_connections=10), closing(ill.connect()):
        # A worker of a broker may open eight, and two workers need sixteen.
        assert "connections_short" not in keys()
        with doctored.live_broker("b2"):
            assert "connections_short" in keys()


def test_connections_that_are_nearly_used_up(schema: str, ill: MariaDB) -> None:
    connections = [ill.connect() for _ in range(90)]
    try:
        with changed(ill, max_connections=100):
            assert only("connections_near").values["limit"] == 100
    finally:
        for connection in connections:
            connection.close()


def test_a_character_set_that_lacks_characters(schema: str, ill: MariaDB) -> None:
    ill.execute(f"ALTER DATABASE {schema} CHARACTER SET latin1")
    assert schema in only("wrong_text").remedy


def test_a_server_that_is_out_of_support(
    schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The end of a new series is not known yet, so a later clock does not reach it.
    ended = {
        kind: dict.fromkeys(series, (2020, 1)) for kind, series in engines.LONG_TERM.items()
    }
    monkeypatch.setattr(engines, "LONG_TERM", ended)
    found = findings()
    assert {finding.key for finding in found} == {"unmaintained"}
    # The metadata database and both nodes.
    assert {(finding.kind, finding.name) for finding in found} == {
        ("metadata", ""),
        ("node", "failure"),
        ("node", "far"),
    }


def test_a_proxy_in_between(schema: str, ill: MariaDB) -> None:
    with Posing(ill.port, shift=1000) as proxy:
        change_node(port=proxy.port)
        only("proxy")


def test_a_long_transaction(
    schema: str, ill: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_checks, "LONG_TRANSACTION_S", 0)
    with closing(ill.connect(db=schema)) as connection:
        connection.autocommit(False)
        cursor = connection.cursor()
        cursor.execute("UPDATE queue_head SET low = low")
        cursor.execute("SELECT * FROM node_identity")
        # The age is counted in whole seconds.
        time.sleep(1.1)
        assert f"KILL {connection.thread_id()}" in only("long_transaction").remedy


def test_another_isolation_level(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mysql_session._SESSION_SETTINGS.replace("READ COMMITTED", "SERIALIZABLE")
    monkeypatch.setattr(mysql_session, "_SESSION_SETTINGS", other)
    found = findings()
    assert {finding.key for finding in found} == {"isolation"}
    assert {finding.values["found"] for finding in found} == {"SERIALIZABLE"}


@contextmanager
def account(server: MariaDB, name: str, *grants: str) -> Iterator[None]:
    """Create an account with some rights, and let node `far` use it."""
    server.execute(f"CREATE USER {name}@'%' IDENTIFIED BY 'secret'")
    for grant in grants:
        server.execute(f"GRANT {grant} TO {name}@'%'")
    from metadata.db.secrets import encrypt

    change_node(username=name, password_encrypted=encrypt("secret"))
    try:
        yield
    finally:
        node_pools.evict_all()
        server.execute(f"DROP USER {name}@'%'")


ALL_BUT_DROP = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER"


def test_an_account_without_a_right(schema: str, ill: MariaDB) -> None:
    with account(ill, "few", f"{ALL_BUT_DROP} ON {schema}.*"):
        finding = only("no_right")
    assert (finding.severity, "GRANT DROP" in finding.remedy) == ("error", True)


def test_an_account_that_lacks_an_optional_right(schema: str, ill: MariaDB) -> None:
    with account(ill, "few", f"{ALL_BUT_DROP}, DROP ON {schema}.*"):
        finding = only("fewer_rights")
    assert (finding.severity, "GRANT PROCESS" in finding.remedy) == ("warning", True)


def test_the_account_of_the_administrator(schema: str, ill: MariaDB) -> None:
    with account(ill, "rdsadmin", "ALL ON *.*"):
        only("root_account")


def test_an_account_without_a_password(schema: str, ill: MariaDB) -> None:
    ill.execute("CREATE USER open@'%' IDENTIFIED BY ''")
    ill.execute("GRANT ALL ON *.* TO open@'%'")
    try:
        change_node(username="open", password_encrypted="")
        only("no_password")
    finally:
        node_pools.evict_all()
        ill.execute("DROP USER open@'%'")


def test_a_wrong_password(schema: str) -> None:
    change_node(username="nobody")
    assert only("away").name == "far"


def test_no_capacity(schema: str) -> None:
    change_node(capacity_gb=None)
    only("no_capacity")


def test_a_connection_in_plain_text(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "is_local", lambda host: False)
    found = findings()
    assert {finding.key for finding in found} <= {"tls_plain", "no_recipient"}
    assert ("node", "far") in {(finding.kind, finding.name) for finding in found}
    assert encryption.tls is tls


def test_tls_that_the_server_does_not_offer(schema: str) -> None:
    change_node(tls="on")
    if "tls_not_offered" not in keys():  # a server that makes its own certificate
        change_node(tls="verify")
        assert keys() == ["tls_system_ca"]


# Servers that hang


def test_it_ends_in_time_when_a_node_accepts_and_does_not_answer(schema: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        change_node(port=silent.getsockname()[1])
        began_at = time.monotonic()
        finding = only("away")
        took_s = time.monotonic() - began_at
    assert (finding.name, finding.severity) == ("far", "error")
    # The limit of a check is 6 s, and the metadata database has 3 s before.
    assert took_s < 10


def test_it_ends_in_time_when_a_node_freezes_between_two_statements(
    schema: str, ill: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_proxy = server_checks.check_proxy
    frozen = threading.Event()

    def freeze(*arguments: Any, **options: Any) -> Any:
        # The first connections are made: only their statements hang.
        if arguments[0]._name == "far":
            os.kill(ill.pid, signal.SIGSTOP)
            frozen.set()
        return check_proxy(*arguments, **options)

    monkeypatch.setattr(server_checks, "check_proxy", freeze)
    try:
        began_at = time.monotonic()
        report = diagnosis.examine(actor=ACTOR)
        took_s = time.monotonic() - began_at
    finally:
        os.kill(ill.pid, signal.SIGCONT)
    assert frozen.is_set()
    assert {(one.key, one.name) for one in report.findings} == {("away", "far")}
    assert took_s < 10


# Replicas


@pytest.fixture
def copied(schema: str, ill: MariaDB, replica: MariaDB) -> Iterator[str]:
    """Node `far` with a replica, and a topic."""
    topics.create(name="orders", queues=1, actor=ACTOR)
    change_node(replica_host="127.0.0.1", replica_port=replica.port)
    await_caught_up(replica, ill)
    yield schema


def test_nothing_is_found_on_a_node_with_a_replica(copied: str) -> None:
    assert findings() == []


def test_a_replica_that_is_away(copied: str) -> None:
    change_node(replica_port=1)
    assert only("replica_away").severity == "error"


def test_a_replica_of_another_node(copied: str, ill: MariaDB) -> None:
    with ill.schema():
        change_node(database="mysql")
        assert "replica_foreign" in keys()


def test_a_replica_that_accepts_writes(copied: str, replica: MariaDB) -> None:
    with changed(replica, read_only=0):
        only("replica_writable")


def test_a_replica_that_stopped(copied: str, replica: MariaDB) -> None:
    replica.execute("STOP REPLICA")
    try:
        only("replica_stopped")
    finally:
        replica.execute("START REPLICA")


def test_a_replica_that_is_behind(copied: str, ill: MariaDB, replica: MariaDB) -> None:
    # A lock of the table holds up replication as a long transaction there would.
    lock = replica.connect(db=copied)
    lock.cursor().execute("LOCK TABLES queue_head READ")
    try:
        messages = [NewMessage(body=b"m") for _ in range(5)]
        publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
        assert only("replica_behind").values["messages"] == 5
    finally:
        lock.close()
    await_caught_up(replica, ill)


def test_a_replica_that_follows_again_is_no_finding(
    copied: str, ill: MariaDB, replica: MariaDB
) -> None:
    follow(replica, ill)
    assert keys() == []
