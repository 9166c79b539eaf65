"""Outcome of one message in each group that reads its topic: from positions, copies and
dead letters.

Nothing is written per message and group, so this is put together: whether the group has
committed beyond the message, or a share group has finished it, and what became of the
copies that its failures made (`copy_trail`). Records of copies are kept for two days. Of an
older message the group's dead letters are searched, and the copies that are due first. A
message of which neither tells is never called handled: it may have failed and been redriven
since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from messagestore.engine.messages import StoredMessage
from messagestore.inspect import copy_trail
from messagestore.inspect.copy_trail import Redriven, Trail
from messagestore.pool import node_pools
from messagestore.retries import dead_letters, pending
from messagestore.retries.dead_letters import DeadLetterInfo
from messagestore.tables import reader_sql
from messagestore.tables.shares import run_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo
from metadata.db import access
from metadata.errors import NodeUnavailable
from metadata.groups import commits, offset_resets, subscription_rows

LOOKED = 1_000  # waiting copies of a message without records
MOST_GROUPS = 20
MOST_PAGES = 10  # of dead_letters.SCAN dead letters each, for a message without records


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """A message in a group. `state`: unread, read (committed, or finished), waiting (for a
    retry), dead, removed (it died, and was redriven to the topic, deleted or expired) or
    skipped (by a reset, a filter or the start of a subscription).

    `attempt` counts failures, `at_ms` is when it is due or died, `dead_id` names it among
    the dead, and
    `redrives` are those to the group. Of one that was read: it was so after `after_ms` and
    by `by_ms`, None where that is not known. Of an unread one: `ahead` messages of its
    queue come before it.
    `partly`: its
    failures are not known completely: records are older than two days, the actor may not
    look, or a node did not answer. `skipped_by` is reset, filter or start.
    """

    group: str
    state: str
    attempt: int | None = None
    at_ms: int | None = None
    first_failed_at_ms: int | None = None
    after_ms: int | None = None
    by_ms: int | None = None
    ahead: int | None = None
    error: str = ""
    dead_id: str = ""
    redrives: tuple[Redriven, ...] = ()
    skipped_by: str = ""
    partly: bool = False


def trace_message(
    *,
    topic: str,
    queue: int,
    offset: int,
    stored_at_ms: int,
    actor: Actor,
    message: StoredMessage | None = None,
) -> list[DeliveryStatus]:
    """The message in up to MOST_GROUPS groups that share the topic's queues and that the
    actor sees, by name.

    Waiting and dead ones are told to who may `manage` the group. `message` is tried against
    the filters of subscriptions. Raises NotFound(topic_not_found), NodeUnavailable.
    """
    known, topic_id = snapshot.current(), snapshot.find_topic(topic).id
    reading = {
        one.group_id for one in known.subscriptions.values() if one.topic_id == topic_id
    }
    readers = [known.groups[group_id] for group_id in reading if group_id in known.groups]
    seen = [
        one
        for one in readers
        if one.mode != "broadcasting" and access.may_see(actor, one.name)
    ]
    found = []
    with node_pools.node_of(queue).reading() as session:
        for one in sorted(seen, key=lambda one: one.name)[:MOST_GROUPS]:
            at = reader_sql.read_positions(session, group_id=one.id, queues=[queue]).get(
                queue
            )
            committed = at.committed if at is not None and at.committed is not None else 0
            is_read = committed > offset or (
                one.is_share
                and run_sql.has_finished(
                    session, group_id=one.id, queue=queue, offset=offset
                )
            )
            found.append(
                (
                    one,
                    DeliveryStatus(
                        one.name, "read" if is_read else "unread", ahead=offset - committed
                    ),
                )
            )
    about = _Message(topic, topic_id, queue, offset, stored_at_ms)
    statuses = []
    for group, status in found:
        told = _with_failures(_timed(status, about, group.id), about, group, actor)
        statuses.append(_skipped(told, about, group, message))
    return statuses


@dataclass(frozen=True, slots=True)
class _Message:
    topic: str
    topic_id: int
    queue: int
    offset: int
    stored_at_ms: int

    @property
    def origin(self) -> str:
        """The beginning of the origin that copies of the message have (`origins.Origin`)."""
        fields = {"topic": self.topic, "queue": self.queue, "offset": self.offset}
        return msgspec.json.encode(fields).decode().removesuffix("}") + ","


def _timed(status: DeliveryStatus, about: _Message, group_id: int) -> DeliveryStatus:
    """Add the time of the commit, as far as recorded positions tell it."""
    if status.state != "read":
        return status
    step = commits.first_committed(
        topic_id=about.topic_id,
        group_id=group_id,
        queue=about.queue,
        offset=about.offset,
        since_ms=about.stored_at_ms,
    )
    after_ms, by_ms = (step.after_ms, step.by_ms) if step else (None, None)
    return replace(status, ahead=None, after_ms=after_ms, by_ms=by_ms)


def _skipped(
    status: DeliveryStatus, about: _Message, group: GroupInfo, message: StoredMessage | None
) -> DeliveryStatus:
    """Correct the state of a message that was committed without being delivered."""
    if status.state != "read" or status.attempt:
        return status
    subscription = snapshot.current().subscription(group.id, about.topic_id)
    if message is not None and subscription is not None:
        tag_filter = subscription.delivery.only
        if not tag_filter.takes(message.tag, message.headers):
            return replace(status, state="skipped", skipped_by="filter")
    since = datetime.fromtimestamp(about.stored_at_ms / 1000, tz=UTC)
    place = {"queue": about.queue, "offset": about.offset}
    if offset_resets.has_skipped(group_id=group.id, **place, since=since):
        return replace(status, state="skipped", skipped_by="reset")
    if subscription_rows.started_after(
        group_id=group.id, topic_id=about.topic_id, at=since
    ):
        return replace(status, state="skipped", skipped_by="start")
    return status


def _with_failures(
    status: DeliveryStatus, about: _Message, group: GroupInfo, actor: Actor
) -> DeliveryStatus:
    """Add what became of the message's failures, for an actor that may see them."""
    if not access.may(actor, "manage", status.group, what="group"):
        return replace(status, partly=True)
    trail = copy_trail.follow_failures(
        group_id=group.id,
        topic_id=about.topic_id,
        queue=about.queue,
        offset=about.offset,
        stored_at_ms=about.stored_at_ms,
    )
    if trail.end == "unknown":
        return _searched(_of_trail(status, trail), about, actor)
    return _of_trail(status, trail)


