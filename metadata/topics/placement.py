"""Choice of the nodes that get new queues, of those that take any."""

from __future__ import annotations

from collections.abc import Mapping

from django.db.models import Count, Q

from metadata.db.rows import by_name, no_node
from metadata.errors import Invalid, NoWritableQueue
from metadata.models import DbNode
from metadata.rules.topics.placement import place


def nodes_for(count: int, *, node: str | None, held: Mapping[int, int] | None = None) -> list[int]:
    """Node ids for `count` queues of a topic that has `held` on its nodes: spread, or all on the named node.

    Raises NotFound(node_not_found), Invalid on the field `node`, NoWritableQueue.
    """
    if node is not None:
        return [_named_node(node)] * count
    rows = DbNode.objects.filter(kind="normal", dedicated=False, state="read_write").exclude(disk="full")
    load = dict(
        rows.annotate(held=Count("queues", filter=~Q(queues__state="retired"))).values_list("id", "held")
    )
    if not load:
        raise NoWritableQueue(
            "There is no normal node in state read_write with room: manage.py register_node makes one."
        )
    return place(count=count, load=load, held=held or {})


def failure_nodes(count: int) -> list[int]:
    """Node ids for `count` queues of a failure topic, spread over the failure nodes; none without any."""
    rows = DbNode.objects.filter(kind="failure", state="read_write").exclude(disk="full")
    held = Count("queues", filter=~Q(queues__state="retired"))
    load = dict(rows.annotate(held=held).values_list("id", "held"))
    return place(count=count, load=load) if load else []


def _named_node(name: str) -> int:
    row = by_name(DbNode.objects.all(), name, no_node)
    if row.state != DbNode.State.READ_WRITE or row.kind != DbNode.Kind.NORMAL:
        raise Invalid.field(
            "node", f"{name} is {row.kind} and {row.state}; topics need normal and read_write"
        )
    return row.pk
