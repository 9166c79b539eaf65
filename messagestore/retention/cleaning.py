"""Carries plans out: low, a pause, then partitions and rows."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from messagestore.engine.mysql_session import READ_TIMEOUT_S, Session
from messagestore.heads import partitions
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.retention.planning import QueuePlan, plan
from messagestore.sweeping import Progress
from messagestore.tables import audit_sql, partition_sql, queue_sql, running
from metadata.actors import Actor
from metadata.db import access, audit, clock_marks
from metadata.errors import CatmqError
from metadata.monitoring import alarms
from metadata.rules.alarm_texts import of_error, say
from metadata.topics import topic_rows
from metadata.topics.topic_rows import TopicView

log = logging.getLogger(__name__)
CHUNK = 2_000  # rows in one transaction: on SQLite every writer waits for it
REST_S = READ_TIMEOUT_S + 1.0  # a pull that began before this is over: its read times out earlier
PACE = 200  # writers stand while a partition goes: it takes no more than this part of their time
MOST_PAUSE_S = 30.0
PASS_S = 300.0  # a scheduled pass begins nothing new after it
Say = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A plan, and what came of it: nothing with `dry_run`. A `problem` says why not all was done."""

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
    """Clean a topic, or all; return for each queue what was done, or with `dry_run` would be. Needs `manage`.

    Stops beginning with further queues after `pass_s`; the next run goes on from there. A person who cleans
    says that the clock is right; a job that finds that it jumped cleans nothing by age. Raises
    NotFound(topic_not_found), MetadataUnavailable.
    """
    ends = time.monotonic() + (pass_s or float("inf"))
    chosen = topic_rows.ready() if topic is None else [topic_rows.named(name=topic, actor=actor)]
    for one in chosen:
        access.require(actor, "manage", one.name)
    jumped = clock_marks.look(confirm=actor.kind != "job" and not dry_run)
    if pass_s is not None:
        random.shuffle(chosen)  # so that every topic has its turn, also where a pass ends too early
    planner = partial(plan, record=not dry_run, jumped=jumped)
    run = Run(actor=actor, planner=planner, dry_run=dry_run, say=progress, ends=ends)
    done = run.over(chosen, rest_s=rest_s)
    if not dry_run:
        _alarm(done)
    return done


