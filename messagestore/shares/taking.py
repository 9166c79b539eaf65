"""Leases: runs of one queue for one member, first those whose lease is over, then new messages.

Callers of one (group, queue) in a worker share a transaction, so that the row of the position waits for
workers and not for members. A run whose end was not seen is found again by its owner (`held`).
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
from messagestore.tables.shares.run_sql import Lease, Run, Wish
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.rules.groups import sharing

REPEATS = 3  # of what was rolled back
PUT_BACK_TRIES = 8  # of a run that another call changes at the same time
MOST_DUE = 20  # runs that are read at once
MOST_HELD = 1_000  # runs of one member that are found again
_SPOILED = (db_errors.RolledBack, db_errors.Final)


class Asked(NamedTuple):
    """A member's request for runs of one queue: new ones of `messages` together, as its fair share.

    `counts_begun`: the member says when it begins, so a lease by itself is no delivery.
    """

    group: GroupInfo
    owner: str
    messages: int
    counts_begun: bool = False

    @property
    def lease(self) -> Lease:
        return Lease(self.owner, self.group.lease_ms)


class _Place(NamedTuple):
    """A queue on its node, as all who take from it at a time see it."""

    node: Node
    group_id: int
    queue: int
    epoch: int
    start: int
    end: int


class _Part(NamedTuple):
    place: _Place
    wishes: tuple[Wish, ...]


_coalescers: dict[Pair, NodeCoalescer[_Part, list[Run]]] = {}
_guard = threading.Lock()


def limit_of(group: GroupInfo, queue: int) -> int:
    """The deliveries after which a message of a queue is dead; 0 where it cannot be: it has no place then."""
    known = snapshot.current()
    info = known.queues.get(queue)
    topic = None if info is None else known.failure_topics.get((group.id, known.origin(info.topic_id)))
    return group.max_deliveries if topic is not None else 0


def due(*, node: Node, queue: int, one: Known, asked: Asked) -> list[Run]:
    """Take over what is due, at most `messages` together: whole runs, from the third delivery on one message.

    Raises NodeUnavailable, `db_errors.*`.
    """
    group_id, limit = asked.group.id, limit_of(asked.group, queue)
    with node.reading() as session:
        found = run_sql.select_due(
            session, group_id=group_id, queue=queue, epoch=one.view.epoch, most=MOST_DUE, limit=limit
        )
        if not found:  # that lease was renewed, or its run is finished
            known_queues.look_for_due(session, group_id=group_id, one=one)
        taken: list[Run] = []
        for run in found:
            alone = sharing.goes_alone(run.deliveries + 1, max_deliveries=limit)
            if taken and (alone or sum(mine.left.bit_count() for mine in taken) >= asked.messages):
                break
            taken += _taken_over(session, run, asked, alone=alone)
            if taken and alone:
                break
    return taken


def _taken_over(session: Session, run: Run, asked: Asked, *, alone: bool) -> list[Run]:
    """Take a run over, or with `alone` its first message; nothing if another member was quicker."""
    group_id, counted = asked.group.id, not asked.counts_begun
    try:
        if alone and run.length > 1:
            return _first_alone(session, run, asked)
        won = run_sql.take_over(session, group_id=group_id, run=run, lease=asked.lease, counted=counted)
    except db_errors.RolledBack:  # two members wanted it, and the server chose the other one
        return []
    return [] if won is None else [won]


def _first_alone(session: Session, run: Run, asked: Asked) -> list[Run]:
    """Lease the first message of a run alone; the others stay in it, free."""
    counted = not asked.counts_begun
    made = run_sql.leave(
        session,
        group_id=asked.group.id,
        run=run,
        bits=run.left & -run.left,
        lease=asked.lease,
        deliveries=run.deliveries + counted,
    )
    return [lone_run._replace(uncounted=not counted) for lone_run in made or ()]


def new(*, node: Node, queue: int, one: Known, asked: Asked) -> list[Run]:
    """Lease the next messages of a queue, together with others that ask now.

    Raises NodeUnavailable, and `db_errors.Ambiguous` where runs may be leased that nobody was told of.
    """
    place = _Place(node, asked.group.id, queue, one.view.epoch, one.start, one.end)
    count = min(asked.messages, place.end - place.start)
    if count <= 0:
        return []
    limit = limit_of(asked.group, queue)
    most = 1 if sharing.goes_alone(1, max_deliveries=limit) else asked.group.run_messages
    # The first lease counts at once, so that most messages need no request before they begin. Where
    # it is also the last one, a message that nobody began would be dead.
    counted = not (asked.counts_begun and sharing.is_exhausted(1, max_deliveries=limit))
    lease_ms, lengths = asked.group.lease_ms, sharing.cut(count, run_messages=most)
    part = _Part(place, tuple(Wish(asked.owner, length, lease_ms, counted) for length in lengths))
    for repeat in range(REPEATS + 1):
        try:
            return _together(part, alone=repeat > 0)
        except db_errors.RolledBack:
            if repeat == REPEATS:
                raise
            time.sleep(random.uniform(0.002, 0.02) * (repeat + 1))
    return []


def _together(part: _Part, *, alone: bool) -> list[Run]:
    runs: list[Run] | None = None
    while runs is None:
        with _coalescer_of(part.place).turn(part, alone=alone) as turn:
            if parts := turn.items:
                turn.results = _taken(parts)
        runs, alone = turn.result, True
    return runs


def _taken(parts: Sequence[_Part]) -> list[list[Run]]:
    """Take for all at once; the runs of each. One of another epoch than the first one's gets nothing."""
    first = parts[0].place
    mine = [part for part in parts if part.place.epoch == first.epoch]
    wishes = [wish for part in mine for wish in part.wishes]
    with first.node.writing() as session:
        taken = run_sql.take(
            session,
            group_id=first.group_id,
            queue=first.queue,
            epoch=first.epoch,
            start=max(part.place.start for part in mine),
            end=max(part.place.end for part in mine),
            wishes=wishes,
        )
    _note(first, taken, wishes)
    runs = iter(taken.runs)
    found = {id(part): [run for _ in part.wishes if (run := next(runs)) is not None] for part in mine}
    return [found.get(id(part), []) for part in parts]


