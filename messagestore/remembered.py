"""What this process remembers of queues, and forgets when they are gone."""

from __future__ import annotations

from collections.abc import Mapping

from messagestore import floors, lanes, pull, suspects
from messagestore.heads import board
from metadata.snapshot import QueueInfo


def keep(queues: Mapping[int, QueueInfo]) -> None:
    """Forgets all queues but these: nothing here grows with the queues that ever were."""
    for memory in (board, floors, lanes, pull, suspects):
        memory.keep(queues.keys())
