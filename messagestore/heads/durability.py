"""Make sure that heads are durable before messages below them are served.

Without a binary log, InnoDB shows a commit before its redo log is on disk. If the server is
killed then, the commit is lost and its offset is given to another message. A group that had
read the first message would skip the second. So `heads.board` holds durable heads only. A
head gets there in three ways:

* A send of this broker was acknowledged up to it.
* Its node shows no commit before it is durable: SQLite, or a synced binary log.
* It was read before a barrier, a small commit of this worker to its own row. The redo log
  is written in order, so once the barrier is acknowledged, all that was visible before it
  began is on disk.
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
# Rows of `node_pulse`. A fixed number, so that workers that ended leave no rows. Two
# workers that share a row only wait for each other for a moment.
PULSES = 1024

_guard = threading.Lock()
_barriers: dict[int, NodeCoalescer[Heads, None]] = {}


def confirm(*, node_id: int, heads: Heads | None = None) -> None:
    """Wait until heads as just read from their node are durable, and note them on the
    board.

    `heads` is {queue: head}. Without `heads`, wait until all that was visible on the node
    before the call is durable. Raises NodeUnavailable.
    """
    # Heads that are on the board are durable already. Most reads end here, without a
    # barrier.
    risen = {
        queue: head
        for queue, head in (heads or {}).items()
        if head > board.durable_head(queue)
    }
    if not risen and heads is not None:
        return
    try:
        with barrier_of(node_id).turn(risen) as turn:
            # A barrier serves all calls whose heads were read before it begins.
            if reads := turn.items:
                with node_pools.node(node_id).reading() as session:
                    if not session.shows_durable_only:
                        node_sql.pulse(session, worker=_own_row())
                for queue, head in (item for read in reads for item in read.items()):
                    board.note(queue, head)
    # A pulse with an unknown outcome does no harm: it only proves nothing.
    except db_errors.Ambiguous as fault:
        raise NodeUnavailable(fault.detail) from fault


def head_of(*, queue: int) -> shapes.Head | None:
    """Return the head row of a queue once all messages below its head are durable, None if
    missing.

    Raises NotFound (queue_not_found), NodeUnavailable.
    """
    node = node_pools.node_of(queue)
    with node.reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    # After the session was returned, because the barrier borrows its own session.
    if head is not None:
        confirm(node_id=node.info.id, heads={queue: head.head})
    return head


@cache
def _own_row() -> int:
    """Return the row of this process, chosen at its first barrier: that is after the fork."""
    return random.randrange(PULSES)


def barrier_of(node_id: int) -> NodeCoalescer[Heads, None]:
    with _guard:
        if node_id not in _barriers:
            _barriers[node_id] = NodeCoalescer(limit_s=READ_TIMEOUT_S)
        return _barriers[node_id]
