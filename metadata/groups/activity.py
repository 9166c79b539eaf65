"""Groups that still read a topic: retention keeps unread messages longer for them."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import Exists, OuterRef

from metadata.db.clock import before, database_now
from metadata.db.transactions import transactional
from metadata.models import ConsumerGroupConsumer, ConsumerGroupTopic
from metadata.rules.groups.states import SubscriptionState

ACTIVE_DAYS = 7
REWRITE_S = 3600  # a stored time is rewritten at most this often


@transactional
def find_active_subscriptions(
    *, topic_id: int, progress: Mapping[int, int], record: bool
) -> set[int]:
    """Return the ids of subscriptions with a member or a commit in the last seven days.

    New subscriptions count. `progress` has the sum of all positions by subscription,
    without those that are not known now. With `record` it is stored, to be compared at
    the next call: metadata learns of commits only in this way, because they go to the
    nodes.
    """
    now = database_now()
    since, rewrite_before = (
        before(now, seconds=ACTIVE_DAYS * 86_400),
        before(now, seconds=REWRITE_S),
    )
    members = ConsumerGroupConsumer.objects.filter(group=OuterRef("group"))
    rows = ConsumerGroupTopic.objects.filter(topic_id=topic_id).exclude(
        state=SubscriptionState.DELETING
    )
    active = set()
    for row in rows.annotate(present=Exists(members)).order_by("pk"):
        # An offset reset may lower the sum; that is use of the subscription, too.
        position_sum = progress.get(row.pk, row.progress)
        has_advanced, active_at = (
            position_sum != row.progress,
            row.active_at or row.created_at,
        )
        if has_advanced or row.present or active_at >= since:
            active.add(row.pk)
        # Written rarely: a subscription with members would otherwise cost an UPDATE at
        # every call.
        if record and (has_advanced or (row.present and active_at < rewrite_before)):
            row_to_update = ConsumerGroupTopic.objects.filter(pk=row.pk)
            row_to_update.update(progress=position_sum, active_at=now)
    return active
