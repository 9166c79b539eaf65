"""Compares the batches of sends with the stored messages.

`sent_batch` is read in pages by batch id, once per node for all queues, up to the highest
id that existed at the start. A send writes its row in the transaction that writes head and
messages. So a head that is read after a batch is not below its end. And a row below a head
that was read before the walk has a batch, unless the batch has expired. The oldest expire
first: rows younger than a batch of the same queue, and than the oldest batch that is left,
have batches that have not expired.

Each page is counted before it is listed, by a statement of its own. If lists are repeatedly
shorter than counts, some batches were not checked, and the queues are reported as
unchecked, never as clean.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.messages import NewMessage, digest
from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.tables import audit_sql, message_sql, queue_sql
from messagestore.tables.shapes import BatchRow, Head
from messagestore.verify.findings import Finding, QueueReport
from messagestore.verify.ranges import Range, Ranges, shown, within, without
from messagestore.verify.visit import TRIES, ReadShort, Visit
from metadata.errors import NodeUnavailable

PAGE = 10_000  # rows of `sent_batch`, of any queue
DIGEST_BYTES = 16
_ALL_BYTES = 2**62


class _Page(NamedTuple):
    """A page of `sent_batch`: number of `ids`, the highest of them, and the rows of some
    queues.

    `counted` is the number of such rows that the node counted before it listed them.
    """

    ids: int
    end: bytes | None
    counted: int
    rows: list[BatchRow]


class BatchWalk:
    """Walk over the batches of some queues, whose openings were read before."""

    def __init__(
        self, visit: Visit, queues: Iterable[QueueReport], *, digests: bool
    ) -> None:
        self._visit = visit
        self._queues = {queue.id: queue for queue in queues if queue.opening is not None}
        self._openings = {
            queue.id: queue.opening
            for queue in self._queues.values()
            if queue.opening is not None
        }
        self._digests = digests
        self._claims = {queue: Ranges() for queue in self._queues}
        self._heads = {queue: opening.head for queue, opening in self._openings.items()}

    def run(self) -> None:
        """Walk all nodes side by side, and add findings to the reports."""
        nodes = sweeping.group_by_node(self._queues.values())
        walks = [
            self._walk_node(node_id, [queue.id for queue in node_queues])
            for node_id, node_queues in nodes.items()
        ]
        previous: BatchRow | None = None
        for row in heapq.merge(*walks, key=lambda batch: batch.batch_id):
            # The merged walks are in the order of ids, so a duplicate follows directly.
            if previous is not None and previous.batch_id == row.batch_id:
                self._report_duplicate(previous, elsewhere=row)
                self._report_duplicate(row, elsewhere=previous)
            previous = row
        for queue in self._queues.values():
            if queue.unseen is None:
                self._check_claims(queue)

    def _walk_node(self, node_id: int, queues: list[int]) -> Iterator[BatchRow]:
        """Yield the valid batches of kept messages by id. Ends if the node fails."""
        since_ms = min(self._openings[queue].since_ms for queue in queues)
        after, done = b"", 0
        try:
            # Batches that are sent during the walk are left out, so that it ends.
            last, _ = self._visit.ask(node_id, audit_sql.read_batch_ends)
            if last is None:
                return
            for page in self._read_pages(node_id, queues, last):
                rows = [row for row in page.rows if row.stored_at_ms >= since_ms]
                # Heads are read again after the batches that end above them, so they cannot
                # be too low.
                beyond = sorted(
                    {row.queue for row in rows if _end(row) > self._heads[row.queue]}
                )
                if beyond:
                    read_heads = functools.partial(queue_sql.read_heads, queues=beyond)
                    self._heads.update(self._visit.ask(node_id, read_heads))
                yield from (row for row in rows if self._check_batch(row))
                done += page.ids
                self._visit.report_progress(
                    f"batches on node {self._queues[queues[0]].expected.node}:", done, 0
                )
                after = page.end or after
            # The walk must reach the batch that was the last when it began.
            if after != last and self._is_recorded(node_id, last):
                raise ReadShort(
                    f"The batches above id {after.hex() or '0'} were not listed."
                )
        except NodeUnavailable as error:
            for queue in queues:
                self._queues[queue].unseen = error.detail
        except db_errors.Final as fault:
            for queue in queues:
                self._queues[queue].add(
                    Finding("unreadable", "table sent_batch", fault.detail)
                )

    def _read_pages(self, node_id: int, queues: list[int], last: bytes) -> Iterator[_Page]:
        """Yield the pages up to a batch id. Raises ReadShort if a list stays shorter than
        its count.
        """
        after = b""

        def read(session: Session) -> _Page:
            count, end, counted = audit_sql.count_batch_page(
                session, queues=queues, after=after, last=last, most=PAGE
            )
            if end is None:
                return _Page(count, None, 0, [])
            rows = audit_sql.list_batches(session, queues=queues, after=after, last=end)
            return _Page(count, end, counted, rows)

        while True:
            # A batch that expires between count and list makes the list shorter once.
            for _ in range(TRIES):
                page = self._visit.ask(node_id, read)
                if len(page.rows) >= page.counted:
                    break
            else:
                start, listed = after.hex() or "0", len(page.rows)
                raise ReadShort(
                    f"The node counts {page.counted} batches from id {start} on and lists "
                    f"{listed}."
                )
            yield page
            self._visit.throttle(max(page.ids, 1))
            if page.end is None or page.ids < PAGE:
                return
            after = page.end

    def _is_recorded(self, node_id: int, batch_id: bytes) -> bool:
        """Return True if a batch is still recorded."""
        batch = self._visit.ask(
            node_id, lambda session: message_sql.find_batch(session, batch_id=batch_id)
        )
        return batch is not None

    def _read_head(self, queue: QueueReport) -> Head | None:
        return self._visit.ask(
            queue.node_id, lambda session: queue_sql.read_head(session, queue=queue.id)
        )

    def _check_batch(self, row: BatchRow) -> bool:
        """Check a batch by itself. Return True if it is valid and its messages are kept."""
        queue = self._queues[row.queue]
        low = self._openings[row.queue].low
        first, end, name = row.first_offset, _end(row), f"batch {UUID(bytes=row.batch_id)}"
        if row.message_count < 1 or first < 0 or len(row.digest) != DIGEST_BYTES:
            detail = (
                f"{row.message_count} messages from offset {first} and a digest of "
                f"{len(row.digest)} bytes"
            )
            self._add_finding(row, Finding("batch_malformed", name, detail))
            return False
        # Retention has deleted its messages.
        if end <= low:
            return False
        queue.batches += 1
        head = self._read_head(queue) if end > self._heads[row.queue] else None
        if head is not None and end > head.head:
            detail = f"{name} claims {shown(first, end)}, the log end offset is {head.head}"
            finding = Finding("batch_outside", name, detail, max(first, head.head), end)
            self._add_finding(row, finding)
        overlap = self._claims[row.queue].add(max(first, low), end)
        if overlap is not None:
            detail = (
                f"{name} claims {shown(first, end)}, other batches claim {shown(*overlap)}"
            )
            self._add_finding(
                row, Finding("batch_overlap", shown(*overlap), detail, *overlap)
            )
        if self._digests:
            self._check_digest(queue, row, name)
        return True

    def _add_finding(self, row: BatchRow, finding: Finding) -> None:
        """Add a finding about a batch, unless the batch has expired meanwhile."""
        queue = self._queues[row.queue]
        try:
            if self._is_recorded(queue.node_id, row.batch_id):
                queue.add(finding)
        except NodeUnavailable as error:
            queue.unseen = error.detail

    def _check_digest(self, queue: QueueReport, row: BatchRow, name: str) -> None:
        """Compare the digest of a batch with its messages."""
        first, end = row.first_offset, _end(row)
        select = functools.partial(
            message_sql.select_messages,
            queue=queue.id,
            first=first,
            end=end,
            most_bytes=_ALL_BYTES,
        )
        try:
            stored = self._visit.ask(queue.node_id, select)
        except db_errors.Final as fault:
            # A table that cannot be read at all becomes a finding later (positions.py).
            queue.unseen = fault.detail
            return
        self._visit.throttle(len(stored))
        # Missing messages are found by the scan of rows (rows.py).
        if len(stored) != row.message_count:
            return
        messages = [
            NewMessage(
                body=message.body,
                key=message.key,
                tag=message.tag,
                headers=message.headers,
                trace_id=message.trace_id,
            )
            for message in stored
        ]
        differs = ["digest"] if digest(messages) != row.digest else []
        if {message.stored_at_ms for message in stored} != {row.stored_at_ms}:
            differs.append("stored_at")
        if differs:
            detail = f"{name} and its messages differ in {' and '.join(differs)}"
            self._add_finding(
                row, Finding("batch_differs", shown(first, end), detail, first, end)
            )

    def _report_duplicate(self, row: BatchRow, *, elsewhere: BatchRow) -> None:
        """Report a batch whose id is stored on another node, too."""
        other_offsets = shown(elsewhere.first_offset, _end(elsewhere))
        detail = (
            f"batch {UUID(bytes=row.batch_id)} is also stored in queue "
            f"{elsewhere.queue}: {other_offsets}"
        )
        claim = row.first_offset, _end(row)
        self._add_finding(row, Finding("batch_twice", shown(*claim), detail, *claim))

    def _check_claims(self, queue: QueueReport) -> None:
        """Report batches that claim a declared gap, and rows that no batch claims."""
        start, _, head, gaps, _ = self._openings[queue.id]
        claims = list(self._claims[queue.id])
        try:
            claimed_gaps = within(claims, gaps)
            # Retention may have deleted them since the walk: then they are no finding.
            head_row = self._read_head(queue)
            deleted = [(-1, head_row.low)] if head_row is not None else claimed_gaps
            for piece in without(claimed_gaps, deleted):
                detail = "a batch claims these offsets, but they lie in a declared gap"
                queue.add(Finding("batch_in_gap", shown(*piece), detail, *piece))
            if claims:
                for hole in without([(max(start, claims[0][0]), head)], [*claims, *gaps]):
                    self._check_unclaimed(queue, hole, claims[0][0])
        except (NodeUnavailable, db_errors.Final) as error:
            # A table that cannot be read at all becomes a finding later (positions.py).
            queue.unseen = error.detail

    def _check_unclaimed(self, queue: QueueReport, hole: Range, oldest_claim: int) -> None:
        """Report rows that no batch claims although their batch cannot have expired yet."""

        def question(session: Session) -> Range | None:
            oldest_here = message_sql.read_stored_at_ms(
                session, queue=queue.id, offset=oldest_claim
            )
            _, oldest_left = audit_sql.read_batch_ends(session)
            if oldest_here is None or oldest_left is None:
                return None
            # Batches expire by age, the oldest first. So all that are younger than a batch
            # of this queue, and than the oldest batch of the node, still exist.
            younger_ms = max(oldest_here, oldest_left) + 1
            first = first_at(session, queue=queue.id, bounds=hole, at_ms=younger_ms)
            lowest, _ = audit_sql.read_offset_ends(session, queue=queue.id, first=first)
            head = queue_sql.read_head(session, queue=queue.id)
            if lowest is None or lowest >= hole[1] or head is None:
                return None
            return (max(lowest, head.low), hole[1]) if head.low < hole[1] else None

        if queue.full("unclaimed"):
            return
        unclaimed = self._visit.ask(queue.node_id, question)
        if unclaimed is None:
            return
        # A repair may have restored the batch since the walk passed its id, so the node's
        # whole list is searched again.
        last, _ = self._visit.ask(queue.node_id, audit_sql.read_batch_ends)
        is_claimed = any(
            row.first_offset < unclaimed[1] and _end(row) > unclaimed[0]
            for page in self._read_pages(queue.node_id, [queue.id], last or b"")
            for row in page.rows
        )
        if not is_claimed:
            detail = "these messages belong to no batch, but are newer than the oldest stored batch"
            queue.add(Finding("unclaimed", shown(*unclaimed), detail, *unclaimed))


def _end(row: BatchRow) -> int:
    return row.first_offset + row.message_count
