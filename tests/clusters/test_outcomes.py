"""Errors of clusters by meaning: what is certainly rolled back, and what is unknown.

Each error comes from a real cluster whose links are cut in a forced order.
docs/reference/cluster-errors.md is the table of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest

from messagestore.engine import batch_ids, db_errors
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import MySqlSession, Step
from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables.statements import parse
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import CatmqError, OutcomeUnknown
from tests.support.clusters import STATE_S, Cluster, Member, require_links
from tests.support.waiting import until

ACTOR = command("test")
UNREACHABLE_MAJORITY_S = 9
HAVE_TO_COMMIT_S = 4.0  # less than Galera's suspect timeout of 5 s
COMMITTING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info = 'COMMIT'"
IN_TRANSACTION = b"START TRANSACTION; UPDATE counter SET n = n + 1 WHERE id = %d"
INSERT = b"INSERT INTO kept VALUES (%d)"


@pytest.fixture
def schema(cluster: Cluster) -> Iterator[str]:
    """A database with tables `kept`, which is empty, and `counter`, on all members."""
    name = f"test_{uuid4().hex[:12]}"
    writer = cluster.writer
    writer.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    writer.execute(f"CREATE TABLE {name}.kept (id BIGINT PRIMARY KEY)")
    writer.execute(f"CREATE TABLE {name}.counter (id INT PRIMARY KEY, n INT)")
    writer.execute(f"INSERT INTO {name}.counter VALUES (1, 0), (2, 0)")
    for member in cluster.members.values():
        until(lambda member=member: counters(member, name) == {1: 0, 2: 0})  # type: ignore[misc]
    yield name
    while _sessions:
        _sessions.pop().close()
    cluster.await_whole()
    cluster.writer.execute(f"DROP DATABASE {name}")


def counters(member: Member, schema: str) -> dict[int, int]:
    import MySQLdb

    try:
        return dict(member.execute(f"SELECT id, n FROM {schema}.counter"))
    except MySQLdb.ProgrammingError:  # the table is not there yet
        return {}


_sessions: list[MySqlSession] = []  # of the current test, which `schema` closes


def open_session(member: Member, schema: str, *, read_timeout_s: int = 30) -> MySqlSession:
    session = MySqlSession(
        name="n1",
        host=member.host,
        port=member.port,
        database=schema,
        username="catmq",
        password=member.password,
        read_timeout_s=read_timeout_s,
    )
    _sessions.append(session)
    return session


def begin(session: MySqlSession, row: int) -> None:
    """Open a transaction that has written."""
    text = b";".join([IN_TRANSACTION % row, INSERT % row])
    session.send(text, statements=3, ends_transaction=False)


def commit(session: MySqlSession) -> db_errors.RolledBack | db_errors.Ambiguous | None:
    """Send COMMIT and return its error."""
    try:
        session.send(b"COMMIT", statements=1)
    except (db_errors.RolledBack, db_errors.Ambiguous) as error:
        return error
    return None


def kept(server: Cluster | Member, schema: str) -> list[int]:
    return [id for (id,) in server.execute(f"SELECT id FROM {schema}.kept ORDER BY id")]


def number_of(error: CatmqError | None) -> int:
    """Return the server's number of an error."""
    assert error is not None and error.__cause__ is not None
    return int(error.__cause__.args[0])


@contextmanager
def give_up_after(cluster: Cluster, seconds: int) -> Iterator[None]:
    """Make members of a group end transactions after this time without a majority.

    A member of a Galera cluster always does so, when it notices.
    """
    setting = "SET GLOBAL group_replication_unreachable_majority_timeout = {}"
    if cluster.kind == "galera":
        yield
        return
    for member in cluster.members.values():
        member.execute(setting.format(seconds))
    try:
        yield
    finally:
        cluster.await_whole()
        for member in cluster.members.values():
            member.execute(setting.format(0))


