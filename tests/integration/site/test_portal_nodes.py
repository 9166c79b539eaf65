"""Nodes in the portal: examined, registered, changed, moved; each with a look before, and
its audit row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from messagestore.nodes import disks, registry
from messagestore.pool import node_pools
from messagestore.tables import queue_sql
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.models import AuditLog, DbNode, NodeSize
from metadata.nodes import node_rows, size_rows
from tests.support import failing, restoring
from tests.support.certificates import VERIFIED_HOST, Authority
from tests.support.forms import browser, carry_out, confirm, fields, filled, text
from tests.support.mariadb import MariaDB

ME = command("test")
NewDatabase = Callable[..., dict[str, Any]]


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def typed(name: str, database: dict[str, Any], **more: str) -> dict[str, str]:
    """What is filled in to register a database."""
    given = {key: str(value) for key, value in database.items() if value}
    return {"name": name, **given, **more}


def audited(name: str) -> list[str]:
    """What was done to a node, in order."""
    return list(
        AuditLog.objects.filter(kind="node", name=name)
        .order_by("pk")
        .values_list("verb", flat=True)
    )


def test_a_database_is_examined_before_it_becomes_a_node(
    ada: Client, node_database: NewDatabase, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = node_database()
    with caplog.at_level(logging.DEBUG):
        seen = filled(ada, "/create/node", **typed("n1", database))
        assert "can be registered" in text(seen) and "no retry node yet" in text(seen)
        assert not DbNode.objects.exists() and audited("n1") == []
        assert "was tested and registered" in text(confirm(ada, "/create/node", seen))
    assert "carried out once" in text(confirm(ada, "/create/node", seen))
    assert audited("n1") == ["create"] and DbNode.objects.count() == 1
    if engine == "mysql":
        assert "Durability" in text(seen) and "Rights of the account" in text(seen)
        assert (
            database["password"]
            not in text(seen) + text(ada.get("/nodes/n1")) + caplog.text
        )
    again = filled(ada, "/create/node", **typed("n2", database))
    assert again.status_code == 400 and "already registered as node n1" in text(again)
    assert "data-confirm" not in text(again)


@pytest.mark.one_engine
def test_an_examination_leaves_nothing_behind(ada: Client, mariadb: MariaDB) -> None:
    with mariadb.schema() as schema:
        account = {"username": "catmq", "password": mariadb.password}
        place = {
            "engine": "mysql",
            "host": "127.0.0.1",
            "port": str(mariadb.port),
            "database": schema,
        }
        filled(ada, "/create/node", name="n1", **place, **account)
        found = mariadb.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s",
            [schema],
        )
        assert found[0][0] == 0


@pytest.mark.one_engine
def test_what_keeps_a_server_from_being_a_node_is_said_one_by_one(
    ada: Client, mariadb: MariaDB
) -> None:
    place = {"engine": "mysql", "host": "127.0.0.1", "port": str(mariadb.port)}
    with mariadb.schema() as schema, mariadb.reader(schema) as (name, password):
        mariadb.execute(f"ALTER DATABASE {schema} CHARACTER SET latin1")
        account = {"username": name, "password": password}
        seen = filled(ada, "/create/node", name="n1", database=schema, **place, **account)
    assert seen.status_code == 400 and password not in text(seen)
    assert "character set is latin1" in text(seen) and "lacks a right (DROP)" in text(seen)
    gone = filled(ada, "/create/node", name="n1", database=schema, **place, **account)
    assert "cannot be reached at" in text(gone) and not DbNode.objects.exists()
    away = filled(
        ada, "/create/node", name="n1", database="x", **{**place, "port": "1"}, **account
    )
    assert "127.0.0.1:1" in text(away)


@pytest.mark.one_engine
def test_a_node_is_closed_after_its_page_said_which_topics_that_stops(
    ada: Client, node: str
) -> None:
    topics.create(name="orders", queues=1, actor=ME)
    snapshot.refresh()
    seen = filled(ada, "/nodes/main/settings", state="read_only", dedicated="on")
    assert "1 topics have no open queues on other nodes" in text(seen) and "orders" in text(
        seen
    )
    assert node_rows.find_node(name="main", actor=ME).state == "read_write"
    registry.update(name="main", settings={"capacity_gb": 9}, actor=ME)  # somebody else
    both = confirm(ada, "/nodes/main/settings", seen)
    assert both.status_code == 409 and "Another user saved changes" in text(both)
    confirm(ada, "/nodes/main/settings", both)
    view = node_rows.find_node(name="main", actor=ME)
    assert (view.state, view.dedicated, view.capacity_gb) == ("read_only", True, 9)
    assert audited("main") == ["create", "update", "update"]


@pytest.mark.one_engine
def test_a_registered_node_is_tested_where_it_is(ada: Client, node: str) -> None:
    page = text(ada.get("/nodes/main/test"))
    assert (
        "The database has the data of this node" in page
        and "Rights of the account" not in page
    )
    assert "Rights of the account" in text(
        ada.post("/nodes/main/test", {"confirmed": "yes"})
    )


@pytest.mark.one_engine
def test_what_was_restored_is_adopted_after_its_losses_were_shown(
    ada: Client, node: str, failure_node: str
) -> None:
    queue = failing.billing()
    failing.send(b"a", b"b", b"c")
    with node_pools.node_of(queue).reading() as session:
        assert queue_sql.read_heads(session, queues=[queue]) == {queue: 3}
    registry.note_heads()
    registry.note_heads()
    restoring.lose_tail(queue, 1)
    restoring.evict_known_heads()
    # as a job saw it before
    DbNode.objects.filter(name="main").update(delayed_given=91, delayed_waiting=5)
    seen = ada.get("/nodes/main/adopt")
    assert "Up to 5 delayed messages and retries would be lost." in text(seen)
    assert "1 of 1 queues would get a gap, and at least 2 messages" in text(
        seen
    ) and "billing" in text(seen)
    assert node_rows.find_node(name="main", actor=ME).epoch == 1
    assert "at least 2 messages are lost" in text(confirm(ada, "/nodes/main/adopt", seen))
    assert (
        node_rows.find_node(name="main", actor=ME).epoch == 2
        and audited("main")[-1] == "adopt"
    )


@pytest.mark.one_engine
def test_a_file_has_no_accounts_and_no_replica(
    ada: Client, make_node: Callable[..., str]
) -> None:
    make_node("file", engine="sqlite")
    for url, sent in (
        ("/nodes/file/account", {"username": "u", "password": "p"}),
        ("/nodes/file/reader", {"username": "u", "password": "p"}),
        ("/nodes/file/promote", {"host": "h"}),
    ):
        answer = filled(ada, url, **sent)
        assert answer.status_code == 400 and "file" in text(answer), url
    assert "/nodes/file/promote" not in text(ada.get("/nodes/file"))


@pytest.mark.one_engine
def test_accounts_are_tried_before_they_are_kept(
    ada: Client, make_node: Callable[..., str], mariadb: MariaDB
) -> None:
    make_node("main", engine="mysql")
    schema = DbNode.objects.get().database
    with mariadb.reader(schema) as (name, password):
        seen = filled(ada, "/nodes/main/reader", username=name, password=password)
        assert "Jobs can read the node" in text(seen) and password not in text(seen)
        confirm(ada, "/nodes/main/reader", seen)
        assert node_rows.find_node(name="main", actor=ME).reader_username == name
        weak = filled(ada, "/nodes/main/account", username=name, password=password)
        assert weak.status_code == 400 and "lacks a right (DROP)" in text(weak)
        wrong = filled(ada, "/nodes/main/account", username="catmq", password="wrong")
        assert wrong.status_code == 400 and "Access denied" in text(wrong)
    carry_out(ada, "/nodes/main/account", username="catmq", password=mariadb.password)
    snapshot.refresh()
    assert registry.ping(DbNode.objects.get().pk) > 0
    carry_out(ada, "/nodes/main/reader", username="")
    assert audited("main") == ["create", "set_reader", "set_account", "set_reader"]
    assert password not in str(list(AuditLog.objects.values())) + str(fields(seen))


@pytest.mark.one_engine
def test_the_page_of_a_node_shows_how_it_grows(ada: Client, node: str) -> None:
    assert "shown from tomorrow on" in text(ada.get("/nodes/main"))
    assert disks.record() == 1 and disks.record() == 1
    last = NodeSize.objects.get()
    day_before = last.at.fromtimestamp(last.at.timestamp() - 86_400, tz=last.at.tzinfo)
    NodeSize.objects.create(node=last.node, at=day_before, bytes=1, tables=1)
    NodeSize.objects.filter(pk=last.pk).update(bytes=5 * 1024 * 1024)
    NodeSize.objects.filter(at=day_before).update(bytes=2 * 1024 * 1024)
    page = text(ada.get("/nodes/main"))
    assert "+3.0 MiB" in page and "5.0 MiB" in page
    assert "+3.0 MiB" in text(ada.get("/nodes"))
    old = last.at.fromtimestamp(last.at.timestamp() - 91 * 86_400, tz=last.at.tzinfo)
    NodeSize.objects.filter(at=day_before).update(at=old)
    assert size_rows.prune() == 1 and size_rows.prune() == 0


@pytest.mark.one_engine
def test_tls_of_a_node_is_chosen_shown_and_changed(
    ada: Client, node_database: NewDatabase, authority: Authority
) -> None:
    database, ca = {**node_database("mysql"), "host": VERIFIED_HOST}, str(authority.ca)
    seen = filled(ada, "/create/node", **typed("n1", database, tls="verify", tls_ca=ca))
    assert "TLSv1.3" in text(seen) and "is verified" in text(seen)
    confirm(ada, "/create/node", seen)
    assert ca in text(ada.get("/nodes/n1"))
    wrong = filled(ada, "/nodes/n1/settings", tls="verify", tls_ca="/nowhere/ca.pem")
    assert wrong.status_code == 400 and "cannot be read" in text(wrong)
    confirm(
        ada, "/nodes/n1/settings", filled(ada, "/nodes/n1/settings", tls="on", tls_ca="")
    )
    node = node_rows.find_node(name="n1", actor=ME)
    assert (node.tls, node.tls_ca, audited("n1")) == ("on", "", ["create", "update"])
    snapshot.refresh()
    assert "is not verified" in text(ada.get("/nodes/n1/test"))
