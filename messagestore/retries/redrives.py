"""Redrives: dead letters are sent again in the background, at a limited rate.

A redrive is a row in metadata, which the loop of a broker advances step by step. Each
message is stored first, under an id that is derived from the dead letter's, and then
deleted from the dead letters. So if a process dies in between, the repeated step finds the
stored message. The message goes to the retry topic of its group, due at once and with all
its retries, or to its original topic, where every group reads it. Dead letters that are
stored after the request do not belong to the redrive, so a message that fails again is not
redriven twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from msgspec import structs

from messagestore import sweeping
from messagestore.engine.messages import NewMessage, parse_headers
from messagestore.pool import node_pools
from messagestore.produce import delayed_store
from messagestore.produce.publish import publish
from messagestore.retries import dead_letters
from messagestore.tables import dead_letter_sql
from messagestore.tables.dead_letter_sql import DeadFilter, DeadLetter, DeadPosition
from messagestore.tables.shapes import NewDelayed
from messagestore.topology import retry_topics
from metadata import redrive_rows
from metadata.actors import Actor, job
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    NotFound,
    NoWritableQueue,
    Unavailable,
)
from metadata.redrive_rows import RedriveSelection, RedriveView
from metadata.rules.groups import failure_rules
from metadata.rules.groups.states import RedriveState
from metadata.rules.nodes import NodeState
from metadata.rules.rights import Right
from metadata.rules.topics.states import QueueState

log = logging.getLogger(__name__)
EVERY_S = 1.0
PASS_S = 2.0  # longest pass: the lease lasts three pauses
MOST_S = PASS_S + EVERY_S  # longest time for which a pass may catch up with the rate
CHUNK = 50  # messages in a step; a stopped redrive begins no further step
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
    """Begin a redrive of dead letters, by id or all that match, and return it.

    `to`: "group" or "topic". `rate`: messages a second. Needs `manage` on the group, and
    for the target "topic" also `produce`. If an error is raised, no redrive has begun:
    Invalid, Forbidden, NotFound, Conflict (in_use while another redrive of the group runs;
    no_failure_topic), NoWritableQueue if a topic has no open queue, or NodeUnavailable.
    """
    selection = dead_letters.build_filter(
        group=group, topic=topic, error=error, actor=actor
    )
    dead_letters.check_choice(ids=ids, topic=topic, error=error, everything=everything)
    redrive_rows.check_options(to=to, rate=rate)
    rows = None if ids is None else dead_letters.rows_by_node(ids)
    bounds, total, topics = _measure(selection, rows)
    # Checked before the redrive begins, so that the user gets the error and not a redrive
    # that never ends.
    for topic_id in topics:
        topic_info = snapshot.current().topics.get(topic_id)
        if topic_info is None:
            raise NotFound(
                "The topic of some of these messages was deleted.",
                code=Code.TOPIC_NOT_FOUND,
            )
        if to == "group":
            _failure_queues(selection.group_id, topic_id)
            continue
        access.require(actor, Right.PRODUCE, topic_info.name)
        queues = map(snapshot.find_queue, topic_info.queues)
        if not any(
            queue.state == QueueState.READ_WRITE
            and snapshot.node_by_id(queue.node_id).state == NodeState.READ_WRITE
            for queue in queues
        ):
            raise NoWritableQueue(
                f"Topic {topic_info.name} has no open queue now. Nothing was redriven."
            )
    chosen = RedriveSelection(rows, selection.topic_id, topic or "", error)
    return redrive_rows.request_redrive(
        group=group,
        chosen=chosen,
        to=to,
        rate=rate,
        bounds=bounds,
        total=total,
        actor=actor,
    )


def _measure(
    selection: DeadFilter, rows: Mapping[int, Sequence[int]] | None
) -> tuple[dict[int, int], int, set[int]]:
    """Return the highest row of each node, the number of chosen messages, and their topics."""
    bounds: dict[int, int] = {}
    total, topics = 0, set()
    for node_id in sweeping.retry_nodes():
        with delayed_store.prepared(node_id).reading() as session:
            bounds[node_id] = upto = dead_letter_sql.read_newest_dead_id(session)
            if rows is None:
                total += dead_letter_sql.count_dead(session, selection=selection, upto=upto)
                topics |= {
                    row.topic_id
                    for row in dead_letter_sql.summarize_dead(session, selection=selection)
                }
            else:
                row_ids = rows.get(node_id, ())
                chosen = dead_letter_sql.select_dead(
                    session, group_id=selection.group_id, ids_wanted=row_ids
                )
                total += len(chosen)
                topics |= {dead_letter.row.topic_id for dead_letter in chosen}
    return bounds, total, topics


def _failure_queues(group_id: int, topic_id: int) -> tuple[int, ...]:
    """Return the queues of the retry topic of a group and a topic.

    Raises NotFound (subscription_not_found), Conflict, Unavailable.
    """
    view = snapshot.current()
    group, topic = view.groups.get(group_id), view.topics.get(topic_id)
    if group is None or topic is None or view.subscription(group_id, topic_id) is None:
        raise NotFound(
            "The group no longer subscribes to the topic of these messages: redrive them "
            "to the topic.",
            code=Code.SUBSCRIPTION_NOT_FOUND,
        )
    retry_topic = retry_topics.find_or_make(group=group, topic=topic)
    if retry_topic is None:
        raise Unavailable(
            "The retry topic is being created. Try again.", retry_after_ms=1000
        )
    return retry_topic.queues


@dataclass(slots=True)
class Redriver:
    """Advances the running redrives. The loop of a broker uses it, and two are harmless."""

    # redrive → time.monotonic() of its last pass
    passed: dict[int, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic

    def run_once(self) -> int:
        """Run a bounded pass over all running redrives. Return the number of handled
        messages.
        """
        now = self.clock()
        redrives = redrive_rows.list_running()
        passed_before, self.passed = self.passed, {redrive.id: now for redrive in redrives}
        end, count = now + PASS_S, 0
        for redrive in redrives:
            elapsed_s = min(MOST_S, now - passed_before.get(redrive.id, now - EVERY_S))
            count += self._advance(
                redrive, allowed=max(1, int(redrive.rate * elapsed_s)), end=end
            )
        return count

    def _advance(self, redrive: RedriveView, *, allowed: int, end: float) -> int:
        """Advance a redrive by at most `allowed` messages. Return the number of handled
        messages.

        `end`: the time.monotonic() after which no step begins.
        """
        count = 0
        for node_id in sorted(redrive.bounds):
            while allowed - count > 0:
                step = _Step(redrive, node_id, min(CHUNK, allowed - count))
                handled = step.run()
                # An error stops the redrive for this pass; the next pass tries the same
                # message again.
                if handled is None:
                    return count
                if handled == 0:
                    break
                count += handled
                # The redrive may have been stopped, so its state is read after each step.
                if self.clock() > end or not redrive_rows.is_running(redrive.id):
                    return count
                places = {**redrive.places, node_id: step.position}
                redrive = structs.replace(
                    redrive, places=places, deleting={**redrive.deleting, node_id: ()}
                )
            else:
                # The rate is used up, and this node may have more messages.
                return count
        redrive_rows.finish_redrive(redrive.id, state=RedriveState.DONE)
        return count


class _Step:
    """A step of a redrive: sends some messages of a node again, then deletes them together."""

    def __init__(self, redrive: RedriveView, node_id: int, most: int) -> None:
        self._redrive = redrive
        self._node_id = node_id
        self._most = most
        self.position = DeadPosition(*redrive.places.get(node_id, START))
        self._stored: list[int] = []
        self._skipped = 0
        self._detail = ""

    def run(self) -> int | None:
        """Run the step. Return the number of handled messages, 0 at the end of the node.

        Returns None if a message cannot be sent now, or the node cannot be reached.
        """
        try:
            # A broker may have redriven and deleted messages, and died before it counted
            # them.
            rows = self._redrive.deleting.get(self._node_id, ())
            if rows:
                with delayed_store.prepared(self._node_id).reading() as session:
                    remaining = dead_letter_sql.select_dead(
                        session, group_id=self._redrive.group_id, ids_wanted=rows
                    )
                # Remaining rows were not deleted, and this step handles them again.
                deleted = sorted({*rows} - {copy.row.id for copy in remaining})
                redrive_rows.count_deleted(
                    self._redrive.id, node=self._node_id, rows=deleted
                )
            dead_rows = self._read_next()
            for position, dead_letter in dead_rows:
                self._redrive_or_skip(dead_letter)
                if self._detail:
                    break
                self.position = position
            if dead_rows:
                # The rows are recorded before they are deleted. If this process dies after
                # the delete, the next step counts the rows that no longer exist as redriven.
                if self._stored:
                    redrive_rows.begin_deleting(
                        self._redrive.id, node=self._node_id, rows=self._stored
                    )
                with node_pools.node(self._node_id).writing() as session:
                    redriven = dead_letter_sql.delete_dead(
                        session, group_id=self._redrive.group_id, ids_wanted=self._stored
                    )
                redrive_rows.advance(
                    self._redrive.id,
                    node=self._node_id,
                    place=(self.position.died_at_ms, self.position.id),
                    rows=self._stored,
                    redriven=redriven,
                    skipped=self._skipped,
                    detail=self._detail,
                )
        except CatmqError as error:
            log.warning("Redrive %d paused, will retry: %s", self._redrive.id, error.detail)
            return None
        return None if self._detail else len(dead_rows)

    def _read_next(self) -> list[tuple[DeadPosition, DeadLetter | None]]:
        """Return the next positions, each with its dead letter, None if it was deleted."""
        redrive = self._redrive
        chosen, group_id = redrive.chosen, redrive.group_id
        with delayed_store.prepared(self._node_id).reading() as session:
            if chosen.rows is not None:
                chosen_rows = chosen.rows.get(self._node_id, ())
                rows = [row for row in chosen_rows if row > self.position.id]
                positions = [DeadPosition(0, row) for row in rows[: self._most]]
            else:
                positions = dead_letter_sql.list_dead_positions(
                    session,
                    selection=DeadFilter(group_id, chosen.topic_id, chosen.error_class),
                    after=self.position,
                    upto=redrive.bounds[self._node_id],
                    most=self._most,
                )
            row_ids = [position.id for position in positions]
            dead_letters_by_id = {
                dead_letter.row.id: dead_letter
                for dead_letter in dead_letter_sql.select_dead(
                    session, group_id=group_id, ids_wanted=row_ids
                )
            }
        return [(position, dead_letters_by_id.get(position.id)) for position in positions]

    def _redrive_or_skip(self, dead_letter: DeadLetter | None) -> None:
        """Send a message again, or skip it if that is impossible; the message then stays
        dead.

        Sets `_detail` if the message cannot be sent now, which ends the step.
        """
        if dead_letter is None:
            return
        try:
            self._bring_back(dead_letter)
            self._stored.append(dead_letter.row.id)
        except Unavailable as error:
            self._detail = error.detail
        except CatmqError as error:
            log.warning(
                "Dead letter dead-%d-%d not redriven: %s",
                self._node_id,
                dead_letter.row.id,
                error.detail,
            )
            self._skipped += 1

    def _bring_back(self, dead_letter: DeadLetter) -> None:
        """Store the message again. Raises CatmqError if it cannot be stored, or not now."""
        row, to = dead_letter.row, self._redrive.to
        # The same id for every try: a repeat after a crash finds the stored message.
        copy_id = failure_rules.redrive_id(
            died_at_ms=row.died_at_ms, dead=dead_letter.batch_id, to=to
        )
        message = NewMessage(
            body=dead_letter.body,
            key=row.key,
            tag=row.tag,
            headers=parse_headers(dead_letter.headers),
            trace_id=row.trace_id,
        )
        if to == "topic":
            topic = snapshot.current().topics.get(row.topic_id)
            if topic is None:
                raise NotFound("Its topic was deleted.", code=Code.TOPIC_NOT_FOUND)
            publish(
                topic=topic.name,
                messages=[message],
                batch_id=UUID(bytes=copy_id),
                actor=job("redrive"),
            )
            return
        queue = failure_rules.copy_queue(
            copy_id, _failure_queues(row.group_id, row.topic_id)
        )
        due_at_once = structs.replace(message, delay_ms=0)
        copy = NewDelayed(due_at_once, attempt=1, origin=row.origin)
        try:
            delayed_store.store(
                queue=queue, messages=[copy], batch_id=copy_id, producer="redrive"
            )
        except Conflict as error:
            if error.code == Code.QUEUE_NOT_WRITABLE:
                # the retry queue is closed for now
                raise Unavailable(error.detail) from error
            raise
