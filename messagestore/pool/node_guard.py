"""Check that a server at a node's address may be served from: made at every new connection.

It must hold this node's data, and no head may be lower than it was known to be (`known_heads`, and
`head_seen` of metadata). A node whose heads went back is *quarantined*: this process serves nothing from it
until `manage.py promote_node` or `adopt_restored_node` gave it another epoch. `registry.probe` tells
metadata, so that the other brokers stop, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import known_heads
from messagestore.tables import promotion_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import NodeUnavailable

log = logging.getLogger(__name__)
_COMPLAIN_EVERY_S = 60.0
_UNSETTLED = ("creating", "retired")  # their head rows may come and go


class Quarantine(NamedTuple):
    """Reason why a node is not served; `epoch` is the one it was met with."""

    epoch: int
    why: str


_guard = threading.Lock()
_quarantined: dict[int, Quarantine] = {}
_complained: dict[tuple[int, str], float] = {}


def check(info: NodeInfo) -> None:
    why = info.quarantined
    mine = _quarantined.get(info.id)
    if mine is not None and mine.epoch == info.epoch:
        why = why or mine.why
    if why:
        raise NodeUnavailable(f"Node {info.name} is not served: {why}", retry_after_ms=5000)


def quarantined() -> dict[int, Quarantine]:
    """{node id: why} of what this process has met."""
    return dict(_quarantined)


def lowest_heads(info: NodeInfo) -> dict[int, int]:
    """{queue: the lowest head it can have} of a node; to be taken before its heads are read."""
    queues = snapshot.current().queues.values() if info.id else ()
    lowest = {
        one.id: max(one.head_seen, known_heads.known(one.id))
        for one in queues
        if one.node_id == info.id and one.state not in _UNSETTLED
    }
    return {queue: head for queue, head in lowest.items() if head}


def check_server(info: NodeInfo, session: Session, *, lowest: Mapping[int, int]) -> None:
    """Raise NodeUnavailable unless the server may be served from, StoreCorrupt if it lacks a table."""
    if not info.identity:
        return  # registered before nodes were marked
    standing = _standing(info, session)
    if standing.identity != info.identity:
        _complain(info, "the database at its address has no data, or that of another node")
        raise db_errors.Unreachable(
            f"Node {info.name}: the database at its address has no data, or that of another node."
        )
    for queue, head in lowest.items():
        if standing.heads.get(queue, 0) < head:
            _quarantine(info, queue, standing.heads.get(queue), head)


def _standing(info: NodeInfo, session: Session) -> promotion_sql.Standing:
    """Read the server's contents. Raises the fault of a missing table although the data is this node's."""
    try:
        return promotion_sql.read_standing(session)
    except db_errors.Final:
        if _identity(session) == info.identity:
            raise
        return promotion_sql.Standing("", {})


def _identity(session: Session) -> str:
    try:
        return promotion_sql.read_identity(session)
    except db_errors.Final:
        return ""


def _quarantine(info: NodeInfo, queue: int, head: int | None, lowest: int) -> None:
    found = "has no log end offset" if head is None else f"has log end offset {head}"
    why = (
        f"queue {queue} {found}, but it was {lowest} before: the node lost messages. If a backup was "
        f"restored or a replica took over there, run manage.py adopt_restored_node {info.name}. To move the "
        f"node to a replica elsewhere, run manage.py promote_node {info.name}."
    )
    with _guard:
        _quarantined[info.id] = Quarantine(info.epoch, why)
    log.error("Node %s is quarantined: %s", info.name, why)
    check(info)


def _complain(info: NodeInfo, why: str) -> None:
    now = time.monotonic()
    if now - _complained.get((info.id, why), -_COMPLAIN_EVERY_S) >= _COMPLAIN_EVERY_S:
        _complained[info.id, why] = now
        log.error("Node %s is not served: %s", info.name, why)