def _note(place: _Place, taken: run_sql.Taken, wishes: Sequence[Wish]) -> None:
    one = known_queues._known.get((place.group_id, place.queue))
    if taken.next_offset is None:
        known_queues.forget(place.group_id, place.queue)
    elif one is not None and one.view.epoch == place.epoch:
        one.leased_to(taken.next_offset, due_in_s=wishes[0].lease_ms / 1000)


def held(
    *, node: Node, group: GroupInfo, queues: Collection[int], owner: str, counts_begun: bool = False
) -> list[Run]:
    """Runs that a member has, their leases begun anew. Raises NodeUnavailable."""
    with node.reading() as session:
        runs = run_sql.select_held(
            session, group_id=group.id, queues=sorted(queues), owner=owner, most=MOST_HELD
        )
        grants = [(run.queue, run.grant) for run in runs]
        lease = Lease(owner, group.lease_ms)
        kept = run_sql.renew(session, group_id=group.id, grants=grants, lease=lease) if grants else []
    # The member never heard of them, so it has said nothing of their deliveries: only a first lease
    # was counted when it was given.
    return [
        run._replace(uncounted=counts_begun and (run.grant_no > 1 or not run.deliveries))
        for run, still in zip(runs, kept, strict=True)
        if still
    ]


def put_back(*, node: Node, group_id: int, run: Run, offsets: Collection[int]) -> Run | None:
    """Let others lease messages of a run that were not delivered; this lease of them is not counted.

    Return the run as its row stands after they left it. Return None if the lease of the run ended meanwhile,
    or the row changes all the time: then nothing may be said of any of its messages. Raises NodeUnavailable.
    """
    wanted = sum(1 << (offset - run.first) for offset in offsets)
    with node.reading() as session:
        for _ in range(PUT_BACK_TRIES):
            bits = wanted & run.left
            if not bits or _left(session, group_id, run, bits):
                known_queues.freed(group_id, run.queue, runs=1)
                return run._replace(done=run.done | bits)
            # Another call of the same member may have cut the run since it was read: a member that lost an
            # answer asks again while the first call is still under way.
            firsts = {run.queue: [run.first]}
            row = run_sql.read_runs(session, group_id=group_id, firsts=firsts).get(run.key)
            if row is None or row.grant != run.grant:
                return None
            run = row._replace(uncounted=run.uncounted)
    return None


def _left(session: Session, group_id: int, run: Run, bits: int) -> bool:
    """Move messages of a run into free runs. Return False if its row is not as it was read."""
    free, deliveries = Lease(), run.delivery - 1
    try:
        parts = run_sql.leave(
            session, group_id=group_id, run=run, bits=bits, lease=free, deliveries=deliveries
        )
    except db_errors.RolledBack:  # a deadlock with the other call
        return False
    return parts is not None


def _coalescer_of(place: _Place) -> NodeCoalescer[_Part, list[Run]]:
    pair = place.group_id, place.queue
    known = _coalescers.get(pair)
    if known is not None:
        return known
    new = NodeCoalescer[_Part, list[Run]](
        limit_s=READ_TIMEOUT_S, take=_of_one_node, check=_check_reachable, apart_after=_SPOILED
    )
    with _guard:
        return _coalescers.setdefault(pair, new)


def _of_one_node(parts: Sequence[_Part]) -> int:
    """Number of parts, from the first on, that make one transaction."""
    others = (count for count, part in enumerate(parts) if part.place.node is not parts[0].place.node)
    return next(others, len(parts))


def _check_reachable(part: _Part) -> None:
    part.place.node.circuit.check()


def evict_except(queues: Collection[int]) -> None:
    """Forget all queues but these."""
    with _guard:
        for pair in [pair for pair in _coalescers if pair[1] not in queues]:
            del _coalescers[pair]
