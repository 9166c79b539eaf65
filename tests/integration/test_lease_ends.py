"""Workers of one broker tell each other who has a lease: the others ask when it ends, or is
given up.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from metadata.db import leases
from metadata.db.clock import database_now
from metadata.limits import lease_ends
from metadata.limits.lease_ends import LeaseEnds
from metadata.models import Lease
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("metadata_db")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The holders that asked for a lease, where the workers of a broker share the ends of
    leases.
    """
    found: list[str] = []
    acquire = leases.acquire

    def noted(*, name: str, holder: str, ttl_s: float) -> bool:
        found.append(holder)
        return acquire(name=name, holder=holder, ttl_s=ttl_s)

    monkeypatch.setattr(leases, "acquire", noted)
    monkeypatch.setattr(leases, "_ends", LeaseEnds(mmap.mmap(-1, lease_ends.SIZE)))
    return found


def test_a_worker_does_not_ask_for_a_lease_that_another_of_its_broker_has(
    asked: list[str],
) -> None:
    mine, other = (leases.LeaseHolder("x", name, ttl_s=60) for name in ("me", "other"))
    assert mine.acquire()
    assert not other.acquire()
    assert asked == ["me"]
    mine._renew_at = float("-inf")  # half of it is over
    assert mine.acquire(), "its own end does not keep it from renewing"
    mine.release()
    assert other.acquire(), "at once, and not only at the end"
    assert not mine.acquire()
    assert asked == ["me", "other"]


def test_a_worker_asks_for_a_lease_once_that_of_a_dead_one_has_ended(
    asked: list[str],
) -> None:
    dead, other = (leases.LeaseHolder("x", name, ttl_s=0.5) for name in ("dead", "other"))
    assert dead.acquire()
    begun = time.monotonic()
    until(other.acquire)
    assert 0.3 < time.monotonic() - begun < 2.0
    dead.release()
    assert not dead.acquire(), "one that comes back late takes nothing away"
    assert asked.count("other") < 20, "it did not ask before that"


def test_a_worker_asks_for_a_lease_that_another_broker_has(asked: list[str]) -> None:
    assert leases.acquire_term(name="x", holder="elsewhere", ttl_s=60)
    mine = leases.LeaseHolder("x", "me", ttl_s=60)
    assert not mine.acquire()
    leases.release(name="x", holder="elsewhere")
    assert mine.acquire()


def test_a_lease_that_was_taken_away_is_not_renewed() -> None:
    mine = leases.LeaseHolder("x", "me", ttl_s=60)
    assert mine.acquire()
    leases.release(name="x", holder="me")  # as if it had ended
    assert leases.acquire_term(name="x", holder="elsewhere", ttl_s=60) == 2
    mine._renew_at = float("-inf")
    assert not mine.acquire()
    assert not leases.renew(name="x", holder="me", ttl_s=60)
    leases.release(name="x", holder="elsewhere")
    assert not leases.renew(name="x", holder="elsewhere", ttl_s=60), "it has ended"
    assert mine.acquire() and leases.acquire_term(name="x", holder="me", ttl_s=60) == 3


def test_a_lease_that_was_renewed_is_taken_when_it_ends() -> None:
    """Whatever the text of its end is: a renewal writes it another way than the first of a
    term.
    """
    assert leases.acquire(name="x", holder="dead", ttl_s=60)
    assert leases.renew(name="x", holder="dead", ttl_s=0.2)
    until(lambda: leases.acquire_term(name="x", holder="me", ttl_s=60) == 2, limit_s=3)


def test_a_lease_that_its_holder_renews_after_the_look_is_not_taken() -> None:
    assert leases.acquire(name="x", holder="late", ttl_s=0)
    late = ["late"]

    def renew_before_the_update(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
        if sql.startswith("UPDATE") and late:
            assert leases.acquire(name="x", holder=late.pop(), ttl_s=60)
        return execute(sql, *more)

    with connection.execute_wrapper(renew_before_the_update):
        assert not leases.acquire(name="x", holder="other", ttl_s=60)
    assert not late and Lease.objects.get().holder == "late"


def test_a_renewed_lease_lasts_as_long_as_a_new_one() -> None:
    assert leases.acquire(name="x", holder="me", ttl_s=10)
    assert leases.renew(name="x", holder="me", ttl_s=60)
    left_s = (Lease.objects.get().expires_at - database_now()).total_seconds()
    assert 55 < left_s <= 60


def test_two_names_that_meet_in_a_row_keep_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_ends, "ROWS", 1)
    ends, later = LeaseEnds(mmap.mmap(-1, lease_ends.SIZE)), time.monotonic_ns() + 10**12
    ends.note("x", later)
    ends.note("y", later + 1)
    assert (ends.end("x"), ends.end("y")) == (later, 0), "the first one is held"
    ends.note("x", 0)
    ends.note("y", later + 1)
    assert (ends.end("x"), ends.end("y")) == (0, later + 1)