STATES: Mapping[str, str] = {
    "waiting": "waiting",
    "due": "waiting",
    "dead": "dead",
    "removed": "removed",
    "read": "read",
}


def _of_trail(status: DeliveryStatus, trail: Trail) -> DeliveryStatus:
    """Return the status with death, redrives and retries that the trail of copies has."""
    if trail.dead is not None:
        died = dead_letters.as_message(trail.dead_node, trail.dead)
        return replace(_of_dead(status, died), redrives=tuple(trail.redrives))
    return replace(
        status,
        state=STATES.get(trail.end, status.state),
        attempt=trail.failed or None,
        at_ms=trail.at_ms,
        first_failed_at_ms=trail.origin.first_failed_at_ms if trail.origin else None,
        error=trail.origin.error if trail.origin else "",
        redrives=tuple(trail.redrives),
        partly=trail.end == "unknown",
    )


def _of_dead(status: DeliveryStatus, died: DeadLetterInfo) -> DeliveryStatus:
    return replace(
        status,
        state="dead",
        attempt=died.attempts,
        at_ms=died.died_at_ms,
        first_failed_at_ms=died.first_failed_at_ms,
        error=died.error,
        dead_id=died.id,
        partly=False,
    )


def _searched(status: DeliveryStatus, about: _Message, actor: Actor) -> DeliveryStatus:
    """Search the group's dead letters, and the copies that are due first, for a message
    without records.
    """
    try:
        died = dead_letters.find(
            group=status.group,
            topic=about.topic,
            origin=about.origin,
            pages=MOST_PAGES,
            actor=actor,
        )
        if died is not None:
            return _of_dead(status, died)
        waiting = pending.waiting(
            group=status.group, topic=about.topic, limit=LOOKED, actor=actor
        )
    except NodeUnavailable:
        return status
    for copy in waiting.messages:
        if (copy.queue, copy.offset) == (about.queue, about.offset):
            return replace(
                status,
                state="waiting",
                attempt=copy.attempt,
                at_ms=copy.due_at_ms,
                first_failed_at_ms=copy.first_failed_at_ms,
                error=copy.error,
                partly=False,
            )
    return status
