"""Outcome of a message in each group that reads its topic.

Nothing is stored per message and group, so the outcome is derived from other rows:

* The committed offset of the group, or the finished messages of a share group, tell whether
  the message was read.
* A failure of the message in the group makes a copy of it, which waits for a retry, and a
  record of the copy. copy_trail.py follows the records to the last copy. They are kept for
  two days.
* For an older message the dead letters of the group, and the copies that are due next, are
  searched instead. If neither contains it, the answer is marked as uncertain (`partly`): the
  message may have failed and been redriven since.
* Offset resets, filters and the start of the subscription tell whether a message was passed
  over without being delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct, structs

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
from metadata.rules.groups.states import GroupMode
from metadata.rules.rights import Right

MOST_GROUPS = 20
# Limits of the search for a message without records: waiting copies, and pages of
# dead_letters.SCAN dead letters each.
MAX_SEARCHED_COPIES = 1_000
MOST_PAGES = 10


class DeliveryStatus(Struct, frozen=True):
    """Outcome of a message in a group. `state` is

    * unread
    * read: committed, or finished in a share group
    * waiting: for a retry
    * dead
    * removed: it died, then was redriven to the topic, deleted or expired
    * skipped: by `skipped_by`, which is reset, filter or start (of the subscription)

    `attempt` counts failures. `at_ms` is when the retry is due or the message died.
    `dead_id` is its id as a dead letter. `redrives` are its redrives to the group. A read message
    was committed between `after_ms` and `by_ms`, None where that is unknown. `ahead` is
    the number of messages before an unread message. `partly`: failures may be missing, because
    records are older than two days, the actor may not look, or a node did not answer.
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
    """Return the outcome of a message in up to MOST_GROUPS groups, by name.

    Includes clustering groups that the actor sees. Failures are shown only to an actor that
    may `manage` the group. `message` is tried against the filters of subscriptions. Raises
    NotFound(topic_not_found), NodeUnavailable.
    """
    current, topic_id = snapshot.current(), snapshot.find_topic(topic).id
    group_ids = {
        s.group_id for s in current.subscriptions.values() if s.topic_id == topic_id
    }
    visible_groups = [
        group
        for group_id in group_ids
        if (group := current.groups.get(group_id)) is not None
        and group.mode != GroupMode.BROADCASTING
        and access.may_see(actor, group.name)
    ]
    # All positions from one session, then metadata and retry nodes: a session is not held
    # while other nodes are queried.
    read_states = []
    with node_pools.node_of(queue).reading() as session:
        for group in sorted(visible_groups, key=lambda group: group.name)[:MOST_GROUPS]:
            position = reader_sql.read_positions(
                session, group_id=group.id, queues=[queue]
            ).get(queue)
            committed = (position.committed or 0) if position is not None else 0
            # A share group finishes messages out of order, so some above its committed
            # offset are done.
            is_read = committed > offset or (
                group.is_share
                and run_sql.has_finished(
                    session, group_id=group.id, queue=queue, offset=offset
                )
            )
            status = (
                DeliveryStatus(group.name, "read")
                if is_read
                else DeliveryStatus(group.name, "unread", ahead=offset - committed)
            )
            read_states.append((group, status))
    traced = _Message(topic, topic_id, queue, offset, stored_at_ms)
    statuses = []
    for group, status in read_states:
        if status.state == "read":
            # The time of the commit, as far as recorded positions show it.
            step = commits.first_committed(
                topic_id=topic_id,
                group_id=group.id,
                queue=queue,
                offset=offset,
                since_ms=stored_at_ms,
            )
            after_ms, by_ms = (step.after_ms, step.by_ms) if step else (None, None)
            status = structs.replace(status, after_ms=after_ms, by_ms=by_ms)
        with_failures = _add_failures(status, traced, group, actor)
        statuses.append(_correct_skipped(with_failures, traced, group, message))
    return statuses


class _Message(Struct, frozen=True):
    """The message whose outcome is asked for."""

    topic: str
    topic_id: int
    queue: int
    offset: int
    stored_at_ms: int

    @property
    def origin(self) -> str:
        """The text with which the column `origin` begins in all copies of the message.

        The column has JSON of `origins.Origin`: topic, queue and offset come first and are the
        same in all copies, first_failed_at_ms and error differ. So dead letters of the message
        are found with a prefix search, without parsing.
        """
        fields = {"topic": self.topic, "queue": self.queue, "offset": self.offset}
        return msgspec.json.encode(fields).decode().removesuffix("}") + ","


