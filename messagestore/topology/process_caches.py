"""Caches of this process that are keyed by queue."""

from __future__ import annotations

from collections.abc import Mapping

from messagestore.consume import budget
from messagestore.heads import corruption
from messagestore.heads.heads import board
from messagestore.pool import known_heads
from messagestore.produce import group_commit
from messagestore.shares import known_queues, run_leases
from metadata.cache.snapshot_types import QueueInfo


def evict_except(queues: Mapping[int, QueueInfo]) -> None:
    """Evict deleted queues from all caches, so that the caches do not grow forever."""
    for cache in (
        board,
        known_heads,
        group_commit,
        budget,
        corruption,
        run_leases,
        known_queues,
    ):
        cache.evict_except(queues.keys())
