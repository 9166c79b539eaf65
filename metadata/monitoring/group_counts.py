"""Members and dead letters of all groups, for /metrics."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Count

from metadata.db.transactions import reachable
from metadata.models import ConsumerGroupConsumer, DeadLetterCount


class GroupCounts(NamedTuple):
    """Members and dead letters (as a job last counted them) by group id. Groups without
    are left out.
    """

    members: dict[int, int]
    dead: dict[int, int]


def read() -> GroupCounts:
    """Read the counts of all groups, in two queries. Raises MetadataUnavailable."""
    with reachable():
        members = (
            ConsumerGroupConsumer.objects.order_by()
            .values_list("group_id")
            .annotate(n=Count("pk"))
        )
        return GroupCounts(
            dict(members),
            dict(DeadLetterCount.objects.values_list("group_ref", "messages")),
        )