@dataclass(slots=True, kw_only=True)
class Run:
    """One run over some topics; `planner` says what goes of each."""

    actor: Actor
    planner: Callable[[TopicView], list[QueuePlan]]
    dry_run: bool
    say: Say | None
    ends: float = float("inf")
    found: list[Cleaned] = field(default_factory=list)

    def over(self, chosen: Sequence[TopicView], *, rest_s: float) -> list[Cleaned]:
        """Raise `low`, wait until no pull is under way that began before, and remove what is below."""
        for number, one in enumerate(chosen):
            self.tell("planned topics:", number, len(chosen))
            if time.monotonic() <= self.ends:
                self.raise_lows(one)
        if rest_s and any(one.raised for one in self.found):
            self.tell("waiting for pulls that began before, s:", 0, int(rest_s))
            time.sleep(rest_s)
        return [self.remove(one) for one in self.found]

    def tell(self, what: str, done: int, total: int) -> None:
        if self.say is not None:
            self.say(Progress(what, done, total))

    def raise_lows(self, topic: TopicView) -> None:
        """Plan a topic and raise `low` in its queues; what goes unread is noted before."""
        mine = [Cleaned(one, problem=one.problem) for one in self.planner(topic)]
        if not self.dry_run:
            mine = [self._raise(one) for one in mine]
            self._audit(topic, mine)
        self.found += mine

    def _raise(self, one: Cleaned) -> Cleaned:
        aim = one.plan
        if one.problem or not aim.messages:
            return one
        _count(aim, 1)
        try:
            with node_pools.node(aim.node_id).reading() as session:  # harmless to repeat
                raised = partition_sql.raise_low(session, queue=aim.queue, low=aim.keep_from)
        except CatmqError as error:
            return replace(one, problem=error.detail)
        if not raised:  # somebody else did, and counted
            _count(aim, -1)
            return one
        log.info("Queue %d of topic %s starts at %d now (%s)", aim.queue, aim.topic, aim.keep_from, aim.why)
        return replace(one, raised=True)

    def remove(self, one: Cleaned) -> Cleaned:
        """Drop and delete what is below `low`, also what an earlier run left."""
        if self.dry_run or one.problem or time.monotonic() > self.ends:
            return one
        node = node_pools.node(one.plan.node_id)
        dropped = deleted = 0
        try:
            dropped = self._drop(node, one.plan)
            deleted = self._delete(node, one.plan)
            problem = None
        except CatmqError as error:
            problem = error.detail
        return replace(one, dropped=dropped, deleted=deleted, problem=problem)

    def _drop(self, node: Node, aim: QueuePlan) -> int:
        """Drop the partitions below `low`, one by one, so that writers wait for a moment only."""
        if not aim.partitions:
            return 0
        done = 0
        left: int | None = aim.partitions
        while left:
            begun = time.monotonic()
            with node.maintaining() as session:  # one for each, so that others may change the table between
                partitions.take_turn(session, queue=aim.queue)
                left = _drop_one(session, aim.queue)
            if left is None:
                break
            done += 1
            self.tell(f"{aim.topic} queue {aim.queue}: partitions", done, done + left)
            if time.monotonic() > self.ends:
                break
            if left and node.info.disk != "full":  # there nobody writes, and room is wanted
                time.sleep(min(PACE * (time.monotonic() - begun), MOST_PAUSE_S))
        return done

    def _delete(self, node: Node, aim: QueuePlan) -> int:
        """Delete rows below `low` in small batches; return how many.

        Where there are partitions, only of a queue of which nothing is kept: others drop them soon.
        """
        if aim.partitions is not None and aim.keep_from < aim.head:
            return 0
        low, done, left = _low(node, aim.queue), 0, 0
        while time.monotonic() < self.ends:
            with node.reading() as session:
                lowest, _ = audit_sql.offset_ends(session, queue=aim.queue, first=0)
                if lowest is None or lowest >= low:
                    break
                left = left or low - lowest
                begun = time.monotonic()
                done += partition_sql.delete_below(session, queue=aim.queue, end=min(low, lowest + CHUNK))
            self.tell(f"{aim.topic} queue {aim.queue}: rows", done, left)
            time.sleep(time.monotonic() - begun)  # half of the time is for others
        return done

    def _audit(self, topic: TopicView, found: Sequence[Cleaned]) -> None:
        """Write down what people did; what the schedule does stands in the log and in the alarms."""
        moved = {str(one.plan.queue): one.plan for one in found if one.raised}
        if not moved or self.actor.kind == "job":
            return
        before = {queue: aim.low for queue, aim in moved.items()}
        after = {queue: aim.keep_from for queue, aim in moved.items()}
        audit.record(
            actor=self.actor, verb="clean", kind="topic", name=topic.name, before=before, after=after
        )


def _count(aim: QueuePlan, sign: int) -> None:
    """Count what groups lose unread, before it is lost; a `sign` of -1 undoes that."""
    for loss in aim.unread:
        what = say(f"dropped_by_{aim.why}", messages=loss.messages, queue=f"{aim.topic}/{aim.number}")
        if sign > 0:
            level = logging.WARNING if loss.active else logging.INFO
            log.log(level, "Group %s, topic %s: %s", loss.group, aim.topic, what)
        name, count = f"{loss.group}/{aim.topic}", sign * loss.messages
        alarms.raise_alarm(kind="unread_dropped", name=name, detail=what, count=count)


def _alarm(found: Sequence[Cleaned]) -> None:
    """A queue that cannot be cleaned, or not as its topic wants it, is an alarm until it can."""
    mended = []
    for one in found:
        name, why = f"{one.plan.topic}/{one.plan.number}", one.problem or one.plan.blocked_by
        if why is None:
            mended.append(name)
            continue
        log.warning("Queue %d of topic %s: %s", one.plan.queue, one.plan.topic, why)
        alarms.raise_alarm(kind="not_cleaned", name=name, detail=of_error(why))
    alarms.end(kind="not_cleaned", names=mended)


def _low(node: Node, queue: int) -> int:
    with node.reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    return head.low if head is not None else 0


def _drop_one(session: Session, queue: int) -> int | None:
    """Drop the lowest partition below `low`, never the last; return how many are left, None if none was."""
    head = queue_sql.read_head(session, queue=queue)
    parts = partition_sql.list_partitions(session, queue=queue)
    going = [one.name for one in parts[:-1] if head is not None and one.end <= head.low]
    if not going:
        return None
    change = partial(partition_sql.drop_partition, session, queue=queue, name=going[0])
    partitions.alter(session, table=running.message_table(queue), change=change)
    return len(going) - 1
