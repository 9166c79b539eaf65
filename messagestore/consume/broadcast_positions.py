"""Reader rows of the instances of broadcasting groups, from join to deletion.

An instance has a reader row in every queue that its group reads, from the subscription's
start on. The rows are inserted when the instance joins (for subscriptions that are ready),
and when the group subscribes to a topic (for existing instances). If both happen at once,
or a node is unavailable, a row may be missing: then the acquire of the queue inserts it.
The rows of an instance are deleted after a week without a member (prune()).
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from messagestore.heads import reader_starts
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from metadata.cache import snapshot
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError, NodeUnavailable
from metadata.groups import subscription_rows
from metadata.groups.subscription_rows import EPOCHS_EACH, SubscriptionView
from metadata.membership import broadcast_instances
from metadata.rules.groups.states import SubscriptionState

log = logging.getLogger(__name__)


def place(*, consumer: ConsumerId, queues: Collection[int] | None = None) -> None:
    """Insert missing reader rows of the consumer's instance in some queues, or in all of
    its group.

    Rows on an unavailable node stay missing. Raises MetadataUnavailable.
    """
    ready = _ready(consumer.group_id)
    for subscription in ready.values():
        selected_queues = [
            queue for queue in subscription.queues if queues is None or queue in queues
        ]
        for node, node_queues in node_pools.group_by_node(selected_queues):
            try:
                # An existing row keeps its position, so a lost answer leaves nothing in
                # doubt, and the statement may be repeated.
                with node.reading() as session:
                    reader_starts.insert_readers(
                        session,
                        group_id=consumer.group_id,
                        queues=node_queues,
                        epoch=subscription.base_epoch,
                        start=subscription.start,
                        start_at_ms=subscription.start_at_ms,
                        instances=[consumer.instance],
                    )
            except NodeUnavailable as error:
                log.warning(
                    "Instance %s gets its reader rows later: %s",
                    consumer.instance,
                    error.detail,
                )
    # A subscription that ended meanwhile may have deleted its reader rows before these were
    # inserted. So the subscriptions are read again, and rows of an ended subscription are
    # deleted here.
    for subscription_id in ready.keys() - _ready(consumer.group_id).keys():
        _delete_readers(consumer, ready[subscription_id])


def _ready(group_id: int) -> dict[int, SubscriptionView]:
    """Return the ready subscriptions of a group, by subscription id."""
    views = subscription_rows.views_of([group_id]).get(group_id, ())
    return {view.id: view for view in views if view.state == SubscriptionState.READY}


def _delete_readers(consumer: ConsumerId, subscription: SubscriptionView) -> None:
    for node, node_queues in node_pools.group_by_node(subscription.queues):
        try:
            with node.reading() as session:
                reader_sql.delete_readers(
                    session,
                    group_id=consumer.group_id,
                    queues=node_queues,
                    # Above this bound are the rows of a later subscription to the same
                    # topic.
                    below=subscription.base_epoch + EPOCHS_EACH,
                    instance=consumer.instance,
                )
        except NodeUnavailable as error:
            # They are deleted with the instance (prune()), or replaced at the next
            # subscription.
            log.warning(
                "Instance %s: reader rows are deleted later: %s",
                consumer.instance,
                error.detail,
            )


def prune(*, after_days: float = broadcast_instances.KEPT_DAYS) -> int:
    """Delete instances that had no member for `after_days`, and their reader rows.

    A bounded pass. Return the number of deleted instances. An instance with rows on an
    unavailable node stays for a later pass.
    """
    released_instances = broadcast_instances.release_names(after_days=after_days)
    # Without the refresh, a node that was added since would keep the rows of a deleted
    # instance.
    snapshot.refresh()
    deleted = 0
    for instance in released_instances:
        try:
            for node_id in snapshot.current().nodes:
                with node_pools.node(node_id).reading() as session:
                    reader_sql.delete_instance(
                        session, group_id=instance.group_id, instance=instance.reader
                    )
            # Last: the row in metadata is what makes a later pass try the remaining nodes
            # again.
            broadcast_instances.delete_instance(instance.id)
            deleted += 1
        except CatmqError as error:
            log.warning(
                "Instance %d could not be deleted, will retry: %s",
                instance.id,
                error.detail,
            )
    return deleted
