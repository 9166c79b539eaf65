"""Verbs on a node itself: its tables, its settings, its clock, all its queues at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import Session
from messagestore.engine.sqlite_session import SqliteSession
from messagestore.tables import audit_sql, partition_sql
from messagestore.tables.shapes import ServerFacts, TableChange, TlsFacts
from messagestore.tables.sql_steps import fetch_rows, message_table, step
from metadata.grouping import chunks, grouped
from metadata.rules.grants import NODE, Grant

_TRIED_BY = {  # statements that need a right of grants.NODE each
    "SELECT": "try_select",
    "INSERT": "try_insert",
    "UPDATE": "try_update",
    "DELETE": "try_delete",
    "CREATE": "create_message_table",
    "ALTER": "try_alter",
    "DROP": "drop_message_table",
    "PROCESS": "try_process",
}
# without the first a table would stay, without the second there is none
_FIRST = ("DROP", "CREATE")
_BEHIND_SELECT = ("UPDATE", "DELETE")  # with a WHERE
_ONLY_SERVERS = ("ALTER", "PROCESS")


def create_node_tables(session: Session) -> None:
    """Make the tables every node has; harmless when they exist."""
    session.run(
        step(session, "create_node_tables"),
        step(session, "create_dead_table"),
        step(session, "create_share_tables"),
    )


def read_server_facts(session: Session) -> ServerFacts:
    """The settings of a MySQL / MariaDB server that durability and text depend on."""
    told = dict(fetch_rows(session, "select_server"))
    return ServerFacts(
        version=told["version"],
        character_set=told["character_set_database"],
        collation=told["collation_database"],
        flush_log_at_commit=int(told["innodb_flush_log_at_trx_commit"]),
        log_bin=told["log_bin"] == "ON",
        sync_binlog=int(told["sync_binlog"]),
        binlog_format=told.get("binlog_format", ""),
        binlog_engine=told.get("binlog_storage_engine", ""),
        read_only=told["read_only"] != "OFF",
    )


def read_tls_facts(session: Session) -> TlsFacts:
    """The encryption of this connection to a MySQL / MariaDB server."""
    found = {name.lower(): value for name, value in fetch_rows(session, "select_tls")}
    return TlsFacts(*(found.get(f"ssl_{field}", "") for field in TlsFacts._fields))


class ConnectionInfo(NamedTuple):
    """A server's version, its id of this connection, and whether a user variable was found
    again.
    """

    version: str
    connection: int
    marked: bool


def read_connection_info(session: Session, *, mark: str) -> ConnectionInfo:
    version, connection, marked = fetch_rows(session, "select_place", mark=mark)[0]
    return ConnectionInfo(str(version), int(connection), bool(marked))


def set_mark(session: Session, *, mark: str) -> None:
    """Set a user variable, which later statements of this connection must find."""
    session.run(step(session, "set_mark", mark=mark))


def read_version_comment(session: Session) -> str:
    return str(fetch_rows(session, "select_version_comment")[0][0])


def read_proxy_version(session: Session) -> str:
    """Return the version of a proxy. Raises `Final` where there is none."""
    return str(fetch_rows(session, "select_proxy_version")[0][0])


def read_time_limits(session: Session) -> dict[str, str]:
    """Return the limits of time that a server has for statements and idle connections."""
    return dict(fetch_rows(session, "show_limits"))


def now_ms(session: Session) -> int:
    return int(session.run(step(session, "select_now"))[-1].rows[0][0])


def pulse(session: Session, *, worker: int) -> None:
    """A smallest commit to a worker's own row; when it returns, what was visible before is
    durable.

    Only MySQL and MariaDB need it. A node that was registered before the table existed gets
    it now.
    """
    try:
        session.run(step(session, "pulse", worker=worker))
    except db_errors.Final:
        create_node_tables(session)
        session.run(step(session, "pulse", worker=worker))
    except db_errors.RolledBack:
        # A server becomes read-only only when every commit under way has ended: what it
        # shows is on disk.
        if not read_server_facts(session).read_only:
            raise


def try_rights(session: Session, *, table: str) -> list[Grant]:
    """Return the rights of `grants.NODE` that the account lacks, as far as each can be
    tried.

    They are tried on a table of that name, which is gone afterwards.
    """
    given = [
        one for one in NODE if session.engine == "mysql" or one.right not in _ONLY_SERVERS
    ]
    for right in _FIRST:
        if not _may(session, right, table):
            return [one for one in given if one.right == right]
    tried = [one for one in given if one.right not in _FIRST]
    if not _may(session, "SELECT", table):
        tried = [one for one in tried if one.right not in _BEHIND_SELECT]
    lacking = [one for one in tried if not _may(session, one.right, table)]
    session.run(step(session, "drop_message_table", table=table))
    return lacking


def _may(session: Session, right: str, table: str) -> bool:
    try:
        session.run(step(session, _TRIED_BY[right], table=table, comment="tries rights"))
    except db_errors.Final:
        return False
    return True


def read_account(session: Session) -> tuple[str, str]:
    """User and host of the account, as the server's grants name it."""
    user, _, host = str(fetch_rows(session, "select_account")[0][0]).rpartition("@")
    return user, host


