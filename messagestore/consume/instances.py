"""The positions of broadcasting groups' instances: made where a subscription starts, deleted after a week.

An instance has a reader row in every queue that its group reads. They are made when it joins, for the
subscriptions that are ready, and when a topic is subscribed to, for the instances there are; an acquire
that finds none, because the two crossed or a node was away, makes it.
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
from metadata.membership import instances
from metadata.membership.instances import Parted

log = logging.getLogger(__name__)


def place(*, consumer: ConsumerId, queues: Collection[int] | None = None) -> None:
    """Make the reader rows that the consumer's instance lacks, in some queues or in all its group reads.

    Those on a node that is away stay missing. Raises MetadataUnavailable.
    """
    ready = _ready(consumer.group_id)
    for subscription in ready.values():
        _insert(consumer, subscription, queues)
    gone = ready.keys() - _ready(consumer.group_id).keys()
    for one in gone:  # who ended it may have looked for reader rows before these were made
        _delete(consumer, ready[one])


def _ready(group_id: int) -> dict[int, SubscriptionView]:
    views = subscription_rows.views_of([group_id]).get(group_id, ())
    return {view.id: view for view in views if view.state == "ready"}


def _insert(consumer: ConsumerId, subscription: SubscriptionView, queues: Collection[int] | None) -> None:
    wanted = [queue for queue in subscription.queues if queues is None or queue in queues]
    for node, mine in node_pools.by_node(wanted):
        try:
            with node.reading() as session:  # harmless to repeat, so nothing is in doubt
                reader_starts.insert_readers(
                    session,
                    group_id=consumer.group_id,
                    queues=mine,
                    epoch=subscription.base_epoch,
                    start=subscription.start,
                    start_at_ms=subscription.start_at_ms,
                    instances=[consumer.instance],
                )
        except NodeUnavailable as error:
            log.warning("Instance %s gets its reader rows later: %s", consumer.instance, error.detail)


def _delete(consumer: ConsumerId, subscription: SubscriptionView) -> None:
    for node, mine in node_pools.by_node(subscription.queues):
        try:
            with node.reading() as session:
                reader_sql.delete_readers(
                    session,
                    group_id=consumer.group_id,
                    queues=mine,
                    below=subscription.base_epoch + EPOCHS_EACH,
                    instance=consumer.instance,
                )
        except NodeUnavailable as error:  # they go with the instance, or at the next subscription
            log.warning("Instance %s: reader rows are deleted later: %s", consumer.instance, error.detail)


def prune(*, after_days: float = instances.KEPT_DAYS) -> int:
    """Delete instances that were no member for so long, and their positions; return how many. Bounded.

    Those with positions on a node that is away stay for a later pass.
    """
    parted = instances.part(after_days=after_days)
    snapshot.refresh()  # a node that came since would keep its rows for ever
    return sum(_delete_everywhere(one) for one in parted)


def _delete_everywhere(instance: Parted) -> bool:
    try:
        for node_id in snapshot.current().nodes:
            with node_pools.node(node_id).reading() as session:
                reader_sql.delete_instance(session, group_id=instance.group_id, instance=instance.reader)
        instances.forget(instance.id)
    except CatmqError as error:
        log.warning("Instance %d could not be deleted, will retry: %s", instance.id, error.detail)
        return False
    return True
