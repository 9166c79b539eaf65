"""Former routings of topics, kept as long as sends are: a repeat goes where its first try
went.

The queue of a message that names none follows from the batch id and the topic's layout. A
layout changes, and a repeat under another one would have another queue, another id, and be
stored again. So every change leaves the former routing behind, and a batch goes by the one
that was in force at the time in its id.
"""

from __future__ import annotations

from datetime import timedelta

from metadata.db.changes import record_change
from metadata.db.clock import before, database_now
from metadata.db.transactions import transactional
from metadata.models import Queue, Topic, TopicRouting

# a change counts for ids of so much later: by then every broker has heard of it
LEAD_S = 5.0
KEPT_DAYS = 3  # one more than sends are remembered
LIVE = (Queue.State.READ_WRITE, Queue.State.READ_ONLY)


def keep_routing(topic: Topic) -> None:
    """Keep how a locked topic routes now, in the transaction that is about to change it."""
    queues = (
        topic.queues.filter(state__in=LIVE).order_by("number").values_list("pk", flat=True)
    )
    TopicRouting.objects.create(
        topic=topic,
        layout=topic.layout,
        keyed=topic.keyed,
        queues=list(queues),
        until_at=database_now() + timedelta(seconds=LEAD_S),
    )


@transactional
def prune(*, days: int = KEPT_DAYS) -> int:
    """Delete routings that no remembered send went by; return how many."""
    old = TopicRouting.objects.filter(
        until_at__lt=before(database_now(), seconds=days * 86_400)
    )
    topics = sorted(set(old.values_list("topic_id", flat=True)))
    if not topics:
        return 0
    count, _ = old.filter(topic_id__in=topics).delete()
    record_change("topic", *topics)
    return count
