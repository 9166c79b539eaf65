"""Versions of the tables of nodes: upgraded while they are used, one by one, and resumed
after kill -9.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import Session
from messagestore.nodes import preflight, registry, upgrade
from messagestore.nodes.upgrade import NodeUpgrade
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import node_sql, promotion_sql
from messagestore.tables.shapes import Schema, TableChange
from messagestore.topology import topics
from messagestore.verify import verify
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import Forbidden, NotFound
from metadata.models import AuditLog, DbNode
from tests.support import environment
from tests.support.killing import killed_step_by_step
from tests.support.older_tables import LATER, columns, database, declare, evict, make_older
from tests.support.waiting import until

ACTOR = command("test")


@pytest.fixture
def queues(node: str) -> list[int]:
    """The queues of topic `orders` on node `main`."""
    made = topics.create(name="orders", queues=3, actor=ACTOR)
    snapshot.refresh()
    return [one.queue.queue for one in made.queues]


def send() -> Any:
    return publish(
        topic="orders", messages=[NewMessage(body=b"x")], batch_id=None, actor=ACTOR
    )[0]


def run(**more: Any) -> NodeUpgrade:
    (found,) = upgrade.upgrade(actor=ACTOR, pause_ms=0, **more)
    return found


def schema_of(info: NodeInfo) -> Schema:
    with session_pool.direct(info, any_schema=True) as session:
        return promotion_sql.read_schema(session)


def tables(changes: tuple[TableChange, ...]) -> list[str]:
    return [one.table for one in changes]


def finding(name: str = "main") -> preflight.Finding:
    found = preflight.reexamine(name=name, actor=ACTOR, rights=False).findings
    return next(one for one in found if one.about == "schema")


def test_steps_are_declared_in_order_and_on_both_engines(queues: list[int]) -> None:
    versions = [one.version for one in schema_steps.STEPS]
    assert (
        versions == sorted(versions)
        and versions[0] == 2
        and versions[-1] == schema_steps.VERSION
    )
    for one in schema_steps.STEPS:
        if one.index_name:
            continue  # test_redrives.py: a key is found by the index that new tables have
        table = f"message_{queues[0]}" if one.table == schema_steps.QUEUES else one.table
        assert one.column in columns(snapshot.find_node("main"), table), (
            "new tables have all steps at once"
        )


def test_a_new_node_has_the_version_of_this_release(node: str) -> None:
    assert schema_of(snapshot.find_node("main")) == Schema(schema_steps.VERSION, "")
    assert run() == NodeUpgrade("main", schema_steps.VERSION, schema_steps.VERSION)
    assert finding().verdict == "ok"
    assert not AuditLog.objects.filter(verb="upgrade").exists()


def test_a_node_of_the_release_before_is_served_and_upgraded_when_somebody_asks(
    queues: list[int],
) -> None:
    info = make_older()
    send()
    assert schema_of(info) == Schema(1, "") and columns(info, "node_identity") == [
        "identity"
    ]
    assert registry.schema_version(info.id) == 1 and registry.can_be_upgraded(info.id)
    assert (finding().verdict, finding().text) == ("warn", "old_schema")

    planned = run(dry_run=True)
    assert (planned.before, planned.after, tables(planned.changes)) == (
        1,
        3,
        ["node_identity"],
    )
    assert columns(info, "node_identity") == ["identity"]

    assert run() == planned
    assert schema_of(info) == Schema(3, "")
    # the loop of each worker: it learns the version without a new connection
    registry.probe()
    assert registry.schema_version(info.id) == 3 and not registry.can_be_upgraded(info.id)
    (entry,) = AuditLog.objects.filter(verb="upgrade", name="main")
    assert (entry.before, entry.after) == (
        {"schema_version": 1},
        {"schema_version": 3, "changes": 1},
    )
    assert (
        run() == NodeUpgrade("main", 3, 3)
        and AuditLog.objects.filter(verb="upgrade").count() == 1
    )
    send()


def test_an_identity_that_is_written_again_keeps_the_version(node: str) -> None:
    info = make_older()
    with session_pool.direct(info) as session:
        promotion_sql.write_identity(session, identity=info.identity)
    assert schema_of(info) == Schema(1, "")
    run()
    with session_pool.direct(info) as session:
        node_sql.write_min_release(session, release="0.1.0")
        promotion_sql.write_identity(session, identity=info.identity)
    assert schema_of(info) == Schema(3, "0.1.0")


def test_tables_of_queues_are_changed_one_by_one_with_what_is_in_them(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = snapshot.find_node("main")
    for _ in range(9):
        send()
    declare(monkeypatch)
    said: list[str] = []
    done = upgrade.upgrade(
        actor=ACTOR,
        pause_ms=0,
        progress=lambda one: said.append(f"{one.done} of {one.total}"),
    )
    assert tables(done[0].changes) == [f"message_{queue}" for queue in queues]
    assert said == ["1 of 3", "2 of 3", "3 of 3"]
    assert (done[0].before, done[0].after) == (3, 4)
    for queue in queues:
        assert columns(info, f"message_{queue}")[-1] == LATER.column
    for _ in range(9):
        send()
    assert verify(topics=["orders"], actor=ACTOR, digests=True).findings == ()


def test_a_table_that_an_older_broker_made_meanwhile_is_found_by_the_next_run(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        declare(newer)
        run()
    topics.create(name="late", queues=1, actor=ACTOR)
    declare(monkeypatch)
    snapshot.refresh()
    assert finding().words["changes"] == 1
    done = run()
    assert len(done.changes) == 1 and (done.before, done.after) == (4, 4)
    assert run().changes == ()


def test_kill_9_before_any_statement_is_finished_by_a_second_run_and_nothing_is_made_twice(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = make_older()
    declare(monkeypatch)

    def again() -> None:
        done = upgrade.upgrade_node(info, pause_ms=0)
        assert done.problem == "", done.problem

    assert (
        killed_step_by_step(again) >= 6
    )  # among them: between two tables, and between a table and the version
    assert schema_of(info) == Schema(4, "")
    with session_pool.direct(info) as session:
        assert node_sql.pending_changes(session) == []
    assert all(
        columns(info, f"message_{queue}").count(LATER.column) == 1 for queue in queues
    )
    assert run() == NodeUpgrade("main", 4, 4)
    send()


def test_a_run_that_fails_half_way_says_where_and_is_repeated(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch)
    real = node_sql.make_change

    def refuses(session: Session, change: TableChange) -> None:
        if change.table == f"message_{queues[1]}":
            raise db_errors.Final(
                f"Node main answered 1845: {change.table} cannot be changed so"
            )
        real(session, change)

    with monkeypatch.context() as failing:
        failing.setattr(node_sql, "make_change", refuses)
        done = run()
    assert tables(done.changes) == [f"message_{queues[0]}"] and "1845" in done.problem
    assert (done.before, done.after) == (3, 3)
    entry = AuditLog.objects.get(verb="upgrade")
    assert entry.after["changes"] == 1 and "1845" in entry.after["problem"]
    assert tables(run().changes) == [f"message_{queue}" for queue in queues[1:]]


def test_two_runs_do_not_upgrade_a_node_at_once(queues: list[int]) -> None:
    info = make_older()
    with session_pool.direct(info) as session:
        assert node_sql.take_upgrade_lock(session)
        assert "Another run upgrades node main now" in run().problem
        assert columns(info, "node_identity") == ["identity"]
    assert run().problem == ""


def test_a_node_that_cannot_be_upgraded_stops_none_of_the_others(
    make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "main", "third"):
        make_node(name)
    for name in ("main", "third"):
        make_older(name)
    registry.update(name="first", settings={"state": "offline"}, actor=ACTOR)
    DbNode.objects.filter(name="third").update(identity="somebody")
    snapshot.evict()
    found = {one.node: one for one in upgrade.upgrade(actor=ACTOR, pause_ms=0)}
    assert found["first"].problem == "Node first is offline: open it first."
    assert found["main"].problem == "" and found["main"].after == 3
    assert "that of another node" in found["third"].problem and found["third"].changes == ()


def test_only_administrators_upgrade_and_only_nodes_that_exist(node: str) -> None:
    with pytest.raises(Forbidden):
        upgrade.upgrade(actor=Actor(kind="key", name="nobody"))
    with pytest.raises(NotFound):
        upgrade.upgrade(node="other", actor=ACTOR)


@pytest.mark.skipif(
    environment.ENGINE == "sqlite", reason="a file has no partitions and no metadata locks"
)
def test_a_change_of_a_partitioned_table_copies_nothing(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = snapshot.find_node("main")
    send()

    def spaces() -> Any:
        with database(info).cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            maria = "mariadb" in cursor.fetchone()[0].lower()
            view = "INNODB_SYS_TABLESPACES" if maria else "INNODB_TABLESPACES"
            number = "SPACE"
            cursor.execute(
                f"SELECT NAME, {number} FROM information_schema.{view} WHERE NAME LIKE %s "
                "ORDER BY NAME",
                [f"{info.database}/message%"],
            )
            return cursor.fetchall()

    before = spaces()
    assert len(before) == 3 * len(queues)
    declare(monkeypatch)
    assert run().problem == ""
    assert spaces() == before, "a table that is copied gets files of its own"


@pytest.mark.skipif(
    environment.ENGINE == "sqlite", reason="a file has no partitions and no metadata locks"
)
def test_a_table_that_a_transaction_keeps_is_left_after_three_tries(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch)
    info = snapshot.find_node("main")
    with database(info).cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute(f"SELECT * FROM message_{queues[1]}")
        cursor.fetchall()
        done = run()
        cursor.execute("ROLLBACK")
    assert tables(done.changes) == [f"message_{queues[0]}"]
    assert f"Table message_{queues[1]} cannot be changed now" in done.problem
    assert run().problem == ""


def test_brokers_refuse_a_node_of_two_releases_before_until_it_is_upgraded(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = make_older()
    declare(monkeypatch, oldest=2)
    evict(info)
    with pytest.raises(
        Exception,
        match=r"has schema version 1, .* needs 2 or later: run manage.py upgrade_nodes",
    ):
        send()
    assert (finding().verdict, finding().text) == ("bad", "misfit")
    assert run().problem == ""
    registry.probe()  # so a broker need not be restarted
    send()


@pytest.mark.skipif(
    environment.ENGINE == "sqlite", reason="a file has no partitions and no metadata locks"
)
def test_kill_9_while_a_table_is_being_changed_leaves_it_changed_or_not(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch)
    info = snapshot.find_node("main")
    waiting = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE "
        "'%%metadata lock%%' AND db = %s"
    )
    with database(info).cursor() as holder, database(info).cursor() as watcher:
        holder.execute("START TRANSACTION")
        holder.execute(f"SELECT * FROM message_{queues[1]}")
        holder.fetchall()
        child = os.fork()
        if child == 0:
            try:
                node_pools._nodes.clear()
                upgrade.upgrade_node(info, pause_ms=0)
            finally:
                os._exit(0)

        def alters() -> int:
            watcher.execute(waiting, [info.database])
            return int(watcher.fetchone()[0])

        until(alters)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # the server may still make the change of a client that is gone
        holder.execute("ROLLBACK")
        until(lambda: not alters())
    assert columns(info, f"message_{queues[0]}")[-1] == LATER.column
    assert schema_of(info).version == 3
    done = run()
    assert done.problem == "" and done.after == 4
    assert all(
        columns(info, f"message_{queue}").count(LATER.column) == 1 for queue in queues
    )