def test_a_commit_whose_server_loses_its_majority_is_unknown(
    cluster: Cluster, schema: str
) -> None:
    """Both servers end the COMMIT with an error, and the majority has stored the rows."""
    require_links(cluster)
    writer = cluster.writer
    patient = open_session(writer, schema)
    impatient = open_session(writer, schema, read_timeout_s=2)
    begin(patient, 1)
    begin(impatient, 2)
    with (
        give_up_after(cluster, UNREACHABLE_MAJORITY_S),
        ThreadPoolExecutor(2) as threads,
    ):
        # The others receive the write sets, and their answers vanish.
        cluster.cut(writer.member, "--one-way")
        commits = [threads.submit(commit, each) for each in (patient, impatient)]
        until(
            lambda: writer.execute(COMMITTING) == [(2,)],
            limit_s=HAVE_TO_COMMIT_S,
        )
        # A commit that the group may lack is not visible.
        assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(0,)]
        error, lost = (future.result(60) for future in commits)
        assert number_of(error) == {"galera": 1180, "group": 3100}[cluster.kind]
        assert isinstance(error, db_errors.Ambiguous) and not error.lost
        assert not patient.clean
        # It did not wait for the server's answer.
        assert number_of(lost) == 2013
        assert isinstance(lost, db_errors.Ambiguous) and lost.lost
        # The others give the writer up, and apply what it sent.
        until(
            lambda: cluster.has_writer() and kept(cluster, schema) == [1, 2],
            limit_s=STATE_S,
        )
    cluster.await_whole()
    for member in cluster.members.values():
        assert kept(member, schema) == [1, 2]


@pytest.mark.rounds
def test_a_send_in_flight_is_stored_once_by_the_next_writer(
    metadata_db: None, cluster: Cluster, schema: str
) -> None:
    require_links(cluster)
    writer = cluster.writer
    registry.register(
        name="n1",
        engine="mysql",
        host=",".join(
            f"{member.host}:{member.port}" for member in cluster.members.values()
        ),
        database=schema,
        username="catmq",
        password=writer.password,
        actor=ACTOR,
    )
    snapshot.refresh()
    topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()

    def send(text: str, batch_id: Any) -> int:
        (fate,) = publish(
            topic="orders",
            messages=[NewMessage(body=text.encode())],
            batch_id=batch_id,
            actor=ACTOR,
        )
        return int(fate.offset)

    assert send("first", batch_ids.new()) == 0
    batch_id = batch_ids.new()
    with ThreadPoolExecutor(1) as threads:
        cluster.cut(writer.member, "--one-way")
        sent: Future[int] = threads.submit(send, "in flight", batch_id)
        with suppress(OutcomeUnknown):  # unless the next writer was there in time
            assert sent.result(60) == 1
    assert until(lambda: _try(lambda: send("in flight", batch_id)), limit_s=60) == 1
    assert send("last", batch_ids.new()) == 2
    node_pools.evict_all()


def _try(act: Any) -> Any:
    try:
        return act()
    except CatmqError:
        return None


def test_a_conflict_with_another_member_is_rolled_back(
    cluster: Cluster, schema: str
) -> None:
    """Certification fails in COMMIT (Galera); a secondary refuses the write (group)."""
    writer = cluster.writer
    other = next(m for m in cluster.members.values() if m.member != writer.member)
    session = open_session(writer, schema)
    if cluster.kind == "group":
        with pytest.raises(db_errors.ReadOnly) as refused:
            begin(open_session(other, schema), 1)
        assert number_of(refused.value) == 1290
        return
    begin(session, 1)
    other.execute(f"UPDATE {schema}.counter SET n = 7 WHERE id = 1")
    error = commit(session)
    assert number_of(error) == 1213
    assert isinstance(error, db_errors.RolledBack) and session.clean
    assert writer.execute(f"SELECT n FROM {schema}.counter WHERE id = 1") == [(7,)]
    assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(0,)]


def steps_of(*texts: str) -> list[Step]:
    return [Step(parse(f"-- name: one\n{text}")["one"], {}) for text in texts]


@pytest.fixture
def writer_and_other(cluster: Cluster) -> tuple[Member, Member]:
    writer = cluster.writer
    return writer, next(m for m in cluster.members.values() if m.member != writer.member)


@pytest.fixture
def two_members(
    cluster: Cluster, writer_and_other: tuple[Member, Member]
) -> tuple[Member, Member]:
    """The writer of a Galera cluster, and another member."""
    if cluster.kind == "group":
        pytest.skip("a group has one member that takes writes")
    return writer_and_other


def test_a_transaction_that_another_member_ends_between_statements_is_not_acknowledged(
    two_members: tuple[Member, Member], schema: str
) -> None:
    """MariaDB goes on with the next statement of a string, keeps it, and answers its COMMIT."""
    writer, other = two_members
    session = open_session(writer, schema)
    steps = steps_of(
        "UPDATE counter SET n = n + 1 WHERE id = 1",
        "INSERT INTO kept VALUES (1)",
        "DO SLEEP(3)",
        "INSERT INTO kept VALUES (2)",
    )
    waiting = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'"
    )
    with ThreadPoolExecutor(1) as threads:
        transacted = threads.submit(session.transact, *steps)
        until(lambda: writer.execute(waiting) == [(1,)])
        other.execute(f"UPDATE {schema}.counter SET n = 7 WHERE id = 1")
        error = transacted.exception(60)
    assert isinstance(error, db_errors.RolledBack) and number_of(error) == 1213
    assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(0,)]
    assert writer.execute(f"SELECT n FROM {schema}.counter WHERE id = 1") == [(7,)]


