"""Choice of the nodes for new queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Q

from metadata.db.rows import find_by_name, no_node
from metadata.errors import Invalid, NoWritableQueue
from metadata.models import DbNode
from metadata.rules.disks import DiskState
from metadata.rules.nodes import NodeKind, NodeState
from metadata.rules.topics.placement import spread_over_nodes
from metadata.rules.topics.states import QueueState


def choose_nodes(
    count: int, *, node: str | None, held: Mapping[int, int] | None = None
) -> list[int]:
    """Return the node ids for `count` new queues of a topic: all on `node` if it is set,
    else spread over the normal nodes. `held` is the number of the topic's queues by node.

    Raises NotFound(node_not_found), Invalid on the field `node`, NoWritableQueue.
    """
    if node is not None:
        row = find_by_name(DbNode.objects.all(), node, no_node)
        if row.state != NodeState.READ_WRITE or row.kind != NodeKind.NORMAL:
            raise Invalid.field(
                "node",
                f"{node} is {row.kind} and {row.state}; topics need normal and read_write",
            )
        return [row.pk] * count
    load = _load(kind=NodeKind.NORMAL, dedicated=False)
    if not load:
        raise NoWritableQueue(
            "There is no normal node in state read_write with free space: run manage.py "
            "register_node"
        )
    return spread_over_nodes(count=count, load=load, held=held or {})


def choose_failure_nodes(count: int) -> list[int]:
    """Return the node ids for `count` queues of a failure topic, spread over the failure
    nodes. Empty if there are no failure nodes.
    """
    load = _load(kind=NodeKind.FAILURE)
    return spread_over_nodes(count=count, load=load) if load else []


def _load(**conditions: Any) -> dict[int, int]:
    """Return the number of queues by node, for the nodes that accept new queues."""
    rows = DbNode.objects.filter(**conditions, state=NodeState.READ_WRITE).exclude(
        disk=DiskState.FULL
    )
    # The tables of retired queues are dropped, so they are no load.
    held = Count("queues", filter=~Q(queues__state=QueueState.RETIRED))
    return dict(rows.annotate(held=held).values_list("id", "held"))
