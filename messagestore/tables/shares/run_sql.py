"""Statements for runs: lease them, lease them again, record finished messages, give them
back.

A statement that changes a run names the grant and the finished offsets that its row must
have. If the row has others, nothing changes, and the caller reads it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.tables.shares import position_sql
from messagestore.tables.sql_steps import fetch_rows, id_list, step
from metadata.grouping import grouped
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Grant

MOST_LISTED = 20_000  # runs read by one statement
NEVER = (1 << 31) - 1  # more deliveries than any run has
Key = tuple[int, int, int]  # queue, first offset, end


class Run(NamedTuple):
    """A run, as its row has it. `done` has a bit for each offset that is finished or moved
    to another run.

    `uncounted`: `deliveries` does not include the last lease yet. No column has this, it is
    only known of a run that was just leased.
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
    def unfinished_bits(self) -> int:
        """Bits of the offsets that are still in the run; bit 0 is `first`."""
        return sharing.all_bits(self.length) & ~self.done

    @property
    def delivery_number(self) -> int:
        """Number of the delivery that the last lease is, whether it is counted yet or not."""
        return self.deliveries + self.uncounted

    def has(self, offset: int) -> bool:
        """Return True if an offset is still in the run."""
        return self.first <= offset < self.end and bool(
            self.unfinished_bits >> (offset - self.first) & 1
        )


class LeaseRequest(NamedTuple):
    """A request to lease up to `messages` new messages.

    `counted_at_once`: the lease is a delivery at once, instead of when its first message begins.
    """

    owner: str
    messages: int
    lease_ms: int
    counted_at_once: bool = True


class Lease(NamedTuple):
    """Owner and duration of a lease.

    With `lease_ms` 0 it has ended already, so that any member may take the run.
    """

    owner: str = ""
    lease_ms: int = 0


class NewLeases(NamedTuple):
    """Runs for some requests, None for requests that got nothing, and the position after
    them.

    `next_offset` is None if the position has another epoch or does not exist.
    """

    next_offset: int | None
    runs: list[Run | None]


class QueueShare(NamedTuple):
    """Position and runs of one share group in a queue, of the epoch of its position."""

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
    """Return the values that identify a run and that its row must still have."""
    done_bits = sharing.bytes_from_bits(run.done, length=run.length)
    return {**_grant_values(group_id, run.queue, run.grant), "seen": done_bits}


def lease_new_runs(
    session: Session,
    *,
    group_id: int,
    queue: int,
    epoch: int,
    start: int,
    end: int,
    requests: Sequence[LeaseRequest],
) -> NewLeases:
    """Lease the next offsets below `end`, one run for each request in order, in one
    transaction.

    Offsets below `start` are skipped. Raises `db_errors.*`; then nothing is leased, unless
    it is Ambiguous.
    """
    key: dict[str, object] = {"group_id": group_id, "queue": queue}
    bounds = {**key, "epoch": epoch, "from_offset": start, "end_offset": end}
    steps = [
        step(
            session,
            "take_run",
            **bounds,
            owner=request.owner,
            messages=request.messages,
            lease_us=1000 * request.lease_ms,
            deliveries=int(request.counted_at_once),
        )
        for request in requests
    ]
    # The row of the position is locked first, so two brokers never lease the same offsets.
    locked, *_ = session.transact(step(session, "lock_position", **key), *steps)
    if not locked.rows or locked.rows[0][0] != epoch:
        return NewLeases(None, [None] * len(requests))
    next_offset = max(int(locked.rows[0][1]), start)
    runs: list[Run | None] = []
    for request in requests:
        first, next_offset = (
            next_offset,
            max(next_offset, min(next_offset + request.messages, end)),
        )
        deliveries, uncounted = int(request.counted_at_once), not request.counted_at_once
        run = Run(
            queue,
            first,
            next_offset,
            epoch,
            1,
            request.owner,
            deliveries,
            uncounted=uncounted,
        )
        runs.append(run if next_offset > first else None)
    return NewLeases(next_offset, runs)


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
    """Return runs whose lease has ended, the lowest first.

    `limit` is the delivery limit, 0 for none. Runs of a single message that has reached it
    are left out; with `exhausted`, only these are returned.
    """
    rows = fetch_rows(
        session,
        "select_due_runs",
        group_id=group_id,
        queue=queue,
        epoch=epoch,
        limit_at=limit or NEVER,
        # A message at the delivery limit becomes a dead letter instead of being delivered.
        at_limit=int(exhausted),
        most=most,
    )
    return [_run(queue, row) for row in rows]


def select_ended_below(
    session: Session, *, group_id: int, queue: int, epoch: int, below: int, most: int
) -> list[Run]:
    """Return runs that begin below an offset and whose lease has ended, the lowest first."""
    values = {
        "group_id": group_id,
        "queue": queue,
        "epoch": epoch,
        "below": below,
        "most": most,
    }
    return [_run(queue, row) for row in fetch_rows(session, "select_over_runs", **values)]


