"""Check that a server at a node's address may be served from: made at every new connection,
at every pass of
`registry.probe`, and by the offsets of what is stored.

It must hold this node's data, and no head may be lower than it was known to be
(`known_heads`, and
`head_seen` of metadata). A node whose heads went back is *quarantined*: this process serves
nothing from it until `manage.py promote_node` or `adopt_restored_node` gave it another
epoch.
`registry.probe` tells
metadata, so that the other brokers stop, too.

A node whose queues have another epoch than metadata gives it takes no writes: metadata was
restored to before the node was last adopted or promoted. Its messages can still be read, so
it is not quarantined;
`wrong_epochs` names it until it is adopted.

The tables may be those of another release: see `check_schema`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import Session
from messagestore.pool import known_heads
from messagestore.tables import promotion_sql
from messagestore.tables.shapes import Schema
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import NodeUnavailable
from metadata.release import VERSION, is_older

log = logging.getLogger(__name__)
_COMPLAIN_EVERY_S = 60.0
_UNSETTLED = ("creating", "retired")  # their head rows may come and go


class Quarantine(NamedTuple):
    """Reason why a node is not served; `epoch` is the one it was met with."""

    epoch: int
    why: str


_guard = threading.Lock()
_quarantined: dict[int, Quarantine] = {}
# nodes whose tables this release cannot use; another one may
_misfits: dict[int, Quarantine] = {}
_schemas: dict[int, Schema] = {}
_wrong_epochs: dict[int, Quarantine] = {}
_complained: dict[tuple[int, str], float] = {}


def check(info: NodeInfo) -> None:
    why = info.quarantined
    mine = _quarantined.get(info.id)
    if mine is not None and mine.epoch == info.epoch:
        why = why or mine.why
    if why:
        raise NodeUnavailable(f"Node {info.name} is not served: {why}", retry_after_ms=5000)
    misfit = _misfits.get(info.id)
    if misfit is not None and misfit.epoch == info.epoch:
        raise NodeUnavailable(misfit.why, retry_after_ms=5000)


def quarantined() -> dict[int, Quarantine]:
    """{node id: why} of what this process has met."""
    return dict(_quarantined)


def misfits() -> dict[int, Quarantine]:
    """{node id: why} of the nodes whose tables this release cannot use."""
    return dict(_misfits)


def wrong_epochs() -> dict[int, Quarantine]:
    """{node id: why} of the nodes that take no writes, because their queues have another
    epoch.
    """
    return dict(_wrong_epochs)


def check_epochs(info: NodeInfo, session: Session) -> str:
    """Compare the epochs of a node's queues with its epoch in metadata.

    Return why the node takes no writes, and the remedy; "" if it takes them. The result is
    kept for
    `wrong_epochs`.
    """
    why = _epoch_fault(info, promotion_sql.read_node_epochs(session))
    if why:
        # A promotion changes metadata first, then the node. So compare with a fresh copy of
        # metadata, and
        # with epochs that were read after it.
        snapshot.refresh()
        fresh = snapshot.current().nodes.get(info.id)
        is_settled = fresh is not None and fresh.state != "offline"
        why = (
            _epoch_fault(fresh, promotion_sql.read_node_epochs(session))
            if fresh and is_settled
            else ""
        )
    if not why:
        _wrong_epochs.pop(info.id, None)
        return ""
    if info.id not in _wrong_epochs:
        log.error("%s", why)
    _wrong_epochs[info.id] = Quarantine(info.epoch, why)
    return why


def _epoch_fault(info: NodeInfo, epochs: set[int]) -> str:
    others = sorted(epochs - {info.epoch})
    return epoch_fault(info.name, stored=others[-1], expected=info.epoch) if others else ""


def epoch_fault(name: str, *, stored: int, expected: int) -> str:
    """Say that a node takes no writes under the epoch that metadata has, and the remedy."""
    return (
        f"Node {name} takes no writes: its queues have node epoch {stored}, metadata has "
        f"{expected}. "
        f"Metadata or the node was restored to before the node's last promotion or adoption. "
        f"Run manage.py adopt_restored_node {name}."
    )


def schema(info: NodeInfo) -> Schema | None:
    """Version of a node's tables as this process saw it last; None before it has asked the
    node.
    """
    return _schemas.get(info.id)


def look(info: NodeInfo, session: Session) -> None:
    """Ask a node a smallest question, and learn the version of its tables. Raises
    NodeUnavailable.
    """
    # without the table: `check_server` tells, of a new connection
    with suppress(db_errors.Final):
        note_schema(info, promotion_sql.read_schema(session))


def check_release(info: NodeInfo, session: Session) -> None:
    """Raise NodeUnavailable if this release cannot use the tables in a database; one may
    have none.
    """
    with suppress(db_errors.Final):
        check_schema(info, promotion_sql.read_schema(session))


def note_schema(info: NodeInfo, found: Schema) -> None:
    """Remember the version of a node's tables. If they are a misfit, raise NodeUnavailable,
    and let `check` raise it from now on."""
    _schemas[info.id] = found
    why = misfit(info.name, found)
    if not why:
        _misfits.pop(info.id, None)
        return
    if info.id not in _misfits:
        log.error("%s", why)
    _misfits[info.id] = Quarantine(info.epoch, why)
    check(info)


def check_schema(info: NodeInfo, found: Schema) -> None:
    """Raise NodeUnavailable if this release cannot use tables of such a version."""
    if why := misfit(info.name, found):
        raise NodeUnavailable(why, retry_after_ms=5000)


def misfit(name: str, found: Schema) -> str:
    """Return why this release cannot use a node's tables, and what to do; '' if it can."""
    if is_older(VERSION, found.min_release):
        return (
            f"Node {name} needs CatMQ >= {found.min_release}, this is {VERSION}: "
            "install that release here."
        )
    if found.version < schema_steps.OLDEST:
        return (
            f"Node {name} has schema version {found.version}, and CatMQ {VERSION} needs "
            f"{schema_steps.OLDEST} or later: run manage.py upgrade_nodes --node {name}."
        )
    return ""


