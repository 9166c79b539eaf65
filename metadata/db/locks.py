"""Row locks on groups and topics: always the first statement of a transaction that touches them.

Order: groups by rising id, then topics by rising id, then anything else. On SQLite the transaction
itself (BEGIN IMMEDIATE) is the lock.
"""

from __future__ import annotations

from metadata.errors import Code, NotFound
from metadata.models import ConsumerGroup, Topic


def group_by_id(group_id: int) -> ConsumerGroup:
    """The group's row, locked; raises NotFound(group_not_found)."""
    row = ConsumerGroup.objects.select_for_update().filter(pk=group_id, deleted_at__isnull=True).first()
    if row is None:
        raise NotFound("The group was deleted.", code=Code.GROUP_NOT_FOUND)
    return row


def group_by_name(name: str) -> ConsumerGroup:
    """The row of the group called `name`, locked; raises NotFound(group_not_found)."""
    row = ConsumerGroup.objects.select_for_update().filter(name=name, deleted_at__isnull=True).first()
    if row is None or row.name != name:
        raise no_group(name)
    return row


def topic_by_name(name: str) -> Topic:
    """The row of the ready topic called `name`, locked; raises NotFound(topic_not_found)."""
    row = Topic.objects.select_for_update().filter(name=name, state=Topic.State.READY).first()
    if row is None or row.name != name:
        raise no_topic(name)
    return row


def origin_of(topic: Topic) -> tuple[str, str] | None:
    """Group and topic whose failed messages a topic holds; None if it is no failure topic."""
    if topic.failure_group is None or topic.failure_of is None:
        return None
    return topic.failure_group.name, topic.failure_of.name


def no_group(name: str) -> NotFound:
    return NotFound(
        f"Group {name} does not exist. Create it: catmq group create {name}", code=Code.GROUP_NOT_FOUND
    )


def no_topic(name: str) -> NotFound:
    return NotFound(
        f"Topic {name} does not exist. Create it: catmq topic create {name} --queues 4",
        code=Code.TOPIC_NOT_FOUND,
    )
