"""Statements for the loss of a node: identity of the data, heads, fences, declared gaps,
replication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.tables.node_sql import read_server_facts
from messagestore.tables.shapes import ReaderKey, Schema
from messagestore.tables.sql_steps import (
    fetch_rows,
    id_list,
    processlist,
    reader_columns,
    step,
)
from metadata.grouping import chunks, grouped

_ROWS_PER_TRANSACTION = 200  # queues or readers in a single transaction


class NodeContents(NamedTuple):
    """Contents of a node's database: identity of the node ('' without one), {queue: head},
    schema.
    """

    identity: str
    heads: dict[int, int]
    schema: Schema = Schema()


class Replication(NamedTuple):
    """Replication state of a server: number of replication threads, and whether they have
    applied everything that arrived.

    `caught_up` is False while the server still receives.
    """

    threads: int
    caught_up: bool


class Binlog(NamedTuple):
    """Position in a server's binary log. `gtid` is '' if the server has no GTIDs.

    `file` is '' and `why` has the reason if the account may not read file and position.
    """

    gtid: str
    file: str
    position: int
    why: str = ""


class HighestIds(NamedTuple):
    """The highest ids of metadata in a node's tables, 0 for none."""

    queue: int
    group: int
    topic: int
    instance: int


class NodeMark(NamedTuple):
    """Contents of a node that a backup records.

    `readers` are (group id, instance, queue, epoch, committed), `heads` (queue, head, low,
    node epoch), and `gaps` declared gaps (queue, from, to) with an exclusive end.
    """

    readers: Sequence[tuple[int, str, int, int, int]]
    heads: Sequence[tuple[int, int, int, int]]
    gaps: Sequence[tuple[int, int, int]]
    highest: HighestIds


def read_mark(session: Session) -> NodeMark:
    """Return the recorded contents of a node, in a single round trip."""
    readers, heads, gaps, ids_ = (
        result.rows for result in session.run(step(session, "select_mark"))
    )
    queue, group, dead_group, topic, instance = map(int, ids_[0])
    return NodeMark(
        readers, heads, gaps, HighestIds(queue, max(group, dead_group), topic, instance)
    )


def read_binlog(session: Session) -> Binlog | None:
    """Return the position of a server's binary log, None if it has none."""
    if not isinstance(session, MySqlSession) or not read_server_facts(session).log_bin:
        return None
    gtid = str(fetch_rows(session, f"select_gtid_{session.flavour}")[0][0] or "").replace(
        "\n", ""
    )
    try:
        rows = _binlog_status(session)
    except db_errors.Denied as denied:
        return Binlog(gtid, "", 0, denied.detail)
    return Binlog(gtid, str(rows[0][0]), int(rows[0][1])) if rows else None


def _binlog_status(session: MySqlSession) -> Sequence[tuple[Any, ...]]:
    """Return the rows of the statement for the binary log's position.

    MySQL 8.4 has a new name for it; MariaDB and older versions have the former one.
    Raises Denied.
    """
    try:
        return fetch_rows(
            session,
            "show_binlog_status" if session.flavour == "mysql" else "show_master_status",
        )
    except db_errors.Denied:
        raise
    except db_errors.Final:
        return fetch_rows(session, "show_master_status")


def write_identity(session: Session, *, identity: str) -> None:
    """Mark a database as that of a node. If it has this mark, its schema version stays."""
    # The table first: databases that were nodes of an early release lack it.
    session.run(step(session, "create_identity", version=schema_steps.VERSION))
    session.transact(step(session, "write_identity", identity=identity))


def read_identity(session: Session) -> str:
    """Return the identity of the data, '' if none was written. Raises `Final` without its
    table.
    """
    rows = fetch_rows(session, "select_identity")
    return str(rows[0][0]) if rows else ""


def read_contents(session: Session) -> NodeContents:
    """Return identity, heads and schema of a database, in a single round trip."""
    identity, heads = session.run(step(session, "select_standing"))[-2:]
    if not identity.rows:
        return NodeContents("", dict(heads.rows))
    return NodeContents(
        str(identity.rows[0][0]), dict(heads.rows), Schema(*identity.rows[0][1:3])
    )


def read_schema(session: Session) -> Schema:
    """Return the version of a node's tables. Raises `Final` without the table of
    identities.
    """
    rows = fetch_rows(session, "select_identity")
    return Schema(*rows[0][1:3]) if rows else Schema()


