"""Groups that still read a topic: for them retention keeps longer what they have not read."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import Exists, OuterRef

from metadata.db.clock import before, database_now
from metadata.db.transactions import transactional
from metadata.models import ConsumerGroupConsumer, ConsumerGroupTopic

ACTIVE_DAYS = 7
FRESH_S = 3600  # a time that is not older is not written anew


@transactional
def find_active_subscriptions(
    *, topic_id: int, progress: Mapping[int, int], record: bool
) -> set[int]:
    """The subscriptions of a topic with a member or a commit in the last seven days; a new
    one counts.

    `progress` is the sum of all positions by subscription, without those that are not known
    now. With
    `record` it is kept, and compared at the next look: commits go to the nodes only, so a
    look is how metadata hears of them.
    """
    now = database_now()
    since, fresh = before(now, seconds=ACTIVE_DAYS * 86_400), before(now, seconds=FRESH_S)
    members = ConsumerGroupConsumer.objects.filter(group=OuterRef("group"))
    rows = ConsumerGroupTopic.objects.filter(topic_id=topic_id).exclude(state="deleting")
    found = set()
    for row in rows.annotate(present=Exists(members)).order_by("pk"):
        reached = progress.get(row.pk, row.progress)
        moved, active_at = reached != row.progress, row.active_at or row.created_at
        if moved or row.present or active_at >= since:
            found.add(row.pk)
        if record and (moved or (row.present and active_at < fresh)):
            same = ConsumerGroupTopic.objects.filter(pk=row.pk)
            same.update(progress=reached, active_at=now)
    return found
