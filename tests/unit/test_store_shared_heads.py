"""What the workers of a broker tell each other about heads, and who waits for what."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from messagestore.engine import db_errors
from messagestore.heads import shared_heads
from messagestore.heads.coalescer import NodeCoalescer
from messagestore.heads.heads import HeadBoard
from messagestore.heads.shared_heads import LEASE_MS, SharedHeads, now_ms
from messagestore.pool import known_heads
from messagestore.produce import group_commit
from messagestore.topology import process_caches
from metadata.cache.snapshot_types import QueueInfo
from metadata.limits.coalescer import Turn
from tests.support.waiting import until


@pytest.fixture
def boards() -> tuple[HeadBoard, HeadBoard]:
    """Two workers of one broker."""
    memory = mmap.mmap(-1, shared_heads.SIZE)
    mine, other = HeadBoard(), HeadBoard()
    mine.share(memory)
    other.share(memory)
    return mine, other


def test_a_head_that_one_worker_noted_is_known_to_the_other(
    boards: tuple[HeadBoard, HeadBoard],
) -> None:
    mine, other = boards
    other.note(7, 5)
    assert (mine.durable_head(7), mine.durable_head(8)) == (5, 0)
    other.note(7, 3)
    assert mine.durable_head(7) == 5, "heads only rise"


def test_a_waiter_hears_of_a_head_of_another_worker_at_the_next_look(
    boards: tuple[HeadBoard, HeadBoard],
) -> None:
    mine, other = boards
    with mine.watch(1, {7: 5}) as waiter:
        other.note(8, 9)
        other.note(7, 5)
        mine.listen()
        assert not waiter.flag.is_set(), "nothing came behind its offset"
        other.note(7, 6)
        assert not waiter.flag.is_set()
        mine.listen()
        assert waiter.flag.is_set()


def test_who_comes_behind_a_head_of_another_worker_does_not_wait(
    boards: tuple[HeadBoard, HeadBoard],
) -> None:
    mine, other = boards
    other.note(7, 6)
    with mine.watch(1, {7: 5}) as waiter:
        assert waiter.flag.is_set()


def test_a_queue_is_wanted_by_all_workers_for_a_while_after_one_waited(
    boards: tuple[HeadBoard, HeadBoard],
) -> None:
    mine, other = boards
    with mine.watch(1, {7: 0}):
        assert other.shared.wanted([7, 8], now_ms()) == {7}
        assert not other.shared.wanted([7], now_ms() + 60_000)


def test_one_worker_watches_a_node_until_it_is_silent_or_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = mmap.mmap(-1, shared_heads.SIZE)
    mine = SharedHeads(memory)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    other = SharedHeads(memory)
    assert mine.leads(3, 1000) and mine.leads(3, 1010)
    assert not other.leads(3, 1010 + LEASE_MS - 1)
    assert other.leads(4, 1010), "another node"
    assert other.leads(3, 1010 + LEASE_MS), "the first one is frozen or gone"
    assert not mine.leads(3, 1020 + LEASE_MS)
    other.leave(3)
    assert mine.leads(3, 1030 + LEASE_MS)


def test_what_lies_beyond_the_table_is_every_workers_own(
    boards: tuple[HeadBoard, HeadBoard],
) -> None:
    mine, other = boards
    far = shared_heads.QUEUES + 7
    mine.note(far, 5)
    assert (mine.durable_head(far), other.durable_head(far)) == (5, 0)
    with mine.watch(1, {far: 0}):
        assert not mine.shared.wanted([far], now_ms())
    assert mine.shared.leads(shared_heads.NODES, 0) and other.shared.leads(
        shared_heads.NODES, 0
    )


Act = Callable[[list[int]], list[int]]


def call(coalescer: NodeCoalescer[int, int], item: int, act: Act) -> int | None:
    with coalescer.turn(item) as turn:
        if turn.items:
            turn.results = act(turn.items)
    return turn.result


def test_a_lone_caller_acts_for_itself_and_has_its_error() -> None:
    coalescer: NodeCoalescer[int, int] = NodeCoalescer(limit_s=1)
    assert [
        call(coalescer, one, lambda items: [one + 1 for one in items]) for one in (1, 5)
    ] == [2, 6]

    def fail(items: object) -> list[int]:
        raise ValueError("on purpose")

    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            call(coalescer, 1, fail)
    assert coalescer.waiting() == 0


def together(
    coalescer: NodeCoalescer[int, int], *items: int, act: Act
) -> list[Future[int | None]]:
    """The calls of some who came while somebody acted, and are done together."""
    begun, go_on = threading.Event(), threading.Event()

    def first(items: list[int]) -> list[int]:
        begun.set()
        go_on.wait(20)
        return [0]

    with ThreadPoolExecutor(1 + len(items)) as pool:
        before = pool.submit(call, coalescer, 0, first)
        assert begun.wait(20)
        others = [pool.submit(call, coalescer, one, act) for one in items]
        until(lambda: coalescer.waiting() == len(items))
        go_on.set()
        assert before.result(20) == 0
    return others


def test_those_who_are_done_together_raise_errors_of_their_own() -> None:
    def fail(items: list[int]) -> list[int]:
        raise db_errors.RolledBack("on purpose")

    errors = [
        one.exception(20) for one in together(NodeCoalescer(limit_s=20), 1, 2, act=fail)
    ]
    assert [str(error) for error in errors] == ["on purpose"] * 2
    assert errors[0] is not errors[1]


def test_those_who_spoil_what_is_done_together_are_told_to_try_alone() -> None:
    def fail(items: list[int]) -> list[int]:
        raise db_errors.RolledBack("on purpose")

    coalescer: NodeCoalescer[int, int] = NodeCoalescer(
        limit_s=20, apart_after=(db_errors.RolledBack,)
    )
    assert [one.result(20) for one in together(coalescer, 1, 2, act=fail)] == [None, None]
    with pytest.raises(db_errors.RolledBack):
        call(coalescer, 1, fail)


def test_a_call_that_is_over_leaves_nothing_to_the_garbage_collector() -> None:
    coalescer: NodeCoalescer[int, int] = NodeCoalescer(limit_s=1)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            call(coalescer, 1, lambda items: [2 for _ in items])
        assert [one for one in gc.get_objects() if type(one) is Turn] == []
    finally:
        gc.enable()


def test_queues_that_are_gone_are_forgotten() -> None:
    kept, gone = 900_007, 900_008
    coalescer_of = {queue: group_commit.coalescer_of(queue) for queue in (kept, gone)}
    for queue in (kept, gone):
        known_heads.note_stored(queue, 5)
    process_caches.evict_except(
        {kept: QueueInfo(id=kept, topic_id=1, number=0, node_id=1, state="read_write")}
    )
    assert (known_heads.lowest_head(kept), known_heads.lowest_head(gone)) == (5, 0)
    assert group_commit.coalescer_of(kept) is coalescer_of[kept]
    assert group_commit.coalescer_of(gone) is not coalescer_of[gone]
    process_caches.evict_except({})