def read_node_epochs(session: Session) -> set[int]:
    """Return the node epochs under which queues of the node accept writes."""
    return {int(epoch) for (epoch,) in fetch_rows(session, "select_node_epochs")}


def read_highest_committed(session: Session) -> dict[int, int]:
    """Return {queue: highest committed offset of any reader}."""
    return dict(fetch_rows(session, "select_highest_committed"))


def read_all_gaps(
    session: Session, *, queues: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return {queue: declared gaps (from, to), rising}, without queues that have none.

    `to` is exclusive.
    """
    rows = fetch_rows(session, "select_gaps_of", queues=id_list(queues)) if queues else ()
    return grouped((queue, (first, end)) for queue, first, end in rows)


def raise_heads(session: Session, *, heads: Sequence[tuple[int, int]], cause: str) -> None:
    """Raise the heads of (queue, head)s, and declare the offsets in between as gaps.

    A head that is higher already stays.
    """
    # In rising order, as all sessions lock heads, so that two cannot deadlock.
    steps = [
        step(session, "raise_head", queue=queue, head=head, cause=cause)
        for queue, head in sorted(heads)
    ]
    for chunk in chunks(steps, _ROWS_PER_TRANSACTION):
        session.transact(*chunk)


def place_head(session: Session, *, queue: int, low: int, head: int) -> None:
    """Set the bounds of a queue whose head row was made new although its table has rows."""
    session.transact(step(session, "place_head", queue=queue, low=low, head=head))


def fence_heads(session: Session, *, node_epoch: int) -> None:
    """Set the node epoch of every queue and close it, except retired ones.

    Writers of any other epoch are refused from then on.
    """
    session.transact(step(session, "fence_heads", node_epoch=node_epoch))


def raise_readers(session: Session, *, epochs: Sequence[tuple[ReaderKey, int]]) -> None:
    """Raise readers to at least some epochs. A reader that was raised has no owner."""
    for chunk in chunks(epochs, _ROWS_PER_TRANSACTION):
        raise_steps = (
            step(session, "raise_reader", **reader_columns(reader), epoch=epoch)
            for reader, epoch in chunk
        )
        session.transact(*raise_steps)


def read_replication(session: Session) -> Replication:
    """Return the replication state of a server.

    It shows no threads if the account lacks PROCESS (see can_see_all_threads).
    """
    rows = fetch_rows(session, "select_replication", processlist=processlist(session))
    threads, idle, read_all = map(int, rows[0])
    return Replication(threads, threads == idle and read_all > 0)


def can_see_all_threads(session: Session) -> bool:
    """Return True if the account sees threads of other users, among them those of
    replication.
    """
    return _can_run(session, "try_process")


def may_stop_replicating(session: Session, *, right: str) -> bool:
    """Return False if the account certainly lacks a right.

    The server lists what was granted to the account, but not what a role adds, so any role
    counts as sufficient. STOP REPLICA cannot be tried without effect.
    """
    rows = fetch_rows(session, "select_privileges")
    own_rights = {
        str(privilege)
        for grantee, privilege, account, _ in rows
        if grantee.replace("'", "") == account
    }
    has_role = any(role not in (None, "", "NONE") for *_, role in rows)
    # SUPER includes the right on older servers.
    return has_role or not own_rights.isdisjoint((right, "SUPER"))


def may_allow_writes(session: Session) -> bool:
    return _can_run(session, "try_read_only")


def _can_run(session: Session, name: str) -> bool:
    try:
        session.run(step(session, name))
    except db_errors.Denied:
        return False
    return True


def stop_receiving(session: Session) -> None:
    """Stop receiving from the source server. What has arrived is still applied."""
    session.run(step(session, "stop_receiving"))


def stop_replicating(session: Session) -> None:
    session.run(step(session, "stop_replicating"))


def allow_writes(session: Session) -> None:
    """Make the whole server writable."""
    session.run(step(session, "allow_writes"))


def forbid_writes(session: MySqlSession) -> None:
    """Make the whole server read-only, for privileged accounts too if the server can."""
    is_mysql = session.flavour == "mysql"
    session.run(step(session, "forbid_all_writes" if is_mysql else "forbid_writes"))


def list_connections(session: Session) -> list[int]:
    """Return the server's ids of the other connections to this database."""
    return [
        int(row[0])
        for row in fetch_rows(
            session, "select_connections", processlist=processlist(session)
        )
    ]


def kill_connection(session: Session, *, connection: int) -> None:
    session.run(step(session, "kill_connection", connection=connection))
