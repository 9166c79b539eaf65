"""Only durable messages are served.

Without a binary log InnoDB shows a commit before its redo log is on disk. A server that is killed in that
moment loses it, and gives its offset to another message, which whoever read the first one would skip. So
`heads.board` holds durable heads only. A head gets there in three ways: a send of this broker was
acknowledged up to it; its node shows nothing before it is durable (SQLite, or a synced binary log); or it
was read before the barrier, a small commit of this worker's own. The log is written in order, so when that
commit is acknowledged, all that was visible before it began is on disk.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from functools import cache

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S
from messagestore.heads.coalescer import NodeCoalescer
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.tables import node_sql, queue_sql, shapes
from metadata.errors import NodeUnavailable

Heads = Mapping[int, int]
# Rows of `node_pulse`. Two workers that share one only wait a moment for each other, and no row is left over.
PULSES = 1024

_guard = threading.Lock()
_barriers: dict[int, NodeCoalescer[Heads, None]] = {}


def confirm(*, node_id: int, heads: Heads | None = None) -> None:
    """Return once heads, {queue: head} as just read from their node, are durable there and on the board.

    None: when all that could be seen on the node before is durable there. Raises NodeUnavailable.
    """
    risen = {queue: head for queue, head in (heads or {}).items() if head > board.known(queue)}
    if not risen and heads is not None:
        return
    try:
        with barrier_of(node_id).turn(risen) as turn:
            if reads := turn.items:  # one barrier for all that was read before it begins
                with node_pools.node(node_id).reading() as session:
                    if not session.shows_durable_only:
                        node_sql.pulse(session, worker=_own_row())
                for queue, head in (one for read in reads for one in read.items()):
                    board.note(queue, head)
    except db_errors.Ambiguous as fault:  # a pulse that may have been written hurts nobody
        raise NodeUnavailable(fault.detail) from fault


def head_of(*, queue: int) -> shapes.Head | None:
    """The head row of a queue when all messages below its head are durable; None if there is no row.

    Raises NotFound (queue_not_found), NodeUnavailable.
    """
    node = node_pools.node_of(queue)
    with node.reading() as session:
        found = queue_sql.read_head(session, queue=queue)
    if found is not None:  # the barrier borrows a session of its own
        confirm(node_id=node.info.id, heads={queue: found.head})
    return found


@cache
def _own_row() -> int:
    """Choose the row of this process, at its first barrier: the module was loaded before the fork."""
    return random.randrange(PULSES)


def barrier_of(node_id: int) -> NodeCoalescer[Heads, None]:
    """Return what those share who wait for a barrier on a node."""
    with _guard:
        if node_id not in _barriers:
            _barriers[node_id] = NodeCoalescer(limit_s=READ_TIMEOUT_S)
        return _barriers[node_id]