def test_a_transaction_that_another_member_ends_between_strings_keeps_nothing(
    two_members: tuple[Member, Member], schema: str
) -> None:
    writer, other = two_members
    session = open_session(writer, schema)
    session.transact(*steps_of("UPDATE counter SET n = n + 1 WHERE id = 1"), ends=False)
    other.execute(f"UPDATE {schema}.counter SET n = 7 WHERE id = 1")
    count = f"SELECT n FROM {schema}.counter WHERE id = 1"
    until(lambda: writer.execute(count) == [(7,)])
    with pytest.raises(db_errors.RolledBack) as ended:
        session.transact(*steps_of("INSERT INTO kept VALUES (1)"), begins=False)
    assert number_of(ended.value) == 1213 and session.clean
    assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(0,)]


def test_each_transaction_is_whole_however_often_another_member_ends_one(
    two_members: tuple[Member, Member], schema: str
) -> None:
    """At any moment of it. The server must not repeat one by itself, either."""
    writer, other = two_members
    session = open_session(writer, schema)
    writer.execute(f"CREATE TABLE {schema}.part (id INT, n INT, PRIMARY KEY (id, n))")
    # It would do so once in some hundred conflicts, with an answer that cannot be read.
    (retries,) = session.run(*steps_of("SHOW VARIABLES LIKE 'wsrep_retry_autocommit'"))
    assert retries.rows == (("wsrep_retry_autocommit", "0"),)
    stored, ended, is_over = set(), 0, threading.Event()

    def disturb() -> None:
        while not is_over.is_set():
            with suppress(Exception):  # conflicts with the session
                other.execute(f"UPDATE {schema}.counter SET n = n + 1 WHERE id = 1")

    with ThreadPoolExecutor(1) as threads:
        disturbing = threads.submit(disturb)
        try:
            for number in range(5000):
                parts = [f"INSERT INTO part VALUES ({number}, {n})" for n in range(5)]
                try:
                    before, *results = session.transact(
                        *steps_of(
                            "SELECT n FROM counter WHERE id = 1 FOR UPDATE",
                            "UPDATE counter SET n = n + 1 WHERE id = 1",
                            *parts,
                        )
                    )
                except db_errors.RolledBack as error:
                    assert number_of(error) == 1213 and session.clean
                    ended += 1
                else:
                    assert len(before.rows) == 1
                    assert [result.matched for result in results] == [1] * 6
                    stored.add(number)
                if ended >= 100 and len(stored) >= 300:
                    break
        finally:
            is_over.set()
            disturbing.result(60)
    assert ended >= 20 and len(stored) >= 20
    found = writer.execute(f"SELECT id, COUNT(*) FROM {schema}.part GROUP BY id")
    assert dict(found) == dict.fromkeys(stored, 5)


def test_a_compound_statement_has_the_results_of_its_statements(
    two_members: tuple[Member, Member], schema: str
) -> None:
    """As a string of statements has them."""
    writer, _ = two_members
    session = open_session(writer, schema)
    first = steps_of(
        "UPDATE counter SET n = n WHERE id = 1",
        "INSERT INTO kept SELECT 1 FROM DUAL WHERE ROW_COUNT() = 1",
        "SELECT id, n FROM counter ORDER BY id FOR UPDATE",
        "UPDATE counter SET n = 5 WHERE id = 99",
        "INSERT INTO kept SELECT 2 FROM DUAL WHERE ROW_COUNT() = 1",
        "UPDATE counter SET n = 8 WHERE id = 2 AND LAST_INSERT_ID(n + 40) > 0",
        "SET @b = 3",
        "SELECT id FROM kept WHERE id = @b",
    )
    last = steps_of("INSERT INTO kept VALUES (@b)", "DELETE FROM kept")
    results = {}
    for is_compound in (True, False):
        session.is_galera = is_compound
        results[is_compound] = session.transact(*first, ends=False)
        results[is_compound] += session.transact(*last, begins=False)
        writer.execute(f"UPDATE {schema}.counter SET n = 0")
    assert [len(result.rows) for result in results[False]] == [0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    for compound, plain in zip(results[True], results[False], strict=True):
        assert (compound.rows, compound.matched) == (plain.rows, plain.matched)
    # Outside of a compound statement a count that was not set is 0.
    assert results[True][5].number == results[False][5].number == 40


def test_a_transaction_above_the_packet_limit_is_sent_in_several_strings(
    two_members: tuple[Member, Member], schema: str
) -> None:
    writer, _ = two_members
    session = open_session(writer, schema)
    session.max_packet = 1_300
    results = session.transact(
        *steps_of(*(f"INSERT INTO kept VALUES ({n})" for n in range(9)))
    )
    assert [result.matched for result in results] == [1] * 9
    assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(9,)]
    with pytest.raises(db_errors.Duplicate):
        session.transact(
            *steps_of(*(f"INSERT INTO kept VALUES ({20 - n})" for n in range(13)))
        )
    assert writer.execute(f"SELECT COUNT(*) FROM {schema}.kept") == [(9,)]


