"""Verbs on runs: lease them, take them over, record what is finished, give them back.

A change of a run names what its row must still be: grant and finished offsets. One that
meets another row changes nothing, and the caller reads it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session, Step
from messagestore.tables.shares import position_sql
from messagestore.tables.sql_steps import fetch_rows, id_list, step
from metadata.grouping import grouped
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Grant

MOST_LISTED = 20_000  # runs that are read at once
NEVER = (1 << 31) - 1  # deliveries that no run has
Key = tuple[int, int, int]  # queue, first offset, end


class Run(NamedTuple):
    """A run as its row stands. `done`: bits of the offsets that have left it.

    `uncounted`: `deliveries` does not contain the last lease yet. The row does not have it:
    it is known only of a run that was just leased.
    """

    queue: int
    first: int
    end: int
    epoch: int
    grant_no: int
    owner: str
    deliveries: int
    done: int = 0
    uncounted: bool = False

    @property
    def grant(self) -> Grant:
        """The grant of its last lease."""
        return Grant(self.epoch, self.first, self.end, self.grant_no)

    @property
    def key(self) -> Key:
        """The key of its row in the table of a group."""
        return self.queue, self.first, self.end

    @property
    def length(self) -> int:
        return self.end - self.first

    @property
    def left(self) -> int:
        """Bits of the offsets that are still in the run."""
        return sharing.all_bits(self.length) & ~self.done

    @property
    def delivery(self) -> int:
        """The number of deliveries with the last lease, once a message of it has begun."""
        return self.deliveries + self.uncounted

    def has(self, offset: int) -> bool:
        """Return True if an offset is still in the run."""
        return self.first <= offset < self.end and bool(
            self.left >> (offset - self.first) & 1
        )


class LeaseRequest(NamedTuple):
    """A lease that somebody wants: of how many new messages. `counted`: it is a delivery of
    them.
    """

    owner: str
    messages: int
    lease_ms: int
    counted: bool = True


class Lease(NamedTuple):
    """Owner and length of a lease that is given; `lease_ms` 0: it is over at once, for
    anybody to take.
    """

    owner: str = ""
    lease_ms: int = 0


class NewLeases(NamedTuple):
    """Runs for some wishes, None where nothing was left, and the position behind them.

    `next_offset` is None if the position has another epoch, or is not there.
    """

    next_offset: int | None
    runs: list[Run | None]


class QueueShare(NamedTuple):
    """Leases of one share group in a queue, of the epoch of its position."""

    group_id: int
    epoch: int
    next_offset: int
    runs: list[Run]


class ListedRun(NamedTuple):
    """A run, and the ms until its lease ends."""

    run: Run
    lease_left_ms: int


def _run(queue: int, row: Sequence[Any]) -> Run:
    first, end, epoch, grant_no, owner, deliveries, done = row
    return Run(
        queue, first, end, epoch, grant_no, owner, deliveries, sharing.bits_from_bytes(done)
    )


def _guard(group_id: int, run: Run) -> dict[str, object]:
    """The row as it must still be."""
    named = {
        "group_id": group_id,
        "queue": run.queue,
        "first_offset": run.first,
        "end_offset": run.end,
    }
    seen = sharing.bytes_from_bits(run.done, length=run.length)
    return {**named, "epoch": run.epoch, "grant_no": run.grant_no, "seen": seen}


def lease_new_runs(
    session: Session,
    *,
    group_id: int,
    queue: int,
    epoch: int,
    start: int,
    end: int,
    wishes: Sequence[LeaseRequest],
) -> NewLeases:
    """Lease the next offsets below `end`, one run for each wish in order, in one
    transaction.

    Offsets below `start` are passed over. Raises `db_errors.*`; then nothing is leased,
    unless it is Ambiguous.
    """
    place: dict[str, object] = {"group_id": group_id, "queue": queue}
    bounds = {**place, "epoch": epoch, "from_offset": start, "end_offset": end}
    steps = [
        step(
            session,
            "take_run",
            **bounds,
            owner=wish.owner,
            messages=wish.messages,
            lease_us=1000 * wish.lease_ms,
            deliveries=int(wish.counted),
        )
        for wish in wishes
    ]
    locked, *_ = session.transact(step(session, "lock_position", **place), *steps)
    if not locked.rows or locked.rows[0][0] != epoch:
        return NewLeases(None, [None] * len(wishes))
    at = max(int(locked.rows[0][1]), start)
    taken: list[Run | None] = []
    for wish in wishes:
        first, at = at, max(at, min(at + wish.messages, end))
        deliveries, uncounted = int(wish.counted), not wish.counted
        run = Run(queue, first, at, epoch, 1, wish.owner, deliveries, uncounted=uncounted)
        taken.append(run if at > first else None)
    return NewLeases(at, taken)


def select_due(
    session: Session,
    *,
    group_id: int,
    queue: int,
    epoch: int,
    most: int,
    limit: int,
    exhausted: bool = False,
) -> list[Run]:
    """Runs whose lease is over, the lowest first.

    Those of a single message that was leased `limit` times (0: no limit) only if they are
    asked for, and then only these.
    """
    rows = fetch_rows(
        session,
        "select_due_runs",
        group_id=group_id,
        queue=queue,
        epoch=epoch,
        limit_at=limit or NEVER,
        at_limit=int(exhausted),
        most=most,
    )
    return [_run(queue, row) for row in rows]


def select_ended_below(
    session: Session, *, group_id: int, queue: int, epoch: int, below: int, most: int
) -> list[Run]:
    """Runs whose lease is over and that begin below an offset, the lowest first."""
    named = {
        "group_id": group_id,
        "queue": queue,
        "epoch": epoch,
        "below": below,
        "most": most,
    }
    return [_run(queue, row) for row in fetch_rows(session, "select_over_runs", **named)]


def read_runs(
    session: Session, *, group_id: int, firsts: Mapping[int, Collection[int]]
) -> dict[Key, Run]:
    """{(queue, first, end): run} of the runs that begin at some offsets, {queue: offsets}."""
    queues = [queue for queue, offsets in firsts.items() if offsets]
    if not queues:
        return {}
    results = session.run(
        *(
            step(
                session,
                "select_shares",
                group_id=group_id,
                queue=queue,
                offsets=id_list(sorted(firsts[queue])),
            )
            for queue in queues
        )
    )
    found = [
        _run(queue, row)
        for queue, result in zip(queues, results, strict=True)
        for row in result.rows
    ]
    return {run.key: run for run in found}


def lease_again(
    session: Session, *, group_id: int, run: Run, lease: Lease, counted: bool = True
) -> Run | None:
    """Lease a due run anew, whole; None if it is not as it was read.

    With `counted` the lease is a delivery at once, else when its member says that it began.
    """
    values = {
        **_guard(group_id, run),
        "owner": lease.owner,
        "lease_us": 1000 * lease.lease_ms,
    }
    (result,) = session.transact(
        step(session, "take_over_run", **values, counted=int(counted))
    )
    if result.matched != 1:
        return None
    return run._replace(
        grant_no=run.grant_no + 1,
        owner=lease.owner,
        deliveries=run.deliveries + counted,
        uncounted=not counted,
    )


def remove_offsets(
    session: Session,
    *,
    group_id: int,
    run: Run,
    bits: int,
    lease: Lease | None = None,
    deliveries: int = 0,
) -> list[Run] | None:
    """Let offsets leave a run, in one transaction; None, and nothing is done, if it is not
    as it was read.

    With a `lease` each stretch of them becomes a run of its own, leased so and delivered so
    often; these are returned. Without one they are finished. The row goes with its last
    offset. Numbers of leases go on from those of the run: one that leaves whole and comes
    back must not get a number that somebody knows.
    """
    done = run.done | bits
    values = {
        **_guard(group_id, run),
        "done": sharing.bytes_from_bits(done, length=run.length),
    }
    gone = done == sharing.all_bits(run.length)
    steps = [step(session, "delete_run" if gone else "mark_run", **values)]
    made = [] if lease is None else _parts(run, bits, lease, deliveries)
    steps += [_added(session, group_id, part, lease) for part in made if lease is not None]
    results = session.transact(*steps)
    return made if results[0].matched == 1 else None


def _parts(run: Run, bits: int, lease: Lease, deliveries: int) -> list[Run]:
    return [
        Run(run.queue, first, end, run.epoch, run.grant_no + 1, lease.owner, deliveries)
        for first, end in sharing.spans_of(bits, first=run.first)
    ]


def _added(session: Session, group_id: int, part: Run, lease: Lease) -> Step:
    return step(
        session,
        "add_run",
        group_id=group_id,
        queue=part.queue,
        first_offset=part.first,
        end_offset=part.end,
        epoch=part.epoch,
        grant_no=part.grant_no,
        owner=part.owner,
        lease_us=1000 * lease.lease_ms,
        deliveries=part.deliveries,
    )


def release_run(session: Session, *, group_id: int, run: Run) -> bool:
    """Give a run back as it is, so that its lease is worth nothing; False if it is not as
    it was read.
    """
    return (
        session.transact(step(session, "release_run", **_guard(group_id, run)))[0].matched
        == 1
    )


def finish_runs(
    session: Session, *, group_id: int, grants: Sequence[tuple[int, Grant]]
) -> list[bool]:
    """Finish whole runs, by (queue, grant), in one transaction; for each whether its grant
    still held.
    """
    return _each(session, "finish_run", group_id, grants)


def renew_leases(
    session: Session, *, group_id: int, grants: Sequence[tuple[int, Grant]], lease: Lease
) -> list[bool]:
    """Begin leases anew, by (queue, grant), in one transaction; for each whether its grant
    still held.
    """
    return _each(
        session,
        "renew_run",
        group_id,
        grants,
        owner=lease.owner,
        lease_us=1000 * lease.lease_ms,
    )


class DeliveryReport(NamedTuple):
    """A member's report on its lease: whether it counts by now, as number `delivery` of its
    messages.
    """

    delivery: int
    begun: bool

    @property
    def deliveries(self) -> int:
        """The count of deliveries that follows from it."""
        return self.delivery if self.begun else self.delivery - 1


def record_deliveries(
    session: Session, *, group_id: int, counts: Sequence[tuple[int, Grant, DeliveryReport]]
) -> list[bool]:
    """Write whether leases count as deliveries, by (queue, grant), in one transaction.

    For each, return whether its grant still held and it is the next delivery, or the last
    one.
    """
    results = session.transact(
        *(
            step(
                session,
                "count_run",
                **_named(group_id, queue, grant),
                delivery=lease_count.delivery,
                deliveries=lease_count.deliveries,
            )
            for queue, grant, lease_count in counts
        )
    )
    return [result.matched == 1 for result in results]


def _named(group_id: int, queue: int, grant: Grant) -> dict[str, object]:
    return {
        "group_id": group_id,
        "queue": queue,
        "first_offset": grant.first,
        "end_offset": grant.end,
        "epoch": grant.epoch,
        "grant_no": grant.number,
    }


def _each(
    session: Session,
    name: str,
    group_id: int,
    grants: Sequence[tuple[int, Grant]],
    **more: object,
) -> list[bool]:
    results = session.transact(
        *(
            step(session, name, **_named(group_id, queue, grant), **more)
            for queue, grant in grants
        )
    )
    return [result.matched == 1 for result in results]


def end_leases_of_owner(session: Session, *, group_id: int, owner: str) -> int:
    """End every lease of one owner; return how many."""
    return session.transact(step(session, "free_runs_of", group_id=group_id, owner=owner))[
        0
    ].matched


def end_leases(session: Session, *, group_id: int, queue: int, first: int) -> int:
    """End the leases of the runs that begin at an offset; return how many."""
    named = {"group_id": group_id, "queue": queue, "first_offset": first}
    return session.transact(step(session, "end_leases", **named))[0].matched


def select_held(
    session: Session, *, group_id: int, queues: Sequence[int], owner: str, most: int
) -> list[Run]:
    """Runs of some queues that an owner has, the lowest first."""
    named = {"group_id": group_id, "queues": id_list(queues), "owner": owner, "most": most}
    return [
        _run(row[0], row[1:]) for row in fetch_rows(session, "select_held_runs", **named)
    ]


class LeaseCounts(NamedTuple):
    """Leases of a queue: runs, messages that are out, those of them that were leased
    before, and the ms until the lease ends that began first; None without one that
    lasts."""

    next_offset: int
    runs: int = 0
    in_flight: int = 0
    redelivered: int = 0
    oldest_left_ms: int | None = None


def count_leases(
    session: Session, *, group_id: int, queues: Sequence[int]
) -> dict[int, LeaseCounts]:
    """{queue: leases} of the queues that a share group has begun to read."""
    views = position_sql.read_views(session, group_id=group_id, queues=queues)
    runs = grouped(
        (one.run.queue, one)
        for one in list_runs(session, group_id=group_id, queues=queues, most=MOST_LISTED)
        if one.run.queue in views and one.run.epoch == views[one.run.queue].epoch
    )
    return {
        queue: _standing(view.next_offset or 0, runs.get(queue, []))
        for queue, view in views.items()
        if view.has_started
    }


def _standing(next_offset: int, runs: Sequence[ListedRun]) -> LeaseCounts:
    live = [one for one in runs if one.lease_left_ms > 0]
    again = (one.run.left.bit_count() for one in live if one.run.deliveries > 1)
    unfinished = sum(one.run.left.bit_count() for one in runs)
    oldest = min((one.lease_left_ms for one in live), default=None)
    return LeaseCounts(next_offset, len(runs), unfinished, sum(again), oldest)


def read_leased(session: Session) -> dict[tuple[int, int], tuple[int, int]]:
    """{(group, queue): (next offset, messages in leases)} of all share groups on a node."""
    try:
        positions, runs = (
            result.rows for result in session.run(step(session, "select_leased"))
        )
    except db_errors.Altered:
        return {}  # a node without such tables
    counts: Counter[tuple[int, int]] = Counter()
    for group_id, queue, length, done in runs:
        counts[group_id, queue] += length - sharing.bits_from_bytes(done).bit_count()
    return {
        (group_id, queue): (int(offset), counts[group_id, queue])
        for group_id, queue, offset in positions
    }


def has_finished(session: Session, *, group_id: int, queue: int, offset: int) -> bool:
    """Return True if a share group is done with a message, wherever its committed offset
    is.
    """
    view = position_sql.read_views(session, group_id=group_id, queues=[queue]).get(queue)
    if view is None or not view.has_started or offset >= (view.next_offset or 0):
        return False
    runs = list_runs(session, group_id=group_id, queues=[queue], most=MOST_LISTED)
    return not any(one.run.epoch == view.epoch and one.run.has(offset) for one in runs)


def list_runs(
    session: Session, *, group_id: int, queues: Sequence[int], most: int
) -> list[ListedRun]:
    """At most so many runs of some queues, by queue and offset."""
    rows = fetch_rows(
        session, "select_share_runs", group_id=group_id, queues=id_list(queues), most=most
    )
    return [ListedRun(_run(row[0], row[1:-1]), int(row[-1]) // 1000) for row in rows]


def list_queue_shares(session: Session, *, queue: int) -> list[QueueShare]:
    """The leases of every share group in a queue, as of one moment; none on a node without
    such tables.
    """
    try:
        rows = fetch_rows(session, "select_queue_shares", queue=queue)
    except db_errors.Altered:
        return []
    found: dict[int, QueueShare] = {}
    for group_id, epoch, next_offset, *run in rows:
        share = found.setdefault(group_id, QueueShare(group_id, epoch, next_offset, []))
        if run[0] is not None:
            share.runs.append(_run(queue, run))
    return [*found.values()]
