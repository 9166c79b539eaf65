"""Executes retention plans: raises `low`, waits for pulls, removes partitions and rows."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct, structs

from messagestore.engine.mysql_session import READ_TIMEOUT_S
from messagestore.heads import partitions
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.retention import planning
from messagestore.retention.planning import QueuePlan
from messagestore.sweeping import Progress
from messagestore.tables import audit_sql, partition_sql, queue_sql, sql_steps
from metadata.actors import Actor
from metadata.db import access, audit, clock_marks
from metadata.errors import CatmqError
from metadata.monitoring import alarms
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text, error_text
from metadata.rules.audit_verbs import Verb
from metadata.rules.disks import DiskState
from metadata.rules.rights import ActorKind, Right
from metadata.topics import key_index_rows, topic_rows
from metadata.topics.topic_rows import TopicView

log = logging.getLogger(__name__)
CHUNK = 2_000  # rows per transaction, for which every writer waits on SQLite
REST_S = READ_TIMEOUT_S + 1.0  # longer than any pull: its read would have timed out
# Writers wait while a partition is dropped. The pause after it is PACE times as long, so that
# they wait for at most 1/PACE of the time, but never longer than MOST_PAUSE_S.
PACE = 200
MOST_PAUSE_S = 30.0
PASS_S = 300.0  # a scheduled pass begins no further queue after this
Say = Callable[[Progress], None]


class Cleaned(Struct, frozen=True):
    """A plan and its result, which is empty in a dry run.

    `raised`: this run raised `low`. `dropped`: partitions. `deleted`: rows. `problem`: why
    the plan was not executed, or not completely.
    """

    plan: QueuePlan
    raised: bool = False
    dropped: int = 0
    deleted: int = 0
    problem: str | None = None


def clean(
    *,
    actor: Actor,
    topic: str | None = None,
    dry_run: bool = False,
    rest_s: float = REST_S,
    pass_s: float | None = None,
    progress: Say | None = None,
) -> list[Cleaned]:
    """Clean a topic, or all topics. Return the plan and the result of each queue.

    With `dry_run`, only plans are made. Needs the right `manage` on the topics. After
    `pass_s`, no further queue is begun. `rest_s`: time to wait between raising `low` and
    removing messages. Raises NotFound (topic_not_found), MetadataUnavailable.
    """
    deadline = time.monotonic() + (pass_s or float("inf"))
    topics = (
        topic_rows.list_ready()
        if topic is None
        else [topic_rows.find_topic(name=topic, actor=actor)]
    )
    for view in topics:
        access.require(actor, Right.MANAGE, view.name)
    # A user who cleans confirms that the clock is right. A job that finds a jump deletes
    # nothing by age: messages that look old may be new.
    clock_jump = clock_marks.check_clock(
        confirm=actor.kind != ActorKind.JOB and not dry_run
    )
    if pass_s is not None:
        random.shuffle(topics)  # every topic has its turn, even if passes end early
    planner = partial(planning.plan, record=not dry_run, jumped=clock_jump)
    run = CleaningRun(
        actor=actor, planner=planner, dry_run=dry_run, say=progress, ends=deadline
    )
    results = run.clean_topics(topics, rest_s=rest_s)
    if dry_run:
        return results
    # A queue that could not be cleaned as its topic's retention demands gets an alarm. The
    # alarms of the other queues of this run end.
    cleaned = []
    for result in results:
        name = f"{result.plan.topic}/{result.plan.number}"
        why = result.problem or result.plan.blocked_by
        if why is None:
            cleaned.append(name)
            continue
        log.warning("Queue %d of topic %s: %s", result.plan.queue, result.plan.topic, why)
        alarms.raise_alarm(kind=AlarmKind.NOT_CLEANED, name=name, detail=error_text(why))
    alarms.end_alarms(kind=AlarmKind.NOT_CLEANED, names=cleaned)
    return results


@dataclass(slots=True, kw_only=True)
class CleaningRun:
    """A cleaning of some topics. `planner` returns the plans of a topic's queues."""

    actor: Actor
    planner: Callable[[TopicView], list[QueuePlan]]
    dry_run: bool
    say: Say | None
    ends: float = float("inf")
    results: list[Cleaned] = field(default_factory=list)

    def clean_topics(self, topics: Sequence[TopicView], *, rest_s: float) -> list[Cleaned]:
        """Raise `low` in all queues, wait for the end of older pulls, and remove messages."""
        for number, topic in enumerate(topics):
            self.report_progress("planned topics:", number, len(topics))
            if time.monotonic() <= self.ends:
                self.raise_low_offsets(topic)
        # A pull that began before the commit may still read rows below the new `low`. A single
        # wait serves all queues of the run.
        if rest_s and any(result.raised for result in self.results):
            self.report_progress("waiting for pulls that began before, s:", 0, int(rest_s))
            time.sleep(rest_s)
        return [self.remove(result) for result in self.results]

    def report_progress(self, text: str, done: int, total: int) -> None:
        if self.say is not None:
            self.say(Progress(text, done, total))

    def raise_low_offsets(self, topic: TopicView) -> None:
        """Plan a topic and raise `low` in its queues. Unread messages are counted first."""
        results = [Cleaned(plan, problem=plan.problem) for plan in self.planner(topic)]
        if not self.dry_run:
            results = [self._raise_low(result) for result in results]
        self.results += results
        raised = {
            str(result.plan.queue): result.plan for result in results if result.raised
        }
        # Scheduled runs have logs and alarms instead of an audit row.
        if raised and self.actor.kind != ActorKind.JOB:
            audit.record(
                actor=self.actor,
                verb=Verb.CLEAN,
                kind="topic",
                name=topic.name,
                before={queue: plan.low for queue, plan in raised.items()},
                after={queue: plan.keep_from for queue, plan in raised.items()},
            )

    def _raise_low(self, result: Cleaned) -> Cleaned:
        """Raise `low` of a queue as planned. An error is returned as the `problem`."""
        plan = result.plan
        if result.problem or not plan.messages:
            return result
        # Counted before the commit: if this process dies in between, the loss is reported
        # and not hidden.
        _count_losses(plan, 1)
        try:
            with node_pools.node(plan.node_id).reading() as session:  # a repeat is harmless
                raised = partition_sql.raise_low(
                    session, queue=plan.queue, low=plan.keep_from
                )
        except CatmqError as error:
            return structs.replace(result, problem=error.detail)
        # Another process has raised it already, and has counted the losses.
        if not raised:
            _count_losses(plan, -1)
            return result
        log.info(
            "Queue %d of topic %s starts at %d now (%s)",
            plan.queue,
            plan.topic,
            plan.keep_from,
            plan.why,
        )
        return structs.replace(result, raised=True)

    def remove(self, result: Cleaned) -> Cleaned:
        """Remove partitions and rows below `low`, including those that an earlier run left."""
        if self.dry_run or result.problem or time.monotonic() > self.ends:
            return result
        node = node_pools.node(result.plan.node_id)
        dropped = deleted = 0
        try:
            dropped = self._drop(node, result.plan)
            deleted = self._delete(node, result.plan)
            problem = None
        except CatmqError as error:
            problem = error.detail
            # A build of the key index may take hours. It is no problem of retention, and a
            # later run removes what is below `low`.
            if isinstance(error, partitions.TableLocked) and key_index_rows.is_changing(
                result.plan.queue
            ):
                log.info("Queue %d waits for its key index: %s", result.plan.queue, problem)
                problem = None
        return structs.replace(result, dropped=dropped, deleted=deleted, problem=problem)

    def _drop(self, node: Node, plan: QueuePlan) -> int:
        """Drop the partitions below the log start offset, lowest first. Return their number."""
        dropped, remaining = 0, plan.partitions
        while remaining:
            started_at = time.monotonic()
            # A session for each partition: others may change the table in between, and
            # writers wait only for a moment.
            with node.maintaining() as session:
                partitions.take_turn(session, queue=plan.queue)
                # `low` is read again in the same session: only messages that are below it
                # now may be removed.
                head = queue_sql.read_head(session, queue=plan.queue)
                low = head.low if head is not None else 0
                # The last partition is written to, so it is never dropped.
                existing = partition_sql.list_partitions(session, queue=plan.queue)[:-1]
                below_low = [p.name for p in existing if p.end <= low]
                if not below_low:
                    break
                drop = partial(
                    partition_sql.drop_partition,
                    session,
                    queue=plan.queue,
                    name=below_low[0],
                )
                table = sql_steps.message_table(plan.queue)
                partitions.alter(session, table=table, change=drop)
            dropped, remaining = dropped + 1, len(below_low) - 1
            self.report_progress(
                f"{plan.topic} queue {plan.queue}: partitions", dropped, dropped + remaining
            )
            if time.monotonic() > self.ends:
                break
            # A full node accepts no writes and needs the room, so there is no pause.
            if remaining and node.info.disk != DiskState.FULL:
                time.sleep(min(PACE * (time.monotonic() - started_at), MOST_PAUSE_S))
        return dropped

    def _delete(self, node: Node, plan: QueuePlan) -> int:
        """Delete rows below `low` in small batches, and return their number.

        In a table with partitions, rows are deleted only if the queue keeps no message.
        Otherwise the partition is dropped as a whole later.
        """
        if plan.partitions is not None and plan.keep_from < plan.head:
            return 0
        with node.reading() as session:
            head = queue_sql.read_head(session, queue=plan.queue)
        low, deleted, total = head.low if head is not None else 0, 0, 0
        while time.monotonic() < self.ends:
            with node.reading() as session:
                lowest, _ = audit_sql.read_offset_ends(session, queue=plan.queue, first=0)
                if lowest is None or lowest >= low:
                    break
                total = total or low - lowest
                started_at = time.monotonic()
                deleted += partition_sql.delete_below(
                    session, queue=plan.queue, end=min(low, lowest + CHUNK)
                )
            self.report_progress(f"{plan.topic} queue {plan.queue}: rows", deleted, total)
            # Half of the time is left to other writers.
            time.sleep(time.monotonic() - started_at)
        return deleted


def _count_losses(plan: QueuePlan, sign: int) -> None:
    """Count the unread messages that groups lose in their alarms; a `sign` of -1 undoes it."""
    for loss in plan.unread:
        detail = alarm_text(
            f"dropped_by_{plan.why}",
            messages=loss.messages,
            queue=f"{plan.topic}/{plan.number}",
        )
        if sign > 0:
            level = logging.WARNING if loss.active else logging.INFO
            log.log(level, "Group %s, topic %s: %s", loss.group, plan.topic, detail)
        name, count = f"{loss.group}/{plan.topic}", sign * loss.messages
        alarms.raise_alarm(
            kind=AlarmKind.UNREAD_DROPPED, name=name, detail=detail, count=count
        )
