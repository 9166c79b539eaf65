"""Caches of this process for queues, emptied when the queues are gone."""

from __future__ import annotations

from collections.abc import Mapping

from messagestore.consume import budget
from messagestore.heads import corruption
from messagestore.heads.heads import board
from messagestore.pool import known_heads
from messagestore.produce import group_commit
from messagestore.shares import known_queues, taking
from metadata.cache.snapshot_types import QueueInfo


def evict_except(queues: Mapping[int, QueueInfo]) -> None:
    """Evict all queues but these: nothing here grows with the queues that ever were."""
    for memory in (
        board,
        known_heads,
        group_commit,
        budget,
        corruption,
        taking,
        known_queues,
    ):
        memory.evict_except(queues.keys())
