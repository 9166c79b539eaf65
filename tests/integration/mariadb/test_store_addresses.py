"""A node on a list of servers: a primary and its replica, of which one accepts writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest

from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import MySqlSession
from messagestore.inspect import raise_alarms
from messagestore.nodes import preflight, registry, takeovers
from messagestore.pool import node_guard, node_pools, session_pool, writers
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError, Invalid, NodeUnavailable
from metadata.models import Alarm, AuditLog, DbNode
from metadata.rules.addresses import Address
from metadata.rules.cluster_members import NoWriter
from tests.support.asked_lock import AskedLock
from tests.support.environment import IS_MYSQL
from tests.support.mariadb import MariaDB
from tests.support.replication import await_caught_up, follow
from tests.support.waiting import until

ACTOR = command("test")
THREADS = 6


class Place(NamedTuple):
    """A node `listed` on two servers, the replica first, in a schema; its queue."""

    schema: str
    queue: int
    primary: str
    second: str


def listed(*servers: MariaDB) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def account(schema: str, *servers: MariaDB) -> dict[str, Any]:
    return {
        "engine": "mysql",
        "database": schema,
        "host": listed(*servers),
        "username": "catmq",
        "password": servers[0].password,
    }


@pytest.fixture
def place(ill: MariaDB, replica: MariaDB, make_node: Callable[..., str]) -> Iterator[Place]:
    """Topic `orders`, with three messages that the replica has, too."""
    with ill.schema() as schema:
        until(lambda: bool(replica.execute(f"SHOW DATABASES LIKE '{schema}'")), limit_s=20)
        make_node("listed", **account(schema, replica, ill))
        queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
        snapshot.refresh()
        send(3)
        await_caught_up(replica, ill)
        yield Place(schema, queue, f"127.0.0.1:{ill.port}", f"127.0.0.1:{replica.port}")
        node_pools.evict_all()


def send(count: int = 1) -> list[int]:
    messages = [NewMessage(body=b"%d" % index) for index in range(count)]
    sent = publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    return [receipt.offset for receipt in sent]


def heal(ill: MariaDB, replica: MariaDB) -> None:
    """Make `ill` the primary of `replica` again."""
    ill.execute("SET GLOBAL read_only = 0")
    follow(replica, ill)


def test_the_writer_is_the_server_that_is_not_read_only_wherever_it_stands(
    place: Place, ill: MariaDB
) -> None:
    assert DbNode.objects.get(name="listed").writer == place.primary
    assert ill.execute(f"SELECT COUNT(*) FROM {place.schema}.message_{place.queue}") == [
        (3,)
    ]
    assert snapshot.find_node("listed").writer == place.primary


def test_a_process_that_knows_no_writer_asks_instead_of_taking_the_first(
    place: Place,
) -> None:
    info = replace(snapshot.find_node("listed"), writer="")
    known = writers.at_writer(info)
    assert f"{known.host}:{known.port}" == place.primary


def test_a_writer_of_before_a_promotion_is_not_used_after_it(place: Place) -> None:
    info = snapshot.find_node("listed")
    assert str(writers.find_writer(info).address) == place.primary
    moved = replace(info, writer=place.second)
    assert writers.current(moved) is None
    # The recorded server is a replica still, and the former primary is not taken instead.
    with pytest.raises(NodeUnavailable) as refused:
        writers.connect(moved)
    assert f"The primary {place.second} is read-only" in str(refused.value.__cause__)


def test_a_write_that_waits_for_the_former_server_ends_when_the_record_moves(
    place: Place, ill: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = partial(session_pool.connect, read_timeout_s=300)
    monkeypatch.setattr(session_pool, "connect", patient)
    former = node_pools.node_of(place.queue)
    former.pool.discard()  # sessions with the usual timeout

    def write() -> None:
        with former.writing() as session:
            assert isinstance(session, MySqlSession)
            session.send(b"DO SLEEP(300)", statements=1)

    sleeping = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'"
    )
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(write)
        until(lambda: ill.execute(sleeping) == [(1,)], limit_s=20)
        DbNode.objects.filter(name="listed").update(writer=place.second)
        snapshot.evict()
        assert node_pools.node_of(place.queue) is not former

        def has_ended() -> bool:
            node_pools.watch(former.info.id)
            return waiting.done()

        # Not after 300 s, and with an unknown outcome.
        until(has_ended, limit_s=60, every_s=0.1)
        assert isinstance(waiting.exception(), db_errors.Ambiguous)


def test_a_member_that_is_behind_for_a_moment_is_not_a_loss(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of a cluster that joined again may look synced before it has caught up."""
    info = snapshot.find_node("listed")
    with session_pool.direct(info) as session:
        assert isinstance(session, MySqlSession)
        monkeypatch.setattr(session, "is_clustered", True)
        with pytest.raises(db_errors.Unreachable, match="a member that is behind"):
            node_guard.check_server(info, session, lowest={place.queue: 4})
        assert info.id not in node_guard.quarantined()
        node_guard.check_server(info, session, lowest={place.queue: 3})
        # It lasts.
        monkeypatch.setattr(node_guard, "BEHIND_S", 0.0)
        with pytest.raises(NodeUnavailable, match="the node lost messages"):
            node_guard.check_server(info, session, lowest={place.queue: 4})
        assert info.id in node_guard.quarantined()


