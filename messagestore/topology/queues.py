"""Expanding and shrinking a topic while it is in use; closing and opening single queues.

Expanding creates rows in state creating, then tables, then a reader row for every reader of
the topic, then changes the layout. So a queue gets messages only when every group has its
position at the queue's beginning. `sweep` finishes or rolls back unfinished expansions.

Shrinking closes the queues on the nodes, then in metadata; `drains` does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct, structs

from messagestore import sweeping
from messagestore.topology import drains, queue_states, reader_rows, topics
from messagestore.topology.drains import QueueDrain, Unread
from messagestore.topology.topics import QueuesTaken
from metadata.actors import Actor, job
from metadata.errors import CatmqError, Unavailable
from metadata.groups import layout, subscribers
from metadata.groups.layout import LayoutChange
from metadata.groups.subscribers import TopicQueues
from metadata.rules.topics.states import QueueState
from metadata.topics.topic_rows import QueueView, TopicView

log = logging.getLogger(__name__)
UNFINISHED_AFTER_S = 60.0
TRIES = 10  # rounds of creating reader rows while groups keep subscribing


class Change(Struct, frozen=True):
    """Result of an expansion or a shrink, or its preview with `dry_run`.

    `queues` are the new queues, or those that drain; ids of new queues are void with
    `dry_run`. `moved_slots` of 1,024 move to another queue, and with them that share of all
    keys.

    `unread` counts the messages of each group in the queues that lose slots. A moved key
    stays in order only for a group that has read them before it reads later messages.
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
    """Add queues to a topic, spread over nodes or all on `node`. Needs `manage`.

    They are in use when this returns. Raises what `layout.plan_expand` in metadata raises.
    QueuesTaken and NodeUnavailable are raised after a rollback.
    """
    planned = layout.plan_expand(
        topic=topic, queues=queues, node=node, actor=actor, dry_run=dry_run
    )
    change = _preview(planned, dry_run=dry_run)
    if dry_run:
        return change
    try:
        layout_change = _finish(planned.topic, planned.queues, actor)
    except CatmqError as error:
        _roll_back(planned.topic.id, planned.queues, actor, error)
        raise
    return _complete(change, layout_change)


def _preview(planned: LayoutChange, *, dry_run: bool) -> Change:
    unread = drains.unread(
        topic=planned.topic,
        queues=[queue for queue in planned.topic.queues if queue.queue in planned.losing],
    )
    version = planned.topic.layout_version
    return Change(
        planned.topic.name, dry_run, version, planned.queues, len(planned.slots), unread
    )


def _complete(change: Change, layout_change: LayoutChange) -> Change:
    return structs.replace(
        change,
        layout_version=layout_change.topic.layout_version,
        queues=layout_change.queues,
        moved_slots=len(layout_change.slots) or change.moved_slots,
    )


def _finish(topic: TopicView, queues: Sequence[QueueView], actor: Actor) -> LayoutChange:
    """Create tables and reader rows of new queues, and open the queues.

    A repeat, or a concurrent call, is harmless.
    """
    topics.make_tables(queues, topic=topic.name)
    ids = [queue.queue for queue in queues]
    prepared: set[int] = set()
    for _ in range(TRIES):
        for subscription in subscribers.active_subscriptions(topic.id):
            if subscription.id not in prepared:
                reader_rows.insert(subscription, ids)
                prepared.add(subscription.id)
        # Returns None if a group has subscribed since: its reader rows are missing.
        layout_change = layout.make_ready(
            topic_id=topic.id, queues=ids, prepared=prepared, actor=actor
        )
        if layout_change is not None:
            # Again for instances of broadcasting groups that joined since the first pass.
            for subscription in subscribers.active_subscriptions(topic.id):
                reader_rows.insert(subscription, ids)
            # The node may have become read-only since the queues were created.
            queue_states.settle_later(ids)
            return layout_change
    raise Unavailable(
        "Groups subscribe faster than their reader rows can be made.", retry_after_ms=1000
    )


def _roll_back(
    topic_id: int, queues: Sequence[QueueView], actor: Actor, error: CatmqError
) -> None:
    """Remove an unfinished expansion. Ids of earlier queues (`QueuesTaken`) are not
    dropped.
    """
    with sweeping.log_failure("Completion of an expansion"):
        ids = [queue.queue for queue in queues]
        taken_ids = error.queues if isinstance(error, QueuesTaken) else ()
        layout.abandon_expansion(
            topic_id=topic_id, queues=ids, taken=taken_ids, actor=actor
        )
        queue_states.settle_later(ids)


def shrink(
    *,
    topic: str,
    actor: Actor,
    queues: Sequence[int] | None = None,
    count: int | None = None,
    dry_run: bool = False,
) -> Change:
    """Close queues for good, given by ids or by their count. Needs `manage`.

    Their slots go to the other queues; groups read them to the end, then they are retired.
    Raises what `metadata.groups.layout.shrink` raises, and NodeUnavailable, after which
    some queues may be closed for a moment; a repeat is safe.
    """
    planned = layout.shrink(
        topic=topic, queues=queues, count=count, actor=actor, dry_run=True
    )
    change = _preview(planned, dry_run=dry_run)
    if dry_run:
        return change
    ids = [queue.queue for queue in planned.queues]
    try:
        # Nodes first: brokers with an older snapshot must not send to these queues any
        # more.
        queue_states.set_heads(ids, state="ro")
        layout_change = layout.shrink(topic=topic, queues=ids, actor=actor)
    finally:
        queue_states.settle_later(ids)
    return _complete(change, layout_change)


def set_state(*, topic: str, queue: int, state: str, actor: Actor) -> QueueDrain:
    """Close a queue for sends (`read_only`), or open it (`read_write`). Needs `manage`.

    Raises what `layout.set_state` in metadata raises, and NodeUnavailable; repeat it if the
    queue was to be opened.
    """
    # Checks everything, so that the node is not changed for a request that is refused.
    layout.set_state(topic=topic, queue=queue, state=state, actor=actor, dry_run=True)
    try:
        if state == QueueState.READ_ONLY:
            queue_states.set_heads([queue], state="ro")
        layout.set_state(topic=topic, queue=queue, state=state, actor=actor)
    except CatmqError:
        queue_states.settle_later([queue])
        raise
    queue_states.settle([queue])
    return drains.describe(topic=topic, queue=queue, actor=actor)[0]


def sweep(older_than_s: float = UNFINISHED_AFTER_S) -> int:
    """Finish or roll back expansions that a crash interrupted. Returns how many were
    checked.
    """

    def finish_or_roll_back(topic_queues: TopicQueues) -> None:
        topic, queues = topic_queues.topic, topic_queues.queues
        try:
            _finish(topic, queues, job("queues"))
        except CatmqError as error:
            log.warning(
                "Expansion of topic %s is rolled back: %s", topic.name, error.detail
            )
            _roll_back(topic.id, queues, job("queues"), error)

    checked = sweeping.run_each(
        subscribers.stuck_in_creation(older_than_s),
        act=finish_or_roll_back,
        name=lambda topic_queues: (
            f"Completion of the expansion of topic {topic_queues.topic.name}"
        ),
    )
    queue_states.sweep()
    return checked
