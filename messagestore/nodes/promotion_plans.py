"""Plans of promotions and adoptions, made without changing anything (see promotion.py)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.nodes import promotion_rights
from messagestore.nodes.promotion import check_target, choose_target, find_node, open_target
from messagestore.nodes.replica_inspection import Lost, ReplicaInspection
from messagestore.pool import session_pool, writers
from messagestore.tables import delayed_sql, queue_sql
from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import NodeUnavailable
from metadata.nodes import failovers
from metadata.rules.audit_verbs import Verb
from metadata.rules.nodes import Engine


class Plan(Struct, frozen=True):
    """The effects of a promotion or adoption, if nothing more was sent or copied until
    then.

    `target`: the new address. `primary_answers`: whether the present database answers, None
    if that is not checked. `copies`: whether the target still copies another server, None
    if unknown. `brokers`: processes that have to let go of the old primary if it cannot be
    fenced.

    `queues` of the node, `gaps`: how many of them get a declared gap, `messages`: how many
    are known to be lost, `lost`: those that groups have not read, `delayed`: lost delayed
    messages, at most.
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

    Raises Invalid (node_refused), NotFound and NodeUnavailable if it would be refused.
    """
    info = find_node(name, actor)
    target = choose_target(info, host=host, port=port, tls=tls, tls_ca=tls_ca)
    with open_target(target) as session:
        check_target(session, info=info, target=target)
        promotion_rights.require(session, target=target, verb=Verb.PROMOTE)
        old_heads = None
        with (
            suppress(NodeUnavailable, db_errors.Final),
            session_pool.direct(writers.at_writer(info)) as old,
        ):
            old_heads = queue_sql.read_heads(old, queues=None)
        inspection = _inspect(session, info.id, old_heads)
        return _make_plan(
            session,
            info,
            target,
            inspection,
            answers=old_heads is not None,
            copies=promotion_rights.copies(session),
        )


def adopt(*, name: str, actor: Actor) -> Plan:
    """Plan what `promotion.adopt` would do. Needs `admin`. Raises as `promote` does.

    Messages of queues that were made after the backup count as lost, because the choice to
    keep them is made only when it is carried out.
    """
    info = find_node(name, actor)
    with session_pool.direct(info) as session:
        check_target(session, info=info, target=info)
        promotion_rights.require(session, target=info, verb=Verb.ADOPT)
        copies = promotion_rights.copies(session) if info.engine == Engine.MYSQL else False
        inspection = _inspect(session, info.id, None)
        return _make_plan(session, info, info, inspection, answers=None, copies=copies)


def _inspect(
    session: Session, node_id: int, old_heads: Mapping[int, int] | None
) -> ReplicaInspection:
    """Inspect the database; without a node's tables it counts as empty."""
    try:
        return ReplicaInspection.of(session, node_id, old_heads)
    except db_errors.Final:  # no such table
        queues, readers = failovers.list_queues(node_id), failovers.list_readers(node_id)
        return ReplicaInspection(
            queues,
            readers,
            heads={},
            committed={},
            old_heads=old_heads or {},
            complete=False,
        )


def _make_plan(
    session: Session,
    info: NodeInfo,
    target: NodeInfo,
    inspection: ReplicaInspection,
    *,
    answers: bool | None,
    copies: bool | None,
) -> Plan:
    last_delayed_id = delayed_sql.read_counts(session).given
    delayed = 0
    if not inspection.complete:
        delayed = failovers.read_delayed_counts(info.id).lost(given=last_delayed_id)
    return Plan(
        node=info.name,
        target=f"{target.host}:{target.port or 3306}"
        if target.engine == Engine.MYSQL
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
