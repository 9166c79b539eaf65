"""Lists of the portal: members of groups, and rebalances."""

from __future__ import annotations

from django.db.models import Count, Max
from msgspec import Struct

from metadata.actors import Actor
from metadata.db.clock import age_ms, database_now
from metadata.db.rows import make_view
from metadata.db.transactions import reachable
from metadata.listing.pages import ListLayout, ListPage, ListQuery, select_page
from metadata.listing.topic_lists import check_look
from metadata.models import ConsumerGroupConsumer, Rebalance

CONSUMERS = ListLayout(
    search_in=("identity", "group__name", "process__address", "process__sdk"),
    sorts={
        "name": "identity",
        "group": "group__name",
        "heard": "heartbeat__last_seen",
        "joined": "joined_at",
    },
    default="group",
    figures={"queues": Count("owned")},
)
REBALANCES = ListLayout(
    search_in=("group__name", "cause"),
    sorts={"at": "at", "group": "group__name", "pause": "pause_ms"},
    default="-at",
    figures={"moved": Count("moves"), "pause_ms": Max("moves__pause_ms")},
)


class ConsumerRow(Struct, frozen=True):
    """A member in a list. `silent_ms` is the time since its last heartbeat, by the
    database's clock.
    """

    name: str
    group: str
    address: str
    sdk: str
    queues: int
    silent_ms: int | None
    joined_at_ms: int
    timeout_ms: int


class RebalanceRow(Struct, frozen=True):
    """A rebalance in a list. `moved` is the number of queues that changed hands, `pause_ms`
    the longest pause of a queue, None if no queue was acquired yet.
    """

    group: str
    generation: int
    cause: str
    at_ms: int
    moved: int
    pause_ms: int | None


def consumers(*, query: ListQuery, actor: Actor) -> ListPage[ConsumerRow]:
    check_look(actor)
    rows = ConsumerGroupConsumer.objects.select_related("group", "process", "heartbeat")
    page = select_page(rows, query=query, layout=CONSUMERS)
    with reachable():
        now = database_now()
    return page.map(
        lambda row: make_view(
            ConsumerRow,
            row,
            name=row.identity,
            address=row.process.address,
            sdk=row.process.sdk,
            silent_ms=age_ms(row.heartbeat.last_seen, now)
            if hasattr(row, "heartbeat")
            else None,
            timeout_ms=row.group.session_timeout_ms,
        )
    )


def rebalances(*, query: ListQuery, actor: Actor) -> ListPage[RebalanceRow]:
    check_look(actor)
    # An assignment names every queue of a group, and the list does not show it.
    rows = Rebalance.objects.select_related("group").defer("assignment")
    page = select_page(rows, query=query, layout=REBALANCES)
    return page.map(lambda row: make_view(RebalanceRow, row))
