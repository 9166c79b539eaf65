"""Batches of sends against the stored messages.

`sent_batch` is walked in pages by id, once per node for all queues, up to the highest id
there was at the start. A send writes its row in the transaction that writes head and
messages, so a head that is read after a batch is not below its end, and a row below a head
that was read before the walk has a batch, unless that has expired. The oldest expire first:
what is younger than a batch that was met in the same queue, and than the oldest that is
left, has not expired.

Each page is counted before it is listed, by a statement of its own: a list that is shorter
again and again means that batches were not looked at, and the queues are reported as such,
never as clean.
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
    """A piece of `sent_batch`: how many `ids` it has, the highest of them, and the rows of
    some queues.

    `counted`: how many such rows the node had counted before it listed them.
    """

    ids: int
    end: bytes | None
    counted: int
    rows: list[BatchRow]


class BatchWalk:
    """The batches of some queues, whose openings were read before."""

    def __init__(
        self, visit: Visit, queues: Iterable[QueueReport], *, digests: bool
    ) -> None:
        self._visit = visit
        self._queues = {one.id: one for one in queues if one.opening is not None}
        self._openings = {
            one.id: one.opening for one in self._queues.values() if one.opening is not None
        }
        self._digests = digests
        self._claims = {queue: Ranges() for queue in self._queues}
        self._heads = {queue: opening.head for queue, opening in self._openings.items()}

    def run(self) -> None:
        """Walk all nodes side by side; the reports have what was found."""
        nodes = sweeping.group_by_node(self._queues.values())
        walks = [
            self._node(node_id, [one.id for one in mine]) for node_id, mine in nodes.items()
        ]
        before: BatchRow | None = None
        for row in heapq.merge(*walks, key=lambda one: one.batch_id):
            if before is not None and before.batch_id == row.batch_id:
                self._twice(before, row)
            before = row
        for one in self._queues.values():
            if one.unseen is None:
                self._settle(one)

    def _node(self, node_id: int, queues: list[int]) -> Iterator[BatchRow]:
        """The batches of a node by id, each judged by itself. A node that goes away ends
        it.
        """
        try:
            last, _ = self._visit.ask(node_id, audit_sql.read_batch_ends)
            yield from self._pages(node_id, queues, last) if last is not None else ()
        except NodeUnavailable as error:
            for queue in queues:
                self._queues[queue].unseen = error.detail
        except db_errors.Final as fault:
            for queue in queues:
                self._queues[queue].add(
                    Finding("unreadable", "table sent_batch", fault.detail)
                )

    def _pages(self, node_id: int, queues: list[int], last: bytes) -> Iterator[BatchRow]:
        after, done, since_ms = (
            b"",
            0,
            min(self._openings[queue].since_ms for queue in queues),
        )
        while True:
            page = self._page(node_id, queues, after, last)
            rows = [row for row in page.rows if row.stored_at_ms >= since_ms]
            self._know_heads(node_id, rows)
            for row in rows:
                if self._claim(row):
                    yield row
            done += page.ids
            self._visit.say(
                f"batches on node {self._queues[queues[0]].expected.node}:", done, 0
            )
            self._visit.spent(max(page.ids, 1))
            if page.end is None or page.ids < PAGE:
                self._must_be_last(node_id, page.end or after, last)
                return
            after = page.end

    def _page(self, node_id: int, queues: list[int], after: bytes, last: bytes) -> _Page:
        """The next page. Raises ReadShort; what expires between count and list is no
        reason.
        """
        for _ in range(TRIES):
            page = self._visit.ask(node_id, _page(queues, after, last))
            if len(page.rows) >= page.counted:
                return page
        start, listed = after.hex() or "0", len(page.rows)
        raise ReadShort(
            f"The node counts {page.counted} batches from id {start} on and lists {listed}."
        )

    def _must_be_last(self, node_id: int, end: bytes, last: bytes) -> None:
        """Raise ReadShort if the walk ended before the batch that was the last when it
        began.
        """
        if end != last and self._is_kept(node_id, last):
            raise ReadShort(f"The batches above id {end.hex() or '0'} were not listed.")

    def _is_kept(self, node_id: int, batch_id: bytes) -> bool:
        found = self._visit.ask(
            node_id, lambda session: message_sql.find_batch(session, batch_id=batch_id)
        )
        return found is not None

    def _head(self, queue: QueueReport) -> Head | None:
        return self._visit.ask(
            queue.node_id, lambda session: queue_sql.read_head(session, queue=queue.id)
        )

    def _know_heads(self, node_id: int, rows: list[BatchRow]) -> None:
        """Read the heads anew that batches reach beyond: after them, so they cannot be too
        low.
        """
        beyond = sorted({row.queue for row in rows if _end(row) > self._heads[row.queue]})
        if beyond:
            heads = self._visit.ask(
                node_id, lambda session: queue_sql.read_heads(session, queues=beyond)
            )
            self._heads.update(heads)

    def _claim(self, row: BatchRow) -> bool:
        """Judge a batch by itself; return True if it is one at all, of messages that are
        kept.
        """
        queue = self._queues[row.queue]
        low = self._openings[row.queue].low
        first, end, name = row.first_offset, _end(row), f"batch {UUID(bytes=row.batch_id)}"
        if row.message_count < 1 or first < 0 or len(row.digest) != DIGEST_BYTES:
            what = (
                f"{row.message_count} messages from offset {first} and a digest of "
                f"{len(row.digest)} bytes"
            )
            self._add(queue, row, Finding("batch_malformed", name, what))
            return False
        if end <= low:
            return False
        queue.batches += 1
        if end > self._heads[row.queue]:
            self._beyond(queue, row, name)
        overlap = self._claims[row.queue].add(max(first, low), end)
        if overlap is not None:
            what = (
                f"{name} claims {shown(first, end)}, other batches claim {shown(*overlap)}"
            )
            self._add(queue, row, Finding("batch_overlap", shown(*overlap), what, *overlap))
        if self._digests:
            self._compare(queue, row, name)
        return True

    def _add(self, queue: QueueReport, row: BatchRow, finding: Finding) -> None:
        """Take in a finding about a batch that is still kept."""
        try:
            if self._is_kept(queue.node_id, row.batch_id):
                queue.add(finding)
        except NodeUnavailable as error:
            queue.unseen = error.detail

    def _beyond(self, queue: QueueReport, row: BatchRow, name: str) -> None:
        head = self._head(queue)
        if head is not None and _end(row) > head.head:
            what = (
                f"{name} claims {shown(row.first_offset, _end(row))}, the log end "
                f"offset is {head.head}"
            )
            self._add(
                queue,
                row,
                Finding(
                    "batch_outside", name, what, max(row.first_offset, head.head), _end(row)
                ),
            )

    def _compare(self, queue: QueueReport, row: BatchRow, name: str) -> None:
        """Take the digest of the stored messages anew; missing ones are found by others."""
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
            # unless the table cannot be read at all: then that is a finding
            queue.unseen = fault.detail
            return
        self._visit.spent(len(stored))
        if len(stored) != row.message_count:
            return
        messages = [
            NewMessage(
                body=one.body,
                key=one.key,
                tag=one.tag,
                headers=one.headers,
                trace_id=one.trace_id,
            )
            for one in stored
        ]
        differs = ["digest"] if digest(messages) != row.digest else []
        if {one.stored_at_ms for one in stored} != {row.stored_at_ms}:
            differs.append("stored_at")
        if differs:
            what = f"{name} and its messages differ in {' and '.join(differs)}"
            self._add(
                queue, row, Finding("batch_differs", shown(first, end), what, first, end)
            )

    def _twice(self, one: BatchRow, other: BatchRow) -> None:
        """The same id on two nodes."""
        for row, elsewhere in ((one, other), (other, one)):
            there = shown(elsewhere.first_offset, _end(elsewhere))
            what = (
                f"batch {UUID(bytes=row.batch_id)} is also stored in queue "
                f"{elsewhere.queue}: {there}"
            )
            here = row.first_offset, _end(row)
            self._add(
                self._queues[row.queue],
                row,
                Finding("batch_twice", shown(*here), what, *here),
            )

    def _settle(self, queue: QueueReport) -> None:
        """Judge what all batches of a queue claim together."""
        start, _, head, gaps, _ = self._openings[queue.id]
        claims = list(self._claims[queue.id])
        try:
            for piece in self._kept(queue, within(claims, gaps)):
                what = "a batch claims these offsets, but they lie in a declared gap"
                queue.add(Finding("batch_in_gap", shown(*piece), what, *piece))
            if claims:
                for hole in without([(max(start, claims[0][0]), head)], [*claims, *gaps]):
                    self._hole(queue, hole, claims[0][0])
        except (NodeUnavailable, db_errors.Final) as error:
            # unless the table cannot be read at all: then that is a finding
            queue.unseen = error.detail

    def _kept(self, queue: QueueReport, ranges: list[Range]) -> list[Range]:
        head = self._head(queue)
        return [] if head is None else without(ranges, [(-1, head.low)])

    def _hole(self, queue: QueueReport, hole: Range, oldest_claim: int) -> None:
        """Rows that no batch claims, too young for theirs to have expired."""

        def question(session: Session) -> Range | None:
            oldest_here = message_sql.read_stored_at_ms(
                session, queue=queue.id, offset=oldest_claim
            )
            _, oldest_left = audit_sql.read_batch_ends(session)
            if oldest_here is None or oldest_left is None:
                return None
            younger_ms = max(oldest_here, oldest_left) + 1
            first = first_at(session, queue=queue.id, bounds=hole, at_ms=younger_ms)
            lowest, _ = audit_sql.read_offset_ends(session, queue=queue.id, first=first)
            head = queue_sql.read_head(session, queue=queue.id)
            if lowest is None or lowest >= hole[1] or head is None:
                return None
            return (max(lowest, head.low), hole[1]) if head.low < hole[1] else None

        found = (
            None if queue.full("unclaimed") else self._visit.ask(queue.node_id, question)
        )
        if found is None or self._claimed_after_all(queue, found):
            return
        what = (
            "these messages belong to no batch, but are newer than the oldest stored batch"
        )
        queue.add(Finding("unclaimed", shown(*found), what, *found))

    def _claimed_after_all(self, queue: QueueReport, found: Range) -> bool:
        """Look for their batch once more, through the node's whole list."""
        end, after = (
            self._visit.ask(queue.node_id, audit_sql.read_batch_ends)[0] or b"",
            b"",
        )
        while True:
            page = self._page(queue.node_id, [queue.id], after, end)
            if any(
                row.first_offset < found[1] and _end(row) > found[0] for row in page.rows
            ):
                return True
            self._visit.spent(max(page.ids, 1))
            if page.end is None or page.ids < PAGE:
                return False
            after = page.end


def _end(row: BatchRow) -> int:
    return row.first_offset + row.message_count


def _page(queues: list[int], after: bytes, last: bytes) -> Callable[[Session], _Page]:
    """Ask for the next page, counted and then listed."""

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
