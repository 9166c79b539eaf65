"""Repairs of findings. Each checks again that the finding is still true, and none deletes
messages.
"""

from __future__ import annotations

from messagestore.engine.mysql_session import Session
from messagestore.pool import session_pool
from messagestore.tables import audit_sql, queue_sql, reader_sql
from messagestore.tables.shares import position_sql
from messagestore.topology import retry_topics
from messagestore.verify.contents import is_empty, is_unused
from messagestore.verify.findings import Finding
from messagestore.verify.run import check
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import audit
from metadata.db.transactions import transactional
from metadata.errors import Conflict, NotFound
from metadata.groups import expected_state
from metadata.rules.audit_verbs import Verb
from metadata.rules.topics.states import QueueState


def find(*, key: str, actor: Actor) -> Finding:
    """Run a check and return the finding with a key. Needs `admin` on everything.

    Raises NotFound if there is no such finding any more.
    """
    findings = {finding.key: finding for finding in check(actor=actor).findings}
    if key not in findings:
        raise NotFound(f"{key} is no longer found: it was repaired, or was only temporary.")
    return findings[key]


def repair(*, key: str, actor: Actor) -> Finding:
    """Repair a finding if that is safe, and return it. Needs `admin` on everything.

    Raises Forbidden, NotFound if it is no longer found, Conflict with advice if no repair
    is safe, NodeUnavailable.
    """
    finding = find(key=key, actor=actor)
    if not finding.safe:
        raise Conflict(f"{finding.where}: this cannot be repaired safely. {finding.advice}")
    group, ids = finding.group, list(finding.ids)
    if finding.node:
        info = snapshot.node_by_id(finding.node)
        with session_pool.direct(info) as session:
            if finding.kind == "readers_unknown":
                _drop_readers(session, finding)
            elif finding.kind == "table_missing":
                queue_sql.create_queue(session, queue=ids[0], node_epoch=info.epoch)
            else:
                _drop_queue(session, finding)
    elif finding.kind == "position_unknown":
        expected_state.drop_positions(group_id=group, queues=ids)
    elif finding.kind == "position_missing":
        expected_state.add_positions(group_id=group, queues=ids)
    elif finding.kind == "heartbeat_missing":
        expected_state.add_heartbeats(group_id=group, members=ids)
    else:
        retry_topics.make(group_id=group, topic_id=finding.topic)
    transactional(audit.record)(
        actor=actor,
        verb=Verb.REPAIR,
        kind="finding",
        name=finding.kind,
        before={"where": finding.where, "what": finding.what},
        after={"key": finding.key},
    )
    return finding


def _drop_queue(session: Session, finding: Finding) -> None:
    """Drop a queue that is empty, or raise Conflict."""
    (queue,) = finding.ids
    # Close it before the check: then no message can arrive between check and drop.
    queue_sql.set_queue_state(session, queue=queue, state=QueueState.RETIRED)
    head = queue_sql.read_head(session, queue=queue)
    has_messages = finding.kind == "table_unknown" and not is_empty(session, queue)
    if has_messages or (head is not None and head.head):
        raise Conflict(f"{finding.where}: it holds messages now. {finding.means}")
    queue_sql.drop_queue(session, queue=queue)


def _drop_readers(session: Session, finding: Finding) -> None:
    """Delete the unused reader rows of a finding."""
    rows = audit_sql.list_all_readers(session)
    expected = expected_state.read_state()
    for row in rows:
        if (
            row.group_id == finding.group
            and row.queue in finding.ids
            and is_unused(row, expected)
        ):
            # A subscription that is made meanwhile has a higher epoch, and keeps its rows.
            below = row.epoch + 1
            reader_sql.delete_readers(
                session,
                group_id=row.group_id,
                queues=[row.queue],
                below=below,
                instance=row.instance,
            )
            position_sql.delete_shares(
                session, group_id=row.group_id, queues=[row.queue], below=below
            )
