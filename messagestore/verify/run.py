"""Runs: `verify` over the messages of topics, `check` over metadata and all nodes, `watch`
for its alarms.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.sweeping import Progress
from messagestore.tables import node_sql, queue_sql
from messagestore.verify import contents, positions
from messagestore.verify.batches import BatchWalk
from messagestore.verify.findings import (
    KINDS,
    Finding,
    Opening,
    QueueReport,
    Report,
    seen_twice,
)
from messagestore.verify.rows import RowScan
from messagestore.verify.visit import Visit
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import CatmqError, Invalid, NodeUnavailable
from metadata.grouping import grouped
from metadata.groups import expected_state
from metadata.groups.expected_state import ExpectedQueue
from metadata.monitoring import alarms
from metadata.rules.alarm_texts import alarm_text

ROWS_PER_S = 100_000
QUEUES_EACH = 100  # whose heads and positions are read on one connection
# what is under way is over by then; a worker follows metadata within a second
AGAIN_AFTER_S = 1.5


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
    """Look whether the messages of some topics, or of all, are all there, once, and in
    order.

    Only reads, in short statements. `digests` reads every message that a kept batch claims.
    Ctrl-C ends it with what it has so far. Needs `manage` on each topic. Raises NotFound,
    Invalid, MetadataUnavailable.
    """
    if rows_per_s < 0:
        raise Invalid.field("rows_per_s", "must be 0 (no limit) or more")
    snapshot.refresh()
    report = Report(
        [
            QueueReport(queue)
            for queue in expected_state.expected_queues(topics=topics, actor=actor)
        ]
    )
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


def check(*, actor: Actor) -> Report:
    """Compare metadata with all nodes that answer. Reads only. Needs `admin` on everything.

    Raises Forbidden, MetadataUnavailable.
    """
    access.require(actor, "admin", "*", what="check")
    report = _compared()
    if report.others:
        time.sleep(AGAIN_AFTER_S)
        before, report = report, _compared()
        report.others = seen_twice(before.others, report.others)
    return report


def _compared() -> Report:
    snapshot.refresh()
    report, change, seen = Report(complete=True), expected_state.last_change_number(), []
    for _, info in sorted(snapshot.current().nodes.items()):
        try:
            seen.append(contents.read(info))
        except (CatmqError, OSError) as error:
            why = error.detail if isinstance(error, CatmqError) else str(error)
            report.unchecked[info.name] = why or f"node {info.name} does not answer"
    known = (
        expected_state.read_state()
    )  # after the nodes: what was made meanwhile is known then
    for one in seen:
        report.others += contents.of_node(one, known)
    report.others += [*contents.of_metadata(known), *contents.of_workers(change)]
    return report


def watch(*, actor: Actor) -> int:
    """Make the alarms of disagreement, one for each kind, agree with a check; how many
    began or ended.
    """
    report = check(actor=actor)
    kinds = grouped((one.kind, one) for one in report.findings)
    found = {
        kind: alarm_text(
            "disagree", count=len(mine), where=mine[0].where, what=mine[0].what
        )
        for kind, mine in kinds.items()
    }
    unclear = KINDS if report.unchecked else ()
    return alarms.reconcile(
        kind="inconsistent", found=found, unclear=unclear, ends_after_s=0
    )


@dataclass(slots=True)
class _Run:
    """One run; what it finds goes into the report."""

    report: Report
    visit: Visit
    topics: Sequence[str] | None
    actor: Actor

    def _seen(self) -> list[QueueReport]:
        return [queue for queue in self.report.queues if queue.unseen is None]

    def _away(self, node_id: int, error: NodeUnavailable) -> None:
        """The queues of a node that are not finished will not be."""
        for queue in self._seen():
            if queue.node_id == node_id:
                queue.unseen = error.detail

    def open(self, since: Since | None) -> None:
        """Read every queue's bounds; all that comes later is about what is below these
        heads.
        """
        for queue in self.report.queues:
            self._try(queue, functools.partial(self._open, queue, since))

    def _open(self, queue: QueueReport, since: Since | None) -> None:
        queue.opening = self.visit.ask(queue.node_id, _opening(queue.id, since))

    def _try(self, queue: QueueReport, look: Callable[[], None]) -> None:
        """Look at a queue unless its node is away already."""
        if queue.unseen is not None:
            return
        try:
            look()
        except NodeUnavailable as error:
            self._away(queue.node_id, error)
        except db_errors.Final as fault:
            # unless `compare` meets it, too: then it is a finding
            queue.unseen = fault.detail

    def batches(self, *, digests: bool) -> None:
        """Walk the batches."""
        BatchWalk(self.visit, self._seen(), digests=digests).run()

    def rows(self) -> None:
        """Count the rows, queue after queue."""
        for queue in self.report.queues:
            if queue.opening is not None:
                self._try(queue, RowScan(self.visit, queue, queue.opening).run)

    def compare(self) -> None:
        """Compare heads, positions and states; what is wrong is looked at again before it
        counts.
        """
        judged = self._judged()
        if any(isinstance(one, Finding) for found in judged.values() for one in found):
            time.sleep(AGAIN_AFTER_S)
            again = self._judged()
            judged = {
                queue: seen_twice(found, again.get(queue, []))
                for queue, found in judged.items()
            }
        for queue in self.report.queues:
            for one in judged.get(queue.id, ()):
                if isinstance(one, str):
                    queue.notes.append(one)
                    continue
                queue.add(one)
                if one.kind == "unreadable":
                    queue.unseen = None

    def _judged(self) -> dict[int, list[Finding | str]]:
        """{queue: what is odd about it} of the queues whose nodes answer."""
        before = self._expected()
        looks = self._looks()
        after = self._expected()
        for queue in self.report.queues:
            if queue.id not in after:
                queue.discard()
        return {
            queue.id: positions.judge(
                seen=looks[queue.id],
                opening=queue.opening,
                before=before[queue.id],
                after=after[queue.id],
            )
            for queue in self.report.queues
            if queue.id in looks and queue.id in before and queue.id in after
        }

    def _expected(self) -> dict[int, ExpectedQueue]:
        rows = expected_state.expected_queues(
            topics=self.topics, actor=self.actor, strict=False
        )
        return {row.queue: row for row in rows}

    def _looks(self) -> dict[int, positions.Look]:
        looks: dict[int, positions.Look] = {}
        for node_id, queues in sweeping.group_by_node(self.report.queues).items():
            try:
                for at in range(0, len(queues), QUEUES_EACH):
                    ids = [queue.id for queue in queues[at : at + QUEUES_EACH]]
                    looks |= self.visit.ask(
                        node_id, functools.partial(positions.look, queues=ids)
                    )
                    self.visit.say(
                        f"positions on node {queues[0].expected.node}: queues",
                        at + len(ids),
                        len(queues),
                    )
            except NodeUnavailable as error:
                self._away(node_id, error)
        for queue in self.report.queues:
            queue.readers = (
                len(looks[queue.id].readers) if queue.id in looks else queue.readers
            )
        return looks


def _opening(queue: int, since: Since | None) -> Callable[[Session], Opening | None]:
    """Ask for a queue's bounds; None where it has no head row."""

    def question(session: Session) -> Opening | None:
        head = queue_sql.read_head(session, queue=queue)
        if head is None:
            return None
        gaps = queue_sql.read_gaps(session, queue=queue, position=head.low)
        if since is None:
            return Opening(max(head.low, 0), head.low, head.head, gaps, 0)
        since_ms = (
            since.at_ms
            if since.at_ms is not None
            else node_sql.now_ms(session) - (since.ago_ms or 0)
        )
        start = first_at(
            session, queue=queue, bounds=(max(head.low, 0), head.head), at_ms=since_ms
        )
        return Opening(start, head.low, head.head, gaps, max(since_ms, 0))

    return question
