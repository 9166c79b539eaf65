"""Read the messages of leased runs, check that none is missing, and fit them into an
answer.

Offsets of a run that are not delivered are returned as `skipped`, and the member counts
them as finished. So each skipped offset must have a reason:

* It did not fit into the answer, and has left the run for a run of its own.
* It is below the log start offset, in a declared gap, or left out by the group's filter.
* It was finished before.

An offset that is missing for no such reason is a hole. Then nothing of its run is
delivered, and the queue is reported as corrupt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from messagestore.consume.budget import OVERSHOOT, Budget
from messagestore.engine.messages import ROW_BODY, ROW_OFFSET, StoredRow
from messagestore.heads import corruption
from messagestore.heads.gap_check import explain_missing
from messagestore.pool.node import Node
from messagestore.shares import known_queues, run_leases
from messagestore.tables import message_sql, queue_sql
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Span

# offset → (row, its origin if in a retry topic)
FoundRows = dict[int, tuple[StoredRow, str | None]]


class Leased(NamedTuple):
    """A leased run with its messages. `skipped` are the offsets that are not delivered.

    `recovered`: the member held the run before, and its answer was lost.
    """

    run: Run
    lease_ms: int
    rows: list[StoredRow]
    skipped: list[Span]
    origins: Sequence[str | None] = ()
    recovered: bool = False

    @property
    def queue(self) -> int:
        return self.run.queue


class _Read(NamedTuple):
    """Rows of adjacent runs. Offsets from `upto` on were not read: the budget was used up."""

    rows: FoundRows
    upto: int


class Delivery:
    """Delivery of the runs of an answer, all of the same group and node.

    `corrupt` has the queues in which a hole was found.
    """

    def __init__(
        self, *, node: Node, group: GroupInfo, budget: Budget, recovered: bool = False
    ) -> None:
        self._node, self._group = node, group
        self._budget, self._recovered = budget, recovered
        self.corrupt: set[int] = set()

    def read_runs(self, runs: Sequence[Run]) -> list[Leased]:
        """Read the messages of leased runs. Runs without a deliverable message are
        finished.

        Raises NodeUnavailable, `db_errors.*`.
        """
        leased_runs: list[Leased] = []
        for adjacent in _adjacent_runs(runs):
            read = self._read(adjacent)
            leased_runs += [
                leased
                for run in adjacent
                if (leased := self._deliver(run, read)) is not None
            ]
        return leased_runs

    def _read(self, runs: Sequence[Run]) -> _Read:
        """Read the rows of adjacent runs of a queue with a single statement."""
        queue, first, end = runs[0].queue, runs[0].first, runs[-1].end
        only = snapshot.current().message_filter(self._group.id, queue)
        most_bytes = OVERSHOOT * max(1, self._budget.size)
        span = {"queue": queue, "first": first, "end": end, "most_bytes": most_bytes}
        origins: Sequence[str | None] = ()
        with self._node.reading() as session:
            if snapshot.current().holds_failures(queue):
                rows, origins = message_sql.select_copies(session, **span)
            else:
                rows = message_sql.select_rows(session, **span, only=only)
        # At `most_bytes` the SELECT was cut off. Offsets after the last row were not read
        # then, so they are not missing.
        total_bytes = sum(len(row[ROW_BODY] or b"") for row in rows)
        upto = rows[-1][ROW_OFFSET] + 1 if total_bytes >= most_bytes else end
        rows_and_origins = zip(rows, origins or [None] * len(rows), strict=True)
        return _Read(
            {row[ROW_OFFSET]: (row, origin) for row, origin in rows_and_origins}, upto
        )

    def _deliver(self, run: Run, read: _Read) -> Leased | None:
        """Return a run with the messages that fit, None if nothing of it is to be
        delivered.
        """
        offsets = [
            offset
            for span in sharing.spans_of(run.unfinished_bits, first=run.first)
            for offset in range(*span)
        ]
        unread = [offset for offset in offsets if offset >= read.upto]
        missing = [
            offset for offset in offsets if offset < read.upto and offset not in read.rows
        ]
        if missing and not self._is_explained(run, missing):
            # Released uncounted: the messages were not delivered, and can be after the
            # repair.
            self._put_back(run, offsets)
            return None
        pairs = [read.rows[o] for o in offsets if o in read.rows]
        # A row without a body did not match the group's filter.
        pairs = [pair for pair in pairs if pair[0][ROW_BODY] is not None]
        rows = [] if self._budget.spent() else [row for row, _ in pairs]
        _, fitting_count = self._budget.choose(run.queue, rows, filtered=False)
        fitting = pairs[:fitting_count]
        surplus = [row[ROW_OFFSET] for row, _ in pairs[len(fitting) :]] + unread
        if surplus:
            # The member counts skipped offsets as finished. So messages that did not fit
            # must have left the row of the run first. If they could not, the run is not
            # delivered: its lease runs out.
            remaining_run = self._put_back(run, surplus)
            if remaining_run is None:
                return None
            run = remaining_run
            # Another call of the same member may have cut the run further meanwhile.
            fitting = [pair for pair in fitting if run.has(pair[0][ROW_OFFSET])]
        if fitting:
            offsets = [row[ROW_OFFSET] for row, _ in fitting]
            delivered = sum(1 << (offset - run.first) for offset in offsets)
            undelivered = sharing.all_bits(run.length) & ~delivered
            corruption.delivered(run.queue, next_offset=offsets[-1] + 1)
            origins = [origin for _, origin in fitting]
            return Leased(
                run,
                self._group.lease_ms,
                [row for row, _ in fitting],
                list(sharing.spans_of(undelivered, first=run.first)),
                origins if any(origins) else (),
                self._recovered,
            )
        # Without a message to deliver the run is finished, unless all of its messages were
        # put back.
        if run.unfinished_bits:
            with self._node.reading() as session:
                # The grant guards the change: a run that was finished or leased to another
                # member meanwhile stays as it is.
                run_sql.finish_runs(
                    session, group_id=self._group.id, grants=[(run.queue, run.grant)]
                )
            known_queues.touch(self._group.id, [run.queue])
        return None

    def _is_explained(self, run: Run, missing: Sequence[int]) -> bool:
        """Return True if retention or a declared gap explains all missing offsets.

        Otherwise report the queue as corrupt at the first unexplained offset.
        """
        # `low` and gaps are read after the rows: retention may have deleted them since the
        # lease.
        with self._node.reading() as session:
            head = queue_sql.read_head(session, queue=run.queue)
            gaps = queue_sql.read_gaps(session, queue=run.queue, position=missing[0])
        low = head.low if head else 0
        holes = (
            o for o in missing if explain_missing(o, low=low, gaps=gaps).state == "corrupt"
        )
        hole = next(holes, None)
        if hole is None:
            return True
        corruption.report(run.queue, offset=hole, why=alarm_text("missing_leased"))
        self.corrupt.add(run.queue)
        return False

    def _put_back(self, run: Run, offsets: Sequence[int]) -> Run | None:
        return run_leases.put_back(
            node=self._node, group_id=self._group.id, run=run, offsets=offsets
        )


def _adjacent_runs(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Group runs that a statement can read together: each begins at the end of the previous."""
    adjacent: list[Run] = []
    for run in sorted(runs):
        if adjacent and (run.queue, run.first) != (adjacent[-1].queue, adjacent[-1].end):
            yield adjacent
            adjacent = []
        adjacent.append(run)
    if adjacent:
        yield adjacent
