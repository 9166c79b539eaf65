"""Checks that the server at a node's address may be served from.

They run at every new connection, at every pass of `registry.probe`, and on the offsets of
stored messages. The server has to hold this node's data, and no head may be lower than it
was known to be (`known_heads`, and `head_seen` in metadata).

A node whose heads went back is *quarantined*: this process serves nothing from it until
`manage.py promote_node` or `adopt_restored_node` has given it another epoch.
`registry.probe` reports it to metadata, so that the other brokers stop as well.

A node whose queues have another epoch than metadata takes no writes: metadata was restored
to a time before the node's last adoption or promotion. Its messages can still be read, so
it is not quarantined; `wrong_epochs` lists it until it is adopted.

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
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.pool import known_heads
from messagestore.tables import promotion_sql
from messagestore.tables.shapes import Schema
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import NodeUnavailable
from metadata.release import VERSION, is_older
from metadata.rules.nodes import NodeState
from metadata.rules.topics.states import STATES_WITHOUT_TABLE

log = logging.getLogger(__name__)
_LOG_EVERY_S = 60.0
# A member of a cluster that joined again may look synced for a moment before it has what it
# missed. It is not used meanwhile; only what lasts longer is a loss.
BEHIND_S = 20.0


class Quarantine(NamedTuple):
    """Reason why a node is not served; `epoch` is the node's epoch at that time."""

    epoch: int
    why: str


_guard = threading.Lock()
_quarantined: dict[int, Quarantine] = {}
# Nodes whose tables this release cannot use. Another release may, so metadata is not told.
_misfits: dict[int, Quarantine] = {}
_schemas: dict[int, Schema] = {}
_wrong_epochs: dict[int, Quarantine] = {}
_logged_at: dict[int, float] = {}  # node id → last log line about another node's data
_behind_since: dict[int, float] = {}  # node id → when a member's heads were first too low


def check(info: NodeInfo) -> None:
    """Raise NodeUnavailable if the node is quarantined or a misfit, without a query."""
    why = info.quarantined
    quarantine = _quarantined.get(info.id)
    # A reason is valid for its epoch only: a promotion or adoption ends it.
    if quarantine is not None and quarantine.epoch == info.epoch:
        why = why or quarantine.why
    if why:
        raise NodeUnavailable(f"Node {info.name} is not served: {why}", retry_after_ms=5000)
    describe_misfit = _misfits.get(info.id)
    if describe_misfit is not None and describe_misfit.epoch == info.epoch:
        raise NodeUnavailable(describe_misfit.why, retry_after_ms=5000)


def quarantined() -> dict[int, Quarantine]:
    """Return the nodes that this process quarantined, by node id."""
    return dict(_quarantined)


def misfits() -> dict[int, Quarantine]:
    """Return the nodes whose tables this release cannot use, by node id."""
    return dict(_misfits)


def wrong_epochs() -> dict[int, Quarantine]:
    """Return the nodes that take no writes because of their epoch, by node id."""
    return dict(_wrong_epochs)


def check_epochs(info: NodeInfo, session: Session) -> str:
    """Compare the epochs of a node's queues with its epoch in metadata.

    Returns why the node takes no writes, and the remedy; "" if it takes them.
    `wrong_epochs` keeps the result.
    """
    why = _find_epoch_fault(info, promotion_sql.read_node_epochs(session))
    if why:
        # A promotion changes metadata first, then the node. So compare again, with a new
        # snapshot and with epochs that are read after it.
        snapshot.refresh()
        current = snapshot.current().nodes.get(info.id)
        is_online = current is not None and current.state != NodeState.OFFLINE
        why = (
            _find_epoch_fault(current, promotion_sql.read_node_epochs(session))
            if current and is_online
            else ""
        )
    if not why:
        _wrong_epochs.pop(info.id, None)
        return ""
    if info.id not in _wrong_epochs:
        log.error("%s", why)
    _wrong_epochs[info.id] = Quarantine(info.epoch, why)
    return why


def _find_epoch_fault(info: NodeInfo, epochs: set[int]) -> str:
    other_epochs = sorted(epochs - {info.epoch})
    return (
        epoch_fault(info.name, stored=other_epochs[-1], expected=info.epoch)
        if other_epochs
        else ""
    )


def epoch_fault(name: str, *, stored: int, expected: int) -> str:
    """Return why a node takes no writes under metadata's epoch, and the remedy."""
    return (
        f"Node {name} takes no writes: its queues have node epoch {stored}, metadata has "
        f"{expected}. "
        f"Metadata or the node was restored to before the node's last promotion or adoption. "
        f"Run manage.py adopt_restored_node {name}."
    )


def schema(info: NodeInfo) -> Schema | None:
    """Return the version of a node's tables as last read, None before the first read."""
    return _schemas.get(info.id)


def refresh_schema(info: NodeInfo, session: Session) -> None:
    """Read the version of a node's tables with a small query. Raises NodeUnavailable."""
    # If the table is missing, `check_server` reports it at the next connection.
    with suppress(db_errors.Final):
        note_schema(info, promotion_sql.read_schema(session))


def check_release(info: NodeInfo, session: Session) -> None:
    """Raise NodeUnavailable if this release cannot use the database's tables, if any."""
    with suppress(db_errors.Final):
        check_schema(info, promotion_sql.read_schema(session))


