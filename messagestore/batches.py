"""What is remembered of sent batches, so that a repeat is stored once: kept for two days, then trimmed."""

from __future__ import annotations

import logging

from messagestore import connections, tables
from metadata import snapshot
from metadata.errors import CatmqError

log = logging.getLogger(__name__)
KEPT_HOURS = 48
CHUNK = 5_000  # rows in one transaction: short enough that no send waits for it
MOST_CHUNKS = 200  # in one pass and node; what is left waits for the next pass


def trim(*, hours: int = KEPT_HOURS, chunk: int = CHUNK) -> int:
    """Forgets the batches of every node that were stored more than `hours` ago; how many. Bounded."""
    done = 0
    for node_id, info in snapshot.current().nodes.items():
        try:
            done += _trim(node_id, hours, chunk)
        except CatmqError as error:
            log.warning("Sent batches of node %s are trimmed later: %s", info.name, error.detail)
    return done


def _trim(node_id: int, hours: int, chunk: int) -> int:
    done = 0
    for _ in range(MOST_CHUNKS):
        with connections.node(node_id).writing() as session:
            deleted = tables.delete_old_batches(session, hours=hours, most=chunk)
        done += deleted
        if deleted < chunk:
            break
    return done