def read_runs(
    session: Session, *, group_id: int, firsts: Mapping[int, Collection[int]]
) -> dict[Key, Run]:
    """Return {(queue, first, end): run} of the runs that begin at `firsts`, {queue:
    offsets}.
    """
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
    runs = [
        _run(queue, row)
        for queue, result in zip(queues, results, strict=True)
        for row in result.rows
    ]
    return {run.key: run for run in runs}


def lease_again(
    session: Session, *, group_id: int, run: Run, lease: Lease, counted_at_once: bool = True
) -> Run | None:
    """Lease a whole run whose lease has ended. Return None if its row has changed.

    With `counted_at_once` the lease is a delivery at once, else when its member reports that it
    began.
    """
    values = {
        **_guard(group_id, run),
        "owner": lease.owner,
        "lease_us": 1000 * lease.lease_ms,
    }
    (result,) = session.transact(
        step(session, "take_over_run", **values, counted=int(counted_at_once))
    )
    # Another broker leased the run first, or its member finished something.
    if result.matched != 1:
        return None
    # The row is not read again: the guard proves its former values.
    return run._replace(
        grant_no=run.grant_no + 1,
        owner=lease.owner,
        deliveries=run.deliveries + counted_at_once,
        uncounted=not counted_at_once,
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
    """Take offsets out of a run, in a single transaction. Return None, and change nothing, if
    its row has changed.

    Without a `lease` the offsets are finished. With one, each stretch of them becomes a run
    of its own with this lease and delivery count; these runs are returned. The row is
    deleted with its last offset.
    """
    done = run.done | bits
    values = {
        **_guard(group_id, run),
        "done": sharing.bytes_from_bits(done, length=run.length),
    }
    row_change = "delete_run" if done == sharing.all_bits(run.length) else "mark_run"
    steps, new_runs = [step(session, row_change, **values)], []
    if lease is not None:
        # `add_run` inserts only if the statement before it changed a row, so nothing is added
        # if the run is not as it was read. A new run has a grant number above that of its
        # former run. Otherwise a run that leaves whole and comes back could get a number
        # that a former owner still holds.
        new_runs = [
            Run(run.queue, first, end, run.epoch, run.grant_no + 1, lease.owner, deliveries)
            for first, end in sharing.spans_of(bits, first=run.first)
        ]
        steps += [
            step(
                session,
                "add_run",
                **_grant_values(group_id, run.queue, new_run.grant),
                owner=lease.owner,
                lease_us=1000 * lease.lease_ms,
                deliveries=deliveries,
            )
            for new_run in new_runs
        ]
    results = session.transact(*steps)
    return new_runs if results[0].matched == 1 else None


def release_run(session: Session, *, group_id: int, run: Run) -> bool:
    """End a lease and invalidate its grant. Return False if the row has changed."""
    return (
        session.transact(step(session, "release_run", **_guard(group_id, run)))[0].matched
        == 1
    )


def finish_runs(
    session: Session, *, group_id: int, grants: Sequence[tuple[int, Grant]]
) -> list[bool]:
    """Finish whole runs, by (queue, grant), in a single transaction. Return for each whether its
    grant held.
    """
    return _change_each(session, "finish_run", group_id, grants)


def renew_leases(
    session: Session, *, group_id: int, grants: Sequence[tuple[int, Grant]], lease: Lease
) -> list[bool]:
    """Extend leases, by (queue, grant), in a single transaction. Return for each whether its
    grant held.
    """
    return _change_each(
        session,
        "renew_run",
        group_id,
        grants,
        owner=lease.owner,
        lease_us=1000 * lease.lease_ms,
    )


class DeliveryReport(NamedTuple):
    """A member's report on a lease, as delivery number `delivery`. `begun`: it counts by now."""

    delivery: int
    begun: bool

    @property
    def deliveries(self) -> int:
        """The count of deliveries that follows from it."""
        return self.delivery if self.begun else self.delivery - 1


def record_deliveries(
    session: Session, *, group_id: int, counts: Sequence[tuple[int, Grant, DeliveryReport]]
) -> list[bool]:
    """Record whether leases count as deliveries, by (queue, grant), in a single transaction.

    Return for each whether its grant held and the number is that of the next or the last
    delivery.
    """
    results = session.transact(
        *(
            step(
                session,
                "count_run",
                **_grant_values(group_id, queue, grant),
                delivery=lease_count.delivery,
                deliveries=lease_count.deliveries,
            )
            for queue, grant, lease_count in counts
        )
    )
    return [result.matched == 1 for result in results]


def _grant_values(group_id: int, queue: int, grant: Grant) -> dict[str, object]:
    return {
        "group_id": group_id,
        "queue": queue,
        "first_offset": grant.first,
        "end_offset": grant.end,
        "epoch": grant.epoch,
        "grant_no": grant.number,
    }


def _change_each(
    session: Session,
    name: str,
    group_id: int,
    grants: Sequence[tuple[int, Grant]],
    **values: object,
) -> list[bool]:
    results = session.transact(
        *(
            step(session, name, **_grant_values(group_id, queue, grant), **values)
            for queue, grant in grants
        )
    )
    return [result.matched == 1 for result in results]


def end_leases_of_owner(session: Session, *, group_id: int, owner: str) -> int:
    """End every lease of an owner. Return how many."""
    return session.transact(step(session, "free_runs_of", group_id=group_id, owner=owner))[
        0
    ].matched


def end_leases(session: Session, *, group_id: int, queue: int, first: int) -> int:
    """End the leases of the runs that begin at an offset. Return how many."""
    values = {"group_id": group_id, "queue": queue, "first_offset": first}
    return session.transact(step(session, "end_leases", **values))[0].matched


def select_held(
    session: Session, *, group_id: int, queues: Sequence[int], owner: str, most: int
) -> list[Run]:
    """Return runs of some queues that an owner holds, the lowest first."""
    values = {"group_id": group_id, "queues": id_list(queues), "owner": owner, "most": most}
    return [
        _run(row[0], row[1:]) for row in fetch_rows(session, "select_held_runs", **values)
    ]


class LeaseCounts(NamedTuple):
    """Leases of a queue: runs, unfinished messages in them, and those leased more than
    once.

    `oldest_left_ms` is the time until the oldest running lease ends, None without one.
    """

    next_offset: int
    runs: int = 0
    in_flight: int = 0
    redelivered: int = 0
    oldest_left_ms: int | None = None


def count_leases(
    session: Session, *, group_id: int, queues: Sequence[int]
) -> dict[int, LeaseCounts]:
    """Return {queue: counts} of the queues that a share group has begun to read."""
    views = position_sql.read_views(session, group_id=group_id, queues=queues)
    runs = grouped(
        (listed.run.queue, listed)
        for listed in list_runs(session, group_id=group_id, queues=queues, most=MOST_LISTED)
        if listed.run.queue in views and listed.run.epoch == views[listed.run.queue].epoch
    )
    counts = {}
    for queue, view in views.items():
        if not view.has_started:
            continue
        queue_runs = runs.get(queue, [])
        live = [listed for listed in queue_runs if listed.lease_left_ms > 0]
        counts[queue] = LeaseCounts(
            next_offset=view.next_offset or 0,
            runs=len(queue_runs),
            in_flight=sum(listed.run.unfinished_bits.bit_count() for listed in queue_runs),
            redelivered=sum(
                listed.run.unfinished_bits.bit_count()
                for listed in live
                if listed.run.deliveries > 1
            ),
            oldest_left_ms=min((listed.lease_left_ms for listed in live), default=None),
        )
    return counts


def read_leased(session: Session) -> dict[tuple[int, int], tuple[int, int]]:
    """Return {(group, queue): (next offset, unfinished messages in runs)} of all share
    groups on a node.
    """
    try:
        # The runs of all groups at once: a query for each group would cost a round trip
        # each.
        positions, runs = (
            result.rows for result in session.run(step(session, "select_leased"))
        )
    except db_errors.Altered:
        return {}  # the node is not upgraded yet
    counts: Counter[tuple[int, int]] = Counter()
    for group_id, queue, length, done in runs:
        counts[group_id, queue] += length - sharing.bits_from_bytes(done).bit_count()
    return {
        (group_id, queue): (int(offset), counts[group_id, queue])
        for group_id, queue, offset in positions
    }


def has_finished(session: Session, *, group_id: int, queue: int, offset: int) -> bool:
    """Return True if a share group has finished a message, even above its committed offset."""
    view = position_sql.read_views(session, group_id=group_id, queues=[queue]).get(queue)
    # Above the next offset nothing was leased yet. Below it, an offset that is in no run is
    # finished.
    if view is None or not view.has_started or offset >= (view.next_offset or 0):
        return False
    runs = list_runs(session, group_id=group_id, queues=[queue], most=MOST_LISTED)
    return not any(
        listed.run.epoch == view.epoch and listed.run.has(offset) for listed in runs
    )


def list_runs(
    session: Session, *, group_id: int, queues: Sequence[int], most: int
) -> list[ListedRun]:
    """Return at most `most` runs of some queues, by queue and offset."""
    rows = fetch_rows(
        session, "select_share_runs", group_id=group_id, queues=id_list(queues), most=most
    )
    return [ListedRun(_run(row[0], row[1:-1]), int(row[-1]) // 1000) for row in rows]


def list_queue_shares(session: Session, *, queue: int) -> list[QueueShare]:
    """Return position and runs of every share group in a queue, as of one moment."""
    try:
        rows = fetch_rows(session, "select_queue_shares", queue=queue)
    except db_errors.Altered:
        return []
    shares: dict[int, QueueShare] = {}
    for group_id, epoch, next_offset, *run_columns in rows:
        # A group without runs has one row whose run columns are NULL.
        share = shares.setdefault(group_id, QueueShare(group_id, epoch, next_offset, []))
        if run_columns[0] is not None:
            share.runs.append(_run(queue, run_columns))
    return [*shares.values()]
