"""Follows the failures of a message in a group: the copies that were made, and where
the last copy is.

The id of a copy is computed from the message that failed (`failure_rules.copy_id`), so each
step is an index look-up, however many other messages of the group failed. Records of copies
are kept for `batches.KEPT_HOURS`. A trail that begins or ends before that is incomplete.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.engine.origins import Origin
from messagestore.pool import node_pools
from messagestore.produce import batches, delayed_store
from messagestore.produce.delayed_delivery import moved_id
from messagestore.tables import dead_letter_sql, failure_sql, reader_sql
from messagestore.tables.dead_letter_sql import DeadRow
from messagestore.tables.failure_sql import CopyPlace, WaitingCopy
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError
from metadata.rules.groups import failure_rules

MAX_STEPS = 100  # look-ups of one trail; with more retries the end is unknown
MAX_RESETS = 20  # the newest offset resets under which a failure is looked for
MARGIN_MS = 3_600_000  # records this close to expiry are not relied on
# `insert_dead` reads the clock twice: for the record, and then for the dead letter
DEAD_DELAY_MS = 250

End = Literal["none", "waiting", "due", "read", "dead", "removed", "unknown"]


class Redriven(NamedTuple):
    """A redrive to the group: when its message died, and when it was stored again."""

    died_at_ms: int
    at_ms: int


@dataclass(slots=True)
class Trail:
    """Copies of a message. `end` is the state of the last copy:

    * none: the message never failed
    * waiting: until it is due
    * due: in the retry topic, not read yet
    * read: a retry was committed and did not fail
    * dead: it is a dead letter
    * removed: it died, then was redriven to the topic, deleted or expired
    * unknown: records are missing, or a node does not answer

    `failed` is the number of failures since the message was sent or redriven.
    """

    end: End = "none"
    failed: int = 0
    at_ms: int | None = None
    origin: Origin | None = None
    dead: DeadRow | None = None
    dead_node: int = 0
    redrives: list[Redriven] = field(default_factory=list)


class _Place(NamedTuple):
    """A message that may have failed, in a queue of its topic or of the retry topic."""

    queue: int
    offset: int
    stored_at_ms: int
    attempt: int


@dataclass(slots=True)
class _Records:
    """Records that the retry nodes have of some copy ids."""

    # with the node
    places: dict[bytes, tuple[int, CopyPlace]] = field(default_factory=dict)
    waiting: dict[bytes, WaitingCopy] = field(default_factory=dict)
    dead: dict[bytes, tuple[int, DeadRow]] = field(default_factory=dict)  # with the node
    complete: bool = True

    def has(self, batch: bytes) -> bool:
        return batch in self.places or batch in self.waiting or batch in self.dead


def follow_failures(
    *, group_id: int, topic_id: int, queue: int, offset: int, stored_at_ms: int
) -> Trail:
    """Follow the failures of a message that a group has committed, up to its last copy."""
    subscription = snapshot.current().subscription(group_id, topic_id)
    if subscription is None:
        return Trail("unknown")
    walk = _Walk(group_id, subscription.id)
    try:
        walk.run(_Place(queue, offset, stored_at_ms, 0))
    except CatmqError:  # a node does not answer: return the trail so far
        walk.trail.end = "unknown"
    return walk.trail


class _Walk:
    """Walks from a message to its copies, with a look-up per step, and fills in the trail."""

    def __init__(self, group_id: int, subscription_id: int) -> None:
        self.trail = Trail()
        self._group_id = group_id
        self._subscription_id = subscription_id
        self._is_share = snapshot.current().groups[group_id].is_share

    def run(self, place: _Place) -> None:
        """Walk from the message to its first copy, and from each copy to the next."""
        batch: bytes | None = None
        for _ in range(MAX_STEPS):
            if batch is None:
                ids = [
                    failure_rules.copy_id(
                        stored_at_ms=place.stored_at_ms,
                        subscription=self._subscription_id,
                        queue=place.queue,
                        offset=place.offset,
                        attempt=place.attempt + 1,
                        reset_count=reset_count,
                    )
                    for reset_count in self._reset_counts(place.queue)
                ]
                records = self._look_up_copies(ids)
                # After a reset the message was read again. The newest reading counts.
                batch = next(filter(records.has, ids), None)
                if batch is None:
                    # Without a record, a message that was committed long ago may have
                    # failed all the same.
                    is_sure = records.complete and _is_recorded(place.stored_at_ms)
                    outcome: End = "read" if place.attempt else "none"
                    self.trail.end = outcome if is_sure else "unknown"
                    return
                self.trail.failed = place.attempt + 1
            next_step = self._find_next(batch)
            if next_step is None:
                return
            if isinstance(next_step, _Place):
                place, batch = next_step, None
            else:
                batch = next_step
        self.trail.end = "unknown"

    def _reset_counts(self, queue: int) -> Sequence[int]:
        """Return the reset counts under which the group may have read a queue, the newest
        first.
        """
        with node_pools.node_of(queue).reading() as session:
            fence = failure_sql.read_fences(
                session, group_id=self._group_id, queues=[queue]
            ).get(queue)
        newest = fence.reset_count if fence is not None else 0
        return range(newest, max(-1, newest - MAX_RESETS), -1)

    def _look_up_copies(self, ids: Sequence[bytes]) -> _Records:
        """Look up copy ids on all retry nodes.

        All, because the queues of a retry topic may have been on other nodes before.
        """
        records, literal_ids = _Records(), failure_sql.literal_batches(ids)

        def read(session: Session, info: NodeInfo) -> None:
            places = failure_sql.read_copy_places(session, batches=literal_ids)
            records.places.update(
                (batch, (info.id, place)) for batch, place in places.items()
            )
            records.waiting.update(
                failure_sql.read_waiting_copies(session, batches=literal_ids)
            )
            dead = dead_letter_sql.read_dead_copies(
                session, group_id=self._group_id, batches=literal_ids
            )
            records.dead.update((batch, (info.id, row)) for batch, row in dead.items())

        skipped = sweeping.query_nodes(
            sweeping.retry_nodes(),
            read,
            subject="Copies of a message",
            prepare=delayed_store.prepare,
        )
        records.complete = not skipped
        return records

    def _find_next(self, batch: bytes) -> bytes | _Place | None:
        """Return the next id or place of a copy. At the last copy, set the end of the trail
        and return None.
        """
        records, trail = self._look_up_copies([batch]), self.trail
        if batch in records.dead:
            trail.dead_node, trail.dead = records.dead[batch]
            trail.end, trail.at_ms = "dead", trail.dead.died_at_ms
            return None
        if batch in records.waiting:
            copy = records.waiting[batch]
            trail.end, trail.at_ms, trail.failed = "waiting", copy.due_at_ms, copy.attempt
            trail.origin = msgspec.json.decode(copy.origin or "{}", type=Origin)
            return None
        if batch not in records.places:
            trail.end = "unknown"
            return None
        node_id, copy_place = records.places[batch]
        if copy_place.queue == failure_sql.DEAD:
            # The redrive's id contains the time of death, which is known only within these ms.
            died_at_ms = copy_place.stored_at_ms
            ids = [
                failure_rules.redrive_id(died_at_ms=at_ms, dead=batch, to="group")
                for at_ms in range(died_at_ms, died_at_ms + DEAD_DELAY_MS)
            ]
            redrives = self._look_up_copies(ids)
            redriven_batch = next(filter(redrives.has, ids), None)
            if redriven_batch is None:
                trail.at_ms = died_at_ms
                trail.end = "removed" if redrives.complete else "unknown"
                return None
            # A copy that still waits has no place yet, so its time is not known exactly.
            _, redriven = redrives.places.get(redriven_batch, (0, copy_place))
            trail.redrives.append(Redriven(died_at_ms, redriven.stored_at_ms))
            trail.failed = 0
            return redriven_batch
        if copy_place.queue == 0:
            # The copy was delayed. When due, it moved to the retry topic under a new id.
            moved_batch = moved_id(node_id, copy_place.first_offset)
            arrival = self._look_up_copies([moved_batch]).places.get(moved_batch)
            # Queue 0: it went to another node, or was recalled.
            if arrival is None or arrival[1].queue == 0:
                trail.end = "unknown"
                return None
            copy_place = arrival[1]
        return self._check_retry_topic(copy_place.queue, copy_place.first_offset)

    def _check_retry_topic(self, queue: int, offset: int) -> _Place | None:
        """Return the place of a copy in the retry topic if the group has read it. Otherwise
        it is due.
        """
        with node_pools.node_of(queue).reading() as session:
            rows = failure_sql.select_failing(
                session, queue=queue, offsets=[offset], most_bytes=1
            )
            position = reader_sql.read_positions(
                session, group_id=self._group_id, queues=[queue]
            ).get(queue)
            is_read = position is not None and (position.committed or 0) > offset
            # A share group finishes messages out of order, also above its committed offset.
            if not is_read and self._is_share:
                is_read = run_sql.has_finished(
                    session, group_id=self._group_id, queue=queue, offset=offset
                )
        if not rows:
            self.trail.end = "unknown"  # retention has deleted it
            return None
        (row,) = rows
        self.trail.origin = msgspec.json.decode(row.origin or "{}", type=Origin)
        self.trail.failed = row.attempt
        if not is_read:
            self.trail.end, self.trail.at_ms = "due", row.stored_at_ms
            return None
        return _Place(queue, offset, row.stored_at_ms, row.attempt)


def _is_recorded(stored_at_ms: int) -> bool:
    """Return True if records of all copies of a message stored at a time still exist."""
    kept_ms = batches.KEPT_HOURS * 3_600_000 - MARGIN_MS
    return time.time() * 1000 - stored_at_ms < kept_ms
