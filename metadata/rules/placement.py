"""Which nodes get a new topic's queues."""

from __future__ import annotations

from collections.abc import Mapping


def place(*, count: int, load: Mapping[int, int]) -> list[int]:
    """Node ids for `count` queues; `load` maps each eligible node to the queues it holds already.

    Spread first, then the emptier node, then the lower id.

    >>> place(count=3, load={1: 10, 2: 0})
    [2, 1, 2]
    """
    given = dict.fromkeys(load, 0)
    chosen: list[int] = []
    for _ in range(count):
        node = min(load, key=lambda one: (given[one], load[one], one))
        given[node] += 1
        chosen.append(node)
    return chosen
