"""Sizes of the nodes: measured by a job every hour, so that it is seen how they grow."""

from __future__ import annotations

import logging

from messagestore import tables
from messagestore.pool import node_pools
from metadata.cache import snapshot
from metadata.errors import CatmqError
from metadata.nodes import size_rows

log = logging.getLogger(__name__)


def record() -> int:
    """Measures every node that answers, and keeps what it holds; how many were measured."""
    found = {}
    for node_id, info in snapshot.current().nodes.items():
        if info.state == "offline":
            continue
        try:
            with node_pools.node(node_id).reading() as session:
                used, reusable = tables.used_bytes(session)
                found[node_id] = (max(used - reusable, 0), len(tables.read_heads(session, queues=None)))
        except CatmqError as error:
            log.warning("How much node %s holds is not known: %s", info.name, error.detail)
    return size_rows.note(found)
