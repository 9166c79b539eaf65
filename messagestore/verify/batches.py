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
from collections.abc import Callable, Iterable, Iterator
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
            if previous is not None and previous.batch_id == row.batch_id:
                self._report_duplicate(previous, row)
            previous = row
        for queue in self._queues.values():
            if queue.unseen is None:
                self._check_claims(queue)

    def _walk_node(self, node_id: int, queues: list[int]) -> Iterator[BatchRow]:
        """Yield the batches of a node by id, after checking each by itself. Ends if the
        node fails.
        """
        try:
            last, _ = self._visit.ask(node_id, audit_sql.read_batch_ends)
            yield from self._walk_pages(node_id, queues, last) if last is not None else ()
        except NodeUnavailable as error:
            for queue in queues:
                self._queues[queue].unseen = error.detail
        except db_errors.Final as fault:
            for queue in queues:
                self._queues[queue].add(
                    Finding("unreadable", "table sent_batch", fault.detail)
                )

    def _walk_pages(
        self, node_id: int, queues: list[int], last: bytes
    ) -> Iterator[BatchRow]:
        """Read page after page, and yield the batches that are valid and of kept messages."""
        after, done, since_ms = (
            b"",
            0,
            min(self._openings[queue].since_ms for queue in queues),
        )
        while True:
            page = self._read_page(node_id, queues, after, last)
            rows = [row for row in page.rows if row.stored_at_ms >= since_ms]
            self._refresh_heads(node_id, rows)
            for row in rows:
                if self._check_batch(row):
                    yield row
            done += page.ids
            self._visit.report_progress(
                f"batches on node {self._queues[queues[0]].expected.node}:", done, 0
            )
            self._visit.throttle(max(page.ids, 1))
            if page.end is None or page.ids < PAGE:
                self._require_last(node_id, page.end or after, last)
                return
            after = page.end

    def _read_page(
        self, node_id: int, queues: list[int], after: bytes, last: bytes
    ) -> _Page:
        """Return the next page. Raises ReadShort if the list stays shorter than the count.

        A batch that expires between count and list makes it shorter once, so the page is
        read again.
        """
        for _ in range(TRIES):
            page = self._visit.ask(node_id, _page_reader(queues, after, last))
            if len(page.rows) >= page.counted:
                return page
        start, listed = after.hex() or "0", len(page.rows)
        raise ReadShort(
            f"The node counts {page.counted} batches from id {start} on and lists {listed}."
        )

    def _require_last(self, node_id: int, end: bytes, last: bytes) -> None:
        """Raise ReadShort if the walk ended before the batch that was the last at its
        start.
        """
        if end != last and self._is_recorded(node_id, last):
            raise ReadShort(f"The batches above id {end.hex() or '0'} were not listed.")

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

    def _refresh_heads(self, node_id: int, rows: list[BatchRow]) -> None:
        """Read the heads again of queues in which batches end above them.

        They are read after the batches, so they cannot be too low.
        """
        beyond = sorted({row.queue for row in rows if _end(row) > self._heads[row.queue]})
        if beyond:
            heads = self._visit.ask(
                node_id, lambda session: queue_sql.read_heads(session, queues=beyond)
            )
            self._heads.update(heads)

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
            self._add_finding(queue, row, Finding("batch_malformed", name, detail))
            return False
        # Retention has deleted its messages.
        if end <= low:
            return False
        queue.batches += 1
        if end > self._heads[row.queue]:
            self._check_above_head(queue, row, name)
        overlap = self._claims[row.queue].add(max(first, low), end)
        if overlap is not None:
            detail = (
                f"{name} claims {shown(first, end)}, other batches claim {shown(*overlap)}"
            )
            self._add_finding(
                queue, row, Finding("batch_overlap", shown(*overlap), detail, *overlap)
            )
        if self._digests:
            self._check_digest(queue, row, name)
        return True

    def _add_finding(self, queue: QueueReport, row: BatchRow, finding: Finding) -> None:
        """Add a finding about a batch, if the batch is still recorded."""
        try:
            if self._is_recorded(queue.node_id, row.batch_id):
                queue.add(finding)
        except NodeUnavailable as error:
            queue.unseen = error.detail

    def _check_above_head(self, queue: QueueReport, row: BatchRow, name: str) -> None:
        """Report a batch that ends above the head."""
        head = self._read_head(queue)
        if head is not None and _end(row) > head.head:
            detail = (
                f"{name} claims {shown(row.first_offset, _end(row))}, the log end "
                f"offset is {head.head}"
            )
            self._add_finding(
                queue,
                row,
                Finding(
                    "batch_outside",
                    name,
                    detail,
                    max(row.first_offset, head.head),
                    _end(row),
                ),
            )

    def _check_digest(self, queue: QueueReport, row: BatchRow, name: str) -> None:
        """Compare the digest of a batch with its stored messages. Missing ones are found
        elsewhere.
        """
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
                queue, row, Finding("batch_differs", shown(first, end), detail, first, end)
            )

    def _report_duplicate(self, first_row: BatchRow, second_row: BatchRow) -> None:
        """Report an id that is stored on two nodes."""
        for row, elsewhere in ((first_row, second_row), (second_row, first_row)):
            other_offsets = shown(elsewhere.first_offset, _end(elsewhere))
            detail = (
                f"batch {UUID(bytes=row.batch_id)} is also stored in queue "
                f"{elsewhere.queue}: {other_offsets}"
            )
            claim = row.first_offset, _end(row)
            self._add_finding(
                self._queues[row.queue],
                row,
                Finding("batch_twice", shown(*claim), detail, *claim),
            )

    def _check_claims(self, queue: QueueReport) -> None:
        """Check what the batches of a queue claim together: gaps, and rows without a batch."""
        start, _, head, gaps, _ = self._openings[queue.id]
        claims = list(self._claims[queue.id])
        try:
            for piece in self._without_deleted(queue, within(claims, gaps)):
                detail = "a batch claims these offsets, but they lie in a declared gap"
                queue.add(Finding("batch_in_gap", shown(*piece), detail, *piece))
            if claims:
                for hole in without([(max(start, claims[0][0]), head)], [*claims, *gaps]):
                    self._check_unclaimed(queue, hole, claims[0][0])
        except (NodeUnavailable, db_errors.Final) as error:
            # A table that cannot be read at all becomes a finding later (positions.py).
            queue.unseen = error.detail

    def _without_deleted(self, queue: QueueReport, ranges: list[Range]) -> list[Range]:
        """Return the ranges without what retention has deleted."""
        head = self._read_head(queue)
        return [] if head is None else without(ranges, [(-1, head.low)])

    def _check_unclaimed(self, queue: QueueReport, hole: Range, oldest_claim: int) -> None:
        """Report rows that no batch claims although they are too young for it to have
        expired.
        """

        def question(session: Session) -> Range | None:
            oldest_here = message_sql.read_stored_at_ms(
                session, queue=queue.id, offset=oldest_claim
            )
            _, oldest_left = audit_sql.read_batch_ends(session)
            if oldest_here is None or oldest_left is None:
                return None
            # Batches expire by age. One of this queue still exists, and so do all younger
            # ones.
            younger_ms = max(oldest_here, oldest_left) + 1
            first = first_at(session, queue=queue.id, bounds=hole, at_ms=younger_ms)
            lowest, _ = audit_sql.read_offset_ends(session, queue=queue.id, first=first)
            head = queue_sql.read_head(session, queue=queue.id)
            if lowest is None or lowest >= hole[1] or head is None:
                return None
            return (max(lowest, head.low), hole[1]) if head.low < hole[1] else None

        unclaimed = (
            None if queue.full("unclaimed") else self._visit.ask(queue.node_id, question)
        )
        # A repair may have restored the batch since the walk passed its id.
        if unclaimed is None or self._claimed_after_all(queue, unclaimed):
            return
        detail = (
            "these messages belong to no batch, but are newer than the oldest stored batch"
        )
        queue.add(Finding("unclaimed", shown(*unclaimed), detail, *unclaimed))

    def _claimed_after_all(self, queue: QueueReport, unclaimed: Range) -> bool:
        """Search the node's whole list again for a batch of some rows."""
        end, after = (
            self._visit.ask(queue.node_id, audit_sql.read_batch_ends)[0] or b"",
            b"",
        )
        while True:
            page = self._read_page(queue.node_id, [queue.id], after, end)
            if any(
                row.first_offset < unclaimed[1] and _end(row) > unclaimed[0]
                for row in page.rows
            ):
                return True
            self._visit.throttle(max(page.ids, 1))
            if page.end is None or page.ids < PAGE:
                return False
            after = page.end


def _end(row: BatchRow) -> int:
    return row.first_offset + row.message_count


def _page_reader(
    queues: list[int], after: bytes, last: bytes
) -> Callable[[Session], _Page]:
    """Return a function that counts the next page and then lists it."""

    def question(session: Session) -> _Page:
        count, end, counted = audit_sql.count_batch_page(
            session, queues=queues, after=after, last=last, most=PAGE
        )
        if end is None:
            return _Page(count, None, 0, [])
        return _Page(
            count,
            end,
            counted,
            audit_sql.list_batches(session, queues=queues, after=after, last=end),
        )

    return question
