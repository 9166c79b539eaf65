"""Redrives: dead letters brought back, in the background, at a limited rate; they can be stopped.

A redrive is a row in metadata; the loop of one broker takes the running ones a step further. A message is
stored first, under an id derived from the dead one's, and deleted from the dead then: whatever dies in
between, the step that is made again finds it stored. It goes to the retry topic of its group, due at once
and with all its retries, or back to its topic, where every group gets it. What died after the request does
not belong to it, so a message that fails again is not brought back twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from messagestore import sweeping
from messagestore.engine.messages import NewMessage, headers_of
from messagestore.pool import node_pools
from messagestore.produce import delayed_store
from messagestore.produce.publish import publish
from messagestore.retries import dead_letters
from messagestore.tables import dead_letter_sql
from messagestore.tables.dead_letter_sql import DeadFilter, DeadLetter, Place
from messagestore.tables.shapes import NewDelayed
from messagestore.topology import retry_topics
from metadata import redrive_rows
from metadata.actors import Actor, job
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import CatmqError, Code, Conflict, NotFound, NoWritableQueue, Unavailable
from metadata.redrive_rows import Chosen, RedriveView
from metadata.rules.groups import failure_rules

log = logging.getLogger(__name__)
EVERY_S = 1.0
PASS_S = 2.0  # what a pass may take: the lease lasts three pauses
MOST_S = PASS_S + EVERY_S  # of the rate that a pass may make up for
CHUNK = 50  # messages of a step; a stopped redrive makes no further one
START = (0, 0)


def request(
    *,
    group: str,
    to: str,
    actor: Actor,
    ids: Sequence[str] | None = None,
    topic: str | None = None,
    error: str | None = None,
    everything: bool = False,
    rate: int | None = None,
) -> RedriveView:
    """A new redrive, under way when this returns. Needs `manage` on the group, to="topic" also `produce`.

    Raises Invalid, Forbidden, NotFound, Conflict (in_use while another one runs, no_failure_topic),
    NoWritableQueue while no queue of a topic takes messages, NodeUnavailable; then nothing was begun.
    """
    kept = dead_letters.which(group=group, topic=topic, error=error, actor=actor)
    dead_letters.check_choice(ids=ids, topic=topic, error=error, everything=everything)
    redrive_rows.check(to=to, rate=rate)
    rows = None if ids is None else dead_letters.by_node(ids)
    bounds, total, topics = _measured(kept, rows)
    for topic_id in topics:
        _check_target(kept.group_id, topic_id, to, actor)
    chosen = Chosen(rows, kept.topic_id, topic or "", error)
    return redrive_rows.request(
        group=group, chosen=chosen, to=to, rate=rate, bounds=bounds, total=total, actor=actor
    )


def _measured(
    kept: DeadFilter, rows: Mapping[int, Sequence[int]] | None
) -> tuple[dict[int, int], int, set[int]]:
    """The highest row of each node, how many messages are meant, and of which topics."""
    bounds: dict[int, int] = {}
    total, topics = 0, set()
    for node_id in sweeping.retry_nodes():
        with delayed_store.prepared(node_id).reading() as session:
            bounds[node_id] = upto = dead_letter_sql.newest_dead(session)
            if rows is None:
                total += dead_letter_sql.count_dead(session, kept=kept, upto=upto)
                topics |= {one.topic_id for one in dead_letter_sql.summarize_dead(session, kept=kept)}
            else:
                wanted = rows.get(node_id, ())
                found = dead_letter_sql.select_dead(session, group_id=kept.group_id, ids_wanted=wanted)
                total += len(found)
                topics |= {one.row.topic_id for one in found}
    return bounds, total, topics


def _check_target(group_id: int, topic_id: int, to: str, actor: Actor) -> None:
    """Raise CatmqError if messages of a topic cannot be redriven."""
    known = snapshot.current()
    topic = known.topics.get(topic_id)
    if topic is None:
        raise NotFound("The topic of some of these messages was deleted.", code=Code.TOPIC_NOT_FOUND)
    if to == "group":
        _failure_queues(group_id, topic_id)
        return
    access.require(actor, "produce", topic.name)
    if not any(_is_open(queue) for queue in topic.queues):
        raise NoWritableQueue(f"Topic {topic.name} has no open queue now. Nothing was redriven.")


def _is_open(queue: int) -> bool:
    info = snapshot.find_queue(queue)
    return info.state == "read_write" and snapshot.node_by_id(info.node_id).state == "read_write"


def _failure_queues(group_id: int, topic_id: int) -> tuple[int, ...]:
    """The queues of a pair's retry topic. Raises NotFound, Conflict, Unavailable."""
    known = snapshot.current()
    group, topic = known.groups.get(group_id), known.topics.get(topic_id)
    if group is None or topic is None or known.subscription(group_id, topic_id) is None:
        raise NotFound(
            "The group no longer subscribes to the topic of these messages: redrive them to the topic.",
            code=Code.SUBSCRIPTION_NOT_FOUND,
        )
    found = retry_topics.of(group=group, topic=topic)
    if found is None:
        raise Unavailable("The retry topic is being created. Try again.", retry_after_ms=1000)
    return found.queues


