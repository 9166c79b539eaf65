"""Lease runs of one queue to a member: runs whose lease is over (due()), or new messages
(new()).

Every lease of new messages locks the row of the group's position. So the calls of a worker
for one (group, queue) share a transaction, and workers wait for that row instead of
members. If the outcome of a lease is unknown, its owner finds the runs again with held().
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S, Session
from messagestore.heads.coalescer import NodeCoalescer
from messagestore.pool.node import Node
from messagestore.shares import known_queues
from messagestore.shares.known_queues import Known, Pair
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Lease, LeaseRequest, Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.rules.groups import sharing

REPEATS = 3  # further attempts after a rollback
PUT_BACK_TRIES = 8  # attempts to put back a run that another call changes at the same time
MOST_DUE = 20  # due runs that one call reads
MOST_HELD = 1_000  # runs of one member that held() returns
# After these errors the calls that shared a transaction are repeated one by one.
_SPOILED = (db_errors.RolledBack, db_errors.Final)


class Asked(NamedTuple):
    """A member's request for runs of one queue with `messages` messages together.

    `counts_begun`: the member reports when it begins a run, so a lease alone does not count
    as a delivery.
    """

    group: GroupInfo
    owner: str
    messages: int
    counts_begun: bool = False

    @property
    def lease(self) -> Lease:
        return Lease(self.owner, self.group.lease_ms)


class _Place(NamedTuple):
    """A queue on its node, and the bounds of the offsets that a call may lease there."""

    node: Node
    group_id: int
    queue: int
    epoch: int
    start: int
    end: int


class _Part(NamedTuple):
    """The part of one call in a shared transaction: a lease for each wish."""

    place: _Place
    wishes: tuple[LeaseRequest, ...]


_coalescers: dict[Pair, NodeCoalescer[_Part, list[Run]]] = {}
_guard = threading.Lock()


def limit_of(group: GroupInfo, queue: int) -> int:
    """Return how many deliveries make a message of a queue a dead letter, 0 for no limit.

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


def due(*, node: Node, queue: int, one: Known, asked: Asked) -> list[Run]:
    """Take over runs whose lease is over, until they have the requested number of messages.

    A run is taken whole. From the third delivery on, only its first message is taken,
    alone. Raises NodeUnavailable, `db_errors.*`.
    """
    group_id, limit = asked.group.id, limit_of(asked.group, queue)
    with node.reading() as session:
        due_runs = run_sql.select_due(
            session,
            group_id=group_id,
            queue=queue,
            epoch=one.view.epoch,
            most=MOST_DUE,
            limit=limit,
        )
        # The lease that seemed to be over was renewed, or its run is finished.
        if not due_runs:
            known_queues.look_for_due(session, group_id=group_id, one=one)
        taken_runs: list[Run] = []
        for run in due_runs:
            # A message that ends its workers must not take others along: they would become
            # dead letters, too.
            alone = sharing.must_lease_alone(run.deliveries + 1, max_deliveries=limit)
            if taken_runs and (
                alone or sum(r.left.bit_count() for r in taken_runs) >= asked.messages
            ):
                break
            taken_runs += _take_over(session, run, asked, alone=alone)
            if taken_runs and alone:
                break
    return taken_runs


def _take_over(session: Session, run: Run, asked: Asked, *, alone: bool) -> list[Run]:
    """Take over a run, or its first message if `alone`. Empty if another member was faster."""
    group_id, counted = asked.group.id, not asked.counts_begun
    try:
        if alone and run.length > 1:
            return _first_alone(session, run, asked)
        taken_run = run_sql.lease_again(
            session, group_id=group_id, run=run, lease=asked.lease, counted=counted
        )
    except db_errors.RolledBack:  # a deadlock with another member that takes the same run
        return []
    return [] if taken_run is None else [taken_run]


def _first_alone(session: Session, run: Run, asked: Asked) -> list[Run]:
    """Lease the first message of a run as a run of its own. The others stay in the run,
    free.
    """
    counted = not asked.counts_begun
    lone_runs = run_sql.remove_offsets(
        session,
        group_id=asked.group.id,
        run=run,
        bits=run.left & -run.left,  # the lowest bit: the first unfinished message
        lease=asked.lease,
        deliveries=run.deliveries + counted,
    )
    return [lone_run._replace(uncounted=not counted) for lone_run in lone_runs or ()]


def new(*, node: Node, queue: int, one: Known, asked: Asked) -> list[Run]:
    """Lease the next new messages of a queue, in one transaction with other calls of this
    worker.

    Raises NodeUnavailable, and `db_errors.Ambiguous` if runs may be leased that no member
    knows of.
    """
    place = _Place(node, asked.group.id, queue, one.view.epoch, one.start, one.end)
    count = min(asked.messages, place.end - place.start)
    if count <= 0:
        return []
    limit = limit_of(asked.group, queue)
    max_run_length = (
        1 if sharing.must_lease_alone(1, max_deliveries=limit) else asked.group.run_messages
    )
    # The first lease counts at once, so that most messages need no further request before
    # they begin. If it is also the last one (`max_deliveries` is 1), it must not: else a
    # message that no member began would be a dead letter.
    counted = not (asked.counts_begun and sharing.is_exhausted(1, max_deliveries=limit))
    lease_ms, lengths = (
        asked.group.lease_ms,
        sharing.run_lengths(count, run_messages=max_run_length),
    )
    part = _Part(
        place,
        tuple(LeaseRequest(asked.owner, length, lease_ms, counted) for length in lengths),
    )
    for repeat in range(REPEATS + 1):
        try:
            # A repeat has a transaction of its own, so that another call's part cannot
            # spoil it again.
            return _together(part, alone=repeat > 0)
        except db_errors.RolledBack:
            if repeat == REPEATS:
                raise
            time.sleep(random.uniform(0.002, 0.02) * (repeat + 1))
    return []


