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
from metadata.membership.broadcast_instances import ReleasedInstance

log = logging.getLogger(__name__)


def place(*, consumer: ConsumerId, queues: Collection[int] | None = None) -> None:
    """Insert missing reader rows of the consumer's instance in some queues, or in all of
    its group.

    Rows on an unavailable node stay missing. Raises MetadataUnavailable.
    """
    ready = _ready(consumer.group_id)
    for subscription in ready.values():
        _insert(consumer, subscription, queues)
    # A subscription that ended meanwhile may have deleted its reader rows before these were
    # inserted. So its subscriptions are read again, and rows of an ended one are deleted
    # here.
    ended = ready.keys() - _ready(consumer.group_id).keys()
    for subscription_id in ended:
        _delete(consumer, ready[subscription_id])


def _ready(group_id: int) -> dict[int, SubscriptionView]:
    """Return the ready subscriptions of a group, by subscription id."""
    views = subscription_rows.views_of([group_id]).get(group_id, ())
    return {view.id: view for view in views if view.state == "ready"}


def _insert(
    consumer: ConsumerId, subscription: SubscriptionView, queues: Collection[int] | None
) -> None:
    selected_queues = [
        queue for queue in subscription.queues if queues is None or queue in queues
    ]
    for node, node_queues in node_pools.group_by_node(selected_queues):
        try:
            # An existing row keeps its place, so a lost answer leaves nothing in doubt:
            # repeat it.
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


def _delete(consumer: ConsumerId, subscription: SubscriptionView) -> None:
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

    One bounded pass. Return the number of deleted instances. An instance with rows on an
    unavailable node stays for a later pass.
    """
    parted_instances = broadcast_instances.release_names(after_days=after_days)
    # Without the refresh, a node that was added since would keep the rows of a deleted
    # instance.
    snapshot.refresh()
    return sum(_delete_everywhere(instance) for instance in parted_instances)


def _delete_everywhere(instance: ReleasedInstance) -> bool:
    """Delete an instance and its reader rows on all nodes. Return False if a node failed."""
    try:
        for node_id in snapshot.current().nodes:
            with node_pools.node(node_id).reading() as session:
                reader_sql.delete_instance(
                    session, group_id=instance.group_id, instance=instance.reader
                )
        # Last: the row in metadata is what makes a later pass try the remaining nodes
        # again.
        broadcast_instances.delete_instance(instance.id)
    except CatmqError as error:
        log.warning(
            "Instance %d could not be deleted, will retry: %s", instance.id, error.detail
        )
        return False
    return True