def lowest_heads(info: NodeInfo) -> dict[int, int]:
    """{queue: the lowest head it can have} of a node; to be taken before its heads are
    read.
    """
    queues = snapshot.current().queues.values() if info.id else ()
    lowest = {
        one.id: max(one.head_seen, known_heads.lowest_head(one.id))
        for one in queues
        if one.node_id == info.id and one.state not in _UNSETTLED
    }
    return {queue: head for queue, head in lowest.items() if head}


def check_server(
    info: NodeInfo, session: Session, *, lowest: Mapping[int, int], primary: bool = True
) -> None:
    """Raise NodeUnavailable unless the server may be served from, StoreCorrupt if it lacks
    a table.

    A replica, which is not the `primary`, may be behind: nothing is remembered of its
    schema.
    """
    if not info.identity:
        return  # registered before nodes were marked
    standing = _standing(info, session)
    if standing.identity != info.identity:
        _complain(info, "the database at its address has no data, or that of another node")
        raise db_errors.Unreachable(
            f"Node {info.name}: the database at its address has no data, or that of another node."
        )
    if primary:
        note_schema(info, standing.schema)
    else:
        check_schema(info, standing.schema)
    for queue, head in lowest.items():
        if standing.heads.get(queue, 0) < head:
            _quarantine(info, queue, standing.heads.get(queue), head)


def check_stored(info: NodeInfo, *, queue: int, first: int, lowest: int) -> None:
    """Raise Ambiguous if a first offset is below the `lowest` that it could get: a backup
    was restored under an open connection. The messages are stored, and found by their batch
    id once the node was adopted."""
    if first < lowest:
        try:
            _quarantine(info, queue, first, lowest)
        except NodeUnavailable as error:
            raise db_errors.Ambiguous(error.detail) from error


def _standing(info: NodeInfo, session: Session) -> promotion_sql.NodeContents:
    """Read the server's contents. Raises the fault of a missing table although the data is
    this node's.
    """
    try:
        return promotion_sql.read_contents(session)
    except db_errors.Final:
        if _identity(session) == info.identity:
            raise
        return promotion_sql.NodeContents("", {})


def _identity(session: Session) -> str:
    try:
        return promotion_sql.read_identity(session)
    except db_errors.Final:
        return ""


def _quarantine(info: NodeInfo, queue: int, head: int | None, lowest: int) -> None:
    found = "has no log end offset" if head is None else f"has log end offset {head}"
    why = (
        f"queue {queue} {found}, but it was {lowest} before: the node lost messages. If a "
        "backup was "
        "restored or a replica took over there, run manage.py adopt_restored_node "
        f"{info.name}. To move the "
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
