"""Choice of the nodes for new queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Q

from metadata.db.rows import find_by_name, no_node
from metadata.errors import Invalid, NoWritableQueue
from metadata.models import DbNode
from metadata.rules.topics.placement import spread_over_nodes


def choose_nodes(
    count: int, *, node: str | None, held: Mapping[int, int] | None = None
) -> list[int]:
    """Return the node ids for `count` new queues of a topic: all on `node` if it is set,
    else spread over the normal nodes. `held` is the number of the topic's queues by node.

    Raises NotFound(node_not_found), Invalid on the field `node`, NoWritableQueue.
    """
    if node is not None:
        row = find_by_name(DbNode.objects.all(), node, no_node)
        if row.state != DbNode.State.READ_WRITE or row.kind != DbNode.Kind.NORMAL:
            raise Invalid.field(
                "node",
                f"{node} is {row.kind} and {row.state}; topics need normal and read_write",
            )
        return [row.pk] * count
    load = _load(kind="normal", dedicated=False)
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
    load = _load(kind="failure")
    return spread_over_nodes(count=count, load=load) if load else []


def _load(**conditions: Any) -> dict[int, int]:
    """Return the number of queues by node, for the nodes that accept new queues."""
    rows = DbNode.objects.filter(**conditions, state="read_write").exclude(disk="full")
    # The tables of retired queues are dropped, so they are no load.
    held = Count("queues", filter=~Q(queues__state="retired"))
    return dict(rows.annotate(held=held).values_list("id", "held"))
