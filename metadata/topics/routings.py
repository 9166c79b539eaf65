"""Former routings of topics, so that a repeated send goes to the queue of its first try.

The queue of a message that names none is derived from the batch id and the topic's layout.
After a change of the layout, a repeat would go to another queue and be stored twice. So
every change keeps the former routing for as long as sends are remembered, and a batch is
routed as it was at the time in its id.
"""

from __future__ import annotations

from datetime import timedelta

from metadata.db.changes import record_change
from metadata.db.clock import before, database_now
from metadata.db.transactions import transactional
from metadata.models import Topic, TopicRouting
from metadata.rules.topics.states import QueueState

# A change holds for batch ids made this much later, when every broker has loaded it.
LEAD_S = 5.0
KEPT_DAYS = 3  # a day more than sends are remembered
LIVE = (QueueState.READ_WRITE, QueueState.READ_ONLY)


def keep_routing(topic: Topic) -> None:
    """Keep the present routing of a locked topic, before the same transaction changes it."""
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
    """Delete routings that no remembered send can use any more. Return how many."""
    old = TopicRouting.objects.filter(
        until_at__lt=before(database_now(), seconds=days * 86_400)
    )
    topics = sorted(set(old.values_list("topic_id", flat=True)))
    if not topics:
        return 0
    count, _ = old.filter(topic_id__in=topics).delete()
    # Brokers hold the routings of a topic in their snapshots.
    record_change("topic", *topics)
    return count
