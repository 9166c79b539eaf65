"""The circuit of a node: when it opens, who may probe, what closes it. No database, no
clock but its own.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from messagestore.engine import db_errors
from messagestore.pool import circuit as module
from messagestore.pool.circuit import MAX_PAUSE_OF_LISTS_S, MAX_PAUSE_S, Circuit
from metadata.errors import Code, NodeUnavailable, TooLarge


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def lost() -> db_errors.Ambiguous:
    fault = db_errors.Ambiguous("lost")
    fault.lost = True
    return fault


def call(
    circuit: Circuit, error: Exception | None = None, *, may_probe: bool = True
) -> None:
    """One call that reaches the node, and ends so."""
    with circuit.permit(may_probe=may_probe) as permit:
        if isinstance(error, db_errors.Unreachable):
            raise error
        permit.reached = True
        if error is not None:
            raise error


def fails(circuit: Circuit, error: Exception | None = None) -> None:
    with pytest.raises((db_errors.Unreachable, db_errors.Ambiguous)):
        call(circuit, error or db_errors.Unreachable("away"))


def refused(circuit: Circuit) -> NodeUnavailable:
    with pytest.raises(NodeUnavailable, match="is away") as caught:
        call(circuit)
    return caught.value


def test_one_call_that_took_long_to_find_the_node_away_opens_it(clock: Clock) -> None:
    circuit = Circuit("n1")
    with pytest.raises(db_errors.Unreachable), circuit.permit(may_probe=True):
        clock.now += module.SILENT_S
        raise db_errors.Unreachable("no answer")
    assert circuit.is_open


def test_two_calls_in_a_row_that_find_the_node_away_open_it(clock: Clock) -> None:
    circuit = Circuit("n1")
    fails(circuit)
    call(circuit)
    fails(circuit, lost())
    assert not circuit.is_open
    fails(circuit)
    assert circuit.is_open
    error = refused(circuit)
    assert (error.code, error.retriable, error.retry_after_ms) == (
        Code.NODE_UNAVAILABLE,
        True,
        500,
    )


@pytest.mark.parametrize(
    "error", [db_errors.Final("1146"), db_errors.Refused("1048"), TooLarge("x")]
)
def test_an_error_that_the_node_answered_is_an_answer(
    clock: Clock, error: Exception
) -> None:
    circuit = Circuit("n1")
    fails(circuit)
    with pytest.raises(type(error)):
        call(circuit, error)
    fails(circuit)
    assert not circuit.is_open


def test_an_interrupted_statement_says_nothing_against_the_node(clock: Clock) -> None:
    circuit = Circuit("n1")
    for _ in range(5):
        with pytest.raises(db_errors.Ambiguous):
            call(circuit, db_errors.from_mysql(1317, "interrupted", "n1"))
    assert not circuit.is_open


@pytest.mark.parametrize(
    ("max_pause_s", "expected"),
    [
        (MAX_PAUSE_S, [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]),
        (MAX_PAUSE_OF_LISTS_S, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_one_probe_goes_after_a_pause_that_grows(
    clock: Clock, max_pause_s: float, expected: list[float]
) -> None:
    circuit = Circuit("n1", max_pause_s=max_pause_s)
    fails(circuit)
    fails(circuit)
    waits = []
    for _ in range(6):
        begun = clock.now
        while not circuit.is_due():
            refused(circuit)
            clock.now += 0.25
        waits.append(clock.now - begun)
        fails(circuit)
    assert waits == expected


def test_while_a_probe_is_under_way_there_is_no_other(clock: Clock) -> None:
    circuit = Circuit("n1")
    fails(circuit)
    fails(circuit)
    clock.now += 1
    with ExitStack() as stack:
        probe = stack.enter_context(circuit.permit(may_probe=True))
        assert probe.probe
        clock.now += 60
        refused(circuit)
        assert not circuit.is_due()
        probe.reached = True
    assert not circuit.is_open
    call(circuit)


def test_a_probe_that_never_reached_the_node_leaves_the_next_one_its_turn(
    clock: Clock,
) -> None:
    circuit = Circuit("n1")
    circuit.trip()
    with pytest.raises(ZeroDivisionError), circuit.permit(may_probe=True):
        raise ZeroDivisionError
    assert circuit.is_open
    assert circuit.is_due()
    call(circuit)
    assert not circuit.is_open


def test_whoever_may_not_probe_waits_for_those_that_may(clock: Clock) -> None:
    circuit = Circuit("n1")
    circuit.trip()
    with pytest.raises(NodeUnavailable, match="is away"):
        call(circuit, may_probe=False)
    with pytest.raises(NodeUnavailable, match="is away"):
        circuit.check()


def test_the_answer_to_a_call_from_before_closes_it(clock: Clock) -> None:
    circuit = Circuit("n1")
    with circuit.permit(may_probe=True) as slow:
        circuit.trip()
        slow.reached = True
    assert not circuit.is_open
