"""Checks that the rows of a queue have no holes and are in the order of their storage
times.

Rows are counted in chunks, so that few rows travel. Only a chunk with too few rows is read
row by row. Every write commits head and rows together, and retention raises `low` before it
deletes. So rows below a head that was read before them must exist, unless a `low` or a gap
that is read after them explains it.
"""

from __future__ import annotations

from dataclasses import dataclass

from messagestore.engine.mysql_session import Session
from messagestore.tables import audit_sql, queue_sql
from messagestore.tables.shapes import RowCount
from messagestore.verify.findings import Finding, Opening, QueueReport, missing
from messagestore.verify.ranges import Range, cut, holes, shown, within, without
from messagestore.verify.visit import TRIES, ReadShort, Visit

CHUNK = 10_000  # offsets
_END = 2**63 - 1


def unexplained(session: Session, *, queue: int, runs: list[Range]) -> list[Range]:
    """Return the ranges of missing offsets that no log start offset, gap or head explains.

    Head and gaps are read now. A head that fell explains rows above it, because that is a
    finding of its own.
    """
    gaps = queue_sql.read_gaps(session, queue=queue, position=0)
    head = queue_sql.read_head(session, queue=queue)
    if head is None:
        return []  # The missing head row is a finding of its own.
    return without(runs, [*gaps, (-1, head.low), (head.head, _END)])


@dataclass(slots=True)
class RowScan:
    """Scan of a queue's rows, from the start of its opening to its head."""

    visit: Visit
    queue: QueueReport
    opening: Opening
    last_stored_ms: int | None = None  # storage time of the last row so far, ms

    def run(self) -> None:
        """Check all rows and add findings to the report. Raises NodeUnavailable,
        db_errors.Final.
        """
        start, _, head, gaps, _ = self.opening
        self.queue.reached = start
        for first, end in cut(without([(start, head)], gaps), CHUNK):
            self._scan_chunk(first, end)
            self.queue.reached = end
            name = f"{self.queue.expected.topic} queue {self.queue.id}: offsets"
            self.visit.report_progress(name, end - start, head - start)
            if self.queue.full("missing"):
                self.queue.unseen = (
                    f"too many missing offsets: nothing above offset {end - 1} was checked"
                )
                return
        self.queue.reached = head
        for first, end in within(gaps, [(start, head)]):
            self._check_gap(first, end)

    def _scan_chunk(self, first: int, end: int) -> None:
        """Count the rows of a chunk, and look for holes and wrong times."""
        count, runs = self._count_rows(first, end)
        self.queue.rows += count.rows
        for run in runs:
            if self.queue.full("missing"):
                break
            # A row may have been restored, or a gap declared, since the first look.
            for hole in self._recheck(run):
                self.queue.add(missing(*hole))
        if count.earliest_ms is not None:
            # Only a chunk with a wrong time is read row by row.
            if count.falls or (
                self.last_stored_ms is not None and count.earliest_ms < self.last_stored_ms
            ):
                rows = self.visit.ask(
                    self.queue.node_id,
                    lambda session: audit_sql.list_offsets(
                        session, queue=self.queue.id, first=first, end=end
                    ),
                )
                for offset, stored_ms in rows:
                    last_ms = self.last_stored_ms
                    if last_ms is not None and stored_ms < last_ms:
                        detail = (
                            f"stored {last_ms - stored_ms} ms before the previous message"
                        )
                        where = shown(offset, offset + 1)
                        self.queue.add(
                            Finding("time_falls", where, detail, offset, offset + 1)
                        )
                    self.last_stored_ms = stored_ms
            else:
                self.last_stored_ms = count.latest_ms
        self.visit.throttle(max(count.rows, 1))

    def _count_rows(self, first: int, end: int) -> tuple[RowCount, list[Range]]:
        """Return the summary of a range, and its missing ranges that nothing explains.

        Raises ReadShort if the node repeatedly lists more rows than it counted before.
        Nothing is stored below the head, so such a count, and the times with it, do not
        include all rows.
        """

        def list_holes(session: Session) -> tuple[int, list[Range]]:
            offsets = audit_sql.list_offsets(
                session, queue=self.queue.id, first=first, end=end
            )
            runs = holes(first, end, offsets=[offset for offset, _ in offsets])
            return len(offsets), unexplained(session, queue=self.queue.id, runs=runs)

        for _ in range(TRIES):
            count = self.visit.ask(
                self.queue.node_id,
                lambda session: audit_sql.count_rows(
                    session, queue=self.queue.id, first=first, end=end
                ),
            )
            if count.rows >= end - first:
                return count, []
            listed, runs = self.visit.ask(self.queue.node_id, list_holes)
            if listed <= count.rows:
                return count, runs
        raise ReadShort(
            f"The node counts {count.rows} rows at {shown(first, end)} and lists {listed}."
        )

    def _recheck(self, run: Range) -> list[Range]:
        """Look a second time whether a range is missing."""

        def question(session: Session) -> list[Range]:
            lowest, _ = audit_sql.read_offset_ends(
                session, queue=self.queue.id, first=run[0]
            )
            runs = without([run], [] if lowest is None else [(lowest, _END)])
            return unexplained(session, queue=self.queue.id, runs=runs)

        return self.visit.ask(self.queue.node_id, question)

    def _check_gap(self, first: int, end: int) -> None:
        """Report rows inside a declared gap.

        They must be there twice, above a `low` and in a gap that are read after them.
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

        # Twice: a gap may be declared, or `low` raised, between the statements.
        has_row = self.visit.ask(self.queue.node_id, question) is not None
        lowest = self.visit.ask(self.queue.node_id, question) if has_row else None
        if lowest is None:
            return
        detail = f"there are messages in the declared gap {shown(first, end)}"
        self.queue.add(
            Finding("row_in_gap", shown(lowest, lowest + 1), detail, lowest, end)
        )
