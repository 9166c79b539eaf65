"""Metadata of all groups at once, for /metrics: members, and the number of dead messages."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Count

from metadata.db.transactions import reachable
from metadata.models import ConsumerGroupConsumer, DeadLetterCount


class GroupCounts(NamedTuple):
    """By group: its members, and its dead messages as a job counted them last; who has none
    is left out.
    """

    members: dict[int, int]
    dead: dict[int, int]


def read() -> GroupCounts:
    """Of all groups, in two queries. Raises MetadataUnavailable."""
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
