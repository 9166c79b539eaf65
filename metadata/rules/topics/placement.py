"""Choice of the nodes that get a topic's new queues."""

from __future__ import annotations

from collections.abc import Mapping


def spread_over_nodes(
    *, count: int, load: Mapping[int, int], held: Mapping[int, int] | None = None
) -> list[int]:
    """Node ids for `count` queues; `load` maps each eligible node to the queues it holds
    already.

    Spread first, those of the topic itself counted (`held`: node → how many it has), then
    the emptier node, then the lower id.

    >>> spread_over_nodes(count=3, load={1: 10, 2: 0})
    [2, 1, 2]
    >>> spread_over_nodes(count=3, load={1: 10, 2: 2}, held={2: 2})
    [1, 1, 2]
    """
    given = {node: (held or {}).get(node, 0) for node in load}
    chosen: list[int] = []
    for _ in range(count):
        node = min(load, key=lambda one: (given[one], load[one], one))
        given[node] += 1
        chosen.append(node)
    return chosen
