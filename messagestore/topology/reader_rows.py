"""The reader rows of a subscription, on the nodes of its queues: made when it is made, gone
when it goes.
"""

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

CHUNK = 500  # rows in one transaction
# The first release with share groups. Until this code bears its number, it requires itself.
FIRST_RELEASE = VERSION if is_older(VERSION, "0.2.0") else "0.2.0"


def insert(
    reading: SubscriptionView | ActiveSubscription,
    queues: Iterable[int],
    *,
    start: str = "earliest",
    start_at_ms: int | None = None,
) -> None:
    """Make them where a subscription starts, for each instance of a broadcasting group.

    A node on which a share group reads keeps brokers away that know no such groups. Raises
    Conflict while one of them is alive, or while the node lacks the tables
    (`upgrade.require_release`).
    """
    readers, shares = (
        broadcast_instances.reader_names(reading.group_id),
        broadcast_instances.is_share_group(reading.group_id),
    )
    for node, mine in node_pools.group_by_node(queues):
        if shares:
            upgrade.require_release(
                node=node.info.name, release=FIRST_RELEASE, actor=job("share_groups")
            )
        with node.reading() as session:  # harmless to repeat, so nothing is in doubt
            reader_starts.insert_readers(
                session,
                group_id=reading.group_id,
                queues=mine,
                epoch=reading.base_epoch,
                start=start,
                start_at_ms=start_at_ms,
                instances=readers,
            )


def close(subscription: SubscriptionView) -> None:
    """Close the queues of a retry topic that goes, and drop the retries that wait for their
    time.
    """
    for node, mine in node_pools.group_by_node_id(
        subscribers.nodes_of_queues(subscription.queues)
    ):
        with node.writing() as session:
            for queue in mine:
                queue_sql.set_queue_state(session, queue=queue, state="retired")
        for queue in mine:
            gone = CHUNK
            while gone == CHUNK:
                with node.writing() as session:
                    gone = delayed_sql.delete_queue_delayed(
                        session, queue=queue, most=CHUNK
                    )


def delete(subscription: SubscriptionView) -> None:
    """Remove them; the epoch keeps it from touching a later subscription of the same pair.

    The topic may have been deleted since, so metadata is asked where its queues are.
    """
    below = subscription.base_epoch + EPOCHS_EACH
    for node, mine in node_pools.group_by_node_id(
        subscribers.nodes_of_queues(subscription.queues)
    ):
        with node.writing() as session:
            reader_sql.delete_readers(
                session, group_id=subscription.group_id, queues=mine, below=below
            )
        with node.writing() as session:
            position_sql.delete_shares(
                session, group_id=subscription.group_id, queues=mine, below=below
            )
