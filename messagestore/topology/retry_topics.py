"""Retry topics with their tables, created with the subscription or later by a sweep.

Rows in state creating come first, then tables and reader rows on retry nodes, then state
ready. They are deleted with their subscription. What a crash leaves unfinished is removed
by the sweeps of topics and subscriptions.
"""

from __future__ import annotations

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.tables import node_sql
from messagestore.topology import reader_rows, topics
from metadata.actors import job
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo, TopicInfo
from metadata.errors import CatmqError, Code, Conflict
from metadata.groups import retry_topic_rows, subscription_rows
from metadata.rules.groups.states import GroupMode
from metadata.rules.nodes import NodeKind
from metadata.rules.topics.states import TopicState


def make(*, group_id: int, topic_id: int) -> bool:
    """Create the retry topic of a group and topic if it is missing. Returns True if it did.

    Raises Conflict(already_exists) if its name is taken, and NodeUnavailable after a
    rollback.
    """
    planned = retry_topic_rows.plan(group_id=group_id, topic_id=topic_id)
    if planned is None:
        return False
    try:
        snapshot.refresh()  # the snapshot lacks the new queues
        for node, _ in node_pools.group_by_node(planned.subscription.queues):
            with node.writing() as session:
                # A node that was registered with an earlier version may lack tables.
                node_sql.create_node_tables(session)
        topics.make_tables(planned.topic.queues, topic=planned.topic.name)
        reader_rows.insert(planned.subscription, planned.subscription.queues)
        retry_topic_rows.make_ready(planned)
    except CatmqError:
        with sweeping.log_failure(
            f"Removal of the unfinished retry topic {planned.topic.name}"
        ):
            if subscription_rows.abandon(planned.subscription.id):
                reader_rows.delete(planned.subscription)
                subscription_rows.remove(planned.subscription.id, job("failures"))
        raise
    snapshot.refresh()
    return True


def try_to_make(*, group_id: int, topic_id: int) -> bool:
    """Create the retry topic; log a failure and return False: the sweep tries again."""
    with sweeping.log_failure(
        f"Creation of the retry topic of group {group_id} for topic {topic_id}"
    ):
        return make(group_id=group_id, topic_id=topic_id)
    return False


def sweep() -> int:
    """Create missing retry topics. Returns how many were created."""
    return sweeping.run_each(
        retry_topic_rows.find_missing(),
        act=lambda pair: try_to_make(group_id=pair[0], topic_id=pair[1]),
        name=lambda pair: (
            f"Creation of the retry topic of group {pair[0]} for topic {pair[1]}"
        ),
    )


def find_or_make(*, group: GroupInfo, topic: TopicInfo) -> TopicInfo | None:
    """Return the retry topic of a group and topic, created if necessary.

    Returns None while another process creates it. Raises Conflict(no_failure_topic) if the
    group is broadcasting, or no retry node takes queues.
    """
    if group.mode == GroupMode.BROADCASTING:
        raise Conflict(
            f"Group {group.name} is broadcasting: its members retry in place.",
            code=Code.NO_FAILURE_TOPIC,
        )
    retry_topic = _find_ready(group, topic)
    if retry_topic is None:
        snapshot.refresh()
        retry_topic = _find_ready(group, topic)
    if retry_topic is None and make(group_id=group.id, topic_id=topic.id):
        retry_topic = _find_ready(group, topic)
    if retry_topic is None and not any(
        node.kind == NodeKind.FAILURE for node in snapshot.current().nodes.values()
    ):
        raise Conflict(
            "There is no retry node for failed messages. Register one: manage.py register_node "
            "--kind failure. Until then members retry in place.",
            code=Code.NO_FAILURE_TOPIC,
        )
    return retry_topic


def _find_ready(group: GroupInfo, topic: TopicInfo) -> TopicInfo | None:
    retry_topic = snapshot.current().failure_topics.get((group.id, topic.id))
    return (
        retry_topic
        if retry_topic is not None and retry_topic.state == TopicState.READY
        else None
    )
