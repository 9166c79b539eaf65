"""Share groups on real nodes: what they deliver when others interfere, nodes change, or
something dies.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import OperationalError, connections

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Target
from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage
from messagestore.heads import corruption
from messagestore.heads.heads import board
from messagestore.nodes import promotion
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.retries import lost_leases
from messagestore.shares import known_queues, run_leases
from messagestore.shares.delivering import Leased
from messagestore.shares.finishing import GrantReport
from messagestore.tables import message_sql
from messagestore.tables.shares import position_sql, run_sql
from messagestore.topology import queues, subscriptions, topics
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable, OutcomeUnknown
from metadata.groups import subscription_rows
from metadata.models import ConsumerGroup
from tests.support import restoring
from tests.support.killing import killed_step_by_step
from tests.support.leasing import (
    ME,
    asked,
    committed,
    end_leases,
    forget,
    lease,
    made,
    member,
    offsets,
    record,
    report,
    runs,
    send,
)
from tests.support.tampering import age, declare_gap, raise_low, remove

TEN = [str(n) for n in range(10)]
ROW_BYTES = 101  # weight of a message of TEN in an answer, see Budget


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`."""
    return made()[0]


def test_many_threads_get_every_message_once_and_all_is_committed(queue: int) -> None:
    who = [member(f"m{n}", run_messages=3) for n in range(6)]
    send(*map(str, range(200)))

    def work(n: int) -> list[int]:
        mine: list[int] = []
        while leased := lease(who[n], max_messages=7):
            mine += offsets(leased)
            assert {report(who[n], one, whole=True) for one in leased} == {"ok"}
        return mine

    with ThreadPoolExecutor(len(who)) as threads:
        found = [one for mine in threads.map(work, range(len(who))) for one in mine]
    assert sorted(found) == list(range(200))
    assert (committed(queue), runs(queue)) == (200, [])


def test_another_process_that_knows_an_older_position_takes_what_comes_next(
    queue: int,
) -> None:
    one = member()
    send(*TEN)
    first = lease(one, max_messages=4)
    known = known_queues._known[snapshot.find_group("mails").id, queue]
    known.start = 0  # as a process that has not read since
    second = lease(one, max_messages=4)
    assert (offsets(first), offsets(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])


