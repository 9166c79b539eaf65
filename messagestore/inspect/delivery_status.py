"""Outcome of one message in each group that reads its topic: from positions, waiting copies and the dead.

Nothing is written per message and group, so this is put together: whether the group has committed beyond the
message, or a share group has finished it, and whether a copy of it is among the `LOOKED` that are due first,
or among the `LOOKED` newest dead. A message that is in neither was handled, was dropped, or its copy lies
elsewhere; the answer says where that may be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from messagestore.pool import node_pools
from messagestore.retries import dead_letters, pending
from messagestore.tables import reader_sql
from messagestore.tables.shares import run_sql
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access
from metadata.errors import NodeUnavailable
from metadata.groups import commits

LOOKED = 1_000  # waiting copies, and dead letters, of each group
MOST_GROUPS = 20


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """A message in a group. `state`: unread, read (committed, or finished), waiting (for a retry) or dead.

    `attempt` counts failures, `at_ms` is when it is due or died, `dead_id` names it among the dead. Of one
    that was read: it was so after `after_ms` and by `by_ms`, None where that is not known. Of an unread one:
    `ahead` messages of its queue come before it. `partly`: there is more in the group's failures than was
    looked through, retries that came and are not read yet among it; or the actor may not look, or a node did
    not answer.
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
    partly: bool = False


def of_message(
    *, topic: str, queue: int, offset: int, stored_at_ms: int, actor: Actor
) -> list[DeliveryStatus]:
    """The message in up to MOST_GROUPS groups that share the topic's queues and that the actor sees, by name.

    Waiting and dead ones are told to who may `manage` the group. Raises NotFound(topic_not_found),
    NodeUnavailable.
    """
    known, topic_id = snapshot.current(), snapshot.find_topic(topic).id
    reading = {one.group_id for one in known.subscriptions.values() if one.topic_id == topic_id}
    readers = [known.groups[group_id] for group_id in reading if group_id in known.groups]
    seen = [one for one in readers if one.mode != "broadcasting" and access.sees(actor, one.name)]
    found = []
    with node_pools.node_of(queue).reading() as session:
        for one in sorted(seen, key=lambda one: one.name)[:MOST_GROUPS]:
            at = reader_sql.read_positions(session, group_id=one.id, queues=[queue]).get(queue)
            committed = at.committed if at is not None and at.committed is not None else 0
            is_read = committed > offset or (
                one.is_share and run_sql.has_finished(session, group_id=one.id, queue=queue, offset=offset)
            )
            found.append(
                (one, DeliveryStatus(one.name, "read" if is_read else "unread", ahead=offset - committed))
            )
    place = queue, offset
    timed = [
        _timed(status, place, topic_id=topic_id, group_id=one.id, since_ms=stored_at_ms)
        for one, status in found
    ]
    return [_looked_up(one, topic, place, actor) for one in timed]


def _timed(
    status: DeliveryStatus, place: tuple[int, int], *, topic_id: int, group_id: int, since_ms: int
) -> DeliveryStatus:
    """The same; of one that was read, with the time that positions tell."""
    if status.state != "read":
        return status
    queue, offset = place
    step = commits.first_committed(
        topic_id=topic_id, group_id=group_id, queue=queue, offset=offset, since_ms=since_ms
    )
    after_ms, by_ms = (step.after_ms, step.by_ms) if step else (None, None)
    return replace(status, ahead=None, after_ms=after_ms, by_ms=by_ms)


def _looked_up(status: DeliveryStatus, topic: str, place: tuple[int, int], actor: Actor) -> DeliveryStatus:
    """The same, as the group's failures tell it."""
    if not access.may(actor, "manage", status.group, what="group"):
        return replace(status, partly=True)
    try:
        waiting = pending.waiting(group=status.group, topic=topic, limit=LOOKED, actor=actor)
        gone = dead_letters.page(group=status.group, topic=topic, after="", limit=LOOKED, actor=actor)
    except NodeUnavailable:
        return replace(status, partly=True)
    for died in gone.messages:
        if (died.queue, died.offset) == place:
            return replace(
                status,
                state="dead",
                attempt=died.attempts,
                at_ms=died.died_at_ms,
                first_failed_at_ms=died.first_failed_at_ms,
                error=died.error,
                dead_id=died.id,
            )
    for copy in waiting.messages:
        if (copy.queue, copy.offset) == place:
            return replace(
                status,
                state="waiting",
                attempt=copy.attempt,
                at_ms=copy.due_at_ms,
                first_failed_at_ms=copy.first_failed_at_ms,
                error=copy.error,
            )
    more = gone.next is not None or sum(one.waiting for one in waiting.topics) > LOOKED
    coming = any(one.unread for one in waiting.topics)
    return replace(status, partly=more or coming or bool(waiting.away or gone.away))