def _correct_skipped(
    status: DeliveryStatus,
    traced: _Message,
    group: GroupInfo,
    message: StoredMessage | None,
) -> DeliveryStatus:
    """Correct the state of a message that was committed without being delivered."""
    # A failed message was delivered, so nothing skipped it.
    if status.state != "read" or status.attempt:
        return status
    subscription = snapshot.current().subscription(group.id, traced.topic_id)
    if message is not None and subscription is not None:
        # Without `message`, its tag and headers are unknown and the filter cannot be tried.
        message_filter = subscription.delivery.only
        if not message_filter.takes(message.tag, message.headers):
            return structs.replace(status, state="skipped", skipped_by="filter")
    since = datetime.fromtimestamp(traced.stored_at_ms / 1000, tz=UTC)
    if offset_resets.has_skipped(
        group_id=group.id, queue=traced.queue, offset=traced.offset, since=since
    ):
        return structs.replace(status, state="skipped", skipped_by="reset")
    if subscription_rows.started_after(
        group_id=group.id, topic_id=traced.topic_id, at=since
    ):
        return structs.replace(status, state="skipped", skipped_by="start")
    return status


def _add_failures(
    status: DeliveryStatus, traced: _Message, group: GroupInfo, actor: Actor
) -> DeliveryStatus:
    """Add the message's failures, if the actor may see them.

    For a message without records, the group's dead letters and first waiting copies are
    searched.
    """
    # The same right as for the list of the group's dead letters.
    if not access.may(actor, Right.MANAGE, status.group, what="group"):
        return structs.replace(status, partly=True)
    trail = copy_trail.follow_failures(
        group_id=group.id,
        topic_id=traced.topic_id,
        queue=traced.queue,
        offset=traced.offset,
        stored_at_ms=traced.stored_at_ms,
    )
    status = _apply_trail(status, trail)
    if trail.end != "unknown":
        return status
    # Costly: this reads pages of dead letters and copies, where the trail takes index look-ups.
    try:
        dead_letter = dead_letters.find(
            group=status.group,
            topic=traced.topic,
            origin=traced.origin,
            pages=MOST_PAGES,
            actor=actor,
        )
        if dead_letter is not None:
            return _apply_death(status, dead_letter)
        waiting_copies = pending.waiting(
            group=status.group, topic=traced.topic, limit=MAX_SEARCHED_COPIES, actor=actor
        )
    except NodeUnavailable:
        return status
    for copy in waiting_copies.messages:
        if (copy.queue, copy.offset) == (traced.queue, traced.offset):
            return structs.replace(
                status,
                state="waiting",
                attempt=copy.attempt,
                at_ms=copy.due_at_ms,
                first_failed_at_ms=copy.first_failed_at_ms,
                error=copy.error,
                partly=False,
            )
    return status


# End of a trail of copies (copy_trail.Trail) → state of the message. At other ends the state
# by the committed offset stays.
STATES: Mapping[str, str] = {
    "waiting": "waiting",
    "due": "waiting",
    "dead": "dead",
    "removed": "removed",
    "read": "read",
}


def _apply_trail(status: DeliveryStatus, trail: Trail) -> DeliveryStatus:
    """Return the status with what the trail of copies shows: failures, death and redrives."""
    if trail.dead is not None:
        dead_letter = dead_letters.build_info(trail.dead_node, trail.dead)
        return structs.replace(
            _apply_death(status, dead_letter), redrives=tuple(trail.redrives)
        )
    return structs.replace(
        status,
        state=STATES.get(trail.end, status.state),
        attempt=trail.failed or None,
        at_ms=trail.at_ms,
        first_failed_at_ms=trail.origin.first_failed_at_ms if trail.origin else None,
        error=trail.origin.error if trail.origin else "",
        redrives=tuple(trail.redrives),
        partly=trail.end == "unknown",
    )


def _apply_death(status: DeliveryStatus, dead_letter: DeadLetterInfo) -> DeliveryStatus:
    return structs.replace(
        status,
        state="dead",
        attempt=dead_letter.attempts,
        at_ms=dead_letter.died_at_ms,
        first_failed_at_ms=dead_letter.first_failed_at_ms,
        error=dead_letter.error,
        dead_id=dead_letter.id,
        partly=False,
    )
