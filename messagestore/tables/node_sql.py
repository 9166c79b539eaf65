"""Statements for a node itself: its tables, settings, clock, and figures of all its queues."""

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
from metadata.rules.nodes import Engine

_TRIAL_STATEMENTS = {  # each needs one right of grants.NODE
    "SELECT": "try_select",
    "INSERT": "try_insert",
    "UPDATE": "try_update",
    "DELETE": "try_delete",
    "CREATE": "create_message_table",
    "ALTER": "try_alter",
    "DROP": "drop_message_table",
    "PROCESS": "try_process",
}
# Without DROP the trial table would stay. Without CREATE there is none to try on.
_TRIED_FIRST = ("DROP", "CREATE")
_NEED_SELECT = ("UPDATE", "DELETE")  # their WHERE reads rows
_SERVER_RIGHTS = ("ALTER", "PROCESS")


def create_node_tables(session: Session) -> None:
    """Create the tables that every node has. Harmless if they exist."""
    session.run(
        step(session, "create_node_tables"),
        step(session, "create_dead_table"),
        step(session, "create_share_tables"),
    )


def read_server_facts(session: Session) -> ServerFacts:
    """Return settings of a MySQL or MariaDB server that durability and text depend on."""
    variables = dict(fetch_rows(session, "select_server"))
    return ServerFacts(
        version=variables["version"],
        character_set=variables["character_set_database"],
        collation=variables["collation_database"],
        flush_log_at_commit=int(variables["innodb_flush_log_at_trx_commit"]),
        log_bin=variables["log_bin"] == "ON",
        sync_binlog=int(variables["sync_binlog"]),
        binlog_format=variables.get("binlog_format", ""),
        binlog_engine=variables.get("binlog_storage_engine", ""),
        read_only=variables["read_only"] != "OFF",
    )


def read_tls_facts(session: Session) -> TlsFacts:
    """Return the encryption of this connection to a MySQL or MariaDB server."""
    variables = {name.lower(): value for name, value in fetch_rows(session, "select_tls")}
    return TlsFacts(*(variables.get(f"ssl_{field}", "") for field in TlsFacts._fields))


class ConnectionInfo(NamedTuple):
    """A connection as its server sees it: the version and the connection's id there.

    `marked`: the user variable of `set_mark` still exists.
    """

    version: str
    connection: int
    marked: bool


def read_connection_info(session: Session, *, mark: str) -> ConnectionInfo:
    """Return version and id of this connection, and whether it has a mark from `set_mark`."""
    version, connection, marked = fetch_rows(session, "select_place", mark=mark)[0]
    return ConnectionInfo(str(version), int(connection), bool(marked))


def set_mark(session: Session, *, mark: str) -> None:
    """Set a user variable on this connection.

    If a later statement does not find it, a proxy has sent that statement over another
    connection.
    """
    session.run(step(session, "set_mark", mark=mark))


def read_version_comment(session: Session) -> str:
    return str(fetch_rows(session, "select_version_comment")[0][0])


def read_proxy_version(session: Session) -> str:
    """Return the version of the proxy in between. Raises `Final` if there is none."""
    return str(fetch_rows(session, "select_proxy_version")[0][0])


def read_time_limits(session: Session) -> dict[str, str]:
    """Return the server's time limits for statements and idle connections, by variable."""
    return dict(fetch_rows(session, "show_limits"))


class Operation(NamedTuple):
    """Connections of a server, and the rows in its binary log: "" without a binary log."""

    max_connections: int
    connections: int
    row_image: str


def read_operation(session: Session) -> Operation:
    """Return settings and state of a MySQL or MariaDB server."""
    variables = dict(fetch_rows(session, "show_operation"))
    connections = fetch_rows(session, "show_operation_status")[0][1]
    return Operation(
        max_connections=int(variables["max_connections"]),
        connections=int(connections),
        row_image=variables["binlog_row_image"] if variables["log_bin"] == "ON" else "",
    )


def read_isolation(session: Session) -> str:
    """Return the isolation level of this connection, such as READ-COMMITTED."""
    return str(fetch_rows(session, "show_isolation")[0][1])


def now_ms(session: Session) -> int:
    return int(session.run(step(session, "select_now"))[-1].rows[0][0])


def pulse(session: Session, *, worker: int) -> None:
    """Commit a minimal change to the row of a worker.

    When it returns, everything that was visible before it is durable. Only MySQL and
    MariaDB need this.
    """
    try:
        session.run(step(session, "pulse", worker=worker))
    except db_errors.Final:
        # The node was registered before the table of pulses existed.
        create_node_tables(session)
        session.run(step(session, "pulse", worker=worker))
    except db_errors.RolledBack:
        # A server becomes read-only only after all commits in progress have ended, so
        # everything it shows is on disk.
        if not read_server_facts(session).read_only:
            raise


