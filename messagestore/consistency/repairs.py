"""The mends, each only for what is still so, and never for what may hold messages."""

from __future__ import annotations

from messagestore import tables
from messagestore.consistency.findings import Finding
from messagestore.consistency.looking import check, is_empty, is_lone
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import session_pool
from messagestore.topology import retry_topics
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import access, audit
from metadata.db.transactions import transactional
from metadata.errors import Conflict, NodeUnavailable, NotFound
from metadata.groups import ledger


def find(*, key: str, actor: Actor) -> Finding:
    """Return the finding that a check makes under a key now. Needs `admin` on everything. Raises NotFound."""
    found = {one.key: one for one in check(actor=actor).findings}
    if key not in found:
        raise NotFound(f"{key} is found no more: it was mended, or was only under way.")
    return found[key]


def repair(*, key: str, actor: Actor) -> Finding:
    """Mends what a check found, if that is safe; what it was. Needs `admin` on everything.

    Raises Forbidden, NotFound when it is found no more, Conflict with what to do where no repair is safe,
    NodeUnavailable.
    """
    access.require(actor, "admin", "*", what="check")
    finding = find(key=key, actor=actor)
    if not finding.safe:
        raise Conflict(f"{finding.where}: this cannot be repaired safely. {finding.advice}")
    if finding.kind in ON_NODES:
        _on_node(finding)
    elif finding.kind == "position_unknown":
        ledger.drop_positions(group_id=finding.group, queues=list(finding.ids))
    elif finding.kind == "position_missing":
        ledger.add_positions(group_id=finding.group, queues=list(finding.ids))
    elif finding.kind == "heartbeat_missing":
        ledger.add_heartbeats(group_id=finding.group, members=list(finding.ids))
    else:
        retry_topics.make(group_id=finding.group, topic_id=finding.topic)
    _record(finding, actor)
    return finding


@transactional
def _record(finding: Finding, actor: Actor) -> None:
    before = {"where": finding.where, "what": finding.what}
    audit.record(
        actor=actor,
        verb="repair",
        kind="finding",
        name=finding.kind,
        before=before,
        after={"key": finding.key},
    )


ON_NODES = ("table_missing", "table_unknown", "head_unknown", "readers_unknown")


def _on_node(finding: Finding) -> None:
    session = session_pool.connect(snapshot.node_by_id(finding.node))
    try:
        if finding.kind == "readers_unknown":
            _drop_readers(session, finding)
        elif finding.kind == "table_missing":
            epoch = snapshot.node_by_id(finding.node).epoch
            tables.create_queue(session, queue=finding.ids[0], node_epoch=epoch)
        else:
            _drop_queue(session, finding)
    except db_errors.Ambiguous as error:
        raise NodeUnavailable(error.detail) from error
    finally:
        session.close()


def _drop_queue(session: Session, finding: Finding) -> None:
    """Closed first: then nobody can write any more, and what is empty stays so."""
    (queue,) = finding.ids
    tables.set_queue_state(session, queue=queue, state="retired")
    head = tables.read_head(session, queue=queue)
    held = finding.kind == "table_unknown" and not is_empty(session, queue)
    if held or (head is not None and head.head):
        raise Conflict(f"{finding.where}: it holds messages by now. {finding.means}")
    tables.drop_queue(session, queue=queue)


def _drop_readers(session: Session, finding: Finding) -> None:
    """Up to the epochs that were seen, so that a subscription made meanwhile keeps its own."""
    rows = tables.all_readers(session)
    known = ledger.read()
    for row in rows:
        if row.group_id == finding.group and row.queue in finding.ids and is_lone(row, known):
            tables.delete_readers(
                session,
                group_id=row.group_id,
                queues=[row.queue],
                below=row.epoch + 1,
                instance=row.instance,
            )
