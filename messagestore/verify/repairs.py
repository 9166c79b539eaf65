"""The mends, each only for what is still so, and never for what may hold messages."""

from __future__ import annotations

from messagestore.engine.mysql_session import Session
from messagestore.pool import session_pool
from messagestore.tables import audit_sql, queue_sql, reader_sql
from messagestore.tables.shares import position_sql
from messagestore.topology import retry_topics
from messagestore.verify.contents import is_empty, is_lone
from messagestore.verify.findings import Finding
from messagestore.verify.run import check
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import audit
from metadata.db.transactions import transactional
from metadata.errors import Conflict, NotFound
from metadata.groups import expected_state


def find(*, key: str, actor: Actor) -> Finding:
    """Return the finding that a check makes under a key now. Needs `admin` on everything.
    Raises NotFound.
    """
    found = {one.key: one for one in check(actor=actor).findings}
    if key not in found:
        raise NotFound(f"{key} is no longer found: it was repaired, or was only temporary.")
    return found[key]


def repair(*, key: str, actor: Actor) -> Finding:
    """Mend what a check found, if that is safe; return what it was. Needs `admin` on
    everything.

    Raises Forbidden, NotFound when it is found no more, Conflict with what to do where no
    repair is safe, NodeUnavailable.
    """
    finding = find(key=key, actor=actor)
    if not finding.safe:
        raise Conflict(f"{finding.where}: this cannot be repaired safely. {finding.advice}")
    if finding.node:
        _mend_node(finding)
    else:
        _mend_metadata(finding)
    _record(finding, actor)
    return finding


@transactional
def _record(finding: Finding, actor: Actor) -> None:
    before, after = {"where": finding.where, "what": finding.what}, {"key": finding.key}
    audit.record(
        actor=actor,
        verb="repair",
        kind="finding",
        name=finding.kind,
        before=before,
        after=after,
    )


def _mend_metadata(finding: Finding) -> None:
    group, ids = finding.group, list(finding.ids)
    if finding.kind == "position_unknown":
        expected_state.drop_positions(group_id=group, queues=ids)
    elif finding.kind == "position_missing":
        expected_state.add_positions(group_id=group, queues=ids)
    elif finding.kind == "heartbeat_missing":
        expected_state.add_heartbeats(group_id=group, members=ids)
    else:
        retry_topics.make(group_id=group, topic_id=finding.topic)


def _mend_node(finding: Finding) -> None:
    info = snapshot.node_by_id(finding.node)
    with session_pool.direct(info) as session:
        if finding.kind == "readers_unknown":
            _drop_readers(session, finding)
        elif finding.kind == "table_missing":
            queue_sql.create_queue(session, queue=finding.ids[0], node_epoch=info.epoch)
        else:
            _drop_queue(session, finding)


def _drop_queue(session: Session, finding: Finding) -> None:
    """Drop a queue that was closed first: then nobody can write any more, and what is empty
    stays so.
    """
    (queue,) = finding.ids
    queue_sql.set_queue_state(session, queue=queue, state="retired")
    head = queue_sql.read_head(session, queue=queue)
    held = finding.kind == "table_unknown" and not is_empty(session, queue)
    if held or (head is not None and head.head):
        raise Conflict(f"{finding.where}: it holds messages now. {finding.means}")
    queue_sql.drop_queue(session, queue=queue)


def _drop_readers(session: Session, finding: Finding) -> None:
    """Drop positions up to the epochs that were seen: a subscription made meanwhile keeps
    its own.
    """
    rows = audit_sql.list_all_readers(session)
    known = expected_state.read_state()
    for row in rows:
        if (
            row.group_id == finding.group
            and row.queue in finding.ids
            and is_lone(row, known)
        ):
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
