"""Questions to several servers at once: who is waited for, and for how long."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from metadata import surveys
from metadata.rules.addresses import Address
from metadata.rules.cluster_members import Member, ServerKind, decides

A, B, C = (Address(name, 3306) for name in ("a", "b", "c"))


def galera(address: Address, rank: int, fault: str = "") -> Member:
    return Member(address, ServerKind.GALERA, fault, address.host, "10.11", rank=rank)


@pytest.fixture
def frozen() -> threading.Event:
    return threading.Event()


def test_a_frozen_server_does_not_delay_an_answer_that_decides(
    frozen: threading.Event,
) -> None:
    answers = {A: galera(A, 1), B: galera(B, 0)}

    def ask(place: Address) -> Member | str:
        if place == C:
            assert frozen.wait(60)
            return "it was frozen"
        return answers[place]

    members, reasons = surveys.ask_all([A, B, C], ask, decides=decides)
    frozen.set()
    assert members == [answers[A], answers[B]]
    assert reasons == {C: surveys.LATE}


def test_without_an_answer_that_decides_all_are_waited_for(frozen: threading.Event) -> None:
    asked = threading.Semaphore(0)

    def ask(place: Address) -> Member | str:
        asked.release()
        if place == C:
            assert frozen.wait(60)
            return "it was frozen"
        # The first of the view, but not synced; and a member that is not the first.
        return galera(A, 0, "is not synced") if place == A else galera(B, 1)

    with ThreadPoolExecutor(1) as pool:
        survey = pool.submit(surveys.ask_all, [A, B, C], ask, decides=decides)
        for _ in range(3):
            assert asked.acquire(timeout=60)
        assert not survey.done()
        frozen.set()
        members, reasons = survey.result(60)
    assert [member.address for member in members] == [A, B]
    assert reasons == {C: "it was frozen"}


def test_an_error_of_the_program_is_not_an_answer() -> None:
    def ask(place: Address) -> Member | str:
        raise KeyError(place)

    with pytest.raises(KeyError):
        surveys.ask_all([A], ask)


def test_the_recorded_primary_decides_and_no_other_single_server() -> None:
    member = Member(A, ServerKind.SINGLE, "", "1", "10.11")
    assert decides(member, recorded="a:3306")
    assert not decides(member, recorded="b:3306") and not decides(member)
    assert decides(member._replace(kind=ServerKind.GROUP))
    assert not decides(member._replace(kind=ServerKind.GROUP, fault="is a secondary"))
