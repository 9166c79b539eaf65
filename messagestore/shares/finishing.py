"""Reports of members on their runs: what is finished, to be delivered again, or still in work.

A report names a grant, the only fence. It may be repeated: what has left a run has left it. A run that was
read and changes before it is written is read again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.shares import known_queues
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Count, Key, Lease, Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import NodeUnavailable
from metadata.grouping import grouped
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Grant, Span

TRIES = 8  # of a change of a run that others change, too


class Done(NamedTuple):
    """A report on one run. `whole`: all of it is finished; else `finished` and `release` say what left it.

    `unseen` is released, too; that it was leased counts for nothing. `delivery`: the number that the
    member was told with a run that is not counted by itself; 0 for any other. `begun`: whether that
    delivery counts by now.
    """

    queue: int
    first: int
    grant: str
    whole: bool = False
    finished: Sequence[Span] = ()
    release: Sequence[int] = ()
    unseen: Sequence[int] = ()
    renew: bool = False
    delivery: int = 0
    begun: bool | None = None


class Recorded(NamedTuple):
    """Outcome of a report: `ok`, `lost`, `gone`, `invalid` (`detail` says why) or `unavailable`.

    `handled`: the messages that it finished. `lease_ms`: of a lease that begins anew.
    """

    queue: int
    state: str
    detail: str = ""
    handled: int = 0
    lease_ms: int | None = None


class _Entry(NamedTuple):
    """A report that can be recorded: its place among the others, grant, and bits of what leaves the run."""

    place: int
    done: Done
    grant: Grant
    finished: int
    released: int
    unseen: int

    @property
    def key(self) -> Key:
        return self.done.queue, self.grant.first, self.grant.end


def record(*, consumer: ConsumerId, group: GroupInfo, reports: Sequence[Done]) -> list[Recorded]:
    """Record the reports of a member of a share group; for each, in order, what came of it."""
    known, certain = snapshot.find_queues([one.queue for one in reports])
    found: dict[int, Recorded] = {}
    entries: list[tuple[int, _Entry]] = []
    for index, one in enumerate(reports):
        checked = _checked(index, one)
        if isinstance(checked, str):
            found[index] = Recorded(one.queue, "invalid", checked)
        elif one.queue not in known:
            found[index] = Recorded(one.queue, "gone" if certain else "unavailable")
        else:
            entries.append((known[one.queue].node_id, checked))
    for node_id, mine in grouped(entries).items():
        work = _Work(node_pools.node(node_id), group, consumer.text)
        found |= work.record(mine)
    return [found[index] for index in range(len(reports))]


def _checked(index: int, one: Done) -> _Entry | str:
    """Return a report that can be recorded, or what is wrong with it."""
    grant = Grant.parse(one.grant)
    if grant is None or grant.first != one.first:
        return "this grant is not of a run that begins at this offset"
    if one.whole and (one.finished or one.release or one.unseen):
        return "all: leave out finished, release and unseen, the whole run is finished"
    if one.begun is not None and not one.delivery:
        return "begun: name the delivery, as it came with the run"
    run = grant.first, grant.end
    finished = sharing.bits_in(one.finished, run=run)
    released, unseen = (_bits_of(offsets, run) for offsets in (one.release, one.unseen))
    if finished is None:
        return f"finished: each range ends above its start, and lies between {run[0]} and {run[1]}"
    if released is None or unseen is None:
        name = "release" if released is None else "unseen"
        return f"{name}: the offsets of the run are {run[0]} to {run[1] - 1}"
    return _Entry(index, one, grant, finished, released & ~finished, unseen & ~released & ~finished)


def _bits_of(offsets: Iterable[int], run: Span) -> int | None:
    return sharing.bits_in(((offset, offset + 1) for offset in offsets), run=run)


class _Work:
    """Reports on the runs of one node."""

    def __init__(self, node: Node, group: GroupInfo, owner: str) -> None:
        self._node, self._group, self._owner = node, group, owner
        self._found: dict[int, Recorded] = {}

    def record(self, entries: Sequence[_Entry]) -> dict[int, Recorded]:
        """Return what came of each, by its place."""
        try:
            whole = [entry for entry in entries if entry.done.whole]
            self._finish(whole)
            self._count([entry for entry in entries if entry.done.begun is not None and not entry.done.whole])
            leaving = [entry for entry in entries if entry.finished or entry.released or entry.unseen]
            self._leave([entry for entry in leaving if self._state(entry) == ""])
            self._renew([entry for entry in entries if entry.done.renew and self._state(entry) in ("", "ok")])
            self._name([entry for entry in entries if self._state(entry) == ""])
        except NodeUnavailable:
            for entry in entries:
                self._found.setdefault(entry.place, Recorded(entry.done.queue, "unavailable"))
        known_queues.touch(
            self._group.id, {recorded.queue for recorded in self._found.values() if recorded.handled}
        )
        return self._found

    def _state(self, one: _Entry) -> str:
        return self._found[one.place].state if one.place in self._found else ""

    def _answer(self, one: _Entry, state: str, *, handled: int = 0) -> None:
        self._found[one.place] = Recorded(one.done.queue, state, "", handled)

    def _finish(self, entries: Sequence[_Entry]) -> None:
        if not entries:
            return
        ordered = sorted(entries, key=lambda entry: entry.key)
        grants = [(entry.done.queue, entry.grant) for entry in ordered]
        group_id = self._group.id
        finished = self._together(lambda session: run_sql.finish(session, group_id=group_id, grants=grants))
        held = [entry for entry, was in zip(ordered, finished, strict=True) if was]
        for entry in held:
            self._answer(entry, "ok", handled=entry.grant.end - entry.grant.first)
        self._name([entry for entry in ordered if entry not in held])

    def _together(self, change: Callable[[Session], list[bool]]) -> list[bool]:
        """Make a change of several runs in one transaction, and again after a deadlock."""
        for tries in _tries():
            try:
                with self._node.reading() as session:
                    return change(session)
            except db_errors.RolledBack:
                if tries == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    def _count(self, entries: Sequence[_Entry]) -> None:
        """Write whether leases count as deliveries; what cannot be written is answered."""
        if not entries:
            return
        ordered = sorted(entries, key=lambda entry: entry.key)
        counts = [
            (entry.done.queue, entry.grant, Count(entry.done.delivery, bool(entry.done.begun)))
            for entry in ordered
        ]
        group_id = self._group.id
        counted = self._together(lambda session: run_sql.count(session, group_id=group_id, counts=counts))
        failed = []
        for entry, was in zip(ordered, counted, strict=True):
            if not was:
                failed.append(entry)
            elif not (entry.finished or entry.released or entry.unseen or entry.done.renew):
                self._answer(entry, "ok")
        self._name(failed)
        for entry in failed:
            if self._state(entry) == "ok":
                self._refuse_delivery(entry)

    def _refuse_delivery(self, one: _Entry) -> None:
        detail = f"delivery: {one.done.delivery} is not the number that came with this run"
        self._found[one.place] = Recorded(one.done.queue, "invalid", detail)

    def _name(self, entries: Sequence[_Entry]) -> None:
        """Say of reports that changed nothing whether their run is as it was, another's, or nobody's."""
        if not entries:
            return
        with self._node.reading() as session:
            runs = self._runs(session, entries)
        for one in entries:
            self._answer(one, _standing(one, runs.get(one.key)))

    def _runs(self, session: Session, entries: Iterable[_Entry]) -> dict[Key, Run]:
        firsts = grouped((one.done.queue, one.grant.first) for one in entries)
        return run_sql.read_runs(session, group_id=self._group.id, firsts=firsts)

    def _leave(self, entries: Sequence[_Entry]) -> None:
        left = list(entries)
        for tries in _tries():
            if not left:
                return
            with self._node.reading() as session:
                runs = self._runs(session, left)
                left = [one for one in left if not self._left(session, one, runs.get(one.key))]
            if tries == TRIES and left:
                raise db_errors.RolledBack("Others change the same runs all the time.")

    def _left(self, session: Session, one: _Entry, run: Run | None) -> bool:
        """Record what left a run as it was read; False if it is not so any more."""
        state = _standing(one, run)
        if state != "ok" or run is None:
            self._answer(one, state)
            return True
        delivery = one.done.delivery or run.deliveries
        if not run.deliveries <= delivery <= run.deliveries + 1:
            self._refuse_delivery(one)
            return True
        finished, released, unseen = (bits & run.left for bits in (one.finished, one.released, one.unseen))
        try:
            if finished and run_sql.leave(session, group_id=self._group.id, run=run, bits=finished) is None:
                return False
            rest = run._replace(done=run.done | finished)
            if released and not self._released(session, rest, released, delivery):
                return False
            rest = rest._replace(done=rest.done | released)
            if unseen and not self._released(session, rest, unseen, max(0, delivery - 1)):
                return False
        except db_errors.RolledBack:
            return False
        before = self._found[one.place].handled if one.place in self._found else 0
        self._answer(one, "ok", handled=before + finished.bit_count())
        return True

    def _released(self, session: Session, run: Run, bits: int, deliveries: int) -> bool:
        group_id = self._group.id
        if bits == sharing.full(run.length) and deliveries == run.deliveries:
            made = run_sql.release(session, group_id=group_id, run=run)
        else:
            parts = run_sql.leave(
                session, group_id=group_id, run=run, bits=bits, lease=Lease(), deliveries=deliveries
            )
            made = parts is not None
        if made:
            known_queues.freed(group_id, run.queue, runs=bits.bit_count())
        return made

    def _renew(self, entries: Sequence[_Entry]) -> None:
        if not entries:
            return
        ordered = sorted(entries, key=lambda one: one.key)
        grants = [(one.done.queue, one.grant) for one in ordered]
        lease = Lease(self._owner, self._group.lease_ms)
        with self._node.reading() as session:
            kept = run_sql.renew(session, group_id=self._group.id, grants=grants, lease=lease)
        for one, was in zip(ordered, kept, strict=True):
            if was:
                before = self._found.get(one.place, Recorded(one.done.queue, "ok"))
                self._found[one.place] = before._replace(lease_ms=self._group.lease_ms)


def _tries() -> Iterator[int]:
    """Yield 1, 2, … up to TRIES, with pauses between."""
    for tries in range(1, TRIES + 1):
        if tries > 1:
            time.sleep(random.uniform(0.001, 0.01) * tries)
        yield tries


def _standing(one: _Entry, run: Run | None) -> str:
    """Return the state of a grant, by the row of its run."""
    if run is None or run.epoch != one.grant.epoch:
        return "gone"
    return "ok" if run.grant_no == one.grant.number else "lost"
