"""Records of sent batches, so that a repeat is stored once: for two days."""

from __future__ import annotations

import logging

from messagestore.pool import node_pools
from messagestore.tables import message_sql, node_sql
from metadata.cache import snapshot
from metadata.db import clock_marks
from metadata.db.clock import database_now, ms
from metadata.errors import CatmqError
from metadata.rules.topics.retention import clock_problem

log = logging.getLogger(__name__)
KEPT_HOURS = 48
CHUNK = 5_000  # rows in one transaction: short enough that no send waits for it
MOST_CHUNKS = 200  # in one pass and node; what is left waits for the next pass


def expire(*, hours: int = KEPT_HOURS, chunk: int = CHUNK) -> int:
    """Delete the records of every node that are older than `hours`, and return how many. Bounded.

    Nothing where a clock cannot be trusted: what looks old may have been sent a moment ago, and its repeat
    would be stored again.
    """
    jumped = clock_marks.look(confirm=False)
    if jumped is not None:
        log.warning("Batch records are not deleted now: %s", jumped)
        return 0
    done = 0
    for node_id, info in snapshot.current().nodes.items():
        try:
            done += _expire(node_id, hours, chunk)
        except CatmqError as error:
            log.warning("Batch records of node %s are not deleted now: %s", info.name, error.detail)
    return done


def _expire(node_id: int, hours: int, chunk: int) -> int:
    with node_pools.node(node_id).reading() as session:
        now = node_sql.now_ms(session)
    problem = clock_problem(now_ms=now, reference_ms=ms(database_now()), newest_ms=None)
    if problem is not None:
        log.warning("Batch records of node %d are not deleted now: %s", node_id, problem)
        return 0
    return node_pools.node(node_id).in_chunks(
        lambda session: message_sql.delete_old_batches(session, hours=hours, most=chunk),
        chunk=chunk,
        most=MOST_CHUNKS,
    )
