"""Verbs for the loss of a node: whose data it holds, how far its heads are, fences,
declared gaps.
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

_TOGETHER = 200  # queues or readers in one transaction


class NodeContents(NamedTuple):
    """Contents of a node's database: its identity ('' if it is nobody's), {queue: head},
    its schema.
    """

    identity: str
    heads: dict[int, int]
    schema: Schema = Schema()


class Replication(NamedTuple):
    """The threads of a server that copy another one, and whether they have applied all that
    arrived.

    While it still receives, `caught_up` is False.
    """

    threads: int
    caught_up: bool


class Binlog(NamedTuple):
    """Position in a server's binary log; `gtid` is "" where there are none.

    `file` is "" and `why` says the reason where the account may not know file and position.
    """

    gtid: str
    file: str
    position: int
    why: str = ""


class HighestIds(NamedTuple):
    """The highest ids of metadata that a node holds something of, 0 for none."""

    queue: int
    group: int
    topic: int
    instance: int


class NodeMark(NamedTuple):
    """Contents of a node: (group id, instance, queue, epoch, committed), (queue, head, low,
    node epoch) and declared gaps (queue, from, to), `to` exclusive."""

    readers: Sequence[tuple[int, str, int, int, int]]
    heads: Sequence[tuple[int, int, int, int]]
    gaps: Sequence[tuple[int, int, int]]
    highest: HighestIds


def read_mark(session: Session) -> NodeMark:
    """Return what a node holds, in one round trip."""
    readers, heads, gaps, ids_ = (
        result.rows for result in session.run(step(session, "select_mark"))
    )
    queue, group, dead_group, topic, instance = map(int, ids_[0])
    return NodeMark(
        readers, heads, gaps, HighestIds(queue, max(group, dead_group), topic, instance)
    )


def read_binlog(session: Session) -> Binlog | None:
    """Return how far a server's binary log is; None if it has none."""
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
    """MariaDB, and MySQL before 8.4, have the former name of the statement. Raises Denied."""
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
    """Mark a database as that of a node. One that is marked so already keeps its schema
    version.
    """
    session.run(step(session, "create_identity", version=schema_steps.VERSION))
    session.transact(step(session, "write_identity", identity=identity))


def read_identity(session: Session) -> str:
    """Return the identity of the data, "" if nobody wrote one. Raises `Final` where it
    never stood.
    """
    rows = fetch_rows(session, "select_identity")
    return str(rows[0][0]) if rows else ""


def read_contents(session: Session) -> NodeContents:
    """Identity, heads and schema, in one round trip."""
    identity, heads = session.run(step(session, "select_standing"))[-2:]
    if not identity.rows:
        return NodeContents("", dict(heads.rows))
    return NodeContents(
        str(identity.rows[0][0]), dict(heads.rows), Schema(*identity.rows[0][1:3])
    )


def read_schema(session: Session) -> Schema:
    """Version of a node's tables. Raises `Final` where no identity ever stood."""
    rows = fetch_rows(session, "select_identity")
    return Schema(*rows[0][1:3]) if rows else Schema()


def read_node_epochs(session: Session) -> set[int]:
    """Return the node epochs that queues of the node accept writes under."""
    return {int(epoch) for (epoch,) in fetch_rows(session, "select_node_epochs")}


def read_highest_committed(session: Session) -> dict[int, int]:
    """{queue: the highest committed offset of any reader}."""
    return dict(fetch_rows(session, "select_highest_committed"))


def read_all_gaps(
    session: Session, *, queues: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """{queue: declared gaps (from, to) rising}; `to` is exclusive, queues without one are
    left out.
    """
    rows = fetch_rows(session, "select_gaps_of", queues=id_list(queues)) if queues else ()
    return grouped((queue, (first, end)) for queue, first, end in rows)


def raise_heads(session: Session, *, heads: Sequence[tuple[int, int]], cause: str) -> None:
    """Raise heads to (queue, head), each with the gap that this makes; a head that is
    higher stays.

    Queues rise within a transaction, as everybody locks them in that order.
    """
    steps = [
        step(session, "raise_head", queue=queue, head=head, cause=cause)
        for queue, head in sorted(heads)
    ]
    for some in chunks(steps, _TOGETHER):
        session.transact(*some)


def place_head(session: Session, *, queue: int, low: int, head: int) -> None:
    """Set the bounds of a queue whose head row is new, although its table has rows."""
    session.transact(step(session, "place_head", queue=queue, low=low, head=head))


def fence_heads(session: Session, *, node_epoch: int) -> None:
    """Close every queue, for writers of this node epoch and of all others; retired ones
    stay so.
    """
    session.transact(step(session, "fence_heads", node_epoch=node_epoch))


def raise_readers(session: Session, *, epochs: Sequence[tuple[ReaderKey, int]]) -> None:
    """Raise readers to at least these epochs; one that was lower has no owner then."""
    for some in chunks(epochs, _TOGETHER):
        raised = (
            step(session, "raise_reader", **reader_columns(reader), epoch=epoch)
            for reader, epoch in some
        )
        session.transact(*raised)


def read_replication(session: Session) -> Replication:
    """Return the replication state of a server; none where the account lacks PROCESS
    (`can_see_all_threads`).
    """
    rows = fetch_rows(session, "select_replication", processlist=processlist(session))
    threads, idle, read_all = map(int, rows[0])
    return Replication(threads, threads == idle and read_all > 0)


def can_see_all_threads(session: Session) -> bool:
    """Return True if the account sees the threads of others, those of replication among
    them.
    """
    return _may(session, "try_process")


def may_stop_replicating(session: Session, *, right: str) -> bool:
    """Return True unless the account certainly lacks a right: STOP REPLICA cannot be tried
    without effect.

    The server lists what an account has itself, not what a role gives it.
    """
    rows = fetch_rows(session, "select_privileges")
    mine = {
        str(held)
        for grantee, held, account, _ in rows
        if grantee.replace("'", "") == account
    }
    has_role = any(role not in (None, "", "NONE") for *_, role in rows)
    return has_role or not mine.isdisjoint((right, "SUPER"))


def may_allow_writes(session: Session) -> bool:
    return _may(session, "try_read_only")


def _may(session: Session, name: str) -> bool:
    try:
        session.run(step(session, name))
    except db_errors.Denied:
        return False
    return True


def stop_receiving(session: Session) -> None:
    """End the copying from the other server; what has arrived is still applied."""
    session.run(step(session, "stop_receiving"))


def stop_replicating(session: Session) -> None:
    session.run(step(session, "stop_replicating"))


def allow_writes(session: Session) -> None:
    """Let the whole server be written to."""
    session.run(step(session, "allow_writes"))


def forbid_writes(session: MySqlSession) -> None:
    """Make the whole server read-only, as strictly as it can be."""
    every = session.flavour == "mysql"
    session.run(step(session, "forbid_all_writes" if every else "forbid_writes"))


def list_connections(session: Session) -> list[int]:
    """The server's ids of the other connections to this database."""
    return [
        int(row[0])
        for row in fetch_rows(
            session, "select_connections", processlist=processlist(session)
        )
    ]


def kill_connection(session: Session, *, connection: int) -> None:
    session.run(step(session, "kill_connection", connection=connection))
