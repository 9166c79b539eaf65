"""The runs: `verify` over messages of topics, `check` over metadata and nodes, `watch` for
alarms.
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
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.rights import Right

ROWS_PER_S = 100_000
QUEUES_PER_CONNECTION = 100  # heads and positions read on a connection
# Operations in progress end within this time, and workers follow metadata within a second.
AGAIN_AFTER_S = 1.5


class Since(NamedTuple):
    """Start of the period to verify: a time in ms since 1970, or ms before now by the
    node's clock.
    """

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
    """Check that the messages of some topics, or of all, are complete, stored once and in
    order.

    Reads only, in short statements, at most `rows_per_s` (0: no limit). `digests` also
    reads every message of a batch that is still recorded. After Ctrl-C the report has what
    was checked so far. Needs `manage` on each topic. Raises NotFound, Invalid,
    MetadataUnavailable.
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
    access.require(actor, Right.ADMIN, "*", what="check")
    report = _compare_once()
    if report.others:
        # A change reaches the node and metadata at different moments, and looks like a
        # difference in between.
        time.sleep(AGAIN_AFTER_S)
        first_report, report = report, _compare_once()
        report.others = seen_twice(first_report.others, report.others)
    return report


def _compare_once() -> Report:
    """Compare metadata with all nodes once."""
    snapshot.refresh()
    report, contents_by_node = Report(complete=True), []
    # Read first, so that workers have had time to load it when they are checked.
    change = expected_state.last_change_number()
    for _, info in sorted(snapshot.current().nodes.items()):
        try:
            contents_by_node.append(contents.read_contents(info))
        except (CatmqError, OSError) as error:
            detail = error.detail if isinstance(error, CatmqError) else str(error)
            report.unchecked[info.name] = detail or f"node {info.name} does not answer"
    # Read after the nodes: a queue that was created meanwhile is expected then.
    expected = expected_state.read_state()
    for node_contents in contents_by_node:
        report.others += contents.check_node(node_contents, expected)
    report.others += [*contents.check_metadata(expected), *contents.check_workers(change)]
    return report


def watch(*, actor: Actor) -> int:
    """Run a check and update the alarms of inconsistency, an alarm per kind of finding.

    Return how many alarms began or ended.
    """
    report = check(actor=actor)
    kinds = grouped((finding.kind, finding) for finding in report.findings)
    details = {
        kind: alarm_text(
            "disagree",
            count=len(kind_findings),
            where=kind_findings[0].where,
            what=kind_findings[0].what,
        )
        for kind, kind_findings in kinds.items()
    }
    # A node that was not checked may still have any of the findings, so no alarm ends.
    return alarms.reconcile(
        kind=AlarmKind.INCONSISTENT,
        active=details,
        unclear=KINDS if report.unchecked else (),
        ends_after_s=0,
    )


@dataclass(slots=True)
class _Run:
    """A run of `verify`. Its findings go into the report."""

    report: Report
    visit: Visit
    topics: Sequence[str] | None
    actor: Actor

    def _answering_queues(self) -> list[QueueReport]:
        """Return the queues whose node still answers."""
        return [queue for queue in self.report.queues if queue.unseen is None]

    def _mark_unchecked(self, node_id: int, error: NodeUnavailable) -> None:
        """Mark the queues of a node as not completely checked."""
        for queue in self._answering_queues():
            if queue.node_id == node_id:
                queue.unseen = error.detail

    def open(self, since: Since | None) -> None:
        """Read the bounds of every queue. Everything later is about offsets below these
        heads.
        """
        for queue in self.report.queues:
            self._run_step(queue, functools.partial(self._open, queue, since))

    def _open(self, queue: QueueReport, since: Since | None) -> None:
        def read(session: Session) -> Opening | None:
            head = queue_sql.read_head(session, queue=queue.id)
            # Without a head row nothing can be checked; `compare` reports it.
            if head is None:
                return None
            gaps = queue_sql.read_gaps(session, queue=queue.id, position=head.low)
            low = max(head.low, 0)
            if since is None:
                return Opening(low, head.low, head.head, gaps, 0)
            # By the node's clock, because that clock set the storage times.
            since_ms = (
                since.at_ms
                if since.at_ms is not None
                else node_sql.now_ms(session) - (since.ago_ms or 0)
            )
            start = first_at(
                session, queue=queue.id, bounds=(low, head.head), at_ms=since_ms
            )
            return Opening(start, head.low, head.head, gaps, max(since_ms, 0))

        queue.opening = self.visit.ask(queue.node_id, read)

    def _run_step(self, queue: QueueReport, step: Callable[[], None]) -> None:
        """Run a step for a queue, unless its node has failed to answer before."""
        if queue.unseen is not None:
            return
        try:
            step()
        except NodeUnavailable as error:
            self._mark_unchecked(queue.node_id, error)
        except db_errors.Final as fault:
            # If `compare` fails the same way, this becomes a finding.
            queue.unseen = fault.detail

    def batches(self, *, digests: bool) -> None:
        BatchWalk(self.visit, self._answering_queues(), digests=digests).run()

    def rows(self) -> None:
        """Count the rows, queue after queue."""
        for queue in self.report.queues:
            if queue.opening is not None:
                self._run_step(queue, RowScan(self.visit, queue, queue.opening).run)

    def compare(self) -> None:
        """Compare heads, positions and states. A finding must be there twice to count."""
        results = self._judge_queues()
        if any(
            isinstance(judgement, Finding)
            for judged in results.values()
            for judgement in judged
        ):
            time.sleep(AGAIN_AFTER_S)
            second_results = self._judge_queues()
            results = {
                queue: seen_twice(judged, second_results.get(queue, []))
                for queue, judged in results.items()
            }
        for queue in self.report.queues:
            for judgement in results.get(queue.id, ()):
                if isinstance(judgement, str):
                    queue.notes.append(judgement)
                    continue
                queue.add(judgement)
                if judgement.kind == "unreadable":
                    queue.unseen = None

    def _judge_queues(self) -> dict[int, list[Finding | str]]:
        """Return {queue: findings and notes} of the queues whose nodes answer."""
        before = self._read_expected()
        looks: dict[int, positions.Look] = {}
        for node_id, queues in sweeping.group_by_node(self.report.queues).items():
            try:
                for index in range(0, len(queues), QUEUES_PER_CONNECTION):
                    ids = [
                        queue.id for queue in queues[index : index + QUEUES_PER_CONNECTION]
                    ]
                    looks |= self.visit.ask(
                        node_id, functools.partial(positions.look, queues=ids)
                    )
                    self.visit.report_progress(
                        f"positions on node {queues[0].expected.node}: queues",
                        index + len(ids),
                        len(queues),
                    )
            except NodeUnavailable as error:
                self._mark_unchecked(node_id, error)
        # Metadata again: only a difference from both readings counts.
        after = self._read_expected()
        for queue in self.report.queues:
            if queue.id in looks:
                queue.readers = len(looks[queue.id].readers)
            # The topic was deleted during the run.
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

    def _read_expected(self) -> dict[int, ExpectedQueue]:
        rows = expected_state.expected_queues(
            topics=self.topics, actor=self.actor, strict=False
        )
        return {row.queue: row for row in rows}
