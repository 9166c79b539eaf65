"""The bulkhead and the coalescer: many threads, a slow database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import MetadataUnavailable
from metadata.limits.bulkhead import AGAIN_S, CALLS, WATCHED_S, Bulkhead, ReturnTimes
from metadata.limits.coalescer import PacedCoalescer
from metadata.membership import heartbeats
from tests.support.waiting import until

LIMIT_S = 10.0


def fail(bulkhead: Bulkhead) -> None:
    with pytest.raises(MetadataUnavailable), bulkhead.permit():
        raise MetadataUnavailable("away")


def coalescer(
    write: Callable[[Sequence[int]], Sequence[int]],
    *,
    places: int = 100,
    most: int = 500,
    limit_s: float = LIMIT_S,
) -> PacedCoalescer[int, int]:
    return PacedCoalescer(write, every_s=0.0, most=most, places=places, limit_s=limit_s)


def test_a_full_bulkhead_refuses_who_waited_in_vain() -> None:
    bulkhead = Bulkhead(places=1, patience_s=0)

    with bulkhead.permit(), pytest.raises(MetadataUnavailable), bulkhead.permit():
        pass
    with bulkhead.permit():
        pass


def test_who_waits_at_a_full_bulkhead_gets_the_next_place(
    in_threads: Callable[..., list[Any]],
) -> None:
    bulkhead = Bulkhead(places=1, patience_s=LIMIT_S)

    def hold() -> None:
        with bulkhead.permit():
            assert until(lambda: bulkhead._waiting == 3)

    def come() -> None:
        assert until(lambda: bulkhead._is_full(CALLS))
        with bulkhead.permit():
            pass

    in_threads([hold, *[come] * 3])


def test_nobody_waits_at_a_full_bulkhead_that_shuts(
    in_threads: Callable[..., list[Any]],
) -> None:
    bulkhead = Bulkhead(places=1, failures=1, pause_s=60, patience_s=LIMIT_S)
    inside = threading.Event()

    def hold() -> None:
        with pytest.raises(MetadataUnavailable), bulkhead.permit():
            inside.set()
            assert until(lambda: bulkhead._waiting == 1)
            raise MetadataUnavailable("away")

    def come() -> None:
        assert inside.wait(LIMIT_S)
        begun = time.monotonic()
        with pytest.raises(MetadataUnavailable, match="did not answer"), bulkhead.permit():
            pass
        assert time.monotonic() - begun < LIMIT_S / 2

    in_threads([hold, come])


def test_refused_calls_come_back_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "metadata.limits.bulkhead.time", SimpleNamespace(monotonic=lambda: 1000.0)
    )
    turns = ReturnTimes(places=2)
    for _ in range(200):
        turns.record_call(0.2)

    given = [turns.next_ms() for _ in range(300)]

    soonest_ms, latest_ms = (int(seconds * 1000) for seconds in AGAIN_S)
    assert given[0] == soonest_ms
    rising = given[: given.index(max(given)) + 1]
    assert rising == sorted(rising)
    # 2 places, 0.2 s a call: a turn each 0.1 s
    assert len(rising) >= (latest_ms - soonest_ms) / 100 - 2
    assert all(latest_ms / 2 - 1 <= one <= latest_ms for one in given[len(rising) :])


def test_pools_fill_apart_and_shut_together() -> None:
    bulkhead = Bulkhead(places=2, failures=1, pause_s=60, patience_s=0)

    with ExitStack() as inside:
        for pool in (*[CALLS] * 2, *["acquire"] * 4, *[None] * 9):
            inside.enter_context(bulkhead.permit(pool))
        for pool in ("acquire", CALLS):
            with pytest.raises(MetadataUnavailable), bulkhead.permit(pool):
                pass
    fail(bulkhead)

    for pool in ("acquire", None):
        with pytest.raises(MetadataUnavailable), bulkhead.permit(pool):
            pass


def test_a_bulkhead_closes_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    bulkhead = Bulkhead(failures=2, pause_s=60)
    fail(bulkhead)
    fail(bulkhead)
    entered = []

    with pytest.raises(MetadataUnavailable), bulkhead.permit():
        entered.append(1)
    bulkhead._next_probe = 0.0  # the pause is over
    with bulkhead.permit():
        entered.append(2)
    with bulkhead.permit():
        entered.append(3)

    assert entered == [2, 3]


def test_the_pause_of_a_shut_bulkhead_counts_from_the_end_of_a_probe_however_long_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "metadata.limits.bulkhead.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    bulkhead = Bulkhead(failures=2, pause_s=1.0)
    fail(bulkhead)
    fail(bulkhead)
    now[0] += 1.0
    with pytest.raises(MetadataUnavailable), bulkhead.permit():
        now[0] += 2.0  # the whole limit of a call
        raise MetadataUnavailable("away")

    with pytest.raises(MetadataUnavailable, match="did not answer"):
        bulkhead.check()
    now[0] += 1.0
    bulkhead.check()


def test_while_a_probe_is_inside_a_shut_bulkhead_everybody_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "metadata.limits.bulkhead.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    bulkhead = Bulkhead(failures=1, pause_s=1.0)
    fail(bulkhead)
    now[0] += 1.0
    with bulkhead.permit():
        now[0] += 60.0
        with pytest.raises(MetadataUnavailable):
            bulkhead.check()
        with pytest.raises(MetadataUnavailable), bulkhead.permit():
            pass

    bulkhead.check()


def test_no_call_is_the_probe_of_a_bulkhead_that_a_loop_looks_after() -> None:
    bulkhead = Bulkhead(failures=2, pause_s=0.0)

    def away() -> None:
        raise MetadataUnavailable("away")

    assert not bulkhead.check_database(away)
    assert not bulkhead.check_database(away)
    for _ in range(3):
        with pytest.raises(MetadataUnavailable, match="did not answer"), bulkhead.permit():
            pytest.fail("a call went through")
    assert bulkhead.check_database(lambda: None)
    with bulkhead.permit():
        pass


def test_a_bulkhead_whose_loop_says_that_it_ends_lets_calls_probe_at_once() -> None:
    bulkhead = Bulkhead(failures=1, pause_s=0.0)
    assert bulkhead.check_database(lambda: None)
    fail(bulkhead)
    with pytest.raises(MetadataUnavailable), bulkhead.permit():
        pass
    bulkhead.end_checks()
    with bulkhead.permit():
        pass


def test_a_bulkhead_whose_loop_has_ended_lets_calls_probe_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "metadata.limits.bulkhead.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    bulkhead = Bulkhead(failures=1, pause_s=1.0)
    assert bulkhead.check_database(lambda: None)
    fail(bulkhead)
    now[0] += WATCHED_S + 1
    with bulkhead.permit():
        pass
    assert not bulkhead.watched


def test_a_heartbeat_does_not_queue_up_while_the_bulkhead_is_shut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shut = Bulkhead(failures=1, pause_s=60)
    fail(shut)
    submitted: list[object] = []
    monkeypatch.setattr(heartbeats, "bulkhead", shut)
    combined = SimpleNamespace(submit=submitted.append, stuck_s=lambda: 0.0)
    monkeypatch.setattr(heartbeats, "_coalescer", combined)

    with pytest.raises(MetadataUnavailable):
        heartbeats.heartbeat(consumer=ConsumerId(1, 0, 1, "x"), generation=0, owned=[])

    assert submitted == []


def test_heartbeats_take_at_most_half_of_the_threads_that_are_not_for_long_polls() -> None:
    places = heartbeats._new_coalescer()._places
    assert places == max(8, (config.threads - config.max_waiters) // 2)
    assert 2 * places <= config.threads - config.max_waiters


def test_other_errors_do_not_close_the_bulkhead() -> None:
    bulkhead = Bulkhead(failures=1)
    with pytest.raises(ValueError), bulkhead.permit():
        raise ValueError

    with bulkhead.permit():
        pass


def test_a_lone_item_is_written_at_once_even_right_after_another() -> None:
    batches: list[list[int]] = []

    def write(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        return list(items)

    one = coalescer(write)

    assert [one.submit(1), one.submit(2)] == [1, 2]
    assert batches == [[1], [2]]


def test_what_comes_while_a_batch_is_written_goes_together_into_the_next() -> None:
    writing, go_on, batches = threading.Event(), threading.Event(), []

    def write(items: Sequence[int]) -> list[int]:
        batches.append(sorted(items))
        writing.set()
        assert go_on.wait(LIMIT_S)
        return [item * 10 for item in items]

    one = coalescer(write)
    with ThreadPoolExecutor(max_workers=6) as pool:
        first = pool.submit(one.submit, 0)
        assert writing.wait(LIMIT_S)
        others = [pool.submit(one.submit, item) for item in range(1, 6)]
        wait_until(lambda: len(one._waiting) == 5)
        go_on.set()
        results = [first.result(LIMIT_S), *(other.result(LIMIT_S) for other in others)]

    assert results == [0, 10, 20, 30, 40, 50]
    assert batches == [[0], [1, 2, 3, 4, 5]]


def test_a_batch_that_fails_fails_for_each_and_the_next_goes_on() -> None:
    def write(items: Sequence[int]) -> list[int]:
        if 13 in items:
            raise MetadataUnavailable("away")
        return list(items)

    one = coalescer(write)

    with pytest.raises(MetadataUnavailable):
        one.submit(13)
    assert one.submit(14) == 14


def test_a_follower_does_not_wait_longer_than_its_limit_for_a_stuck_leader() -> None:
    writing, go_on = threading.Event(), threading.Event()

    def write(items: Sequence[int]) -> list[int]:
        writing.set()
        assert go_on.wait(LIMIT_S)
        return list(items)

    one = coalescer(write, limit_s=0.05)
    with ThreadPoolExecutor(max_workers=1) as pool:
        leader = pool.submit(one.submit, 1)
        assert writing.wait(LIMIT_S)
        began = time.monotonic()
        with pytest.raises(MetadataUnavailable):
            one.submit(2)
        waited_s = time.monotonic() - began
        go_on.set()
        assert leader.result(LIMIT_S) == 1

    assert waited_s < LIMIT_S / 2
    assert one._waiting == []


def test_more_than_the_places_are_refused_at_once() -> None:
    writing, go_on = threading.Event(), threading.Event()

    def write(items: Sequence[int]) -> list[int]:
        writing.set()
        assert go_on.wait(LIMIT_S)
        return list(items)

    one = coalescer(write, places=1)
    with ThreadPoolExecutor(max_workers=1) as pool:
        leader = pool.submit(one.submit, 1)
        assert writing.wait(LIMIT_S)
        with pytest.raises(MetadataUnavailable):
            one.submit(2)
        go_on.set()
        assert leader.result(LIMIT_S) == 1


def test_where_a_loop_writes_nobody_else_is_held_up_by_a_database_that_does_not_answer() -> (
    None
):
    writing, go_on, away = threading.Event(), threading.Event(), threading.Event()
    done: list[int] = []

    def write(items: Sequence[int]) -> list[int]:
        writing.set()
        assert go_on.wait(LIMIT_S)
        done.extend(items)
        return list(items)

    def check() -> None:
        if away.is_set():
            raise MetadataUnavailable("away")

    one = PacedCoalescer(
        write, every_s=0.0, most=500, places=100, limit_s=LIMIT_S, check=check
    )
    with ThreadPoolExecutor(max_workers=3) as pool:
        loop = pool.submit(one.serve, LIMIT_S)
        wait_until(lambda: one._served)
        first = pool.submit(one.submit, 1)
        assert writing.wait(LIMIT_S)
        second = pool.submit(one.submit, 2)
        wait_until(lambda: len(one._waiting) == 1)
        assert one.stuck_s() > 0
        away.set()
        for each in (first, second):
            with pytest.raises(MetadataUnavailable):
                each.result(LIMIT_S)
        assert one._waiting == []
        go_on.set()
        loop.result(LIMIT_S)
        assert (done, one.stuck_s()) == ([1], 0.0)


def test_after_the_loop_has_ended_who_waits_leads() -> None:
    one = coalescer(list)
    one.serve(0.0)
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(one.submit, 1)
        wait_until(lambda: len(one._waiting) == 1)
        one.end_service()
        assert waiting.result(LIMIT_S) == 1
    assert one.submit(2) == 2


def test_no_item_is_lost_or_answered_twice_under_many_threads() -> None:
    written: list[int] = []

    def write(items: Sequence[int]) -> list[int]:
        written.extend(items)
        return [-item for item in items]

    one = coalescer(write, most=7, places=1000)
    with ThreadPoolExecutor(max_workers=40) as pool:
        results = list(pool.map(one.submit, range(2_000)))

    assert results == [-item for item in range(2_000)]
    assert sorted(written) == list(range(2_000))


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls a condition that another thread brings about."""
    end, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.001)