def _together(part: _Part, *, alone: bool) -> list[Run]:
    """Lease the runs of a part, in a shared transaction unless `alone`."""
    runs: list[Run] | None = None
    # No result: the shared transaction failed. Another part may be the cause, so this one
    # is tried alone.
    while runs is None:
        with _coalescer_of(part.place).turn(part, alone=alone) as turn:
            if parts := turn.items:
                turn.results = _lease_parts(parts)
        runs, alone = turn.result, True
    return runs


def _lease_parts(parts: Sequence[_Part]) -> list[list[Run]]:
    """Lease runs for all parts in one transaction. Return the runs of each part.

    A part with another epoch than the first one gets none: its view of the queue is
    outdated, or the first one's is.
    """
    place = parts[0].place
    current_parts = [part for part in parts if part.place.epoch == place.epoch]
    wishes = [wish for part in current_parts for wish in part.wishes]
    with place.node.writing() as session:
        taken = run_sql.lease_new_runs(
            session,
            group_id=place.group_id,
            queue=place.queue,
            epoch=place.epoch,
            # The parts may have read the queue at different moments: the latest bounds are
            # valid for all.
            start=max(part.place.start for part in current_parts),
            end=max(part.place.end for part in current_parts),
            requests=wishes,
        )
    _note_position(place, taken, wishes)
    runs = iter(taken.runs)
    runs_by_part = {
        id(part): [run for _ in part.wishes if (run := next(runs)) is not None]
        for part in current_parts
    }
    return [runs_by_part.get(id(part), []) for part in parts]


def _note_position(
    place: _Place, taken: run_sql.NewLeases, wishes: Sequence[LeaseRequest]
) -> None:
    """Note the position after a lease in the cache of queues."""
    entry = known_queues._known.get((place.group_id, place.queue))
    # The position has another epoch, or none: the offsets were reset since the queue was
    # read.
    if taken.next_offset is None:
        known_queues.forget(place.group_id, place.queue)
    elif entry is not None and entry.view.epoch == place.epoch:
        entry.leased_to(taken.next_offset, due_in_s=wishes[0].lease_ms / 1000)


def held(
    *,
    node: Node,
    group: GroupInfo,
    queues: Collection[int],
    owner: str,
    counts_begun: bool = False,
) -> list[Run]:
    """Return the runs that a member holds, with renewed leases. Raises NodeUnavailable."""
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
    # The member never received these runs, so it reported no delivery of them. Only a first
    # lease was counted when it was given.
    return [
        run._replace(uncounted=counts_begun and (run.grant_no > 1 or not run.deliveries))
        for run, is_renewed in zip(runs, renewed, strict=True)
        if is_renewed
    ]


def put_back(
    *, node: Node, group_id: int, run: Run, offsets: Collection[int]
) -> Run | None:
    """Release undelivered messages of a run to other members, without counting this lease
    of them.

    Return the run as its row is afterwards. Return None if the run was leased again or
    finished meanwhile, or its row changed at each attempt: then the run must not be
    delivered. Raises NodeUnavailable.
    """
    offset_bits = sum(1 << (offset - run.first) for offset in offsets)
    with node.reading() as session:
        for _ in range(PUT_BACK_TRIES):
            bits = offset_bits & run.left
            if not bits or _move_to_free_runs(session, group_id, run, bits):
                known_queues.freed(group_id, run.queue, runs=1)
                return run._replace(done=run.done | bits)
            # Another call of the same member may have cut the run since it was read: a
            # member that lost an answer calls again while the first call still runs.
            firsts = {run.queue: [run.first]}
            row = run_sql.read_runs(session, group_id=group_id, firsts=firsts).get(run.key)
            if row is None or row.grant != run.grant:
                return None
            run = row._replace(uncounted=run.uncounted)
    return None


def _move_to_free_runs(session: Session, group_id: int, run: Run, bits: int) -> bool:
    """Move messages of a run into free runs. Return False if the row is not as it was read."""
    free_lease, deliveries = Lease(), run.delivery - 1
    try:
        free_runs = run_sql.remove_offsets(
            session,
            group_id=group_id,
            run=run,
            bits=bits,
            lease=free_lease,
            deliveries=deliveries,
        )
    except db_errors.RolledBack:  # a deadlock with the other call
        return False
    return free_runs is not None


def _coalescer_of(place: _Place) -> NodeCoalescer[_Part, list[Run]]:
    pair = place.group_id, place.queue
    existing = _coalescers.get(pair)
    if existing is not None:
        return existing
    created = NodeCoalescer[_Part, list[Run]](
        limit_s=READ_TIMEOUT_S,
        take=_count_of_one_node,
        check=_check_reachable,
        apart_after=_SPOILED,
    )
    # Two threads may create one at the same time. Both must use the same.
    with _guard:
        return _coalescers.setdefault(pair, created)


def _count_of_one_node(parts: Sequence[_Part]) -> int:
    """Return how many parts, from the first on, are on its node: one transaction takes
    them.
    """
    ends = (
        count
        for count, part in enumerate(parts)
        if part.place.node is not parts[0].place.node
    )
    return next(ends, len(parts))


def _check_reachable(part: _Part) -> None:
    """Raise NodeUnavailable while the circuit of the node is open."""
    part.place.node.circuit.check()


def evict_except(queues: Collection[int]) -> None:
    """Forget all queues but these."""
    with _guard:
        for pair in [pair for pair in _coalescers if pair[1] not in queues]:
            del _coalescers[pair]