def test_a_read_only_transaction_is_refused_and_rolled_back(
    cluster: Cluster, schema: str
) -> None:
    """As the readers of managed clusters and of proxies are."""
    session = open_session(cluster.writer, schema)
    session.send(b"SET SESSION TRANSACTION READ ONLY", statements=1)
    with pytest.raises(db_errors.ReadOnly) as refused:
        begin(session, 1)
    assert number_of(refused.value) == 1792
    assert session.clean


@pytest.fixture
def of_group(
    cluster: Cluster, writer_and_other: tuple[Member, Member]
) -> tuple[Member, Member]:
    """The primary of a group, and a secondary."""
    if cluster.kind == "galera":
        pytest.skip("Galera has no such error")
    return writer_and_other


def test_a_table_without_primary_key_is_named(
    of_group: tuple[Member, Member], schema: str
) -> None:
    writer, _ = of_group
    writer.execute(f"CREATE TABLE {schema}.keyless (id INT)")
    with pytest.raises(db_errors.Final, match="primary key") as refused:
        open_session(writer, schema).transact(
            *steps_of("INSERT INTO kept VALUES (1)", "INSERT INTO keyless VALUES (1)")
        )
    assert number_of(refused.value) == 3098
    assert kept(writer, schema) == []


def test_a_member_that_does_not_catch_up_begins_no_transaction(
    of_group: tuple[Member, Member], schema: str
) -> None:
    writer, other = of_group
    session = open_session(other, schema)
    session.send(
        b"SET SESSION group_replication_consistency = 'BEFORE', wait_timeout = 2",
        statements=1,
    )
    holder = other.connect()
    try:
        holder.cursor().execute("FLUSH TABLES WITH READ LOCK")  # so it applies nothing
        writer.execute(f"INSERT INTO {schema}.kept VALUES (7)")
        # ROLLBACK waits, too, and is refused.
        with pytest.raises(db_errors.NotReady) as refused:
            begin(session, 1)
    finally:
        holder.close()
    assert number_of(refused.value) == 3797 and not session.clean


@pytest.mark.rounds
def test_a_server_without_majority_refuses_and_rolls_back(
    cluster: Cluster, schema: str
) -> None:
    """Galera refuses each statement, COMMIT and ROLLBACK included; MySQL becomes read-only."""
    require_links(cluster)
    members = cluster.members
    alone = cluster.writer
    session, idle = open_session(alone, schema), open_session(alone, schema)
    if cluster.kind == "galera":
        # Otherwise the server may end the session before it misses the others.
        session.send(b"SET SESSION idle_write_transaction_timeout = 0", statements=1)
    begin(session, 1)
    with give_up_after(cluster, 2):
        cluster.cut(alone.member)
        cluster.await_state(
            lambda states: (
                not states[alone.member].primary
                and (
                    cluster.kind == "galera"
                    # MySQL keeps the state until its own time limit.
                    or states[alone.member].state == "ERROR"
                )
            )
        )
        error = commit(session)
        with pytest.raises(db_errors.ReadOnly) as refused:
            begin(idle, 2)
        numbers = number_of(error), number_of(refused.value)
        assert numbers == {"galera": (1047, 1047), "group": (1290, 1290)}[cluster.kind]
        assert isinstance(error, db_errors.ReadOnly)
        # A session that may have an open transaction is not used again.
        assert session.clean == (cluster.kind == "group")
    cluster.await_whole()
    for number in members:
        rows = cluster.members[number].execute(f"SELECT COUNT(*) FROM {schema}.kept")
        assert rows == [(0,)]
