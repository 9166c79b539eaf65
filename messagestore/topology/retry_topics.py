"""Retry topics with their tables: made with the subscription, or by the sweep when that
could not be.

Rows in state creating, then tables and reader rows on retry nodes, then ready. They go with
their subscription; what a crash leaves half made the sweeps of topics and subscriptions
take back.
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
from metadata.groups.retry_topic_rows import FailureTopic


def make(*, group_id: int, topic_id: int) -> bool:
    """Make the retry topic of a pair that lacks one; return True if it did.

    Raises Conflict(already_exists) if its name is taken, and NodeUnavailable after taking
    back what was made.
    """
    planned = retry_topic_rows.plan(group_id=group_id, topic_id=topic_id)
    if planned is None:
        return False
    try:
        snapshot.refresh()  # its queues are new to this process
        for node, _ in node_pools.group_by_node(planned.subscription.queues):
            with node.writing() as session:
                # a node of an earlier version lacks some
                node_sql.create_node_tables(session)
        topics.make_tables(planned.topic.queues, topic=planned.topic.name)
        reader_rows.insert(planned.subscription, planned.subscription.queues)
        retry_topic_rows.make_ready(planned)
    except CatmqError:
        _take_back(planned)
        raise
    snapshot.refresh()
    return True


def try_to_make(*, group_id: int, topic_id: int) -> bool:
    """The same, but what stands in the way is only logged: the sweep tries again."""
    with sweeping.log_failure(
        f"Creation of the retry topic of group {group_id} for topic {topic_id}"
    ):
        return make(group_id=group_id, topic_id=topic_id)
    return False


def sweep() -> int:
    """Make the retry topics that are missing; return how many it made."""
    return sweeping.run_each(
        retry_topic_rows.find_missing(),
        act=lambda pair: try_to_make(group_id=pair[0], topic_id=pair[1]),
        name=lambda pair: (
            f"Creation of the retry topic of group {pair[0]} for topic {pair[1]}"
        ),
    )


def _take_back(planned: FailureTopic) -> None:
    with sweeping.log_failure(
        f"Removal of the unfinished retry topic {planned.topic.name}"
    ):
        if subscription_rows.abandon(planned.subscription.id):
            reader_rows.delete(planned.subscription)
            subscription_rows.remove(planned.subscription.id, job("failures"))


def find_or_make(*, group: GroupInfo, topic: TopicInfo) -> TopicInfo | None:
    """The retry topic of a pair, made if need be; None while it is being made.

    Raises Conflict(no_failure_topic) where there can be none: the group broadcasts, or no
    retry node takes queues.
    """
    if group.mode == "broadcasting":
        raise Conflict(
            f"Group {group.name} is broadcasting: its members retry in place.",
            code=Code.NO_FAILURE_TOPIC,
        )
    found = _known(group, topic)
    if found is None:
        snapshot.refresh()
        found = _known(group, topic)
    if found is None and make(group_id=group.id, topic_id=topic.id):
        found = _known(group, topic)
    if found is None and not any(
        one.kind == "failure" for one in snapshot.current().nodes.values()
    ):
        raise Conflict(
            "There is no retry node for failed messages. Register one: manage.py register_node "
            "--kind failure. Until then members retry in place.",
            code=Code.NO_FAILURE_TOPIC,
        )
    return found


def _known(group: GroupInfo, topic: TopicInfo) -> TopicInfo | None:
    found = snapshot.current().failure_topics.get((group.id, topic.id))
    return found if found is not None and found.state == "ready" else None
