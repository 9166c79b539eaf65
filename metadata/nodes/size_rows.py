"""Sizes: how much each node held, hour by hour, kept for 90 days; what it grows by is read
from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

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
GROWTH_DAYS = 7  # growth is told over so long


@dataclass(frozen=True, slots=True)
class Growth:
    """The last size of a node, bytes and tables, and bytes a day; None while there is no
    day to tell of.
    """

    bytes: int
    tables: int
    per_day: float | None


@transactional
def record_sizes(found: Mapping[int, tuple[int, int]]) -> int:
    """Keep {node id: (bytes, tables)} for this hour; how many nodes. The last word of an
    hour counts.
    """
    at = start_of_step(database_now(), step_s=3600)
    there = set(DbNode.objects.filter(pk__in=found).values_list("pk", flat=True))
    for node_id in sorted(there):
        size, tables = found[node_id]
        NodeSize.objects.update_or_create(
            node_id=node_id, at=at, defaults={"bytes": size, "tables": tables}
        )
    return len(there)


def record_queue_sizes(found: Mapping[int, Mapping[int, int]]) -> int:
    """Keep {node id: {queue id: bytes}}; how many queues changed. What its node lacks has
    no size.
    """
    changed = []
    with reachable():
        rows = Queue.objects.filter(node_id__in=list(found)).order_by("pk")
        for row in rows.only("node_id", "bytes"):
            size = found[row.node_id].get(row.pk)
            if row.bytes != size:
                row.bytes = size
                changed.append(row)
        Queue.objects.bulk_update(changed, ("bytes",), batch_size=500)
    return len(changed)


def read_growth() -> dict[int, Growth]:
    """{node id: how it grows}, of the nodes that were measured within the last days."""
    with reachable():
        since = database_now() - timedelta(days=GROWTH_DAYS)
        rows = NodeSize.objects.filter(at__gte=since).order_by("at")
        columns = rows.values_list("node_id", "at", "bytes", "tables")
        found = grouped(
            (node_id, (Size(ms(at), size), tables)) for node_id, at, size, tables in columns
        )
    return {node_id: _growth(seen) for node_id, seen in found.items()}


def _growth(seen: list[tuple[Size, int]]) -> Growth:
    last, tables = seen[-1]
    return Growth(last.bytes, tables, bytes_per_day([one for one, _ in seen]))


def read_history(*, node: str, actor: Actor, days: int = 30) -> list[Size]:
    """The sizes of a node over the last days, rising in time. Needs `admin`."""
    access.require_everything(actor, node, what="node")
    with reachable():
        since = before(database_now(), seconds=days * 86_400)
        rows = NodeSize.objects.filter(node__name=node, at__gte=since).order_by("at")
        return _thinned(
            [Size(ms(at), size) for at, size in rows.values_list("at", "bytes")]
        )


def _thinned(sizes: Iterable[Size], most: int = 200) -> list[Size]:
    """At most so many of them, evenly, the last one among them."""
    found = list(sizes)
    step = -(-len(found) // most) or 1
    return found[::-1][::step][::-1]


prune = PruneRule(NodeSize.objects.all(), at="at", days=KEPT_DAYS)