def note_schema(info: NodeInfo, schema: Schema) -> None:
    """Record the version of a node's tables.

    Raises NodeUnavailable if this release cannot use them; `check` raises it from then on.
    """
    _schemas[info.id] = schema
    problem = describe_misfit(info.name, schema)
    if not problem:
        _misfits.pop(info.id, None)
        return
    if info.id not in _misfits:
        log.error("%s", problem)
    _misfits[info.id] = Quarantine(info.epoch, problem)
    check(info)


def check_schema(info: NodeInfo, schema: Schema) -> None:
    """Raise NodeUnavailable if this release cannot use tables of this version."""
    if problem := describe_misfit(info.name, schema):
        raise NodeUnavailable(problem, retry_after_ms=5000)


def describe_misfit(name: str, schema: Schema) -> str:
    """Return why this release cannot use a node's tables, and the remedy; '' if it can."""
    if is_older(VERSION, schema.min_release):
        return (
            f"Node {name} needs CatMQ >= {schema.min_release}, this is {VERSION}: "
            "install that release here."
        )
    if schema.version < schema_steps.OLDEST:
        return (
            f"Node {name} has schema version {schema.version}, and CatMQ {VERSION} needs "
            f"{schema_steps.OLDEST} or later: run manage.py upgrade_nodes --node {name}."
        )
    return ""


def lowest_heads(info: NodeInfo) -> dict[int, int]:
    """Return the lowest head that each queue of a node can have, by queue id.

    Call it before the node's heads are read: a head may rise in between, and would look too
    low.
    """
    queues = snapshot.current().queues.values() if info.id else ()
    lowest = {
        queue.id: max(queue.head_seen, known_heads.lowest_head(queue.id))
        for queue in queues
        if queue.node_id == info.id and queue.state not in STATES_WITHOUT_TABLE
    }
    return {queue_id: head for queue_id, head in lowest.items() if head}


def check_server(
    info: NodeInfo, session: Session, *, lowest: Mapping[int, int], primary: bool = True
) -> None:
    """Raise NodeUnavailable unless the server may be served from.

    Raises StoreCorrupt if it lacks a table. A replica (not `primary`) may have older tables
    for a moment, so nothing is recorded about its schema.
    """
    if not info.identity:
        return  # registered by a release that did not write identities yet
    contents = _read_contents(info, session)
    if contents.identity != info.identity:
        reason = "the database at its address has no data, or that of another node"
        now = time.monotonic()
        if now - _logged_at.get(info.id, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            _logged_at[info.id] = now
            log.error("Node %s is not served: %s", info.name, reason)
        raise db_errors.Unreachable(f"Node {info.name}: {reason}.")
    if primary:
        note_schema(info, contents.schema)
    else:
        check_schema(info, contents.schema)
    for queue, head in lowest.items():
        if contents.heads.get(queue, 0) < head:
            if isinstance(session, MySqlSession) and session.is_clustered:
                _await_member(info, queue, contents.heads.get(queue), head)
            _quarantine(info, queue, contents.heads.get(queue), head)
    _behind_since.pop(info.id, None)


def _await_member(info: NodeInfo, queue: int, head: int | None, lowest: int) -> None:
    """Raise Unreachable for BEHIND_S after the heads of a cluster's member were too low."""
    now = time.monotonic()
    since = _behind_since.setdefault(info.id, now)
    if now - since < BEHIND_S:
        if since == now:
            log.warning(
                "Node %s is reached at a member that is behind: queue %d has log end offset "
                "%s, but it was %d before",
                info.name,
                queue,
                head,
                lowest,
            )
        raise db_errors.Unreachable(
            f"Node {info.name} is reached at a member that is behind."
        )


def check_stored(info: NodeInfo, *, queue: int, first: int, lowest: int) -> None:
    """Raise Ambiguous if messages were stored at an offset below the `lowest` possible
    offset.

    A backup was restored while the connection stayed open. The messages are stored there,
    and found by their batch id once the node was adopted.
    """
    if first < lowest:
        try:
            _quarantine(info, queue, first, lowest)
        except NodeUnavailable as error:
            raise db_errors.Ambiguous(error.detail) from error


def _read_contents(info: NodeInfo, session: Session) -> promotion_sql.NodeContents:
    """Read identity, schema and heads of the server; all are empty without a node's tables.

    Raises the error of a missing table if the data is this node's.
    """
    try:
        return promotion_sql.read_contents(session)
    except db_errors.Final:
        identity = ""
        with suppress(db_errors.Final):
            identity = promotion_sql.read_identity(session)
        if identity == info.identity:
            raise
        return promotion_sql.NodeContents("", {})


def _quarantine(info: NodeInfo, queue: int, head: int | None, lowest: int) -> None:
    """Stop serving the node in this process. Raises NodeUnavailable."""
    head_text = "has no log end offset" if head is None else f"has log end offset {head}"
    why = (
        f"queue {queue} {head_text}, but it was {lowest} before: the node lost messages. If a "
        "backup was "
        "restored or a replica took over there, run manage.py adopt_restored_node "
        f"{info.name}. To move the "
        f"node to a replica elsewhere, run manage.py promote_node {info.name}."
    )
    quarantine = Quarantine(info.epoch, why)
    with _guard:
        is_known = _quarantined.get(info.id) == quarantine
        _quarantined[info.id] = quarantine
    if not is_known:  # each probe of the node finds the same
        log.error("Node %s is quarantined: %s", info.name, why)
    check(info)
