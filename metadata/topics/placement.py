"""Choice of the nodes that get new queues, of those that take any."""

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
    """Node ids for `count` queues of a topic that has `held` on its nodes: spread, or all
    on the named node.

    Raises NotFound(node_not_found), Invalid on the field `node`, NoWritableQueue.
    """
    if node is not None:
        return [_named_node(node)] * count
    load = _load(kind="normal", dedicated=False)
    if not load:
        raise NoWritableQueue(
            "There is no normal node in state read_write with free space: run manage.py "
            "register_node"
        )
    return spread_over_nodes(count=count, load=load, held=held or {})


def choose_failure_nodes(count: int) -> list[int]:
    """Node ids for `count` queues of a failure topic, spread over the failure nodes; none
    without any.
    """
    load = _load(kind="failure")
    return spread_over_nodes(count=count, load=load) if load else []


def _load(**which: Any) -> dict[int, int]:
    """Node → its queues, of those nodes that take new ones."""
    rows = DbNode.objects.filter(**which, state="read_write").exclude(disk="full")
    held = Count("queues", filter=~Q(queues__state="retired"))
    return dict(rows.annotate(held=held).values_list("id", "held"))


def _named_node(name: str) -> int:
    row = find_by_name(DbNode.objects.all(), name, no_node)
    if row.state != DbNode.State.READ_WRITE or row.kind != DbNode.Kind.NORMAL:
        raise Invalid.field(
            "node",
            f"{name} is {row.kind} and {row.state}; topics need normal and read_write",
        )
    return row.pk
