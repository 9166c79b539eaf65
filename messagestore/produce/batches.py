"""Expiry of `sent_batch` records, which make the repeat of a send harmless for two days."""

from __future__ import annotations

import logging
from functools import partial

from messagestore.pool import node_pools
from messagestore.tables import message_sql, node_sql
from metadata.cache import snapshot
from metadata.db import clock_marks
from metadata.db.clock import database_now, ms
from metadata.errors import CatmqError
from metadata.rules.topics.retention import clock_problem

log = logging.getLogger(__name__)
KEPT_HOURS = 48
CHUNK = 5_000  # rows in a transaction, which is short enough that no send waits for it
MOST_CHUNKS = 200  # transactions in a pass over a node; the next pass deletes the rest


def expire(*, hours: int = KEPT_HOURS, chunk: int = CHUNK) -> int:
    """Delete batch records older than `hours` from every node. Return the number of rows.

    At most MOST_CHUNKS transactions of `chunk` rows run on each node. Nodes that cannot be
    reached, or whose clock cannot be trusted, are skipped and logged.
    """
    # After a clock jumped ahead, a record that looks old may belong to a send of a moment
    # ago. Without the record, the repeat of that send would be stored a second time.
    clock_jump = clock_marks.check_clock(confirm=False)
    if clock_jump is not None:
        log.warning("Batch records are not deleted now: %s", clock_jump)
        return 0
    deleted = 0
    for node_id, info in snapshot.current().nodes.items():
        try:
            node = node_pools.node(node_id)
            with node.reading() as session:
                now_ms = node_sql.now_ms(session)
            # The node compares `stored_at` with its own clock, so that clock is checked as
            # well.
            problem = clock_problem(
                now_ms=now_ms, reference_ms=ms(database_now()), newest_ms=None
            )
            if problem is not None:
                log.warning(
                    "Batch records of node %d are not deleted now: %s", node_id, problem
                )
                continue
            delete = partial(message_sql.delete_old_batches, hours=hours, most=chunk)
            deleted += node.in_chunks(delete, chunk=chunk, most=MOST_CHUNKS)
        except CatmqError as error:
            log.warning(
                "Batch records of node %s are not deleted now: %s", info.name, error.detail
            )
    return deleted
