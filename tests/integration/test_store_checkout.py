"""What becomes of a borrowed session, its place and the circuit when the borrower fails, in
whichever way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_guard, session_pool
from messagestore.pool.circuit import FAILURES
from messagestore.pool.node import Node
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import NodeUnavailable

pytestmark = pytest.mark.one_engine


class Held:
    """A session as far as the pool looks at it."""

    engine = "mysql"
    idle_limit_s = 60.0
    patience_s: float | None = None
    busy_since: float | None = None
    answered_at = 0.0

    def __init__(self) -> None:
        self.clean, self.closed, self.has_come = True, False, False

    def catch_up(self) -> bool:
        self.clean = self.has_come
        return self.has_come

    def is_over(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class Broken(Exception):
    """A bug of the borrower."""


def lost() -> db_errors.Ambiguous:
    fault = db_errors.Ambiguous("cut")
    fault.lost = True
    return fault


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Held]:
    """The sessions that were made."""
    sessions: list[Held] = []

    def connect(*_: object, **__: object) -> Held:
        sessions.append(Held())
        return sessions[-1]

    monkeypatch.setattr(session_pool, "connect", connect)
    monkeypatch.setattr(node_guard, "check_server", lambda *_, **__: None)
    monkeypatch.setattr(node_guard, "lowest_heads", lambda _: {})
    return sessions


@pytest.fixture
def pool(node: str, made: list[Held]) -> Node:
    """A node nobody else uses."""
    return Node(snapshot.find_node(node))


def all_is_back(pool: Node) -> bool:
    """Whether nothing is lent, and every place is free."""
    places = [pool.pool._places.acquire(blocking=False) for _ in range(config.pool_size)]
    for _ in filter(None, places):
        pool.pool._places.release()
    return all(places) and not pool.pool.busy and pool.pool._inside == 0


Way = Callable[[Node], AbstractContextManager[Session]]
WAYS = [pytest.param(Node.writing, id="writing"), pytest.param(Node.reading, id="reading")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error",
    [Broken(), db_errors.RolledBack("no"), db_errors.Final("no"), KeyboardInterrupt()],
)
def test_a_failure_with_a_clean_session_lends_it_again(
    pool: Node, made: list[Held], way: Way, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught, way(pool) as session:
        raise error
    assert caught.value is error
    assert all_is_back(pool)
    with way(pool) as again:
        assert again is session
    assert len(made) == 1
    assert not pool.circuit.is_open


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_with_a_session_in_the_middle_closes_it(
    pool: Node, made: list[Held], way: Way
) -> None:
    with pytest.raises(Broken), way(pool) as session:
        session.clean = False
        raise Broken
    assert made[0].closed
    assert all_is_back(pool)
    with way(pool) as again:
        assert again is not session


def test_a_write_whose_end_was_not_seen_says_so_and_its_siblings_are_thrown_away(
    pool: Node, made: list[Held]
) -> None:
    with pool.writing(), pool.reading():
        pass
    fault = lost()
    with pytest.raises(db_errors.Ambiguous) as caught, pool.writing():
        raise fault
    assert caught.value is fault
    assert [one.closed for one in made] == [True, True]
    assert all_is_back(pool)


def test_a_read_whose_end_was_not_seen_is_a_node_that_is_away(
    pool: Node, made: list[Held]
) -> None:
    with pool.writing(), pool.reading():
        pass
    fault = lost()
    with pytest.raises(NodeUnavailable, match="cut") as caught, pool.reading():
        raise fault
    assert not isinstance(caught.value, db_errors.Ambiguous)
    assert caught.value.__cause__ is fault
    assert [one.closed for one in made] == [True, True]
    assert all_is_back(pool)


@pytest.mark.parametrize("way", WAYS)
def test_the_circuit_learns_of_lost_connections_once_each(
    pool: Node, made: list[Held], way: Way
) -> None:
    for number in range(1, FAILURES + 1):
        with pytest.raises((db_errors.Ambiguous, NodeUnavailable)), way(pool):
            raise lost()
        assert pool.circuit._failures == number
    assert pool.circuit.is_open
    with pytest.raises(NodeUnavailable):
        pool.circuit.check()


@pytest.mark.parametrize(
    "way", [*WAYS, pytest.param(lambda pool: pool.reading(within_s=0.5), id="within")]
)
def test_a_late_answer_keeps_its_session_and_place_until_it_has_come(
    pool: Node, made: list[Held], way: Way
) -> None:
    with pool.writing():
        pass
    late = db_errors.SlowNode("slow")
    with pytest.raises(db_errors.SlowNode) as caught, way(pool) as session:
        session.clean = False
        raise late
    assert caught.value is late
    assert pool.pool.busy and not made[0].closed
    with pytest.raises(db_errors.SlowNode), pool.reading(within_s=0.5):
        pytest.fail("a node in doubt is not asked")
    with pool.writing() as other:  # who can wait gets another one
        assert other is not session
    made[0].has_come = True
    with pool.writing(), pool.writing():
        assert len(made) == 2
    assert all_is_back(pool)
    assert not any(one.closed for one in made)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error", [db_errors.Unreachable("away"), lost(), Broken()], ids=["away", "lost", "bug"]
)
def test_a_session_that_could_not_be_made_costs_no_place(
    pool: Node, monkeypatch: pytest.MonkeyPatch, way: Way, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> Session:
        raise error

    monkeypatch.setattr(session_pool, "connect", fail)
    with pytest.raises((db_errors.Ambiguous, NodeUnavailable, Broken)) as caught, way(pool):
        pytest.fail("there is no session")
    becomes_other = way is Node.reading and isinstance(error, db_errors.Ambiguous)
    assert (caught.value is error) != becomes_other
    assert all_is_back(pool)
    assert pool.circuit._failures == (not isinstance(error, Broken))


@pytest.mark.parametrize(
    "error", [Broken(), lost(), db_errors.SlowNode("slow")], ids=["bug", "lost", "late"]
)
def test_a_probe_that_fails_inside_lets_another_one_go(
    pool: Node, made: list[Held], error: Exception
) -> None:
    pool.circuit.trip()
    with pytest.raises((Broken, db_errors.SlowNode, NodeUnavailable)), pool.reading():
        assert pool.circuit._probing
        raise error
    assert not pool.circuit._probing


def test_loans_of_one_thread_within_each_other_are_two(
    pool: Node, made: list[Held]
) -> None:
    with pool.writing() as outer:
        with pytest.raises(Broken), pool.writing() as inner:
            assert inner is not outer
            raise Broken
        assert pool.pool.busy
    assert all_is_back(pool)
