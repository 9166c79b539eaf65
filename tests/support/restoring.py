"""Makes a node's database what a backup of some time ago, or a replica without the tail,
would be.
"""

from __future__ import annotations

from messagestore.pool import known_heads, node_pools
from tests.support.tampering import plant


def lose_tail(queue: int, head: int, *, connected: bool = False) -> None:
    """Takes a queue back to a head: messages, batches and positions above it are gone.

    Connections, too, unless they stay `connected`.
    """
    plant(
        queue,
        f"DELETE FROM message_{queue} WHERE msg_offset >= {head}",
        f"DELETE FROM sent_batch WHERE queue_id = {queue} AND first_offset >= {head}",
        f"UPDATE queue_head SET head = {head} WHERE queue_id = {queue}",
        f"UPDATE reader SET committed = {head} WHERE queue_id = {queue} AND committed > {head}",
    )
    if not connected:
        node_pools.evict_all()


def evict_known_heads() -> None:
    """This process has just started: it knows no head."""
    known_heads.evict_all()
