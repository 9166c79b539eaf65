"""Choice of the nodes for new queues of a topic."""

from __future__ import annotations

from collections.abc import Mapping


def spread_over_nodes(
    *, count: int, load: Mapping[int, int], held: Mapping[int, int] | None = None
) -> list[int]:
    """Return the node ids for `count` queues; `load` maps each eligible node to its number
    of queues.

    The node with fewest queues of the topic is chosen (`held`: its present queues by
    node), then the node with fewest queues, then the lowest id.

    >>> spread_over_nodes(count=3, load={1: 10, 2: 0})
    [2, 1, 2]
    >>> spread_over_nodes(count=3, load={1: 10, 2: 2}, held={2: 2})
    [1, 1, 2]
    """
    queues_of_topic = {node: (held or {}).get(node, 0) for node in load}
    chosen: list[int] = []
    for _ in range(count):
        node = min(
            load,
            key=lambda candidate: (queues_of_topic[candidate], load[candidate], candidate),
        )
        queues_of_topic[node] += 1
        chosen.append(node)
    return chosen
