"""The loops of a worker: they repeat, survive failures, end when asked, and one process
leads.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import pytest
from django.db import OperationalError

from catmq_site.background import loop_threads, metadata_loops, sweeps, table
from catmq_site.background.loop_threads import Loop, LoopThreads
from catmq_site.jobs import tasks
from messagestore.heads.heads import board
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db import leases
from metadata.errors import MetadataUnavailable
from metadata.groups import groups
from metadata.membership import expiry, outage_guard, rebalance
from tests.support.waiting import until

pytestmark = pytest.mark.one_engine

ACTOR = actors.command("test")


def test_a_loop_repeats_until_it_is_stopped_and_then_finishes() -> None:
    passes, finished = [], threading.Event()
    loops = LoopThreads([Loop("count", 0.001, lambda: passes.append(1), finished.set)])
    loops.start()
    until(lambda: len(passes) > 3)
    loops.stop()
    assert finished.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "loop-count"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that fail try again soon."""
    monkeypatch.setattr(loop_threads, "MAX_PAUSE_S", 0.001)


def played(raised: list[Exception | None]) -> None:
    """Runs a loop called "flaky" until each of its passes raised what is listed, and one
    more.
    """
    left = [*raised]
    done = threading.Event()

    def run_once() -> None:
        if not left:
            done.set()
            return
        error = left.pop(0)
        if error is not None:
            raise error

    loops = LoopThreads([Loop("flaky", 0.0, run_once)])
    loops.start()
    assert done.wait(20)
    loops.stop()


def test_a_loop_that_meets_a_bug_goes_on_and_logs_the_traceback_once(
    soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    played([RuntimeError("on purpose")] * 5 + [KeyError("another")] * 2)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "Loop flaky failed",
        "Loop flaky failed",
        "Loop flaky works again after 7 failures",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, True, False]


def test_a_loop_whose_database_is_away_logs_when_that_begins_and_how_long_it_lasted(
    soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    played([MetadataUnavailable("no answer")] * 20)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0] == "Loop flaky: a database does not answer: no answer"
    assert re.fullmatch(
        r"Loop flaky: a database answers again after [0-9.]+ s and 20 failures", said[1]
    )
    assert not [record for record in caplog.records if record.exc_info]


def test_the_loops_of_a_worker_have_names_of_their_own() -> None:
    names = [loop.name for loop in table.loops()]
    assert len(names) == len(set(names))


def test_a_worker_makes_partitions_ahead_and_measures_disks() -> None:
    assert {"partitions", "disks"} <= {loop.name for loop in table.loops()}


def test_a_leased_loop_is_run_by_its_holder_only_and_given_up_at_the_end(
    metadata_db: None,
) -> None:
    done: list[str] = []
    loop = loop_threads.leased(
        "work", 10, lambda: done.append("led"), first=lambda: done.append("looked")
    )
    assert leases.acquire(name="work", holder="another", ttl_s=60)
    loop.run_once()
    leases.release(name="work", holder="another")
    loop.run_once()
    assert loop.finish is not None
    loop.finish()
    assert done == ["looked", "looked", "led"]
    assert leases.acquire(name="work", holder="another", ttl_s=60)


def test_nobody_expires_for_a_while_after_a_look_that_failed(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process looks, also one that has no lease: it may be the next that expires
    members.
    """
    metadata_loops.check_metadata()
    watched = expiry._guard.look()
    monkeypatch.setattr(outage_guard, "database_state", gone)
    metadata_loops.check_metadata()
    monkeypatch.undo()
    assert expiry._guard.look().steady_since_s > watched.steady_since_s


def gone() -> NoReturn:
    raise OperationalError("away")


def test_a_look_tells_the_age_of_the_snapshot_and_wakes_its_loop_when_something_changed(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_loops, "REFRESH_EVERY_S", 20.0)
    loop = metadata_loops.SnapshotLoop()
    loop.wait_and_refresh()
    metadata_loops.check_metadata()
    assert snapshot.age_s() < time.monotonic() - snapshot.current().loaded_at, (
        "the look proved it current"
    )
    made = groups.create(name="billing", actor=ACTOR)
    monkeypatch.setattr(
        metadata_loops,
        "expiry",
        SimpleNamespace(observe_database=lambda: snapshot.current().version),
    )
    metadata_loops.check_metadata()  # one that saw nothing new
    assert not snapshot._holder.news.is_set()
    monkeypatch.undo()
    monkeypatch.setattr(metadata_loops, "REFRESH_EVERY_S", 20.0)
    begun = time.monotonic()
    metadata_loops.check_metadata()
    loop.wait_and_refresh()
    assert made.id in snapshot.current().groups
    assert time.monotonic() - begun < 10.0


def test_a_dead_process_is_followed_as_sweeper_within_three_seconds(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, float] = {}

    def note(*, name: str, holder: str, ttl_s: float) -> bool:
        asked[name] = ttl_s
        return False

    monkeypatch.setattr(leases, "acquire", note)
    (expiry,) = [loop for loop in table.loops() if loop.name == "expiry"]
    expiry.run_once()
    assert asked["expiry"] + 1.2 * expiry.every_s <= 3.0


def test_a_change_of_a_group_wakes_its_waiting_pulls(metadata_db: None) -> None:
    group, other = (groups.create(name=name, actor=ACTOR) for name in ("billing", "other"))
    loop = metadata_loops.SnapshotLoop()
    loop.refresh()
    with board.watch(group.id, {}) as waiter, board.watch(other.id, {}) as asleep:
        groups.update(name="billing", settings={"stopped": True}, actor=ACTOR)
        loop.refresh()
        assert waiter.wait(0)
        assert not asleep.wait(0)


def test_a_rebalance_that_nobody_ran_is_run_by_the_loop(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("main")
    topics.create(name="orders", queues=2, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    monkeypatch.setattr(sweeps, "PATIENCE_S", 0.0)
    assert rebalance.pending_groups()
    loop = sweeps.OverdueRebalances()
    assert loop.run_once() == 0
    loop.look()
    assert loop.run_once() == 1
    assert rebalance.pending_groups() == []


def test_a_rebalance_is_given_three_seconds_from_the_first_look_before_the_loop_takes_it(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process looks, so one that follows a dead leader knows for how long a group has
    waited.
    """
    make_node("main")
    topics.create(name="orders", queues=2, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    now = [100.0]
    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=lambda: now[0]))
    loop = sweeps.OverdueRebalances()

    loop.look()
    now[0] += 2.9
    loop.look()
    assert loop.run_once() == 0
    now[0] += 0.1
    loop.look()
    assert loop.run_once() == 1


def test_background_work_is_asked_of_django_q(metadata_db: None) -> None:
    from django_q.models import OrmQ

    OrmQ.objects.all().delete()
    group = groups.create(name="billing", actor=ACTOR)
    tasks.ask_for_rebalance(group.id)
    task = OrmQ.objects.get().task
    assert task["func"] == "catmq_site.jobs.tasks.run_rebalance"
    assert task["args"][0] == group.id
    assert tasks.run_rebalance(*task["args"])
    OrmQ.objects.all().delete()