def test_threads_that_wait_for_a_survey_take_its_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey takes seconds while servers are cut off: one for each thread is too slow."""
    info = replace(snapshot.find_node("listed"), host="127.0.0.1:1,127.0.0.1:2", writer="")
    lock, survey, surveys = AskedLock(), writers.survey, list[str]()
    monkeypatch.setitem(writers._survey_locks, writers._key(info), lock)

    def survey_when_all_wait(asked: NodeInfo, **more: Any) -> writers.Survey:
        surveys.append(asked.host)
        until(lambda: lock.asked == THREADS, limit_s=60)
        return survey(asked, **more)

    monkeypatch.setattr(writers, "survey", survey_when_all_wait)
    with ThreadPoolExecutor(THREADS) as threads:
        answers = [threads.submit(writers.find_writer, info) for _ in range(THREADS)]
    assert {type(answer.exception()) for answer in answers} == {NoWriter}
    assert len(surveys) == 1


def test_a_primary_that_died_is_replaced_by_the_replica_that_was_made_writable(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    watch = takeovers.Takeovers()
    os.kill(ill.pid, signal.SIGKILL)
    watch.run_once()
    watch.run_once()
    # Nobody made the replica writable, so nobody decided what may be lost.
    assert DbNode.objects.get(name="listed").epoch == 1
    with pytest.raises(CatmqError):
        send()
    replica.execute("SET GLOBAL read_only = 0")
    watch.run_once()
    assert DbNode.objects.get(name="listed").epoch == 1  # only two passes in a row count
    watch.run_once()
    snapshot.refresh()
    row = DbNode.objects.get(name="listed")
    assert (row.state, row.epoch, row.writer) == ("read_write", 2, place.second)
    assert row.host == listed(replica, ill)
    # The tail of a dead primary is not known, so no offset below the jump is given out.
    assert send()[0] > 3
    alarm = Alarm.objects.get(kind="node_moved", name="listed")
    assert place.second in alarm.detail and "was promoted" in alarm.detail
    assert AuditLog.objects.filter(verb="promote", name="listed").count() == 1
    # The dead primary comes back and accepts writes: nothing is written there.
    ill.start()
    watch.run_once()
    watch.run_once()
    assert DbNode.objects.get(name="listed").epoch == 2
    node_pools.evict_all()
    send()
    assert ill.execute(f"SELECT COUNT(*) FROM {place.schema}.message_{place.queue}") == [
        (3,)
    ]
    heal(ill, replica)


def test_a_planned_switch_loses_nothing_and_leaves_no_gap(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    ill.execute("SET GLOBAL read_only = 1")
    await_caught_up(replica, ill)
    replica.execute("SET GLOBAL read_only = 0")
    watch = takeovers.Takeovers()
    watch.run_once()
    watch.run_once()
    snapshot.refresh()
    assert DbNode.objects.get(name="listed").writer == place.second
    assert send(2) == [3, 4]
    heal(ill, replica)


def test_a_replica_that_accepts_writes_beside_its_primary_changes_nothing(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    replica.execute("SET GLOBAL read_only = 0")
    watch = takeovers.Takeovers()
    watch.run_once()
    watch.run_once()
    node_pools.evict_all()
    registry.probe()
    assert send() == [3]
    assert DbNode.objects.get(name="listed").writer == place.primary
    replica.execute("SET GLOBAL read_only = 1")


def test_a_server_with_the_data_of_another_node_is_never_promoted(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    replica.execute("STOP REPLICA")
    replica.execute("SET GLOBAL read_only = 0")
    replica.execute(f"UPDATE {place.schema}.node_identity SET identity = 'other'")
    ill.execute("SET GLOBAL read_only = 1")
    watch = takeovers.Takeovers()
    watch.run_once()
    watch.run_once()
    assert DbNode.objects.get(name="listed").epoch == 1
    info = snapshot.find_node("listed")
    with pytest.raises(writers.NoWriter, match="read-only"):
        writers.find_writer(info)
    # As a list of a node whose writer is not recorded, it is refused by name.
    with pytest.raises(writers.NoWriter, match="data of another node"):
        writers.find_writer(replace(info, writer=""))
    replica.execute(
        f"UPDATE {place.schema}.node_identity SET identity = %s", [info.identity]
    )
    heal(ill, replica)


def test_two_servers_that_accept_writes_cannot_be_registered(
    ill: MariaDB, replica: MariaDB, make_node: Callable[..., str]
) -> None:
    with ill.schema() as schema:
        until(lambda: bool(replica.execute(f"SHOW DATABASES LIKE '{schema}'")), limit_s=20)
        replica.execute("SET GLOBAL read_only = 0")
        try:
            with pytest.raises(Invalid, match="all accept writes") as refused:
                registry.register(name="two", actor=ACTOR, **account(schema, ill, replica))
            assert refused.value.code == "node_refused"
        finally:
            replica.execute("SET GLOBAL read_only = 1")


def test_a_replica_of_several_servers_is_any_that_answers(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    info = replace(snapshot.find_node("listed"), host=f"127.0.0.1:1,{place.second}")
    session = writers.connect_to_read(info)
    session.close()
    found = writers.survey(info)
    assert [member.address for member in found.members] == [
        Address("127.0.0.1", replica.port)
    ]
    assert [*found.unreachable] == [Address("127.0.0.1", 1)]


@pytest.mark.skipif(IS_MYSQL, reason="semi-synchronous replication is a plugin on MySQL")
def test_semi_synchronous_replication_that_fell_back_raises_an_alarm(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    assert raise_alarms.find_nodes_with_few_copies({}).active == {}
    ill.execute("SET GLOBAL rpl_semi_sync_master_timeout = 100")
    ill.execute("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'")
    replica.execute("SET GLOBAL rpl_semi_sync_slave_enabled = 1")
    replica.execute("STOP REPLICA")
    ill.execute("SET GLOBAL rpl_semi_sync_master_enabled = 1")
    try:
        # The server waits for the replica, then goes on alone.
        send()
        (detail,) = raise_alarms.find_nodes_with_few_copies({}).active.values()
        assert "no semi-synchronous replica answers" in detail
        texts = [
            finding.text
            for finding in preflight.reexamine(name="listed", actor=ACTOR).findings
        ]
        assert "semi_fallback" in texts
        replica.execute("START REPLICA")
        status = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_status'"
        until(lambda: ill.execute(status)[0][1] == "ON", limit_s=30)
        assert raise_alarms.find_nodes_with_few_copies({}).active == {}
    finally:
        ill.execute("SET GLOBAL rpl_semi_sync_master_enabled = 0")
        replica.execute("SET GLOBAL rpl_semi_sync_slave_enabled = 0")
        follow(replica, ill)


def test_a_node_gets_a_list_after_its_registration_and_keeps_its_primary(
    ill: MariaDB, replica: MariaDB, make_node: Callable[..., str]
) -> None:
    with ill.schema() as schema:
        until(lambda: bool(replica.execute(f"SHOW DATABASES LIKE '{schema}'")), limit_s=20)
        single = account(schema, ill) | {"host": "127.0.0.1", "port": ill.port}
        make_node("late", **single)
        await_caught_up(replica, ill)
        snapshot.refresh()

        def change(host: str) -> str:
            settings = {"host": host}
            view = registry.update(name="late", settings=settings, actor=ACTOR)
            snapshot.refresh()
            return view.writer

        with pytest.raises(Invalid, match=r"must stay in|No server accepts"):
            change(f"127.0.0.1:{replica.port}")
        identity = snapshot.find_node("late").identity
        replica.execute(f"UPDATE {schema}.node_identity SET identity = 'other'")
        with pytest.raises(Invalid, match="does not have the data of node"):
            change(listed(replica, ill))
        replica.execute(f"UPDATE {schema}.node_identity SET identity = %s", [identity])
        assert DbNode.objects.get(name="late").host == "127.0.0.1"
        assert change(listed(replica, ill)) == f"127.0.0.1:{ill.port}"
        assert registry.ping(snapshot.find_node("late").id) > 0
        # Back to its primary alone.
        assert change(f"127.0.0.1:{ill.port}") == ""
        with pytest.raises(Invalid, match="needs one"):
            change("")
        node_pools.evict_all()