def try_rights(session: Session, *, table: str) -> list[Grant]:
    """Return the rights of `grants.NODE` that the account lacks, as far as they can be
    tried.

    They are tried on a table with the given name, which is dropped afterwards.
    """
    grants = [
        grant
        for grant in NODE
        if session.engine == Engine.MYSQL or grant.right not in _SERVER_RIGHTS
    ]
    for right in _TRIED_FIRST:
        if not _has_right(session, right, table):
            return [grant for grant in grants if grant.right == right]
    remaining = [grant for grant in grants if grant.right not in _TRIED_FIRST]
    if not _has_right(session, "SELECT", table):
        remaining = [grant for grant in remaining if grant.right not in _NEED_SELECT]
    lacking = [grant for grant in remaining if not _has_right(session, grant.right, table)]
    # DROP was tried first, so this cannot fail for lack of the right.
    session.run(step(session, "drop_message_table", table=table))
    return lacking


def _has_right(session: Session, right: str, table: str) -> bool:
    try:
        session.run(
            step(
                session,
                _TRIAL_STATEMENTS[right],
                table=table,
                comment="tries rights",
                key_index="",
            )
        )
    except db_errors.Final:
        return False
    return True


def read_account(session: Session) -> tuple[str, str]:
    """Return user and host of the account, as the server's grants name it."""
    user, _, host = str(fetch_rows(session, "select_account")[0][0]).rpartition("@")
    return user, host


def pending_changes(session: Session) -> list[TableChange]:
    """Return the changes that the node's tables still lack, in the order to make them."""
    queues = [
        message_table(queue) for queue in sorted(audit_sql.list_message_tables(session))
    ]
    pending = []
    for schema_step in schema_steps.STEPS:
        if schema_step.index_name:
            # A node that never had a dead letter has no such table yet.
            rows = fetch_rows(
                session,
                "select_tables_lacking",
                table_name=schema_step.table,
                index_name=schema_step.index_name,
            )
            pending += [TableChange(name, schema_step) for (name,) in rows]
            continue
        of_queues = schema_step.table == schema_steps.QUEUES
        pattern = "message%" if of_queues else schema_step.table
        changed_tables = {
            name
            for (name,) in fetch_rows(
                session, "select_tables_with", tables=pattern, column=schema_step.column
            )
        }
        # A step for message tables concerns every queue. The pattern finds all of them at
        # once.
        tables = queues if of_queues else [schema_step.table]
        pending += [
            TableChange(table, schema_step)
            for table in tables
            if table not in changed_tables
        ]
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
    """Take the right to change the node's tables, held until the session closes.

    Return False if another session has it.
    """
    if isinstance(session, SqliteSession):
        return session.lock_file("upgrade")
    # On a server the lock is a named one. `node_identity` stands for the whole node.
    return partition_sql.take_table_lock(session, table="node_identity", seconds=2)


_LOOKUPS_PER_TRIP = 100  # times looked up in a single round trip


class NodeFigures(NamedTuple):
    """The positions of all groups on a node, read at `now_ms` of its clock.

    `readers` are (group, instance, queue, committed). `bounds` is {queue: (head, low)}.
    `gaps` is {queue: declared gaps (from, to)}, rising, with exclusive ends.
    """

    readers: Sequence[tuple[int, str, int, int]]
    bounds: dict[int, tuple[int, int]]
    gaps: dict[int, list[tuple[int, int]]]
    now_ms: int


def read_figures(session: Session) -> NodeFigures:
    """Return positions, bounds and gaps of the whole node, in a single round trip."""
    # Readers first, so that no committed offset is above the head that is read after it.
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
    """Return {queue: number of delayed messages that wait for it}."""
    return {
        queue: int(count) for queue, count in fetch_rows(session, "count_delayed_of_queues")
    }


def read_stored_times(
    session: Session, *, places: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], int | None]]:
    """Yield ((queue, offset), time in ms) for some places.

    It is the time when the first message at or above the offset was stored, None if there
    is none.
    """
    for chunk in chunks(places, _LOOKUPS_PER_TRIP):
        steps = [
            step(
                session, "select_stored_at", table=message_table(queue), first_offset=offset
            )
            for queue, offset in chunk
        ]
        for place, result in zip(chunk, session.run(*steps), strict=True):
            yield place, int(result.rows[0][0]) if result.rows else None