@dataclass(slots=True)
class Redriver:
    """Takes the running redrives further; one broker's loop runs it, and two at once are harmless."""

    passed: dict[int, float] = field(default_factory=dict)  # redrive → time.monotonic() of its last pass
    clock: Callable[[], float] = time.monotonic

    def run_once(self) -> int:
        """One bounded pass over all that run; how many messages were brought back."""
        now = self.clock()
        rows = redrive_rows.running()
        before, self.passed = self.passed, {one.id: now for one in rows}
        end, count = now + PASS_S, 0
        for one in rows:
            elapsed_s = min(MOST_S, now - before.get(one.id, now - EVERY_S))
            count += self._further(one, allowed=max(1, int(one.rate * elapsed_s)), end=end)
        return count

    def _further(self, redrive: RedriveView, *, allowed: int, end: float) -> int:
        """Take one redrive further by as many messages as its rate allows."""
        count = 0
        for node_id in sorted(redrive.bounds):
            while allowed - count > 0:
                step = _Step(redrive, node_id, min(CHUNK, allowed - count))
                done = step.run()
                if done is None:  # held up; the next pass tries again
                    return count
                if done == 0:
                    break
                count += done
                if self.clock() > end or not redrive_rows.is_running(redrive.id):
                    return count
                places = {**redrive.places, node_id: step.place}
                redrive = replace(redrive, places=places, deleting={**redrive.deleting, node_id: ()})
            else:
                return count
        redrive_rows.finish(redrive.id, state="done")
        return count


class _Step:
    """Some messages of one node, brought back one after the other, then deleted together."""

    def __init__(self, redrive: RedriveView, node_id: int, most: int) -> None:
        self._redrive = redrive
        self._node_id = node_id
        self._most = most
        self.place = Place(*redrive.places.get(node_id, START))
        self._stored: list[int] = []
        self._skipped = 0
        self._detail = ""

    def run(self) -> int | None:
        """Run a step; return the messages dealt with, 0 at the node's end, None if something holds it up."""
        try:
            self._count_deleted()
            places = self._next()
            for place, row in places:
                self._try(row)
                if self._detail:
                    break
                self.place = place
            if places:
                self._note()
        except CatmqError as error:
            log.warning("Redrive %d paused, will retry: %s", self._redrive.id, error.detail)
            return None
        return None if self._detail else len(places)

    def _count_deleted(self) -> None:
        """Count messages that a broker brought back and deleted, and that it had no time to count."""
        rows = self._redrive.deleting.get(self._node_id, ())
        if not rows:
            return
        with delayed_store.prepared(self._node_id).reading() as session:
            left = dead_letter_sql.select_dead(session, group_id=self._redrive.group_id, ids_wanted=rows)
        # Those that are left were not deleted; this step meets them again.
        deleted = sorted({*rows} - {copy.row.id for copy in left})
        redrive_rows.count_deleted(self._redrive.id, node=self._node_id, rows=deleted)

    def _next(self) -> list[tuple[Place, DeadLetter | None]]:
        """The places that come next, each with its message if that is still there."""
        redrive = self._redrive
        chosen = redrive.chosen
        kept = DeadFilter(redrive.group_id, chosen.topic_id, chosen.error_class)
        with delayed_store.prepared(self._node_id).reading() as session:
            if chosen.rows is not None:
                rows = [row for row in chosen.rows.get(self._node_id, ()) if row > self.place.id]
                places = [Place(0, row) for row in rows[: self._most]]
            else:
                upto = redrive.bounds[self._node_id]
                places = dead_letter_sql.dead_places(
                    session, kept=kept, after=self.place, upto=upto, most=self._most
                )
            wanted = [one.id for one in places]
            found = dead_letter_sql.select_dead(session, group_id=redrive.group_id, ids_wanted=wanted)
        by_id = {one.row.id: one for one in found}
        return [(place, by_id.get(place.id)) for place in places]

    def _try(self, one: DeadLetter | None) -> None:
        """Bring a message back; it stays dead if that cannot be, and the step ends if it cannot now."""
        if one is None:
            return
        try:
            self._bring_back(one)
            self._stored.append(one.row.id)
        except Unavailable as error:
            self._detail = error.detail
        except CatmqError as error:
            log.warning("Dead letter dead-%d-%d not redriven: %s", self._node_id, one.row.id, error.detail)
            self._skipped += 1

    def _bring_back(self, one: DeadLetter) -> None:
        row, to = one.row, self._redrive.to
        copy_id = failure_rules.redrive_id(died_at_ms=row.died_at_ms, dead=one.batch_id, to=to)
        message = NewMessage(
            body=one.body, key=row.key, tag=row.tag, headers=headers_of(one.headers), trace_id=row.trace_id
        )
        if to == "topic":
            topic = snapshot.current().topics.get(row.topic_id)
            if topic is None:
                raise NotFound("Its topic was deleted.", code=Code.TOPIC_NOT_FOUND)
            publish(topic=topic.name, messages=[message], batch_id=UUID(bytes=copy_id), actor=job("redrive"))
            return
        queue = failure_rules.copy_queue(copy_id, _failure_queues(row.group_id, row.topic_id))
        now = msgspec.structs.replace(message, delay_ms=0)
        waiting = NewDelayed(now, attempt=1, origin=row.origin)
        try:
            delayed_store.store(queue=queue, messages=[waiting], batch_id=copy_id, producer="redrive")
        except Conflict as error:
            if error.code == Code.QUEUE_NOT_WRITABLE:
                raise Unavailable(error.detail) from error  # the retry queue is closed for a while
            raise

    def _note(self) -> None:
        if self._stored:
            redrive_rows.begin_deleting(self._redrive.id, node=self._node_id, rows=self._stored)
        with node_pools.node(self._node_id).writing() as session:
            gone = dead_letter_sql.delete_dead(
                session, group_id=self._redrive.group_id, ids_wanted=self._stored
            )
        redrive_rows.advance(
            self._redrive.id,
            node=self._node_id,
            place=(self.place.died_at_ms, self.place.id),
            rows=self._stored,
            redriven=gone,
            skipped=self._skipped,
            detail=self._detail,
        )
