"""Rows of a queue: dense, and in the order of their times.

Counted in chunks, so that few rows travel; only a chunk that is short is looked at row by
row. Every write commits head and rows together and retention raises `low` before it
deletes. So rows below a head that was read before them must be there, unless a `low` or a
gap that is read after them says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from messagestore.engine.mysql_session import Session
from messagestore.tables import audit_sql, queue_sql
from messagestore.tables.shapes import RowCount
from messagestore.verify.findings import Finding, Opening, QueueReport, missing
from messagestore.verify.ranges import Range, cut, holes, shown, within, without
from messagestore.verify.visit import TRIES, ReadShort, Visit

CHUNK = 10_000  # offsets
_FAR = 2**63 - 1


def unexplained(session: Session, *, queue: int, runs: list[Range]) -> list[Range]:
    """Return what is left of runs of missing offsets after a fresh look at low, gaps and
    head.

    A head that fell explains what is above it: that is a finding of its own.
    """
    gaps = queue_sql.read_gaps(session, queue=queue, position=0)
    head = queue_sql.read_head(session, queue=queue)
    if head is None:
        return []  # also a finding of its own
    return without(runs, [*gaps, (-1, head.low), (head.head, _FAR)])


@dataclass(slots=True)
class RowScan:
    """One queue's rows, from its opening's start to its head."""

    visit: Visit
    queue: QueueReport
    opening: Opening
    clock: int | None = None  # when the last row so far was stored, ms

    def run(self) -> None:
        """Look at all of them; the report has what was found. Raises NodeUnavailable,
        db_errors.Final.
        """
        start, _, head, gaps, _ = self.opening
        self.queue.reached = start
        for first, end in cut(without([(start, head)], gaps), CHUNK):
            self._chunk(first, end)
            self.queue.reached = end
            name = f"{self.queue.expected.topic} queue {self.queue.id}: offsets"
            self.visit.say(name, end - start, head - start)
            if self.queue.full("missing"):
                self.queue.unseen = (
                    f"too many missing offsets: nothing above offset {end - 1} was checked"
                )
                return
        self.queue.reached = head
        for first, end in within(gaps, [(start, head)]):
            self._gap(first, end)

    def _chunk(self, first: int, end: int) -> None:
        count, runs = self._counted(first, end)
        self.queue.rows += count.rows
        for run in runs:
            if self.queue.full("missing"):
                break
            for hole in self._again(run):
                self.queue.add(missing(*hole))
        if count.earliest_ms is not None:
            if count.falls or (self.clock is not None and count.earliest_ms < self.clock):
                self._times(first, end)
            else:
                self.clock = count.latest_ms
        self.visit.spent(max(count.rows, 1))

    def _counted(self, first: int, end: int) -> tuple[RowCount, list[Range]]:
        """Return what lies there, and the runs of offsets that are missing for no reason.

        Raises ReadShort for a node that lists more rows again and again than it counted a
        moment before: nothing is stored below the head, so the count, and what it says of
        times, is not of all rows.
        """
        for _ in range(TRIES):
            count = self.visit.ask(
                self.queue.node_id,
                lambda session: audit_sql.count_rows(
                    session, queue=self.queue.id, first=first, end=end
                ),
            )
            if count.rows >= end - first:
                return count, []
            listed, runs = self.visit.ask(self.queue.node_id, self._missing(first, end))
            if listed <= count.rows:
                return count, runs
        raise ReadShort(
            f"The node counts {count.rows} rows at {shown(first, end)} and lists {listed}."
        )

    def _missing(
        self, first: int, end: int
    ) -> Callable[[Session], tuple[int, list[Range]]]:
        """Ask how many rows are listed, and what is missing for no reason."""

        def question(session: Session) -> tuple[int, list[Range]]:
            offsets = audit_sql.list_offsets(
                session, queue=self.queue.id, first=first, end=end
            )
            runs = holes(first, end, offsets=[offset for offset, _ in offsets])
            return len(offsets), unexplained(session, queue=self.queue.id, runs=runs)

        return question

    def _again(self, run: Range) -> list[Range]:
        def question(session: Session) -> list[Range]:
            lowest, _ = audit_sql.read_offset_ends(
                session, queue=self.queue.id, first=run[0]
            )
            runs = without([run], [] if lowest is None else [(lowest, _FAR)])
            return unexplained(session, queue=self.queue.id, runs=runs)

        return self.visit.ask(self.queue.node_id, question)

    def _times(self, first: int, end: int) -> None:
        rows = self.visit.ask(
            self.queue.node_id,
            lambda session: audit_sql.list_offsets(
                session, queue=self.queue.id, first=first, end=end
            ),
        )
        for offset, stored_at in rows:
            if self.clock is not None and stored_at < self.clock:
                what = f"stored {self.clock - stored_at} ms before the previous message"
                self.queue.add(
                    Finding(
                        "time_falls", shown(offset, offset + 1), what, offset, offset + 1
                    )
                )
            self.clock = stored_at

    def _gap(self, first: int, end: int) -> None:
        """Rows where there should be none, seen twice, above the `low` and in a gap that
        were read after.
        """

        def question(session: Session) -> int | None:
            lowest, _ = audit_sql.read_offset_ends(
                session, queue=self.queue.id, first=first
            )
            if lowest is None or lowest >= end:
                return None
            head = queue_sql.read_head(session, queue=self.queue.id)
            gaps = queue_sql.read_gaps(session, queue=self.queue.id, position=lowest)
            declared = any(gap_first <= lowest < gap_end for gap_first, gap_end in gaps)
            return lowest if head is not None and head.low <= lowest and declared else None

        found = self.visit.ask(self.queue.node_id, question) is not None
        lowest = self.visit.ask(self.queue.node_id, question) if found else None
        if lowest is None:
            return
        what = f"there are messages in the declared gap {shown(first, end)}"
        self.queue.add(Finding("row_in_gap", shown(lowest, lowest + 1), what, lowest, end))
