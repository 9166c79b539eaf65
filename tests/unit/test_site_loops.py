"""The loops of a worker: when a pass is made, and when no more."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from catmq_site.background.loop_threads import Loop, LoopThreads, NodeLoops
from messagestore.heads.heads import board
from metadata.membership import granted_queues, heartbeats

LIMIT_S = 20.0


def test_a_loop_that_is_woken_makes_its_next_pass_at_once() -> None:
    passes: queue.SimpleQueue[int] = queue.SimpleQueue()
    loops = LoopThreads(
        [Loop("rare", 3600.0, lambda: passes.put(1)), Loop("other", 3600.0, lambda: None)]
    )
    loops.start()
    passes.get(timeout=LIMIT_S)
    loops.wake("rare")
    passes.get(timeout=LIMIT_S)
    with pytest.raises(queue.Empty):
        passes.get(timeout=0.05)
    loops.stop(limit_s=LIMIT_S)


def test_a_loop_that_is_woken_during_a_pass_makes_another_one() -> None:
    begun, go_on, passes = threading.Event(), threading.Event(), queue.SimpleQueue[int]()

    def run_once() -> None:
        begun.set()
        go_on.wait(LIMIT_S)
        passes.put(1)

    loops = LoopThreads([Loop("rare", 3600.0, run_once)])
    loops.start()
    assert begun.wait(LIMIT_S)
    loops.wake("rare")
    go_on.set()
    for _ in range(2):
        passes.get(timeout=LIMIT_S)
    loops.stop(limit_s=LIMIT_S)


def test_loops_that_pause_end_at_once_and_finish() -> None:
    passed, finished = threading.Event(), threading.Event()
    loops = LoopThreads([Loop("rare", 3600.0, passed.set, finished.set)])
    loops.start()
    assert passed.wait(LIMIT_S)
    loops.stop(limit_s=LIMIT_S)
    assert finished.is_set()


def test_a_loop_for_each_begins_when_its_member_comes_and_ends_when_it_goes() -> None:
    members, told = {1}, queue.SimpleQueue[tuple[str, int]]()

    def loop(member: int) -> Loop:
        return Loop(
            f"one-{member}",
            3600.0,
            lambda: told.put(("passed", member)),
            lambda: told.put(("left", member)),
        )

    loops = LoopThreads([NodeLoops("ones", lambda: members, loop)])
    loops.start()
    assert told.get(timeout=LIMIT_S) == ("passed", 1)
    members.add(2)
    assert told.get(timeout=LIMIT_S) == ("passed", 2)
    members.discard(1)
    assert told.get(timeout=LIMIT_S) == ("left", 1)
    members.add(1)
    assert told.get(timeout=LIMIT_S) == ("passed", 1)
    loops.stop(limit_s=LIMIT_S)
    assert {told.get(timeout=LIMIT_S) for _ in range(2)} == {("left", 1), ("left", 2)}
    assert "loop-one-1" not in {thread.name for thread in threading.enumerate()}


def test_the_watcher_of_heads_ends_at_once_although_nobody_waits_for_a_head() -> None:
    looking = threading.Event()

    def run_once() -> None:
        looking.set()
        board.has_waiter_within(LIMIT_S)

    loops = LoopThreads([Loop("heads", 3600.0, run_once)])
    loops.start()
    assert looking.wait(LIMIT_S)
    begun = time.monotonic()
    loops.stop(limit_s=LIMIT_S)
    assert time.monotonic() - begun < LIMIT_S / 2


def test_a_stop_ends_the_waits_for_heartbeats_and_grants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "SERVE_S", 3600.0)
    monkeypatch.setattr(granted_queues, "_loop_runs", False)
    waits = [
        Loop("heartbeats", 0.0, heartbeats.serve, heartbeats.end_service),
        Loop("grants", 0.0, lambda: granted_queues.take(3600.0)),
    ]
    loops = LoopThreads(waits)
    loops.start()
    loops.stop(limit_s=LIMIT_S)
    names = {f"loop-{one.name}" for one in waits}
    assert not [thread for thread in threading.enumerate() if thread.name in names]