def pending_changes(session: Session) -> list[TableChange]:
    """Changes that the node's tables still lack, in the order in which they are to be made."""
    queues = [
        message_table(queue) for queue in sorted(audit_sql.list_message_tables(session))
    ]
    pending = []
    for one in schema_steps.STEPS:
        of_queues = one.table == schema_steps.QUEUES
        pattern = "message%" if of_queues else one.table
        made = {
            name
            for (name,) in fetch_rows(
                session, "select_tables_with", tables=pattern, column=one.column
            )
        }
        tables = queues if of_queues else [one.table]
        pending += [TableChange(table, one) for table in tables if table not in made]
    return pending


def make_change(session: Session, change: TableChange) -> None:
    session.transact(step(session, change.step.statement, table=change.table))


def write_schema_version(session: Session, *, version: int) -> None:
    """Record that the node's tables have every step up to a version."""
    session.transact(step(session, "update_schema_version", version=version))


def write_min_release(session: Session, *, release: str) -> None:
    """Record the oldest release that may use the node's tables from now on."""
    session.transact(step(session, "update_min_release", release=release))


def take_upgrade_lock(session: Session) -> bool:
    """Return True if this session is the one that may change the node's tables, until it is
    closed.
    """
    if isinstance(session, SqliteSession):
        return session.lock_file("upgrade")
    return partition_sql.take_table_lock(session, table="node_identity", seconds=2)


_AT_ONCE = 100  # messages whose times are looked up in one round trip


class NodeFigures(NamedTuple):
    """The positions of all groups on a node, at `now_ms` of its clock.

    `readers`: (group, instance, queue, committed); `bounds`: queue → (head, low); `gaps`:
    queue → declared gaps (from, to), rising, `to` exclusive.
    """

    readers: Sequence[tuple[int, str, int, int]]
    bounds: dict[int, tuple[int, int]]
    gaps: dict[int, list[tuple[int, int]]]
    now_ms: int


def read_figures(session: Session) -> NodeFigures:
    """Return where all groups stand on the node, in one round trip."""
    readers, bounds, gaps, now = (
        result.rows for result in session.run(step(session, "select_figures"))
    )
    return NodeFigures(
        readers=[
            (group, instance, queue, committed)
            for group, instance, queue, committed in readers
        ],
        bounds={queue: (head, low) for queue, head, low in bounds},
        gaps=grouped((queue, (first, end)) for queue, first, end in gaps),
        now_ms=int(now[0][0]),
    )


def count_delayed_of_queues(session: Session) -> dict[int, int]:
    """{queue: messages that wait for their time}."""
    return {
        queue: int(count) for queue, count in fetch_rows(session, "count_delayed_of_queues")
    }


def read_stored_times(
    session: Session, *, places: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], int | None]]:
    """Of each (queue, offset), when the first message at or above it was stored; None above
    the last.
    """
    for some in chunks(places, _AT_ONCE):
        steps = [
            step(
                session, "select_stored_at", table=message_table(queue), first_offset=offset
            )
            for queue, offset in some
        ]
        for place, result in zip(some, session.run(*steps), strict=True):
            yield place, int(result.rows[0][0]) if result.rows else None