def test_a_reset_between_the_look_and_the_lease_leases_nothing_old(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member()
    send(*TEN)
    assert offsets(lease(one, max_messages=4)) == [0, 1, 2, 3]
    take = run_sql.lease_new_runs

    def reset_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        offset_reset.reset(group="mails", target=Target("offset", offset=2), actor=ME)
        forget()
        known_queues.read_entries(
            group_id=snapshot.find_group("mails").id,
            node=node_pools.node_of(queue),
            queues=[queue],
        )
        return take(*args, **kwargs)

    monkeypatch.setattr(run_sql, "lease_new_runs", reset_first)
    assert lease(one) == []
    assert offsets(lease(one)) == list(range(2, 10))
    assert {run.first for run in runs(queue)} == {2}


def test_a_deadlock_is_repeated(queue: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = member()
    send(*TEN)
    take, failed = run_sql.lease_new_runs, []

    def fail_twice(*args: Any, **kwargs: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise db_errors.RolledBack("1213: Deadlock found")
        return take(*args, **kwargs)

    monkeypatch.setattr(run_sql, "lease_new_runs", fail_twice)
    assert offsets(lease(one)) == list(range(10))


def test_a_lease_whose_end_was_not_seen_is_found_again(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member()
    send(*TEN)
    take = run_sql.lease_new_runs

    def lose_answer(*args: Any, **kwargs: Any) -> Any:
        take(*args, **kwargs)
        raise db_errors.Ambiguous("2013: Lost connection")

    monkeypatch.setattr(run_sql, "lease_new_runs", lose_answer)
    with pytest.raises(OutcomeUnknown):
        lease(one)
    monkeypatch.undo()
    (found,) = lease(one, held=frozenset())
    assert (offsets([found]), found.recovered) == (list(range(10)), True)
    assert lease(one, held=frozenset({found.run.grant.text})) == []


def test_two_calls_that_cut_one_run_at_a_time_lose_no_message(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first call is lost while its broker still cuts the run to size."""
    one = member()
    send(*TEN)
    lease(one)
    two = member("two")
    leave, both_read, first_left = (
        run_sql.remove_offsets,
        threading.Barrier(2),
        threading.Event(),
    )
    sizes = {6: True, 4: False}
    size_of_thread: dict[int, int] = {}

    def leave_in_order(*args: Any, **kwargs: Any) -> Any:
        is_first = sizes.pop(size_of_thread[threading.get_ident()], None)
        if is_first is None:
            return leave(*args, **kwargs)
        both_read.wait(10)
        if not is_first:
            assert first_left.wait(10)
        parts = leave(*args, **kwargs)
        first_left.set()
        return parts

    def recover(size: int) -> list[Leased]:
        size_of_thread[threading.get_ident()] = size
        return lease(one, max_bytes=size * ROW_BYTES, held=frozenset())

    monkeypatch.setattr(run_sql, "remove_offsets", leave_in_order)
    with ThreadPoolExecutor(2) as threads:
        _lost, smaller = threads.map(recover, [6, 4])
    assert [report(one, run, whole=True) for run in smaller] == ["ok"]
    handled = offsets(smaller)
    forget()
    while leased := lease(two):
        handled += offsets(leased)
        assert {report(two, run, whole=True) for run in leased} == {"ok"}
    assert sorted(set(handled)) == list(range(10))


def test_a_run_that_changes_owner_while_it_is_cut_is_not_delivered(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one)
    two = member("two")
    leave, others = run_sql.remove_offsets, []

    def other_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        end_leases(run)
        others.extend(lease(two))
        return leave(*args, **kwargs)

    monkeypatch.setattr(run_sql, "remove_offsets", other_first)
    assert lease(one, max_bytes=4 * ROW_BYTES, held=frozenset()) == []
    assert offsets(others) == list(range(10))


def test_a_process_that_is_killed_while_it_leases_loses_no_message(queue: int) -> None:
    one = member()
    send(*TEN)
    assert killed_step_by_step(lambda: lease(one, max_messages=3)) > 2
    left = [offset for run in runs(queue) for offset in range(run.first, run.end)]
    assert sorted(left) == list(range(len(left)))
    forget()
    leased = lease(one, held=frozenset())
    while more := lease(one):
        leased += more
    assert sorted(offsets(leased)) == list(range(10))


def test_a_process_that_is_killed_while_it_records_can_be_asked_again(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one)
    done = GrantReport(queue, 0, run.run.grant.text, finished=[(0, 4)], release=[5, 7])
    assert killed_step_by_step(lambda: record(one, done)) > 1
    assert record(one, done)[0].state == "ok"
    forget()
    assert sorted(offsets(lease(one))) == [5, 7]
    forget()
    lost_leases.sweep()  # the process that finished them is dead
    assert committed(queue) == 4


def test_two_reports_on_one_run_at_a_time_are_both_recorded(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one)
    leave = run_sql.remove_offsets

    def other_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        assert report(one, run, finished=[(0, 1)]) == "ok"
        return leave(*args, **kwargs)

    monkeypatch.setattr(run_sql, "remove_offsets", other_first)
    assert report(one, run, finished=[(1, 3)]) == "ok"
    assert committed(queue) == 3


def test_messages_that_retention_took_are_skipped(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one, max_messages=4)
    raise_low(queue, 6)
    remove(queue, *range(6))
    end_leases(run)
    assert offsets(lease(one)) == [6, 7, 8, 9], (
        "the run had nothing left, and new ones begin at the start"
    )
    assert [(one.first, one.end) for one in runs(queue)] == [(6, 10)]


def test_part_of_a_run_that_retention_took_is_named(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one)
    raise_low(queue, 6)
    remove(queue, *range(6))
    end_leases(run)
    (again,) = lease(one)
    assert (offsets([again]), again.skipped) == ([6, 7, 8, 9], [(0, 6)])


def test_a_declared_gap_is_passed(queue: int) -> None:
    one = member()
    send(*TEN)
    remove(queue, 3, 4, 5)
    declare_gap(queue, 3, 6)
    assert offsets(lease(one)) == [0, 1, 2]
    forget()
    assert offsets(lease(one)) == [6, 7, 8, 9]


def test_a_hole_that_nobody_declared_delivers_nothing_and_is_reported(queue: int) -> None:
    one = member()
    send(*TEN)
    remove(queue, 3)
    told = asked(one)
    assert (told.runs, told.queue_states) == ([], {queue: "corrupt"})
    assert corruption.current() == [queue]
    declare_gap(queue, 3, 4)
    forget()
    found = offsets(lease(one))
    while leased := lease(one):
        found += offsets(leased)
    assert sorted(found) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_runs_whose_messages_cannot_be_read_are_given_back(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member()
    send(*TEN)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise db_errors.Altered("no such column: body")

    monkeypatch.setattr(message_sql, "select_rows", fail)
    told = asked(one)
    assert (told.runs, told.queue_states) == ([], {queue: "corrupt"})
    monkeypatch.undo()
    forget()
    (found,) = lease(one)
    assert (offsets([found]), found.run.deliveries) == (list(range(10)), 1), (
        "nobody had them yet"
    )


def test_a_run_that_two_members_want_goes_to_one_of_them(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = member(), member("two")
    send(*TEN)
    (run,) = lease(one, max_messages=5)
    end_leases(run)
    take_over, others = run_sql.lease_again, []

    def other_first(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        others.extend(lease(two))
        return take_over(*args, **kwargs)

    monkeypatch.setattr(run_sql, "lease_again", other_first)
    mine = lease(one)
    assert (offsets(others), offsets(mine)) == ([0, 1, 2, 3, 4], [5, 6, 7])


def test_a_young_message_waits_for_its_time(queue: int) -> None:
    one = member()
    subscription_rows.update(
        group="mails", topic="orders", settings={"delay_s": 60}, actor=ME
    )
    snapshot.refresh()
    send(*TEN)
    assert lease(one) == []
    age(queue, 0, 4, seconds=61)
    forget()
    assert offsets(lease(one)) == [0, 1, 2, 3]


def test_after_a_lost_tail_members_go_on_behind_it(queue: int) -> None:
    one = member()
    send(*TEN)
    (run,) = lease(one, max_messages=8)
    restoring.lose_tail(queue, 6)
    with pytest.raises(NodeUnavailable):
        send("x")
    promotion.adopt(name="main", actor=ME)
    snapshot.refresh()
    send("new")
    forget()
    restored = offsets(lease(one))
    assert report(one, run, whole=True) in ("ok", "gone")
    while leased := lease(one):
        restored += offsets(leased)
    assert [offset for offset in restored if offset >= 10_000_000] != []
    assert all(offset < 6 or offset >= 10_000_000 for offset in restored)


def test_a_new_queue_is_read_from_its_beginning(queue: int) -> None:
    one = member()
    change = queues.expand(topic="orders", queues=1, actor=ME)
    snapshot.refresh()
    new = change.queues[0].queue
    send(*TEN, queue=new)
    leased = lease(one)
    assert {run.queue for run in leased} == {new}
    assert offsets(leased) == list(range(10))


def test_topics_of_higher_preference_come_first(queue: int) -> None:
    one = member()
    topics.create(name="low", queues=1, actor=ME)
    subscriptions.create(group="mails", topic="low", start="earliest", actor=ME)
    snapshot.refresh()
    low = snapshot.find_topic("low").queues[0]
    send("a")
    publish(
        topic="low", messages=[NewMessage(body=b"b", queue=low)], batch_id=None, actor=ME
    )
    named = ["orders", "low"]
    assert [run.queue for run in lease(one, topics=named) + lease(one, topics=named)] == [
        queue,
        low,
    ]


def test_the_end_of_a_lease_is_seen_at_once_behind_one_that_was_finished(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_queues, "BELIEVED_S", 600.0)  # no reading brings it
    one, two = member("one", lease_ms=5_000), member("two")
    send("a", "b")
    first, dead = lease(one, max_messages=1)[0], lease(one, max_messages=1)[0]
    assert report(one, first, whole=True) == "ok"
    # that of the first one is over
    known_queues._known[snapshot.find_group("mails").id, queue].due_at = 0.0
    assert 0 < asked(two).retry_after_s <= 5.0
    with node_pools.node_of(queue).writing() as session:
        group_id = snapshot.find_group("mails").id
        run_sql.end_leases(session, group_id=group_id, queue=queue, first=dead.run.first)
    known_queues._known[group_id, queue].due_at = 0.0
    assert offsets(lease(two)) == offsets([dead])


def test_a_waiting_member_is_woken_for_a_message_of_its_own_only(queue: int) -> None:
    member()
    group_id = snapshot.find_group("mails").id
    send("a")
    waiters = [board.watch(group_id, {queue: 1}, shares=True) for _ in range(5)]
    for waiter in waiters:
        waiter.__enter__()
    try:
        send("b", "c")
        assert sum(waiter.flag.is_set() for waiter in waiters) == 2
        board.wake_some(group_id, queue, most=1)
        assert sum(waiter.flag.is_set() for waiter in waiters) == 3
        board.wake_group(group_id)
        assert all(waiter.flag.is_set() for waiter in waiters)
    finally:
        for waiter in waiters:
            waiter.__exit__()


def test_callers_that_ask_together_share_a_transaction(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = [member(f"m{n}") for n in range(6)]
    send(*map(str, range(60)))
    take, begun, go, wishes = (
        run_sql.lease_new_runs,
        threading.Event(),
        threading.Event(),
        [],
    )

    def held_up(*args: Any, **kwargs: Any) -> Any:
        wishes.append(len(kwargs["requests"]))
        begun.set()
        assert go.wait(10)
        return take(*args, **kwargs)

    monkeypatch.setattr(run_sql, "lease_new_runs", held_up)
    pair = snapshot.find_group("mails").id, queue
    with ThreadPoolExecutor(6) as threads:
        found = [threads.submit(lease, one, max_messages=10) for one in who]
        assert begun.wait(10)
        while run_leases._coalescers[pair].waiting() < 5:
            threading.Event().wait(0.01)
        go.set()
        leased = [offset for one in found for offset in offsets(one.result())]
    assert (sorted(leased), wishes) == (list(range(60)), [1, 5])


def test_leases_and_reports_ask_no_metadata(queue: int) -> None:
    one = member()
    send(*TEN)

    def refuse(*_: Any) -> Any:
        raise OperationalError("metadata is away")

    with ExitStack() as blocked:
        for alias in connections:
            blocked.enter_context(connections[alias].execute_wrapper(refuse))
        (run,) = lease(one)
        assert report(one, run, finished=[(0, 3)], renew=True) == "ok"
        assert committed(queue) == 3
        with pytest.raises(OperationalError):
            ConsumerGroup.objects.exists()


def test_members_that_die_cost_repeats_of_their_own_runs_and_nothing_else(
    queue: int,
) -> None:
    total, dying = 300, {1, 4}
    who = [member(f"m{n}", run_messages=5, max_deliveries=0) for n in range(6)]
    send(*map(str, range(total)))
    handled: list[int] = []
    lost: list[int] = []
    guard = threading.Lock()

    def work(n: int) -> None:
        calls, idle = 0, 0
        while idle < 50:
            leased = lease(who[n], max_messages=5)
            idle = 0 if leased else idle + 1
            if not leased:
                threading.Event().wait(0.02)
            for one in leased:
                calls += 1
                with guard:
                    handled.extend(offsets([one]))
                # it handled all and is killed before it says so
                if n in dying and calls % 3 == 0:
                    with guard:
                        lost.extend(offsets([one]))
                    end_leases(one)
                else:
                    assert report(who[n], one, whole=True) in ("ok", "gone", "lost")
            with node_pools.node_of(queue).reading() as session:
                if position_sql.read_floor(
                    session, group_id=who[n].group_id, queue=queue
                ) == (position_sql.Floor(known_epoch(queue), total)):
                    return

    with ThreadPoolExecutor(len(who)) as threads:
        list(threads.map(work, range(len(who))))
    assert set(handled) == set(range(total))
    assert len(handled) - total <= len(lost)
    assert (committed(queue), runs(queue)) == (total, [])


def known_epoch(queue: int) -> int:
    """The epoch of the group's position."""
    group_id = snapshot.find_group("mails").id
    with node_pools.node_of(queue).reading() as session:
        return position_sql.read_views(session, group_id=group_id, queues=[queue])[
            queue
        ].epoch
