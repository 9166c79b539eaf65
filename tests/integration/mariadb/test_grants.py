"""Accounts with exactly the declared rights do everything; without one of them something
fails by name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import MySQLdb
import pytest

from messagestore import retention, verify
from messagestore.consume import group_lag
from messagestore.engine.messages import NewMessage
from messagestore.heads import partitions
from messagestore.nodes import (
    backup_marks,
    disks,
    preflight,
    promotion,
    promotion_plans,
    registry,
)
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.retention import cleaning
from messagestore.topology import queues, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import Code, Invalid, NodeUnavailable
from metadata.groups import groups
from metadata.models import DbNode
from metadata.rules import grants
from tests.support import dumping
from tests.support.environment import ROOT
from tests.support.instances import Instance
from tests.support.links import Link
from tests.support.mariadb import MariaDB
from tests.support.moving import make_due, mover
from tests.support.tampering import age, plant
from tests.support.waiting import until

ACTOR = command("test")
DAY = 86_400
REQUIRED = [one.right for one in grants.NODE if not one.optional]


@dataclass
class Account:
    """An account of a server, and the schema of a node."""

    server: MariaDB
    schema: str
    name: str
    password: str
    flavour: str

    @property
    def given(self) -> dict[str, Any]:
        """What `registry.register` needs."""
        account = {"username": self.name, "password": self.password}
        return {
            "engine": "mysql",
            "host": "127.0.0.1",
            "port": self.server.port,
            "database": self.schema,
        } | account

    def grant(self, rights: tuple[grants.Grant, ...]) -> None:
        where = {"database": self.schema, "username": self.name, "host": "127.0.0.1"}
        for statement in grants.grant_statements(rights, flavour=self.flavour, **where):
            self.server.execute(statement)

    @contextmanager
    def without(self, right: grants.Grant) -> Iterator[None]:
        """The account lacks a right for a while, for old connections, too."""
        where = "*.*" if right.everywhere else f"`{self.schema}`.*"
        what = f"{right.named(self.flavour)} ON {where}"
        self.server.execute(f"REVOKE {what} FROM '{self.name}'@'127.0.0.1'")
        node_pools.evict_all()
        try:
            yield
        finally:
            self.server.execute(f"GRANT {what} TO '{self.name}'@'127.0.0.1'")
            node_pools.evict_all()


@pytest.fixture
def account(mariadb: MariaDB) -> Iterator[Account]:
    """An account with the rights that a node needs, and no other."""
    name, password = f"least_{uuid4().hex[:12]}", uuid4().hex
    flavour = (
        "mariadb" if "MariaDB" in mariadb.execute("SELECT VERSION()")[0][0] else "mysql"
    )
    with mariadb.schema() as schema:
        mariadb.execute(f"CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY '{password}'")
        made = Account(mariadb, schema, name, password, flavour)
        made.grant(tuple(one for one in grants.NODE if not one.optional))
        yield made
        node_pools.evict_all()
        mariadb.execute(f"DROP USER '{name}'@'127.0.0.1'")


@pytest.fixture
def node(account: Account, metadata_db: None) -> str:
    """A node that this account serves."""
    registry.register(name="least", actor=ACTOR, **account.given)
    snapshot.refresh()
    return "least"


def make_orders() -> int:
    """Topic `orders` with one queue, read by `billing`; the queue."""
    made = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    return made


def send(count: int, **more: Any) -> None:
    messages = [NewMessage(body=b"m", **more) for _ in range(count)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def test_everything_runs_with_exactly_the_rights_of_a_node(
    account: Account, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "PACE", 0)
    queue = make_orders()
    send(10)
    send(1, delay_ms=60_000)
    member = Instance("one", group="billing").join()
    member.take()
    assert len(member.pull(queue).messages) >= 10
    assert member.commit(queue, 10) == "ok"
    make_due(queue)
    assert mover(queue).run_once() == 1
    group_lag.record()
    age(queue, 0, 10, seconds=10 * DAY)
    (cleaned,) = retention.clean(actor=ACTOR, rest_s=0.0)
    assert cleaned.plan is not None
    plant(queue, "UPDATE queue_head SET head = 250000 WHERE queue_id = {q}")
    plant(queue, "INSERT INTO queue_gap VALUES ({q}, 11, 250000, 'test')")
    assert partitions.extend(queue, urgent=False) > 250_000
    reorganize(node, account)
    send(1)
    report = verify.verify(topics=["orders"], actor=ACTOR, rows_per_s=0)
    assert report.complete
    subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
    topics.delete(name="orders", confirm="orders", actor=ACTOR)
    assert topics.drop_deleted(after_days=0) == 1
    assert (
        account.server.execute(f"SHOW TABLES FROM {account.schema} LIKE 'message%'") == []
    )


def reorganize(node: str, account: Account) -> None:
    """What an administrator does with a node and its topic `orders`."""
    assert disks.record() == 1
    assert preflight.reexamine(name=node, actor=ACTOR).passed
    queues.expand(topic="orders", queues=1, actor=ACTOR)
    registry.update(name=node, settings={"state": "read_only"}, actor=ACTOR)
    registry.update(name=node, settings={"state": "read_write"}, actor=ACTOR)
    registry.set_account(
        name=node, username=account.name, password=account.password, actor=ACTOR
    )
    registry.note_heads()
    assert promotion_plans.adopt(name=node, actor=ACTOR).copies is None
    done = promotion.adopt(name=node, actor=ACTOR)
    assert (done.state, done.notes) == (
        "read_write",
        ("the account lacks PROCESS: whether the server copies another one is not known",),
    )
    snapshot.refresh()


@pytest.mark.parametrize("right", REQUIRED)
def test_a_right_that_is_missing_is_named_by_examination_and_registration(
    account: Account, metadata_db: None, right: str
) -> None:
    (needed,) = (one for one in grants.NODE if one.right == right)
    with account.without(needed):
        found = preflight.examine(name="least", actor=ACTOR, **account.given)
        (bad,) = (one for one in found.findings if one.verdict == "bad")
        said = f"The account lacks a right ({right}). Run GRANT {right} ON `{account.schema}`.*"
        assert bad.detail.startswith(said)
        with pytest.raises(Invalid, match=rf"lacks a right \({right}\)") as caught:
            registry.register(name="least", actor=ACTOR, **account.given)
        assert caught.value.code == Code.NODE_REFUSED
        assert account.server.execute(f"SHOW TABLES FROM {account.schema}") == [], (
            "nothing half done"
        )
    registry.register(name="least", actor=ACTOR, **account.given)


def test_without_process_sizes_are_estimates_and_the_examination_says_so(
    account: Account, node: str
) -> None:
    found = {one.about: one for one in preflight.reexamine(name=node, actor=ACTOR).findings}
    assert found["rights"].verdict == "warn"
    assert "lacks PROCESS, which allows: exact sizes" in found["rights"].detail
    account.grant(grants.NODE)
    found = {one.about: one for one in preflight.reexamine(name=node, actor=ACTOR).findings}
    assert (found["rights"].verdict, found["rights"].text) == ("ok", "rights")


def test_a_reader_account_needs_select_and_that_is_enough(
    account: Account, node: str
) -> None:
    server, name = account.server, f"reader_{uuid4().hex[:12]}"
    server.execute(f"CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'x'")
    try:
        with pytest.raises(Invalid, match=f"GRANT SELECT ON `{account.schema}`"):
            registry.set_reader(name=node, username=name, password="x", actor=ACTOR)
        where = {"database": account.schema, "username": name, "host": "127.0.0.1"}
        for statement in grants.grant_statements(
            grants.READER, flavour=account.flavour, **where
        ):
            server.execute(statement)
        registry.set_reader(name=node, username=name, password="x", actor=ACTOR)
    finally:
        server.execute(f"DROP USER '{name}'@'127.0.0.1'")


def test_a_mark_names_the_right_to_see_the_binary_log_and_does_without_it(
    account: Account, node: str
) -> None:
    (without,) = backup_marks.take_mark(actor=ACTOR).nodes
    account.grant(grants.BACKUP)
    node_pools.evict_all()
    (marked,) = backup_marks.take_mark(actor=ACTOR).nodes
    if account.server.execute("SELECT @@log_bin") == [(0,)]:
        assert (without.binlog, marked.binlog) == (None, None)
        return
    assert without.binlog is not None and marked.binlog is not None
    assert (without.binlog.file, without.binlog.position) == ("", 0)
    assert "lacks a right" in without.binlog.why
    assert marked.binlog.position > 0 or account.flavour == "mariadb"


@pytest.fixture
def replica(account: Account, node: str) -> Iterator[Link]:
    """A second address of the node's server, which is read-only and copies a server that
    does not answer.

    The node's own address goes nowhere: its primary is dead.
    """
    server = account.server
    begin = {
        "mariadb": "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=9, MASTER_USER='nobody'",
        "mysql": "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=9, "
        "SOURCE_USER='nobody'",
    }[account.flavour]
    with Link(server.port, mysql=True).running() as link:
        DbNode.objects.update(port=9)
        snapshot.evict()
        node_pools.evict_all()
        for statement in (begin, "START REPLICA", "SET GLOBAL read_only = 1"):
            server.execute(statement)
        yield link
        for statement in ("SET GLOBAL read_only = 0", "STOP REPLICA", "RESET REPLICA ALL"):
            server.execute(statement)


def promote(link: Link) -> promotion.Outcome:
    where = {"name": "least", "host": "127.0.0.1", "port": link.port}
    return promotion.promote(**where, known_dead=True, patience_s=5, actor=ACTOR)


def test_a_promotion_needs_its_rights_says_which_before_it_begins_and_no_other(
    account: Account, node: str, replica: Link
) -> None:
    account.grant(grants.PROMOTION)
    for needed in grants.PROMOTION:
        with account.without(needed):
            name = needed.named(account.flavour)
            with pytest.raises(
                Invalid, match=f"it lacks {name}. Run GRANT {name} ON"
            ) as caught:
                promote(replica)
            assert (
                "managed server, promote the replica with the provider's tools"
                in caught.value.detail
            )
            assert "manage.py adopt_restored_node least" in caught.value.detail
            with pytest.raises(Invalid, match=f"it lacks {name}"):
                promotion_plans.promote(
                    name="least", host="127.0.0.1", port=replica.port, actor=ACTOR
                )
    row = DbNode.objects.get()
    assert (row.state, row.epoch, row.port) == ("read_write", 1, 9), "nothing was begun"
    done = promote(replica)
    assert (done.state, done.epoch) == ("read_write", 2)
    assert account.server.execute("SELECT @@read_only")[0][0] == 0
    snapshot.refresh()
    topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()
    send(1)


def test_adopting_a_server_that_still_copies_is_refused_with_what_to_do(
    account: Account, node: str, replica: Link
) -> None:
    DbNode.objects.update(port=account.server.port)
    snapshot.evict()
    with pytest.raises(
        Invalid, match=r"it lacks (READ_ONLY ADMIN|SYSTEM_VARIABLES_ADMIN)"
    ) as caught:
        promotion.adopt(name=node, actor=ACTOR)
    assert "end replication and read_only with the provider's tools" in caught.value.detail
    account.grant((grants.PROMOTION[0], grants.PROMOTION[2]))
    with pytest.raises(Invalid, match=r"it lacks REPLICATION.SLAVE.ADMIN"):
        promotion.adopt(name=node, actor=ACTOR)
    assert DbNode.objects.get().epoch == 1
    account.grant(grants.PROMOTION)
    assert promotion.adopt(name=node, actor=ACTOR).state == "read_write"


def lacking(rights: tuple[grants.Grant, ...], flavour: str) -> list[grants.Grant]:
    """The rights that a flavour has, one by one."""
    return [one for one in rights if one.named(flavour)]


@pytest.fixture
def other(account: Account) -> Account:
    """The account without any right."""
    where = f"FROM '{account.name}'@'127.0.0.1'"
    account.server.execute(f"REVOKE ALL PRIVILEGES ON {account.schema}.* {where}")
    return account


def test_metadata_is_migrated_with_its_rights_and_needs_each(
    other: Account, tmp_path: Path
) -> None:
    other.grant(grants.METADATA)
    url = f"mysql://{other.name}:{other.password}@127.0.0.1:{other.server.port}/{other.schema}"
    environ = {
        one: value
        for one, value in os.environ.items()
        if not one.startswith(("CATMQ_", "DJANGO_"))
    }
    environ |= {"CATMQ_DATABASE_URL": url, "CATMQ_DATA_DIR": str(tmp_path / "var")}
    done = subprocess.run(
        [sys.executable, "manage.py", "prepare"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    statements = {
        "SELECT": "SELECT COUNT(*) FROM metadata_queue",
        "INSERT": "INSERT INTO metadata_changelog (id, n, kind) VALUES (1, 1, 'x')",
        "UPDATE": "UPDATE metadata_alarm SET name = ''",
        "DELETE": "DELETE FROM django_q_schedule",
        "CREATE": "CREATE TABLE made (queue_id BIGINT NOT NULL)",
        "ALTER": "ALTER TABLE metadata_alarm ADD COLUMN more INT NULL",
        "INDEX": "CREATE INDEX more ON metadata_alarm (name)",
        "REFERENCES": "CREATE TABLE made (q BIGINT, FOREIGN KEY (q) REFERENCES "
        "metadata_queue (id))",
        "DROP": "DROP TABLE metadata_nodesize",
    }
    assert set(statements) >= {
        one.named(other.flavour) for one in lacking(grants.METADATA, other.flavour)
    }
    for right in lacking(grants.METADATA, other.flavour):
        name = right.named(other.flavour)
        with (
            other.without(right),
            pytest.raises(MySQLdb.OperationalError, match=f"{name} command denied"),
        ):
            _as(other, statements[name])


def _as(account: Account, statement: str) -> None:
    place = {"host": "127.0.0.1", "port": account.server.port, "database": account.schema}
    connection = MySQLdb.connect(user=account.name, password=account.password, **place)
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def test_a_dump_with_its_position_needs_its_rights_and_each_of_them(
    other: Account, request: pytest.FixtureRequest
) -> None:
    if dumping.IS_MYSQL and not dumping.HAS_MYSQL_PROGRAMS:
        pytest.skip(
            "mysqldump is not in the cache of script/mysql, and mariadb-dump cannot ask "
            "for the position"
        )
    # it has a binary log
    server = other.server if dumping.IS_MYSQL else request.getfixturevalue("ill")
    here = replace(other, server=server)
    server.execute(f"CREATE DATABASE IF NOT EXISTS {other.schema}")
    server.execute(f"CREATE TABLE {other.schema}.t (i INT PRIMARY KEY)")
    server.execute(
        f"CREATE USER IF NOT EXISTS '{other.name}'@'127.0.0.1' IDENTIFIED BY '{other.password}'"
    )
    try:
        here.grant(grants.BACKUP)
        assert b"CHANGE " in dumping.dump(
            server, other.schema, (other.name, other.password)
        )
        for right in lacking(grants.BACKUP, other.flavour):
            with here.without(right), pytest.raises(AssertionError, match=r"(?i)denied"):
                dumping.dump(server, other.schema, (other.name, other.password))
    finally:
        if server is not other.server:
            server.execute(f"DROP DATABASE {other.schema}")
            server.execute(f"DROP USER '{other.name}'@'127.0.0.1'")


def test_partitions_wait_while_a_dump_is_under_way(
    account: Account, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB a new partition would end the dump (1412); a dropped one would be missing
    in it.
    """
    account.grant(grants.NODE)
    monkeypatch.setattr(partitions, "LONG_S", 0)
    monkeypatch.setattr(partitions, "PAUSE_S", 0.01)
    queue = make_orders()
    send(3)
    plant(queue, "UPDATE queue_head SET head = 250000 WHERE queue_id = {q}")
    dump = account.server.connect(database=account.schema)
    try:
        cursor = dump.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT COUNT(*) FROM queue_head")
        # trx_started has whole seconds
        until(lambda: account.server.execute("SELECT SLEEP(1.1)") != [])
        with pytest.raises(NodeUnavailable, match="has a transaction open for"):
            partitions.extend(queue, urgent=False)
        cursor.execute(f"SELECT COUNT(*) FROM message_{queue}")
        assert cursor.fetchone() == (3,)
    finally:
        dump.close()
    assert partitions.extend(queue, urgent=False) > 250_000
