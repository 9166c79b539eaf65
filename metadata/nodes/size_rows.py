"""Sizes of nodes, measured each hour and kept for 90 days. The growth of a node is computed from
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access
from metadata.db.clock import before, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import grouped
from metadata.models import DbNode, NodeSize, Queue
from metadata.monitoring.metrics_history import start_of_step
from metadata.rules.growth import Size, bytes_per_day

KEPT_DAYS = 90
CHART_POINTS = 200
GROWTH_DAYS = 7  # period over which growth is computed


class Growth(Struct, frozen=True):
    """The last size of a node in bytes and tables, and its growth in bytes a day. `per_day`
    is None while the sizes cover less than a day.
    """

    bytes: int
    tables: int
    per_day: float | None


@transactional
def record_sizes(sizes: Mapping[int, tuple[int, int]]) -> int:
    """Record (bytes, tables) by node id for this hour. Return the number of nodes. A later
    call in the same hour replaces the sizes.
    """
    at = start_of_step(database_now(), step_s=3600)
    # Nodes that were deleted meanwhile are left out.
    node_ids = set(DbNode.objects.filter(pk__in=sizes).values_list("pk", flat=True))
    # Sorted, so that two machines that measure at once lock rows in the same order.
    for node_id in sorted(node_ids):
        size, tables = sizes[node_id]
        NodeSize.objects.update_or_create(
            node_id=node_id, at=at, defaults={"bytes": size, "tables": tables}
        )
    return len(node_ids)


def record_queue_sizes(sizes: Mapping[int, Mapping[int, int]]) -> int:
    """Record {node id: {queue id: bytes}}. Return the number of queues that changed. Queues
    of these nodes without a size get None.
    """
    changed = []
    with reachable():
        rows = Queue.objects.filter(node_id__in=list(sizes)).order_by("pk")
        for row in rows.only("node_id", "bytes"):
            size = sizes[row.node_id].get(row.pk)
            if row.bytes != size:
                row.bytes = size
                changed.append(row)
        Queue.objects.bulk_update(changed, ("bytes",), batch_size=500)
    return len(changed)


def read_growth() -> dict[int, Growth]:
    """Return the growth by node id, of nodes that were measured within GROWTH_DAYS."""
    with reachable():
        since = database_now() - timedelta(days=GROWTH_DAYS)
        rows = NodeSize.objects.filter(at__gte=since).order_by("at")
        columns = rows.values_list("node_id", "at", "bytes", "tables")
        sizes = grouped(
            (node_id, (Size(ms(at), size), tables)) for node_id, at, size, tables in columns
        )
    return {
        node_id: Growth(
            bytes=node_sizes[-1][0].bytes,
            tables=node_sizes[-1][1],
            per_day=bytes_per_day([size for size, _ in node_sizes]),
        )
        for node_id, node_sizes in sizes.items()
    }


def read_history(*, node: str, actor: Actor, days: int = 30) -> list[Size]:
    """Return at most CHART_POINTS sizes of a node over the last days, oldest first and
    evenly spaced. Needs `admin`.
    """
    access.require_everything(actor, node, what="node")
    with reachable():
        since = before(database_now(), seconds=days * 86_400)
        rows = NodeSize.objects.filter(node__name=node, at__gte=since).order_by("at")
        sizes = [Size(ms(at), size) for at, size in rows.values_list("at", "bytes")]
    step = -(-len(sizes) // CHART_POINTS) or 1
    # Counted from the end, so that the last size is always among them.
    return sizes[::-1][::step][::-1]


prune = PruneRule(NodeSize.objects.all(), at="at", days=KEPT_DAYS)
