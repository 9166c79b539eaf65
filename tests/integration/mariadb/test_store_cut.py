"""A connection that breaks in the middle of an answer, at every place between two packets.

The driver calls that the end of the results. A broker that believes it hands out half an
answer, and lends the session again, which then answers with what belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError
from django.db import connections as django_connections

from catmq_site.mysql.base import DatabaseWrapper
from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import Session
from messagestore.engine.transaction_strings import Result
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import sql_steps
from messagestore.tables.sql_steps import step
from messagestore.topology import topics
from metadata.actors import command
from metadata.errors import CatmqError, NodeUnavailable
from tests.support.cutting import AnswerCutter
from tests.support.mariadb import MariaDB

ACTOR = command("test")
MESSAGES = [NewMessage(body=b"%d" % index, key="k") for index in range(3)]


@pytest.fixture
def cutter(mariadb: MariaDB) -> Iterator[AnswerCutter]:
    """A proxy in front of the session's server."""
    with AnswerCutter(mariadb.port).running() as proxy:
        yield proxy


@pytest.fixture
def queue(
    cutter: AnswerCutter, mariadb: MariaDB, make_node: Callable[..., str]
) -> Iterator[int]:
    """A queue with three messages on a node behind the proxy."""
    with mariadb.schema() as schema:
        where = {"host": "127.0.0.1", "port": cutter.port, "database": schema}
        make_node(
            "main", engine="mysql", username="catmq", password=mariadb.password, **where
        )
        queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
        send()
        yield queue
        node_pools.evict_all()


def send() -> list[Any]:
    return publish(topic="orders", messages=MESSAGES, batch_id=None, actor=ACTOR)


def two_results(session: Session, queue: int) -> list[Result]:
    """Return what a pull asks: two SELECTs in one string."""
    return session.run(*_two(session, queue))


def two_that_fit(session: Session, queue: int) -> list[Result]:
    """The same, the second in pieces."""
    return session.run(*_two(session, queue), count_fitting=len)


def _two(session: Session, queue: int) -> list[Any]:
    values = {"table": sql_steps.message_table(queue), "first_offset": 0, "end_offset": 10}
    return [
        step(session, "select_head", queue=queue),
        step(session, "select_messages", **values),
    ]


def a_transaction(session: Session, queue: int) -> list[Result]:
    """Return what an acquire asks: an UPDATE and a SELECT in a transaction."""
    values = {"group_id": 1, "instance": "", "queue": queue, "epoch": 1, "owner": "o"}
    return session.transact(step(session, "acquire_reader", **values))


@pytest.mark.parametrize("ask", [two_results, two_that_fit, a_transaction])
def test_an_answer_that_is_cut_anywhere_is_an_error_and_its_session_is_not_lent_again(
    cutter: AnswerCutter, queue: int, ask: Callable[[Session, int], list[Result]]
) -> None:
    node = node_pools.node_of(queue)
    with node.writing() as session:
        cutter.watch()
        whole = ask(session, queue)
    packets = cutter.packets
    assert packets > 3
    for place in range(packets):
        with node.writing() as session:
            first = session
            cutter.cut_after(place)
            with pytest.raises(db_errors.Ambiguous, match="2013"):
                ask(session, queue)
            assert not session.clean
        with node.writing() as session:
            assert session is not first
            assert ask(session, queue) == whole


def test_a_pull_whose_answer_is_cut_says_that_the_node_is_away(
    cutter: AnswerCutter, queue: int
) -> None:
    node = node_pools.node_of(queue)
    with node.reading() as session:
        cutter.watch()
        two_that_fit(session, queue)
    for place in range(cutter.packets):
        with pytest.raises(NodeUnavailable), node.reading() as session:
            cutter.cut_after(place)
            two_that_fit(session, queue)


def test_a_send_whose_answer_is_cut_anywhere_is_stored_once_and_told_where(
    cutter: AnswerCutter, queue: int, mariadb: MariaDB
) -> None:
    cutter.watch()
    send()
    packets = cutter.packets
    for place in range(packets):
        cutter.cut_after(place)
        receipts = send()
        assert [one.offset for one in receipts] == [
            6 + 3 * place + index for index in range(3)
        ]
    schema = node_pools.node_of(queue).info.database
    rows = mariadb.execute(
        f"SELECT COUNT(*), MAX(msg_offset) FROM {schema}.message_{queue}"
    )
    assert rows == [(6 + 3 * packets, 5 + 3 * packets)]


def test_a_change_of_metadata_whose_answer_is_cut_anywhere_is_not_taken_for_committed(
    cutter: AnswerCutter, metadata_db: None
) -> None:
    beside = {
        **django_connections["default"].settings_dict,
        "HOST": "127.0.0.1",
        "PORT": cutter.port,
    }
    database = DatabaseWrapper(beside, "beside")

    def change() -> None:
        database.ensure_connection()
        database.set_autocommit(False)
        with database.cursor() as cursor:
            cursor.execute("UPDATE metadata_changecounter SET n = n + 1")
        database.last_words = ["DO 1", "DO 2"]
        cutter.watch()

    change()
    database.commit()
    assert cutter.packets == 3
    for place in range(3):
        database.close()
        change()
        cutter.cut_after(place)
        with pytest.raises(OperationalError):
            database.commit()
    database.close()


def test_a_server_that_answers_more_or_less_than_it_was_asked_is_not_believed(
    cutter: AnswerCutter, queue: int
) -> None:
    for text, statements in ((b"SELECT 1", 2), (b"SELECT 1; SELECT 2", 1)):
        with node_pools.node_of(queue).writing() as session:
            send_text: Any = session
            with pytest.raises(CatmqError, match=f"for {statements} statements"):
                send_text.send(text, statements=statements)
            assert not session.clean
