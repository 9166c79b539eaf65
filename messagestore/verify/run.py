"""A run over some topics: openings, batches, rows, heads and positions, in this order."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from messagestore import tables
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.verify import standing
from messagestore.verify.batches import BatchWalk
from messagestore.verify.findings import Finding
from messagestore.verify.report import Opening, QueueReport, Report
from messagestore.verify.rows import RowScan
from messagestore.verify.visit import Progress, Visit
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.errors import Invalid, NodeUnavailable
from metadata.groups import expected
from metadata.groups.expected import ExpectedQueue

ROWS_PER_S = 100_000
QUEUES_EACH = 100  # whose heads and positions are read on one connection
AGAIN_AFTER_S = 1.0  # heads, positions and states that look wrong are looked at again then


class Since(NamedTuple):
    """From when on: a time, ms since 1970, or so many ms ago by the node's clock."""

    at_ms: int | None = None
    ago_ms: int | None = None


def verify(
    *,
    topics: Sequence[str] | None,
    actor: Actor,
    since: Since | None = None,
    rows_per_s: int = ROWS_PER_S,
    digests: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Looks whether the messages of some topics, or of all, are all there, once, and in order.

    Only reads, in short statements. `digests` reads every message that a kept batch claims. Ctrl-C ends it
    with what it has so far. Needs `manage` on each topic. Raises NotFound, Invalid, MetadataUnavailable.
    """
    if rows_per_s < 0:
        raise Invalid.field("rows_per_s", "must be 0 (no limit) or more")
    snapshot.refresh()
    pictured = expected.queues(topics=topics, actor=actor)
    report = Report([QueueReport(queue) for queue in pictured])
    run = _Run(report, Visit(rows_per_s=rows_per_s, progress=progress), topics, actor)
    try:
        run.open(since)
        run.batches(digests=digests)
        run.rows()
        run.compare()
        report.complete = True
    except KeyboardInterrupt:
        report.complete = False
    return report


class _Run:
    """One run; what it finds goes into the report."""

    def __init__(self, report: Report, visit: Visit, topics: Sequence[str] | None, actor: Actor) -> None:
        self._report = report
        self._visit = visit
        self._topics = topics
        self._actor = actor

    def _seen(self) -> list[QueueReport]:
        return [queue for queue in self._report.queues if queue.unseen is None]

    def _away(self, node_id: int, error: NodeUnavailable) -> None:
        """The queues of a node that are not finished will not be."""
        for queue in self._seen():
            if queue.node_id == node_id:
                queue.unseen = error.detail

    def open(self, since: Since | None) -> None:
        """Reads every queue's bounds; all that comes later is about what is below these heads."""
        for queue in self._report.queues:
            if queue.unseen is None:
                try:
                    queue.opening = self._visit.ask(queue.node_id, _opening(queue.id, since))
                except NodeUnavailable as error:
                    self._away(queue.node_id, error)
                except db_errors.Final as fault:
                    queue.unseen = fault.detail  # unless `compare` meets it, too: then it is a finding

    def batches(self, *, digests: bool) -> None:
        """Walks what is remembered of sends."""
        BatchWalk(self._visit, self._seen(), digests=digests).run()

    def rows(self) -> None:
        """Counts the rows, queue after queue."""
        for queue in self._report.queues:
            if queue.unseen is None and queue.opening is not None:
                try:
                    RowScan(self._visit, queue, queue.opening).run()
                except NodeUnavailable as error:
                    self._away(queue.node_id, error)
                except db_errors.Final as fault:
                    queue.unseen = fault.detail  # unless `compare` meets it, too: then it is a finding

    def compare(self) -> None:
        """Compares heads, positions and states; what is wrong is looked at again before it counts."""
        judged = self._judged()
        if any(isinstance(one, Finding) for found in judged.values() for one in found):
            time.sleep(AGAIN_AFTER_S)
            again = self._judged()
            judged = {queue: standing.both(found, again.get(queue, [])) for queue, found in judged.items()}
        for queue in self._report.queues:
            for one in judged.get(queue.id, ()):
                if isinstance(one, str):
                    queue.notes.append(one)
                    continue
                queue.add(one)
                if one.kind == "unreadable":
                    queue.unseen = None

    def _judged(self) -> dict[int, list[Finding | str]]:
        """{queue: what is odd about it} of the queues whose nodes answer."""
        before = self._picture()
        looks = self._looks()
        after = self._picture()
        for queue in self._report.queues:
            if queue.id not in after:
                queue.forget()
        return {
            queue.id: standing.judge(
                seen=looks[queue.id], opening=queue.opening, before=before[queue.id], after=after[queue.id]
            )
            for queue in self._report.queues
            if queue.id in looks and queue.id in before and queue.id in after
        }

    def _picture(self) -> dict[int, ExpectedQueue]:
        rows = expected.queues(topics=self._topics, actor=self._actor, strict=False)
        return {row.queue: row for row in rows}

    def _looks(self) -> dict[int, standing.Look]:
        nodes: dict[int, list[QueueReport]] = {}
        for queue in self._report.queues:
            nodes.setdefault(queue.node_id, []).append(queue)
        looks: dict[int, standing.Look] = {}
        for node_id, queues in nodes.items():
            try:
                for at in range(0, len(queues), QUEUES_EACH):
                    ids = [queue.id for queue in queues[at : at + QUEUES_EACH]]
                    looks |= self._visit.ask(node_id, functools.partial(standing.look, queues=ids))
                    self._visit.say(
                        f"positions on node {queues[0].expected.node}: queues", at + len(ids), len(queues)
                    )
            except NodeUnavailable as error:
                self._away(node_id, error)
        for queue in self._report.queues:
            queue.readers = len(looks[queue.id].readers) if queue.id in looks else queue.readers
        return looks


def _opening(queue: int, since: Since | None) -> Callable[[Session], Opening | None]:
    """Asks for a queue's bounds; None where it has no head row."""

    def question(session: Session) -> Opening | None:
        head = tables.read_head(session, queue=queue)
        if head is None:
            return None
        gaps = tables.read_gaps(session, queue=queue, position=head.low)
        if since is None:
            return Opening(max(head.low, 0), head.low, head.head, gaps, 0)
        since_ms = since.at_ms if since.at_ms is not None else tables.now_ms(session) - (since.ago_ms or 0)
        start = first_at(session, queue=queue, bounds=(max(head.low, 0), head.head), at_ms=since_ms)
        return Opening(start, head.low, head.head, gaps, max(since_ms, 0))

    return question
