"""Plans for promoting or adopting a node, made without changing anything (see promotion)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.nodes import promotion_rights
from messagestore.nodes.promotion import check, found, reached, target_of
from messagestore.nodes.replica_inspection import Lost, ReplicaInspection
from messagestore.pool import session_pool
from messagestore.tables import delayed_sql, queue_sql
from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import NodeUnavailable
from metadata.nodes import failovers


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan for a node, if nothing more was sent and copied until then.

    `target`: where it would be. `primary_answers`: whether the database that it is in now
    does; None if that is not asked. `copies`: whether the target still copies another
    server; None if the account may not know.
    `brokers`: processes that must let go of the old primary if it cannot be fenced.
    `queues` of the node,
    `gaps` of them with a declared loss, `messages` that are known to be missing; `lost`
    what groups did not read of them. `delayed`: messages that waited for their time and are
    missing, at most.
    """

    node: str
    target: str
    primary_answers: bool | None
    copies: bool | None
    brokers: int
    queues: int
    gaps: int
    messages: int
    lost: tuple[Lost, ...]
    delayed: int


def promote(
    *,
    name: str,
    actor: Actor,
    host: str = "",
    port: int | None = None,
    tls: str | None = None,
    tls_ca: str | None = None,
) -> Plan:
    """Plan what `promotion.promote` would do. Needs `admin`.

    Raises Invalid (node_refused), NotFound, NodeUnavailable when it would be refused.
    """
    info = found(name, actor)
    target = target_of(info, host=host, port=port, tls=tls, tls_ca=tls_ca)
    with reached(target) as session:
        check(session, info=info, target=target)
        promotion_rights.require(session, target=target, verb="promote")
        old_heads = _heads_now(info)
        inspection = _inspected(session, info.id, old_heads)
        return _plan(
            info,
            target,
            inspection,
            answers=old_heads is not None,
            copies=promotion_rights.copies(session),
            delayed=_delayed(session, info, inspection),
        )


def adopt(*, name: str, actor: Actor) -> Plan:
    """Plan what `promotion.adopt` would do. Needs `admin`. Raises as `promote` does.

    Messages of queues that were made after the backup count as missing: nobody has said to
    keep them.
    """
    info = found(name, actor)
    with session_pool.direct(info) as session:
        check(session, info=info, target=info)
        promotion_rights.require(session, target=info, verb="adopt")
        copies = promotion_rights.copies(session) if info.engine == "mysql" else False
        inspection = _inspected(session, info.id, None)
        delayed = _delayed(session, info, inspection)
        return _plan(info, info, inspection, answers=None, copies=copies, delayed=delayed)


def _delayed(session: Session, info: NodeInfo, inspection: ReplicaInspection) -> int:
    """How many messages that waited for their time are missing, at most."""
    given = delayed_sql.read_counts(session).given
    return (
        0
        if inspection.complete
        else failovers.read_delayed_counts(info.id).lost(given=given)
    )


def _heads_now(info: NodeInfo) -> dict[int, int] | None:
    """The heads of the old primary, None if it does not answer."""
    try:
        with session_pool.direct(info) as session:
            return queue_sql.read_heads(session, queues=None)
    except (NodeUnavailable, db_errors.Final):
        return None


def _inspected(
    session: Session, node_id: int, old_heads: Mapping[int, int] | None
) -> ReplicaInspection:
    try:
        return ReplicaInspection.of(session, node_id, old_heads)
    except db_errors.Final:  # no such table: it is empty
        queues, readers = failovers.list_queues(node_id), failovers.list_readers(node_id)
        return ReplicaInspection(
            queues,
            readers,
            heads={},
            committed={},
            old_heads=old_heads or {},
            complete=False,
        )


def _plan(
    info: NodeInfo,
    target: NodeInfo,
    inspection: ReplicaInspection,
    *,
    answers: bool | None,
    copies: bool | None,
    delayed: int,
) -> Plan:
    return Plan(
        node=info.name,
        target=f"{target.host}:{target.port or 3306}"
        if target.engine == "mysql"
        else target.database,
        primary_answers=answers,
        copies=copies,
        brokers=snapshot_acks.count_workers(),
        queues=len(inspection.queues),
        gaps=len(inspection.raised()),
        messages=sum(inspection.tail(queue) for queue in inspection.queues),
        lost=inspection.lost(),
        delayed=delayed,
    )
