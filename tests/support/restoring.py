"""Make a node's database look like an older backup, or like a replica without the latest
writes.
"""

from __future__ import annotations

from messagestore.pool import known_heads, node_pools
from tests.support.tampering import plant


def lose_tail(queue: int, head: int, *, connected: bool = False) -> None:
    """Delete the messages, batches and positions of a queue above a log end offset.

    Connections are closed, too, unless they stay `connected`.
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
    """Forget all log end offsets, as in a process that has just started."""
    known_heads.evict_all()
