"""A link to MariaDB breaks where it is told to: answers are lost whole, or end between two
results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import MySQLdb
import pytest
from MySQLdb.constants import CLIENT

from tests.support.links import Link
from tests.support.mariadb import MariaDB
from tests.support.waiting import until


@pytest.fixture
def link(mariadb: MariaDB) -> Iterator[Link]:
    with Link(mariadb.port, mysql=True).running() as made:
        yield made


def dial(link: Link, mariadb: MariaDB) -> Any:
    account = {
        "user": "catmq",
        "password": mariadb.password,
        "client_flag": CLIENT.MULTI_STATEMENTS,
    }
    return MySQLdb.connect(host="127.0.0.1", port=link.port, autocommit=True, **account)


def test_an_answer_that_ends_between_two_results_shows_the_first_and_a_lost_connection(
    link: Link, mariadb: MariaDB
) -> None:
    with closing(dial(link, mariadb)) as connection:
        cut = link.cut_between_results(after=2, match=b"SELECT 7")
        connection.query("SET @a = 1; SELECT 7; SELECT 8; SELECT 9")
        seen = [connection.store_result()]
        with suppress(MySQLdb.OperationalError):  # or the driver says -1, as at the end
            while connection.next_result() == 0:
                seen.append(connection.store_result())
        assert cut.hit.wait(10)
        assert [rows and rows.fetch_row(0) for rows in seen] == [None, ((7,),)]
        assert connection.errno() == 2013


def test_an_older_driver_takes_an_end_inside_a_later_result_for_the_end_of_the_answer(
    link: Link, mariadb: MariaDB
) -> None:
    """This is why a store must count results and look at the error number behind the last
    one.
    """
    with closing(dial(link, mariadb)) as connection:
        cut = link.cut_between_results(after=2, more=10, match=b"SELECT 7")
        connection.query("SELECT 6; SELECT 7; SELECT 8")
        connection.store_result()
        assert connection.next_result() == 0
        connection.store_result()
        with suppress(MySQLdb.OperationalError):  # since Connector/C 3.4, but not before
            assert connection.next_result() == -1
        assert connection.errno() == 2013
        assert cut.hit.is_set()


def test_an_answer_with_fewer_results_is_passed_on_whole_and_the_fault_waits_for_the_next(
    link: Link, mariadb: MariaDB
) -> None:
    cut = link.cut_between_results(after=2)
    with closing(dial(link, mariadb)) as connection:
        connection.query("SELECT 1; SELECT 2")
        first = connection.store_result().fetch_row(0)
        assert connection.next_result() == 0
        assert (first, connection.store_result().fetch_row(0)) == (((1,),), ((2,),))
        assert not cut.hit.is_set()
        connection.query("SELECT 1; SELECT 2; SELECT 3")
        assert cut.hit.wait(10)


def test_what_a_lost_answer_said_was_done(link: Link, mariadb: MariaDB) -> None:
    with (
        mariadb.schema() as schema,
        suppress(MySQLdb.Error),
        closing(dial(link, mariadb)) as connection,
    ):
        mariadb.execute(f"CREATE TABLE {schema}.kept (n INT)")
        lost = link.lose_answers(match=b"INSERT")
        with pytest.raises(MySQLdb.OperationalError):
            connection.query(
                f"START TRANSACTION; INSERT INTO {schema}.kept VALUES (1); COMMIT; SELECT 1"
            )
        assert lost.hit.wait(10)
        assert until(lambda: mariadb.execute(f"SELECT n FROM {schema}.kept")) == [(1,)]
