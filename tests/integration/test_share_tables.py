"""Runs and positions of share groups on a node: what each change leaves, whatever meets it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from messagestore.engine import db_errors
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from messagestore.tables.shapes import ReaderKey
from messagestore.tables.shares import position_sql, run_sql
from messagestore.tables.shares.run_sql import Lease, LeaseRequest, Run
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Grant
from tests.support.killing import killed_step_by_step

GROUP, EPOCH, HEAD = 77, 5_000_000_000, 100
LONG = Lease("a", 60_000)


@pytest.fixture
def queue(node: str) -> int:
    """A queue with a reader row of a group that has leased nothing."""
    state = topics.create(name="orders", queues=1, actor=command("test"))
    snapshot.refresh()
    queue = state.queues[0].queue.queue
    with node_pools.node_of(queue).writing() as session:
        reader_sql.insert_readers(
            session, group_id=GROUP, queues=[queue], epoch=EPOCH, latest=False
        )
        position_sql.start_position(session, group_id=GROUP, queue=queue)
    return queue


def take(
    queue: int, *counts: int, epoch: int = EPOCH, owner: str = "a", lease_ms: int = 60_000
) -> list[Run]:
    """Leases new runs of such lengths, below HEAD."""
    with node_pools.node_of(queue).writing() as session:
        wishes = [LeaseRequest(owner, count, lease_ms) for count in counts]
        taken = run_sql.lease_new_runs(
            session,
            group_id=GROUP,
            queue=queue,
            epoch=epoch,
            start=0,
            end=HEAD,
            requests=wishes,
        )
    return [run for run in taken.runs if run is not None]


def leave(
    run: Run, *spans: tuple[int, int], lease: Lease | None = None
) -> list[Run] | None:
    """Lets offsets leave a run."""
    bits = sharing.bits_in(spans, run=(run.first, run.end))
    assert bits is not None
    with node_pools.node_of(run.queue).writing() as session:
        return run_sql.remove_offsets(
            session, group_id=GROUP, run=run, bits=bits, lease=lease, deliveries=2
        )


def standing(queue: int) -> list[Run]:
    """The runs as their rows are."""
    with node_pools.node_of(queue).reading() as session:
        return [
            one.run
            for one in run_sql.list_runs(session, group_id=GROUP, queues=[queue], most=100)
        ]


def due(queue: int, *, limit: int = 0, exhausted: bool = False) -> list[Run]:
    """The runs whose lease is over."""
    with node_pools.node_of(queue).reading() as session:
        return run_sql.select_due(
            session,
            group_id=GROUP,
            queue=queue,
            epoch=EPOCH,
            most=100,
            limit=limit,
            exhausted=exhausted,
        )


def floor(queue: int) -> int | None:
    """The lowest unfinished offset."""
    with node_pools.node_of(queue).reading() as session:
        found = position_sql.read_floor(session, group_id=GROUP, queue=queue)
    return found.offset if found else None


def test_runs_are_taken_side_by_side_up_to_the_end(queue: int) -> None:
    spans = [(run.first, run.end) for run in take(queue, 40, 40, 40, 40)]
    assert spans == [(0, 40), (40, 80), (80, 100)]
    assert [(run.first, run.end) for run in standing(queue)] == spans
    assert take(queue, 1) == []


def test_offsets_below_the_start_are_passed_over(queue: int) -> None:
    with node_pools.node_of(queue).writing() as session:
        (run,) = run_sql.lease_new_runs(
            session,
            group_id=GROUP,
            queue=queue,
            epoch=EPOCH,
            start=30,
            end=HEAD,
            requests=[LeaseRequest("a", 5, 1000)],
        ).runs
    assert run is not None
    assert (run.first, run.end, floor(queue)) == (30, 35, 30)


def test_nothing_is_taken_under_another_epoch(queue: int) -> None:
    assert take(queue, 10, epoch=EPOCH + 1) == []
    assert (standing(queue), floor(queue)) == ([], 0)


def test_eight_threads_take_and_finish_every_offset_once(queue: int) -> None:
    def work(name: str) -> list[int]:
        mine: list[int] = []
        while True:
            try:
                runs = take(queue, 1, owner=name)
                if not runs:
                    return mine
                with node_pools.node_of(queue).writing() as session:
                    assert run_sql.finish_runs(
                        session, group_id=GROUP, grants=[(queue, runs[0].grant)]
                    ) == [True]
            # a deadlock of MariaDB: repeated by whoever calls this
            except db_errors.RolledBack:
                continue
            mine.append(runs[0].first)

    with ThreadPoolExecutor(8) as threads:
        found = [offset for one in threads.map(work, "abcdefgh") for offset in one]
    # of one that was taken, and its end rolled back
    left = [run.first for run in standing(queue)]
    assert sorted([*found, *left]) == list(range(HEAD))


def test_a_run_is_taken_over_once_and_only_when_its_lease_is_over(queue: int) -> None:
    (live,) = take(queue, 5)
    (over,) = take(queue, 5, lease_ms=0)
    assert due(queue) == [over]
    with node_pools.node_of(queue).writing() as session:
        assert run_sql.lease_again(session, group_id=GROUP, run=live, lease=LONG) is None
        taken = run_sql.lease_again(
            session, group_id=GROUP, run=over, lease=Lease("b", 60_000)
        )
        assert run_sql.lease_again(session, group_id=GROUP, run=over, lease=LONG) is None
    assert taken == over._replace(owner="b", grant_no=2, deliveries=2)
    assert standing(queue) == [live, taken]


def test_a_run_whose_messages_finished_meanwhile_is_not_taken_over_as_it_was_read(
    queue: int,
) -> None:
    (run,) = take(queue, 5, lease_ms=0)
    assert leave(run, (0, 1)) == []
    with node_pools.node_of(queue).writing() as session:
        assert run_sql.lease_again(session, group_id=GROUP, run=run, lease=LONG) is None
    assert due(queue) == [run._replace(done=1)]


def test_finished_offsets_leave_a_run_and_the_last_takes_its_row_along(queue: int) -> None:
    (run,) = take(queue, 10)
    assert leave(run, (0, 3), (5, 6)) == []
    (marked,) = standing(queue)
    assert (marked.done, floor(queue)) == (0b100111, 3)
    assert leave(marked, (3, 5), (6, 10)) == []
    assert (standing(queue), floor(queue)) == ([], 10)


def test_released_offsets_become_runs_of_their_own(queue: int) -> None:
    (run,) = take(queue, 10)
    parts = leave(run, (2, 3), (5, 7), lease=Lease())
    assert parts is not None
    assert [(part.first, part.end, part.deliveries, part.grant_no) for part in parts] == [
        (2, 3, 2, 2),
        (5, 7, 2, 2),
    ]
    assert due(queue) == parts
    assert standing(queue) == [run._replace(done=0b1100100), *parts]


def test_two_changes_of_what_was_read_together_are_never_both_made(queue: int) -> None:
    (run,) = take(queue, 10)
    assert leave(run, (0, 1), lease=Lease()) is not None
    assert leave(run, (3, 4), lease=Lease()) is None
    assert [(one.first, one.end) for one in standing(queue)] == [(0, 1), (0, 10)]


def test_threads_that_release_different_offsets_of_a_run_leave_each_in_one_run(
    queue: int,
) -> None:
    (run,) = take(queue, 8)

    def release(offset: int) -> None:
        made = None
        while made is None:
            (now,) = (one for one in standing(queue) if (one.first, one.end) == (0, 8))
            try:
                made = leave(now, (offset, offset + 1), lease=Lease())
            except db_errors.RolledBack:
                continue

    with ThreadPoolExecutor(7) as threads:
        list(threads.map(release, range(7)))
    owned = [(one.first, one.end) for one in standing(queue) if one.unfinished_bits]
    assert sorted(owned) == [(0, 1), (0, 8), *((n, n + 1) for n in range(1, 7))]
    (parent,) = (one for one in standing(queue) if (one.first, one.end) == (0, 8))
    assert (parent.unfinished_bits, run.grant) == (0b1000_0000, parent.grant)


def test_a_released_run_has_a_grant_that_nobody_knows(queue: int) -> None:
    (run,) = take(queue, 1)
    with node_pools.node_of(queue).writing() as session:
        assert run_sql.release_run(session, group_id=GROUP, run=run)
        assert run_sql.renew_leases(
            session, group_id=GROUP, grants=[(queue, run.grant)], lease=LONG
        ) == [False]
        assert run_sql.finish_runs(
            session, group_id=GROUP, grants=[(queue, run.grant)]
        ) == [False]
    assert due(queue) == [run._replace(owner="", grant_no=2)]


def test_a_lease_that_is_over_can_be_renewed_until_somebody_takes_the_run(
    queue: int,
) -> None:
    (run,) = take(queue, 2, lease_ms=0)
    with node_pools.node_of(queue).writing() as session:
        assert run_sql.renew_leases(
            session, group_id=GROUP, grants=[(queue, run.grant)], lease=LONG
        ) == [True]
    assert due(queue) == []


def test_only_the_grant_that_holds_finishes_a_run(queue: int) -> None:
    (run,) = take(queue, 2)
    wrong = [Grant(EPOCH, 0, 2, 2), Grant(EPOCH + 1, 0, 2, 1), Grant(EPOCH, 0, 3, 1)]
    with node_pools.node_of(queue).writing() as session:
        assert (
            run_sql.finish_runs(
                session, group_id=GROUP, grants=[(queue, one) for one in wrong]
            )
            == [False] * 3
        )
        assert run_sql.finish_runs(
            session, group_id=GROUP, grants=[(queue, run.grant)]
        ) == [True]


def test_what_was_leased_too_often_is_told_apart_if_it_is_a_single_message(
    queue: int,
) -> None:
    often, together = take(queue, 1, 2, lease_ms=0)
    with node_pools.node_of(queue).writing() as session:
        again = run_sql.lease_again(session, group_id=GROUP, run=often, lease=Lease("b", 0))
        pair = run_sql.lease_again(
            session, group_id=GROUP, run=together, lease=Lease("b", 0)
        )
    assert due(queue, limit=2, exhausted=True) == [again]
    assert due(queue, limit=2) == [pair]
    assert due(queue, limit=3) == [again, pair]


def test_runs_of_a_dead_owner_are_due_at_once(queue: int) -> None:
    mine, other = take(queue, 2, owner="dead")[0], take(queue, 2, owner="b")[0]
    with node_pools.node_of(queue).writing() as session:
        assert run_sql.end_leases_of_owner(session, group_id=GROUP, owner="dead") == 1
    assert due(queue) == [mine._replace(owner="")]
    assert standing(queue)[1] == other


def test_after_a_reset_the_position_starts_there_and_older_runs_are_gone(
    queue: int,
) -> None:
    (old,) = take(queue, 10)
    node = node_pools.node_of(queue)
    with node.writing() as session:
        reader_sql.reset_reader(session, reader=ReaderKey(GROUP, queue), offset=3)
    with node.reading() as session:
        view = position_sql.read_views(session, group_id=GROUP, queues=[queue])[queue]
    assert not view.has_started
    with node.writing() as session:
        position_sql.start_position(session, group_id=GROUP, queue=queue)
        position_sql.start_position(session, group_id=GROUP, queue=queue)
        assert run_sql.finish_runs(
            session, group_id=GROUP, grants=[(queue, old.grant)]
        ) == [False]
    assert (standing(queue), floor(queue)) == ([], 3)
    assert [(run.first, run.epoch) for run in take(queue, 5, epoch=EPOCH + 1)] == [
        (3, EPOCH + 1)
    ]


def test_a_start_that_is_killed_between_its_statements_is_finished_by_the_next(
    queue: int,
) -> None:
    take(queue, 10)
    node = node_pools.node_of(queue)
    with node.writing() as session:
        reader_sql.reset_reader(session, reader=ReaderKey(GROUP, queue), offset=3)

    def start() -> None:
        with node_pools.node_of(queue).writing() as session:
            position_sql.start_position(session, group_id=GROUP, queue=queue)

    assert killed_step_by_step(start) >= 1
    assert (standing(queue), floor(queue)) == ([], 3)


@pytest.mark.parametrize("change", ["take", "release"])
def test_a_change_that_is_killed_between_its_statements_is_made_whole_or_not_at_all(
    queue: int, change: str
) -> None:
    (run,) = take(queue, 10)
    acts: dict[str, Callable[[], object]] = {
        "take": lambda: take(queue, 10),
        "release": lambda: leave(run, (4, 5), (7, 8), lease=Lease()),
    }
    assert killed_step_by_step(acts[change]) >= 1
    covered = [offset for one in standing(queue) for offset in _left(one)]
    assert sorted(covered) == list(range(max(covered) + 1))
    assert floor(queue) == 0


def _left(run: Run) -> list[int]:
    spans = sharing.spans_of(run.unfinished_bits, first=run.first)
    return [offset for first, end in spans for offset in range(first, end)]


def test_the_committed_offset_follows_the_floor_and_never_falls(queue: int) -> None:
    first, second = take(queue, 10, 10)
    node = node_pools.node_of(queue)
    with node.writing() as session:
        run_sql.finish_runs(session, group_id=GROUP, grants=[(queue, first.grant)])
        for offset in (10, 4):
            to = position_sql.Floor(EPOCH, offset)
            position_sql.raise_committed(session, group_id=GROUP, queue=queue, to=to)
        stale = position_sql.Floor(EPOCH - 1, 90)
        position_sql.raise_committed(session, group_id=GROUP, queue=queue, to=stale)
    with node.reading() as session:
        view = position_sql.read_views(session, group_id=GROUP, queues=[queue])[queue]
    assert (view.committed, view.next_offset, view.runs, floor(queue)) == (
        10,
        20,
        1,
        second.first,
    )
