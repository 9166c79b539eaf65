"""More queues for a topic, or fewer, while it is in use; and single queues closed and
opened by hand.

Expanding: rows in state creating, then tables, then a reader row for every reader of the
topic, then the layout: a queue gets messages only when every group has its place in it, at
its beginning.
`sweep` finishes
or takes back what a crash left in between. Shrinking: closed on the nodes, then metadata;
what follows is in `drains`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from messagestore import sweeping
from messagestore.topology import drains, queue_states, reader_rows, topics
from messagestore.topology.drains import QueueDrain, Unread
from messagestore.topology.topics import QueuesTaken
from metadata.actors import Actor, job
from metadata.errors import CatmqError, Unavailable
from metadata.groups import layout, subscribers
from metadata.groups.layout import LayoutChange
from metadata.groups.subscribers import TopicQueues
from metadata.topics.topic_rows import QueueView, TopicView

log = logging.getLogger(__name__)
UNFINISHED_AFTER_S = 60.0
TRIES = 10


@dataclass(frozen=True, slots=True)
class Change:
    """Changes that an expansion or a shrinking made, or with `dry_run` would make.

    `queues` are the new ones, or those that drain; the ids of new ones are void with
    `dry_run`. `moved_slots`
    of 1,024 go to another queue, and with them that share of all keys. `unread` counts, by
    group, what is still to be read in the queues that lose slots: keys that move are in
    order only for a group that has read that before what is sent afterwards.
    """

    topic: str
    dry_run: bool
    layout_version: int
    queues: tuple[QueueView, ...]
    moved_slots: int
    unread: tuple[Unread, ...]

    @property
    def moved_share(self) -> float:
        """The share of keys that move, 0 to 1."""
        return self.moved_slots / 1024


def expand(
    *, topic: str, queues: int, actor: Actor, node: str | None = None, dry_run: bool = False
) -> Change:
    """Give a topic so many more queues, spread or all on `node`; in use when this returns.
    Needs `manage`.

    Raises what `layout.plan_expand` of metadata raises; QueuesTaken and NodeUnavailable
    after taking back what was made.
    """
    planned = layout.plan_expand(
        topic=topic, queues=queues, node=node, actor=actor, dry_run=dry_run
    )
    change = _previewed(planned, dry_run=dry_run)
    if dry_run:
        return change
    try:
        done = _finish(planned.topic, planned.queues, actor)
    except CatmqError as error:
        _take_back(planned.topic.id, planned.queues, actor, error)
        raise
    return _done(change, done)


def _previewed(planned: LayoutChange, *, dry_run: bool) -> Change:
    losing = [one for one in planned.topic.queues if one.queue in planned.losing]
    unread = drains.unread(topic=planned.topic, queues=losing)
    version = planned.topic.layout_version
    return Change(
        planned.topic.name, dry_run, version, planned.queues, len(planned.slots), unread
    )


def _done(change: Change, done: LayoutChange) -> Change:
    return replace(
        change,
        layout_version=done.topic.layout_version,
        queues=done.queues,
        moved_slots=len(done.slots) or change.moved_slots,
    )


def _finish(topic: TopicView, queues: Sequence[QueueView], actor: Actor) -> LayoutChange:
    """Make what new queues need, and open them; harmless where it was done before, or is
    being done.
    """
    topics.make_tables(queues, topic=topic.name)
    ids = [one.queue for one in queues]
    prepared: set[int] = set()
    for _ in range(TRIES):
        for reading in subscribers.active_subscriptions(topic.id):
            if reading.id not in prepared:
                reader_rows.insert(reading, ids)
                prepared.add(reading.id)
        done = layout.make_ready(
            topic_id=topic.id, queues=ids, prepared=prepared, actor=actor
        )
        if done is not None:
            # instances that joined since the list was made
            for reading in subscribers.active_subscriptions(topic.id):
                reader_rows.insert(reading, ids)
            queue_states.settle_later(ids)  # a node may have been closed meanwhile
            return done
    raise Unavailable(
        "Groups subscribe faster than their reader rows can be made.", retry_after_ms=1000
    )


def _take_back(
    topic_id: int, queues: Sequence[QueueView], actor: Actor, error: CatmqError
) -> None:
    with sweeping.log_failure("Completion of an expansion"):
        ids = [one.queue for one in queues]
        taken = error.queues if isinstance(error, QueuesTaken) else ()
        layout.abandon_expansion(topic_id=topic_id, queues=ids, taken=taken, actor=actor)
        queue_states.settle_later(ids)


def shrink(
    *,
    topic: str,
    actor: Actor,
    queues: Sequence[int] | None = None,
    count: int | None = None,
    dry_run: bool = False,
) -> Change:
    """Close queues for good, given by ids or how many, and give their slots to the others.
    Needs `manage`.

    They are read to their end and retired then. Raises what `metadata.groups.layout.shrink`
    raises, and NodeUnavailable, after which some may be closed for a moment; a repeat is
    safe.
    """
    planned = layout.shrink(
        topic=topic, queues=queues, count=count, actor=actor, dry_run=True
    )
    change = _previewed(planned, dry_run=dry_run)
    if dry_run:
        return change
    ids = [one.queue for one in planned.queues]
    try:
        queue_states.set_heads(ids, state="ro")
        done = layout.shrink(topic=topic, queues=ids, actor=actor)
    finally:
        queue_states.settle_later(ids)
    return _done(change, done)


def set_state(*, topic: str, queue: int, state: str, actor: Actor) -> QueueDrain:
    """The queue, closed for sends (`read_only`) or open (`read_write`). Needs `manage`.

    Raises what `layout.set_state` of metadata raises, and NodeUnavailable; if it was to be
    opened, repeat it.
    """
    layout.set_state(topic=topic, queue=queue, state=state, actor=actor, dry_run=True)
    try:
        if state == "read_only":
            queue_states.set_heads([queue], state="ro")
        layout.set_state(topic=topic, queue=queue, state=state, actor=actor)
    except CatmqError:
        queue_states.settle_later([queue])
        raise
    queue_states.settle([queue])
    return drains.describe(topic=topic, queue=queue, actor=actor)[0]


def sweep(older_than_s: float = UNFINISHED_AFTER_S) -> int:
    """Finish or take back the expansions that a crash left half done; return how many it
    looked at.
    """
    looked_at = sweeping.run_each(
        subscribers.stuck_in_creation(older_than_s),
        act=_finish_or_take_back,
        name=lambda waiting: f"Completion of the expansion of topic {waiting.topic.name}",
    )
    queue_states.sweep()
    return looked_at


def _finish_or_take_back(waiting: TopicQueues) -> None:
    try:
        _finish(waiting.topic, waiting.queues, job("queues"))
    except CatmqError as error:
        log.warning(
            "Expansion of topic %s is rolled back: %s", waiting.topic.name, error.detail
        )
        _take_back(waiting.topic.id, waiting.queues, job("queues"), error)
