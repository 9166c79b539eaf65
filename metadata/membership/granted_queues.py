"""Queues that were just granted, for the loop that writes their owners to the nodes.

That loop is messagestore.consume.node_owners. A new owner normally learns of its queue
from a heartbeat and then acquires it on the node. If metadata becomes unavailable in
between, the node must know the owner already, because the owner is then answered from
the node's row. Only grants of this process are noted, and only while the loop runs: a
crash would lose them anyway.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from django.db import transaction

from metadata.models import QueueOffset

# Grants that wait for the loop. If there are more, the oldest are dropped; their owners
# acquire them as usual.
MAX_GRANTS = 1_000


class Grant(NamedTuple):
    """A queue of a group, its epoch, and the consumer id of its owner."""

    group_id: int
    queue: int
    epoch: int
    owner: str


_waiting: deque[Grant] = deque(maxlen=MAX_GRANTS)
_granted = threading.Event()
_loop_runs = False


def note(group_id: int, queues: Collection[int]) -> None:
    """Note the owners of the queues when the current transaction commits."""
    if not _loop_runs or not queues:
        return
    rows = QueueOffset.objects.filter(group=group_id, queue__in=queues, owner__isnull=False)
    grants = [
        Grant(group_id, *row)
        for row in rows.values_list("queue_id", "epoch", "owner__consumer_id")
    ]
    # In this order: the loop clears the event before it takes the grants.
    transaction.on_commit(lambda: _waiting.extend(grants))
    transaction.on_commit(_granted.set)


def take(wait_s: float) -> list[Grant]:
    """Return the grants since the last call, or wait up to `wait_s` seconds for one.

    A single loop calls this. Noting begins with its first call.
    """
    global _loop_runs
    _loop_runs = True
    _granted.wait(wait_s)
    _granted.clear()
    return [_waiting.popleft() for _ in range(len(_waiting))]


def wake() -> None:
    _granted.set()
