"""The reader rows of a subscription, on the nodes of its queues."""

from __future__ import annotations

from collections.abc import Iterable

from messagestore.heads import reader_starts
from messagestore.nodes import upgrade
from messagestore.pool import node_pools
from messagestore.tables import delayed_sql, queue_sql, reader_sql
from messagestore.tables.shares import position_sql
from metadata.actors import job
from metadata.groups import subscribers
from metadata.groups.subscribers import ActiveSubscription
from metadata.groups.subscription_rows import EPOCHS_EACH, SubscriptionView
from metadata.membership import broadcast_instances
from metadata.release import VERSION, is_older
from metadata.rules.groups.states import Start
from metadata.rules.topics.states import QueueState

CHUNK = 500  # rows in one transaction
# The first release with share groups. Versions before it (development) require themselves.
FIRST_RELEASE = VERSION if is_older(VERSION, "0.2.0") else "0.2.0"


def insert(
    subscription: SubscriptionView | ActiveSubscription,
    queues: Iterable[int],
    *,
    start: str = Start.EARLIEST,
    start_at_ms: int | None = None,
) -> None:
    """Create a subscription's reader rows at its start, one for each broadcasting instance.

    A share group on a node excludes brokers that do not know share groups. Raises Conflict
    while such a broker is alive, or while the node lacks the tables
    (`upgrade.require_release`).
    """
    instance_names, is_share = (
        broadcast_instances.reader_names(subscription.group_id),
        broadcast_instances.is_share_group(subscription.group_id),
    )
    for node, node_queues in node_pools.group_by_node(queues):
        if is_share:
            upgrade.require_release(
                node=node.info.name, release=FIRST_RELEASE, actor=job("share_groups")
            )
        # A repeat changes nothing, so a lost connection is not an unknown outcome.
        with node.reading() as session:
            reader_starts.insert_readers(
                session,
                group_id=subscription.group_id,
                queues=node_queues,
                epoch=subscription.base_epoch,
                start=start,
                start_at_ms=start_at_ms,
                instances=instance_names,
            )


def close(subscription: SubscriptionView) -> None:
    """Close the queues of a retry topic that is deleted, and drop its pending retries."""
    for node, node_queues in node_pools.group_by_node_id(
        subscribers.nodes_of_queues(subscription.queues)
    ):
        with node.writing() as session:
            for queue in node_queues:
                queue_sql.set_queue_state(session, queue=queue, state=QueueState.RETIRED)
        for queue in node_queues:
            # In chunks, so that no transaction locks many rows.
            deleted = CHUNK
            while deleted == CHUNK:
                with node.writing() as session:
                    deleted = delayed_sql.delete_queue_delayed(
                        session, queue=queue, most=CHUNK
                    )


def delete(subscription: SubscriptionView) -> None:
    """Delete the reader rows of a subscription.

    The epoch protects the rows of a later subscription of the same group and topic. Queues
    are looked up in metadata, because the topic may be deleted and no longer in the
    snapshot.
    """
    next_base_epoch = subscription.base_epoch + EPOCHS_EACH
    for node, node_queues in node_pools.group_by_node_id(
        subscribers.nodes_of_queues(subscription.queues)
    ):
        with node.writing() as session:
            reader_sql.delete_readers(
                session,
                group_id=subscription.group_id,
                queues=node_queues,
                below=next_base_epoch,
            )
        with node.writing() as session:
            position_sql.delete_shares(
                session,
                group_id=subscription.group_id,
                queues=node_queues,
                below=next_base_epoch,
            )
