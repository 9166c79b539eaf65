"""States of the indexes on the keys of messages, a column of each queue.

    none → changing → ready        changing → none if the topic wants no index any more

A builder sets `changing` before it alters the table of a queue, and the final state only
after it has checked every partition (messagestore/topology/key_indexes.py). Searches use
the indexes that are `ready`, so whatever a crash leaves in the table is not relied on.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Q

from metadata.db.changes import record_change
from metadata.db.transactions import reachable, transactional
from metadata.models import Queue
from metadata.rules.topics.states import STATES_WITHOUT_TABLE, KeyIndexState, TopicState


class IndexChange(NamedTuple):
    """A change that was begun. `interrupted`: an earlier one of the queue did not end."""

    wanted: bool
    interrupted: bool


def is_changing(queue: int) -> bool:
    """Return True while the key index of a queue is built or dropped, or until the next run
    after an interruption.
    """
    with reachable():
        return Queue.objects.filter(pk=queue, key_index=KeyIndexState.CHANGING).exists()


def list_pending() -> list[int]:
    """Return the queues whose key index differs from the setting of their topics, rising."""
    built, dropped = Q(key_index=KeyIndexState.READY), Q(key_index=KeyIndexState.NONE)
    as_wanted = Q(topic__key_index=True) & built | Q(topic__key_index=False) & dropped
    with reachable():
        rows = Queue.objects.filter(topic__state=TopicState.READY).exclude(as_wanted)
        rows = rows.exclude(state__in=STATES_WITHOUT_TABLE)
        return list(rows.order_by("pk").values_list("pk", flat=True))


@transactional
def begin_change(*, queue: int) -> IndexChange | None:
    """Mark the key index of a queue as changing. Return None if it may have no table.

    The caller holds the lock of the queue's table, so there is one builder at a time.
    """
    row = Queue.objects.select_for_update().filter(pk=queue).first()
    if (
        row is None
        or row.state in STATES_WITHOUT_TABLE
        or row.topic.state != TopicState.READY
    ):
        return None
    change = IndexChange(row.topic.key_index, row.key_index == KeyIndexState.CHANGING)
    if not change.interrupted:
        row.key_index = KeyIndexState.CHANGING
        row.save(update_fields=("key_index",))
        record_change("topic", row.topic_id)
    return change


@transactional
def end_change(*, queue: int, indexed: bool) -> None:
    """Record the result of a change. A state other than `changing` stays as it is."""
    row = (
        Queue.objects.select_for_update()
        .filter(pk=queue, key_index=KeyIndexState.CHANGING)
        .first()
    )
    if row is not None:
        row.key_index = KeyIndexState.READY if indexed else KeyIndexState.NONE
        row.save(update_fields=("key_index",))
        record_change("topic", row.topic_id)
