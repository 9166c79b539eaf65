"""Lease runs of a queue to a member: runs whose lease is over, or new messages.

A run is a range of offsets that is leased together, and a row of `share_run`. The *position* of
a share group in a queue is the offset up to which messages have become runs.

Each lease of new messages locks the group's position row. So that members do not queue for
that lock, a worker's calls for the same (group, queue) share one transaction. If the outcome
of a lease is unknown, its owner finds the runs again with renew_held().

A lease counts as a delivery of its messages at one of two moments:

| the member reports when it begins a run | lease of the messages           | counts           |
|-----------------------------------------|---------------------------------|------------------|
| no                                      | any                             | at once          |
| yes (`member_reports_begin`)            | first, and more are allowed     | at once          |
| yes                                     | first, and `max_deliveries` = 1 | when it begins   |
| yes                                     | second and later                | when it begins   |

"When it begins": a member that dies before it begins does not bring its messages closer to the
dead letters. The second row saves the report for most messages, which are leased once. There a
death may cost one delivery, but never the last.

While a lease is not counted, its run is `uncounted`: `Run.deliveries` leaves the lease out, and
`Run.delivery_number` includes it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S
from messagestore.heads.coalescer import NodeCoalescer
from messagestore.pool.node import Node
from messagestore.shares import known_queues
from messagestore.shares.known_queues import Pair, QueueEntry
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Lease, LeaseRequest, Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.rules.groups import sharing

REPEATS = 3  # further attempts after a rollback
PUT_BACK_TRIES = 8  # attempts to put back a run that another call changes at the same time
MOST_DUE = 20  # due runs that a call reads
MOST_HELD = 1_000  # runs of a member that renew_held() returns
# Errors of a shared transaction that a single one of its calls may have caused. After them
# each call is repeated in a transaction of its own.
_TRY_ALONE_AFTER = (db_errors.RolledBack, db_errors.Final)


class RunRequest(NamedTuple):
    """A member's request for runs of a queue that have `messages` messages together.

    `owner` is the consumer id. `member_reports_begin`: the member reports when it begins to
    process a run. The module docstring explains how its deliveries are counted.
    """

    group: GroupInfo
    owner: str
    messages: int
    member_reports_begin: bool = False

    @property
    def lease(self) -> Lease:
        return Lease(self.owner, self.group.lease_ms)


class _Target(NamedTuple):
    """A queue on its node, and the bounds of the offsets that a call may lease there."""

    node: Node
    group_id: int
    queue: int
    epoch: int
    start: int
    end: int


class _Call(NamedTuple):
    """A call of lease_new() in a shared transaction, which leases a run for each request."""

    target: _Target
    lease_requests: tuple[LeaseRequest, ...]


_coalescers: dict[Pair, NodeCoalescer[_Call, list[Run]]] = {}
_guard = threading.Lock()


def find_delivery_limit(group: GroupInfo, queue: int) -> int:
    """Return after how many deliveries a message of a queue becomes a dead letter, 0 for never.

    Without a retry topic there is no limit, because a dead letter could not be stored.
    """
    current = snapshot.current()
    info = current.queues.get(queue)
    retry_topic = (
        None
        if info is None
        else current.failure_topics.get((group.id, current.origin_topic(info.topic_id)))
    )
    return group.max_deliveries if retry_topic is not None else 0


def lease_due(
    *, node: Node, queue: int, entry: QueueEntry, request: RunRequest
) -> list[Run]:
    """Lease runs again whose lease is over, until they have the requested number of messages.

    A run is taken whole. From the third delivery on, or at the last delivery that the group
    allows, only its first message is taken, as the only message of the call. Raises
    NodeUnavailable, `db_errors.*`.
    """
    group_id, delivery_limit = request.group.id, find_delivery_limit(request.group, queue)
    counted_at_once = not request.member_reports_begin
    with node.reading() as session:
        due_runs = run_sql.select_due(
            session,
            group_id=group_id,
            queue=queue,
            epoch=entry.view.epoch,
            most=MOST_DUE,
            limit=delivery_limit,
        )
        # No run is due after all: the lease that seemed to be over was renewed, or its run is
        # finished.
        if not due_runs:
            known_queues.read_next_due(session, group_id=group_id, entry=entry)
        taken_runs: list[Run] = []
        for run in due_runs:
            # A message that makes its workers crash must not be delivered with others: their
            # deliveries would be counted as well, until they became dead letters.
            alone = sharing.must_lease_alone(
                run.deliveries + 1, max_deliveries=delivery_limit
            )
            if taken_runs and (
                alone
                or sum(r.unfinished_bits.bit_count() for r in taken_runs)
                >= request.messages
            ):
                break
            # A rollback is a deadlock with another member that takes the same run.
            with suppress(db_errors.RolledBack):
                if alone and run.length > 1:
                    # The first message becomes a run of its own. The others stay in the
                    # run, free.
                    lone_runs = run_sql.remove_offsets(
                        session,
                        group_id=group_id,
                        run=run,
                        bits=run.unfinished_bits & -run.unfinished_bits,  # the lowest bit
                        lease=request.lease,
                        deliveries=run.deliveries + counted_at_once,
                    )
                    taken_runs += [
                        lone_run._replace(uncounted=not counted_at_once)
                        for lone_run in lone_runs or ()
                    ]
                elif taken_run := run_sql.lease_again(
                    session,
                    group_id=group_id,
                    run=run,
                    lease=request.lease,
                    counted_at_once=counted_at_once,
                ):
                    taken_runs.append(taken_run)
            if taken_runs and alone:
                break
    return taken_runs


def lease_new(
    *, node: Node, queue: int, entry: QueueEntry, request: RunRequest
) -> list[Run]:
    """Lease the next new messages of a queue, in a transaction with other calls of this
    worker.

    Raises NodeUnavailable, and `db_errors.Ambiguous` if runs may be leased that no member
    knows of.
    """
    target = _Target(
        node, request.group.id, queue, entry.view.epoch, entry.start, entry.end
    )
    count = min(request.messages, target.end - target.start)
    if count <= 0:
        return []
    delivery_limit = find_delivery_limit(request.group, queue)
    max_run_length = (
        1
        if sharing.must_lease_alone(1, max_deliveries=delivery_limit)
        else request.group.run_messages
    )
    # The table in the module docstring, for a first lease. `is_exhausted(1, …)`: the first
    # delivery is the last that is allowed. Counted at once, it would make the message a dead
    # letter although no member began it.
    counted_at_once = not (
        request.member_reports_begin
        and sharing.is_exhausted(1, max_deliveries=delivery_limit)
    )
    lease_requests = tuple(
        LeaseRequest(request.owner, length, request.group.lease_ms, counted_at_once)
        for length in sharing.run_lengths(count, run_messages=max_run_length)
    )
    call = _Call(target, lease_requests)
    repeats = 0
    while True:
        try:
            # A repeat has a transaction of its own, so that another call cannot spoil it
            # again.
            return _lease_together(call, alone=repeats > 0)
        except db_errors.RolledBack:
            if repeats == REPEATS:
                raise
        repeats += 1
        time.sleep(random.uniform(0.002, 0.02) * repeats)


def _lease_together(call: _Call, *, alone: bool) -> list[Run]:
    """Lease the runs of a call, in a shared transaction unless `alone`.

    Calls for the same pair that arrive while a transaction runs wait for each other in a
    NodeCoalescer (metadata/limits/coalescer.py). One of them becomes the leader: its
    `turn.items` are the calls to do, its own first, and its `turn.results` are given to their
    callers. A call that a leader has done finds `turn.items` empty, and its runs in
    `turn.result`.
    """
    pair = call.target.group_id, call.target.queue
    coalescer = _coalescers.get(pair)
    if coalescer is None:
        created = NodeCoalescer[_Call, list[Run]](
            limit_s=READ_TIMEOUT_S,
            # How many of the waiting calls fit into the next transaction.
            take=_count_leading_calls,
            # Called while a call waits. It raises if the node's circuit has opened.
            check=lambda waiting_call: waiting_call.target.node.circuit.check(),
            apart_after=_TRY_ALONE_AFTER,
        )
        # Two threads may create a coalescer at the same time. Both must use the same.
        with _guard:
            coalescer = _coalescers.setdefault(pair, created)
    runs: list[Run] | None = None
    # The loop runs twice at most. The result is None only if a transaction of several calls
    # failed with an error of _TRY_ALONE_AFTER. Another call may be the cause, so each call is then
    # tried alone. An error of a single call is raised by `turn`.
    while runs is None:
        with coalescer.turn(call, alone=alone) as turn:
            if calls := turn.items:
                turn.results = _lease_calls(calls)
        runs, alone = turn.result, True
    return runs


def _count_leading_calls(calls: Sequence[_Call]) -> int:
    """Return how many of the first calls a transaction takes: those on the node of the first.
    The queue may have moved to another node while they waited.
    """
    node = calls[0].target.node
    for count, call in enumerate(calls):
        if call.target.node is not node:
            return count
    return len(calls)


def _lease_calls(calls: Sequence[_Call]) -> list[list[Run]]:
    """Lease runs for all calls in a single transaction. Return the runs of each call.

    Calls whose epoch differs from that of the first call get none: one of the two epochs is
    outdated.
    """
    target = calls[0].target
    current_calls = [call for call in calls if call.target.epoch == target.epoch]
    lease_requests = [request for call in current_calls for request in call.lease_requests]
    with target.node.writing() as session:
        new_leases = run_sql.lease_new_runs(
            session,
            group_id=target.group_id,
            queue=target.queue,
            epoch=target.epoch,
            # The calls may have read the queue at different moments: the latest bounds are
            # valid for all.
            start=max(call.target.start for call in current_calls),
            end=max(call.target.end for call in current_calls),
            requests=lease_requests,
        )
    # Note the new position in the cache, so that the next call need not read it.
    entry = known_queues.find(target.group_id, target.queue)
    if new_leases.next_offset is None:
        # The position has another epoch, or none: the offsets were reset since the read.
        known_queues.forget(target.group_id, target.queue)
    elif entry is not None and entry.view.epoch == target.epoch:
        due_in_s = lease_requests[0].lease_ms / 1000
        entry.leased_to(new_leases.next_offset, due_in_s=due_in_s)
    # The runs come in the order of the requests, call after call, None for a request that got
    # no message. So each call takes as many from the iterator as it has requests.
    runs = iter(new_leases.runs)
    runs_by_call = {
        id(call): [run for _ in call.lease_requests if (run := next(runs)) is not None]
        for call in current_calls
    }
    return [runs_by_call.get(id(call), []) for call in calls]


def renew_held(
    *,
    node: Node,
    group: GroupInfo,
    queues: Collection[int],
    owner: str,
    member_reports_begin: bool = False,
) -> list[Run]:
    """Renew the leases of the runs that a member holds, and return these runs.

    For a member that may hold runs it does not know of, because the answer to its last lease
    was lost. Raises NodeUnavailable.
    """
    with node.reading() as session:
        runs = run_sql.select_held(
            session, group_id=group.id, queues=sorted(queues), owner=owner, most=MOST_HELD
        )
        grants = [(run.queue, run.grant) for run in runs]
        lease = Lease(owner, group.lease_ms)
        renewed = (
            run_sql.renew_leases(session, group_id=group.id, grants=grants, lease=lease)
            if grants
            else []
        )
    # The row does not say whether its last lease is counted, but it follows from the table in
    # the module docstring. The member never received these runs, so it has not reported their
    # begin, and only a lease that counted at once is counted. That is a first lease (grant
    # number 1) that made `deliveries` 1. With `deliveries` 0, the first lease is uncounted.
    return [
        run._replace(
            uncounted=member_reports_begin and (run.grant_no > 1 or not run.deliveries)
        )
        for run, is_renewed in zip(runs, renewed, strict=True)
        if is_renewed
    ]


def put_back(
    *, node: Node, group_id: int, run: Run, offsets: Collection[int]
) -> Run | None:
    """Release messages that were leased but cannot be delivered, without counting this lease
    as their delivery.

    Return the run as its row is afterwards. Return None if the run was leased again or
    finished meanwhile, or its row changed at each attempt: then the run must not be
    delivered. Raises NodeUnavailable.
    """
    offset_bits = sum(1 << (offset - run.first) for offset in offsets)
    with node.reading() as session:
        for _ in range(PUT_BACK_TRIES):
            bits = offset_bits & run.unfinished_bits
            # Without bits, none of the offsets is in the run any more.
            is_released = not bits
            if bits:
                # A rollback is a deadlock with the other call.
                with suppress(db_errors.RolledBack):
                    free_runs = run_sql.remove_offsets(
                        session,
                        group_id=group_id,
                        run=run,
                        bits=bits,
                        lease=Lease(),
                        deliveries=run.delivery_number - 1,
                    )
                    is_released = free_runs is not None
            if is_released:
                known_queues.note_freed(group_id, run.queue, runs=1)
                return run._replace(done=run.done | bits)
            # Another call of the same member may have cut the run since it was read: a
            # member that lost an answer calls again while the first call still runs.
            firsts = {run.queue: [run.first]}
            row = run_sql.read_runs(session, group_id=group_id, firsts=firsts).get(run.key)
            if row is None or row.grant != run.grant:
                return None
            run = row._replace(uncounted=run.uncounted)
    return None


def evict_except(queues: Collection[int]) -> None:
    """Forget all queues but these."""
    with _guard:
        for pair in [pair for pair in _coalescers if pair[1] not in queues]:
            del _coalescers[pair]
