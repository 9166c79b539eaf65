"""Messages of leased runs: read, proved to be without a hole, and cut to the size of an answer.

Offsets of a run that are not delivered are told as skipped: its member counts them as finished. What did not
fit has left the run for another one; what is below the log start offset, in a declared gap, or left out by
a filter nobody gets. An offset that is missing without such a reason is a hole: nothing of its run is
delivered, and a person must look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from messagestore.consume.budget import OVERSHOOT, Budget
from messagestore.engine.messages import ROW_BODY, ROW_OFFSET, StoredRow
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption
from messagestore.heads.gap_check import explain
from messagestore.pool.node import Node
from messagestore.shares import known_queues, taking
from messagestore.tables import message_sql, queue_sql
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.rules.alarm_texts import say
from metadata.rules.groups import sharing
from metadata.rules.groups.sharing import Span

Found = dict[int, tuple[StoredRow, str | None]]  # offset → row, and its origin in a retry topic


class Leased(NamedTuple):
    """A run with its messages; `skipped` are its offsets that are not delivered."""

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
    """Rows of some runs; `upto`: offsets from there on were not read, because the answer is full."""

    rows: Found
    upto: int


class Delivery:
    """Runs of one answer, all of one group and node."""

    def __init__(self, *, node: Node, group: GroupInfo, budget: Budget, recovered: bool = False) -> None:
        self._node, self._group, self._budget, self._recovered = node, group, budget, recovered
        self.corrupt: set[int] = set()

    def of(self, runs: Sequence[Run]) -> list[Leased]:
        """The runs that have messages. Raises NodeUnavailable, `db_errors.*`."""
        found: list[Leased] = []
        for some in _side_by_side(runs):
            read = self._read(some)
            for run in some:
                one = self._one(run, read)
                found += [] if one is None else [one]
        return found

    def _read(self, runs: Sequence[Run]) -> _Read:
        queue, first, end = runs[0].queue, runs[0].first, runs[-1].end
        only = snapshot.current().only(self._group.id, queue)
        most_bytes = OVERSHOOT * max(1, self._budget.size)
        span = {"queue": queue, "first": first, "end": end, "most_bytes": most_bytes}
        origins: Sequence[str | None] = ()
        with self._node.reading() as session:
            if snapshot.current().holds_failures(queue):
                rows, origins = message_sql.select_copies(session, **span)
            else:
                rows = message_sql.select_rows(session, **span, only=only)
        weight = sum(len(row[ROW_BODY] or b"") for row in rows)
        upto = rows[-1][ROW_OFFSET] + 1 if weight >= most_bytes else end
        both = zip(rows, origins or [None] * len(rows), strict=True)
        return _Read({row[ROW_OFFSET]: (row, origin) for row, origin in both}, upto)

    def _one(self, run: Run, read: _Read) -> Leased | None:
        wanted = [offset for span in sharing.spans_of(run.left, first=run.first) for offset in range(*span)]
        unread = [offset for offset in wanted if offset >= read.upto]
        missing = [offset for offset in wanted if offset < read.upto and offset not in read.rows]
        if missing and not self._explained(run, missing):
            self._put_back(run, wanted)
            return None
        full = [read.rows[one] for one in wanted if one in read.rows]
        full = [pair for pair in full if pair[0][ROW_BODY] is not None]
        taken = full[: len(self._fitting(run, [row for row, _ in full]))]
        surplus = [row[ROW_OFFSET] for row, _ in full[len(taken) :]] + unread
        if surplus:
            # The member counts as finished what an answer calls skipped. So what did not fit must really
            # have left the run: else the run is not delivered at all, and its lease ends.
            after = self._put_back(run, surplus)
            if after is None:
                return None
            run = after
            taken = [pair for pair in taken if run.has(pair[0][ROW_OFFSET])]
        if not taken:
            self._finish(run)
            return None
        return self._leased(run, [row for row, _ in taken], [origin for _, origin in taken])

    def _fitting(self, run: Run, rows: list[StoredRow]) -> list[StoredRow]:
        """The first rows that the answer has room for."""
        return [] if self._budget.spent() else self._budget.choose(run.queue, rows, filtered=False)[0]

    def _leased(self, run: Run, rows: list[StoredRow], origins: Sequence[str | None]) -> Leased:
        delivered = _bits(run, [row[ROW_OFFSET] for row in rows])
        skipped = sharing.spans_of(sharing.full(run.length) & ~delivered, first=run.first)
        corruption.delivered(run.queue, next_offset=rows[-1][ROW_OFFSET] + 1)
        return Leased(
            run,
            self._group.lease_ms,
            rows,
            list(skipped),
            origins if any(origins) else (),
            self._recovered,
        )

    def _explained(self, run: Run, missing: Sequence[int]) -> bool:
        """Return True if retention or a declared gap tells why offsets are missing; else report the first."""
        with self._node.reading() as session:
            hole = _first_hole(session, run.queue, missing)
        if hole is None:
            return True
        corruption.report(run.queue, offset=hole, why=say("missing_leased"))
        self.corrupt.add(run.queue)
        return False

    def _put_back(self, run: Run, offsets: Sequence[int]) -> Run | None:
        return taking.put_back(node=self._node, group_id=self._group.id, run=run, offsets=offsets)

    def _finish(self, run: Run) -> None:
        """End a run of which nothing is to be delivered, unless all of it was put back."""
        if run.left:
            with self._node.reading() as session:
                # A row that is not there any more was finished, or leased to another member.
                run_sql.finish(session, group_id=self._group.id, grants=[(run.queue, run.grant)])
            known_queues.touch(self._group.id, [run.queue])


def _first_hole(session: Session, queue: int, missing: Sequence[int]) -> int | None:
    head = queue_sql.read_head(session, queue=queue)
    gaps = queue_sql.read_gaps(session, queue=queue, position=missing[0])
    low = head.low if head else 0
    holes = (one for one in missing if explain(one, low=low, gaps=gaps).state == "corrupt")
    return next(holes, None)


def _bits(run: Run, offsets: Sequence[int]) -> int:
    return sum(1 << (offset - run.first) for offset in offsets)


def _side_by_side(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Runs that one statement reads: each begins where the one before it ends."""
    some: list[Run] = []
    for run in sorted(runs):
        if some and (run.queue, run.first) != (some[-1].queue, some[-1].end):
            yield some
            some = []
        some.append(run)
    if some:
        yield some
