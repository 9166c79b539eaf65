"""Record the reports of share group members: messages that are finished, released or still
in work.

A *run* is a range of offsets of a queue that is leased together, and a row of `share_run`. Its
row counts the deliveries of its messages. A *grant* names one lease of one run, and every report
names a grant. The grant is the only fence: a report is accepted even if the lease has ended or
the member has expired, as long as nobody else has leased the run since. Offsets *leave* a run
when they are finished or released; a released offset becomes part of a new, free run.

A report may be repeated, because offsets that have left a run stay out of it. Changes are
guarded by the row as it was read (compare and set). If the row changed meanwhile, it is read
again.

A lease counts as a delivery at once, or when the member reports that it has begun the run. The
table in run_leases.py shows which. In the second case the member gets the run *uncounted*,
together with the number of the delivery that the lease would be, and its report returns this
number (`GrantReport.delivery`, `begun`).

All changes use `node.reading()`, the session for statements that may be repeated: a lost
connection raises NodeUnavailable, and the member sends its report again. That is harmless,
because each change is guarded by the grant or the row. So `writing()`, which reports a lost
answer as an unknown outcome, is not needed.
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
from messagestore.tables.shares.run_sql import DeliveryReport, Key, Lease, Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import NodeUnavailable
from metadata.grouping import grouped
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Grant, Span

TRIES = 8  # attempts to change a run that other reports change at the same time


class GrantReport(NamedTuple):
    """A member's report on a run that it leased. `first` is the first offset of the run, and
    `grant` the text of its grant.
    """

    queue: int
    first: int
    grant: str
    # The whole run is finished. Then the next three are empty.
    whole: bool = False
    finished: Sequence[Span] = ()
    # Offsets to deliver again, to any member.
    release: Sequence[int] = ()
    # Offsets to deliver again, too, but the member had not handed these messages to its
    # application. So this lease is not counted as a delivery of these messages.
    unseen: Sequence[int] = ()
    renew: bool = False
    # The n in "this lease is the n-th delivery of these messages", as the member got it with the
    # run (Run.delivery_number). 0: no number came with the run, its lease was counted at once.
    delivery: int = 0
    # True: the member has begun to process the run, so the lease counts as delivery n. False: it
    # has not, so the row's count becomes n - 1. None: the report leaves the count as it is.
    begun: bool | None = None


class ReportOutcome(NamedTuple):
    """Outcome of a report. `state` is

    * ok: the report was recorded
    * lost: the run was leased again since, under another grant
    * gone: the run is finished, or the offsets of the group were reset
    * invalid: the report contradicts itself or the run; `detail` has the reason
    * unavailable: the node did not answer

    `handled` is the number of messages that the report finished. `lease_ms` is the length
    of a renewed lease, else None.
    """

    queue: int
    state: str
    detail: str = ""
    handled: int = 0
    lease_ms: int | None = None


class _Entry(NamedTuple):
    """A valid report, with its index in the call and its parsed grant.

    `finished`, `released` and `unseen` are the offsets that leave the run, as bits: bit i is the
    first offset of the run + i. No bit is in two of the three sets.
    """

    report_index: int
    report: GrantReport
    grant: Grant
    finished: int
    released: int
    unseen: int

    @property
    def key(self) -> Key:
        return self.report.queue, self.grant.first, self.grant.end

    @property
    def removes_offsets(self) -> bool:
        """True if offsets leave the run."""
        return bool(self.finished or self.released or self.unseen)


def record(
    *, consumer: ConsumerId, group: GroupInfo, reports: Sequence[GrantReport]
) -> list[ReportOutcome]:
    """Record the reports of a share group member. Return the outcome of each, in order."""
    queue_infos, certain = snapshot.find_queues([report.queue for report in reports])
    outcomes: dict[int, ReportOutcome] = {}
    entries: list[tuple[int, _Entry]] = []
    for index, report in enumerate(reports):
        checked = _check_report(index, report)
        if isinstance(checked, str):
            outcomes[index] = ReportOutcome(report.queue, "invalid", checked)
        elif report.queue not in queue_infos:
            outcomes[index] = ReportOutcome(
                report.queue, "gone" if certain else "unavailable"
            )
        else:
            entries.append((queue_infos[report.queue].node_id, checked))
    for node_id, node_entries in grouped(entries).items():
        recorder = _Recorder(node_pools.node(node_id), group, consumer.text)
        outcomes |= recorder.record(node_entries)
    return [outcomes[index] for index in range(len(reports))]


def _check_report(index: int, report: GrantReport) -> _Entry | str:
    """Return the entry of a valid report, or the reason why the report is invalid."""
    grant = Grant.parse(report.grant)
    if grant is None or grant.first != report.first:
        return "this grant is not of a run that begins at this offset"
    if report.whole and (report.finished or report.release or report.unseen):
        return "all: leave out finished, release and unseen, the whole run is finished"
    if report.begun is not None and not report.delivery:
        return "begun: name the delivery, as it came with the run"
    run = grant.first, grant.end
    finished = sharing.bits_in(report.finished, run=run)
    released, unseen = (
        sharing.bits_in(((offset, offset + 1) for offset in offsets), run=run)
        for offsets in (report.release, report.unseen)
    )
    if finished is None:
        return f"finished: each range ends above its start, and lies between {run[0]} and {run[1]}"
    if released is None or unseen is None:
        field_name = "release" if released is None else "unseen"
        return f"{field_name}: the offsets of the run are {run[0]} to {run[1] - 1}"
    return _Entry(
        index, report, grant, finished, released & ~finished, unseen & ~released & ~finished
    )


class _Recorder:
    """Writes the reports of a member on the runs of a node.

    record() runs five steps. An entry may need several of them: a report can have begun, finish
    some offsets and renew the lease for the others. A step sets the outcome of the entries that
    need no later step, or that it refuses, and the later steps skip entries that have failed.

    | step                | entries                               | outcome that it sets         |
    |---------------------|---------------------------------------|------------------------------|
    | _finish_whole_runs  | `whole`                               | always                       |
    | _count_deliveries   | with `begun`                          | if refused, or nothing else  |
    | _remove_offsets     | with offsets, none refused            | always                       |
    | _renew              | with `renew`, none refused            | `ok` with the new `lease_ms` |
    | _answer_from_row    | without an outcome after these steps  | always                       |
    """

    def __init__(self, node: Node, group: GroupInfo, owner: str) -> None:
        self._node, self._group, self._owner = node, group, owner
        self._outcomes: dict[int, ReportOutcome] = {}

    def record(self, entries: Sequence[_Entry]) -> dict[int, ReportOutcome]:
        """Record entries. Return their outcomes by index, `unavailable` if the node failed."""
        try:
            # Whole runs first: the usual case, and a single transaction for all of them.
            self._finish_whole_runs([entry for entry in entries if entry.report.whole])
            # Deliveries are counted before offsets leave: the row of a run is deleted with its
            # last offset, and then there is nothing to count on.
            self._count_deliveries(
                [e for e in entries if e.report.begun is not None and not e.report.whole]
            )
            self._remove_offsets(
                [e for e in entries if e.removes_offsets and self._state(e) is None]
            )
            # Renewals come last, for runs whose other changes were recorded or that have none.
            self._renew(
                [e for e in entries if e.report.renew and self._state(e) in (None, "ok")]
            )
            # What has no outcome now: reports that change nothing, and renewals of a grant that
            # does not hold.
            self._answer_from_row(
                [entry for entry in entries if self._state(entry) is None]
            )
        except NodeUnavailable:
            for entry in entries:
                # Entries that were recorded before the failure keep their outcome.
                self._outcomes.setdefault(
                    entry.report_index, ReportOutcome(entry.report.queue, "unavailable")
                )
        known_queues.touch(
            self._group.id,
            {recorded.queue for recorded in self._outcomes.values() if recorded.handled},
        )
        return self._outcomes

    def _state(self, entry: _Entry) -> str | None:
        """Return the state of the entry's outcome, None if it has no outcome yet."""
        outcome = self._outcomes.get(entry.report_index)
        return outcome.state if outcome is not None else None

    def _answer(self, entry: _Entry, state: str, *, handled: int = 0) -> None:
        self._outcomes[entry.report_index] = ReportOutcome(
            entry.report.queue, state, "", handled
        )

    def _finish_whole_runs(self, entries: Sequence[_Entry]) -> None:
        if not entries:
            return
        # Rows are locked in the order of their key, so that two calls do not deadlock.
        ordered = sorted(entries, key=lambda entry: entry.key)
        grants = [(entry.report.queue, entry.grant) for entry in ordered]
        group_id = self._group.id
        finished = self._transact(
            lambda session: run_sql.finish_runs(session, group_id=group_id, grants=grants)
        )
        held_entries = [
            entry for entry, is_held in zip(ordered, finished, strict=True) if is_held
        ]
        for entry in held_entries:
            self._answer(entry, "ok", handled=entry.grant.end - entry.grant.first)
        # A grant that did not match is lost or gone; only the row shows which.
        self._answer_from_row([entry for entry in ordered if entry not in held_entries])

    def _transact(self, change: Callable[[Session], list[bool]]) -> list[bool]:
        """Change several runs in a single transaction. After a rollback (a deadlock), try again.
        Raises NodeUnavailable, and RolledBack after TRIES rollbacks.
        """
        for attempt in _tries():
            try:
                with self._node.reading() as session:
                    return change(session)
            except db_errors.RolledBack:
                if attempt == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    def _count_deliveries(self, entries: Sequence[_Entry]) -> None:
        """Record whether leases count as deliveries. Entries that change nothing else are
        answered, and entries that are refused.
        """
        if not entries:
            return
        ordered = sorted(entries, key=lambda entry: entry.key)
        counts = [
            (
                entry.report.queue,
                entry.grant,
                DeliveryReport(entry.report.delivery, bool(entry.report.begun)),
            )
            for entry in ordered
        ]
        group_id = self._group.id
        counted = self._transact(
            lambda session: run_sql.record_deliveries(
                session, group_id=group_id, counts=counts
            )
        )
        failed = []
        for entry, is_counted in zip(ordered, counted, strict=True):
            if not is_counted:
                failed.append(entry)
            elif not (entry.removes_offsets or entry.report.renew):
                self._answer(entry, "ok")
        self._answer_from_row(failed)
        # The count is refused if the grant does not hold, or if the delivery number is wrong. The
        # row has just decided about the grant: `lost` and `gone` stay. An `ok` means that the
        # grant holds, so it was the number, and the outcome becomes `invalid`.
        for entry in failed:
            if self._state(entry) == "ok":
                self._refuse_delivery(entry)

    def _refuse_delivery(self, entry: _Entry) -> None:
        detail = (
            f"delivery: {entry.report.delivery} is not the number that came with this run"
        )
        self._outcomes[entry.report_index] = ReportOutcome(
            entry.report.queue, "invalid", detail
        )

    def _answer_from_row(self, entries: Sequence[_Entry]) -> None:
        """Answer entries that changed nothing with the state of their grant."""
        if not entries:
            return
        with self._node.reading() as session:
            runs = self._runs(session, entries)
        for entry in entries:
            self._answer(entry, _state_of_grant(entry, runs.get(entry.key)))

    def _runs(self, session: Session, entries: Iterable[_Entry]) -> dict[Key, Run]:
        firsts = grouped((entry.report.queue, entry.grant.first) for entry in entries)
        return run_sql.read_runs(session, group_id=self._group.id, firsts=firsts)

    def _remove_offsets(self, entries: Sequence[_Entry]) -> None:
        """Remove finished, released and unseen offsets from their runs. Raises RolledBack if a
        row changes at each attempt.
        """
        pending = list(entries)
        for attempt in _tries():
            if not pending:
                return
            with self._node.reading() as session:
                runs = self._runs(session, pending)
                pending = [
                    entry
                    for entry in pending
                    if not self._remove_from_run(session, entry, runs.get(entry.key))
                ]
            if attempt == TRIES and pending:
                raise db_errors.RolledBack("Others change the same runs all the time.")

    def _remove_from_run(self, session: Session, entry: _Entry, run: Run | None) -> bool:
        """Remove the offsets of an entry from a run as it was read. Return False if its row has
        changed since: the caller reads it again and repeats the call.
        """
        state = _state_of_grant(entry, run)
        if state != "ok" or run is None:
            self._answer(entry, state)
            return True
        # `delivery`: the number of this lease as a delivery. A released message keeps it as its
        # count. Without a number in the report, it is the row's count.
        delivery = entry.report.delivery or run.deliveries
        # The row's count includes this lease, or does not include it yet (uncounted). So the
        # member can have received no other number with this run.
        if not run.deliveries <= delivery <= run.deliveries + 1:
            self._refuse_delivery(entry)
            return True
        finished, released, unseen = (
            bits & run.unfinished_bits
            for bits in (entry.finished, entry.released, entry.unseen)
        )
        # Three transactions at most. Each is guarded by the row as the previous left it,
        # so a repeat after a failure between them finds only the offsets that are still in
        # the run.
        try:
            if finished:
                free_runs = run_sql.remove_offsets(
                    session, group_id=self._group.id, run=run, bits=finished
                )
                if free_runs is None:
                    return False
            # `rest`: the row as the transaction before it has left it, to compare with. `done` are
            # the offsets that have left the run, whether finished or released.
            rest = run._replace(done=run.done | finished)
            if released and not self._release(session, rest, released, delivery):
                return False
            rest = rest._replace(done=rest.done | released)
            # `delivery` includes this lease, which is no delivery of unseen messages. Without a
            # number in the report, `delivery` is 0 for a run that was never counted.
            if unseen and not self._release(session, rest, unseen, max(0, delivery - 1)):
                return False
        except db_errors.RolledBack:
            return False
        outcome = self._outcomes.get(entry.report_index)
        handled_before = outcome.handled if outcome else 0
        self._answer(entry, "ok", handled=handled_before + finished.bit_count())
        return True

    def _release(self, session: Session, run: Run, bits: int, deliveries: int) -> bool:
        """Release messages of a run to any member, with `deliveries` as their count. Return
        False if the row of the run has changed since it was read.
        """
        group_id = self._group.id
        # A run that is released whole keeps its row: an UPDATE instead of a DELETE and an
        # INSERT.
        if bits == sharing.all_bits(run.length) and deliveries == run.deliveries:
            is_released = run_sql.release_run(session, group_id=group_id, run=run)
        else:
            free_runs = run_sql.remove_offsets(
                session,
                group_id=group_id,
                run=run,
                bits=bits,
                lease=Lease(),
                deliveries=deliveries,
            )
            is_released = free_runs is not None
        if is_released:
            known_queues.note_freed(group_id, run.queue, runs=bits.bit_count())
        return is_released

    def _renew(self, entries: Sequence[_Entry]) -> None:
        if not entries:
            return
        # In the order of their key, as in _finish_whole_runs().
        ordered = sorted(entries, key=lambda entry: entry.key)
        grants = [(entry.report.queue, entry.grant) for entry in ordered]
        lease = Lease(self._owner, self._group.lease_ms)
        with self._node.reading() as session:
            renewed = run_sql.renew_leases(
                session, group_id=self._group.id, grants=grants, lease=lease
            )
        for entry, is_renewed in zip(ordered, renewed, strict=True):
            if is_renewed:
                outcome = self._outcomes.get(
                    entry.report_index, ReportOutcome(entry.report.queue, "ok")
                )
                self._outcomes[entry.report_index] = outcome._replace(
                    lease_ms=self._group.lease_ms
                )


def _tries() -> Iterator[int]:
    """Yield 1, 2, … up to TRIES, with pauses of random length between them."""
    for attempt in range(1, TRIES + 1):
        if attempt > 1:
            time.sleep(random.uniform(0.001, 0.01) * attempt)
        yield attempt


def _state_of_grant(entry: _Entry, run: Run | None) -> str:
    """Return the state of a grant by the row of its run: `ok`, `lost` or `gone`."""
    # Another epoch: the offsets of the group were reset, or its subscription was created
    # again.
    if run is None or run.epoch != entry.grant.epoch:
        return "gone"
    return "ok" if run.grant_no == entry.grant.number else "lost"
