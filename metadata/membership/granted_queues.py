"""Queues that were just granted, for the loop that tells their nodes
(messagestore.consume.node_owners).

A new owner normally hears of its queue from metadata and then acquires it on the node. If
metadata goes away in between, the node must know already: its row is what the owner is then
told by. Only what this process granted is noted, and only while its loop runs: more would
be lost with the process anyway.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from django.db import transaction

from metadata.models import QueueOffset

MOST = 1_000  # that wait for the loop; a rebalance of more leaves the first to their owners


class Grant(NamedTuple):
    """A queue of a group, its epoch, and the consumer id of its owner."""

    group_id: int
    queue: int
    epoch: int
    owner: str


_waiting: deque[Grant] = deque(maxlen=MOST)
_arrived = threading.Event()
_served = False


def note(group_id: int, queues: Collection[int]) -> None:
    """Note the owners of some queues as they are once the transaction under way commits."""
    if not _served or not queues:
        return
    rows = QueueOffset.objects.filter(group=group_id, queue__in=queues, owner__isnull=False)
    found = [
        Grant(group_id, *row)
        for row in rows.values_list("queue_id", "epoch", "owner__consumer_id")
    ]
    transaction.on_commit(lambda: _offer(found))


def _offer(grants: list[Grant]) -> None:
    _waiting.extend(grants)
    _arrived.set()


def take(wait_s: float) -> list[Grant]:
    """Return what was granted since the last call, or is within `wait_s`. For one loop:
    with its first call this process begins to note."""
    global _served
    _served = True
    _arrived.wait(wait_s)
    _arrived.clear()
    return [_waiting.popleft() for _ in range(len(_waiting))]


def wake() -> None:
    """End the wait that the loop is in: it is to stop."""
    _arrived.set()
