"""Verbs on a node itself: its tables, its settings, its clock."""

from __future__ import annotations

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.tables.running import rows_of, step
from messagestore.tables.shapes import ServerFacts

_RIGHTS = {
    "create_message_table": "CREATE",
    "try_insert": "INSERT",
    "try_select": "SELECT",
    "try_update": "UPDATE",
    "try_delete": "DELETE",
    "try_alter": "ALTER",
    "drop_message_table": "DROP",
}


def create_node_tables(session: Session) -> None:
    """Makes the tables every node has; harmless when they exist."""
    session.run(step(session, "create_node_tables"), step(session, "create_dead_table"))


def server_facts(session: Session) -> ServerFacts:
    """The settings of a MySQL / MariaDB server that durability and text depend on."""
    return ServerFacts(*rows_of(session, "select_server")[0])


def now_ms(session: Session) -> int:
    """The node's clock, ms since 1970 UTC."""
    return int(rows_of(session, "select_now")[0][0])


def pulse(session: Session, *, worker: int) -> None:
    """A smallest commit to a worker's own row; when it returns, what was visible before is durable.

    Only MySQL and MariaDB need it. A node that was registered before the table existed gets it now.
    """
    try:
        session.run(step(session, "pulse", worker=worker))
    except db_errors.Final:
        create_node_tables(session)
        session.run(step(session, "pulse", worker=worker))


def try_rights(session: Session, *, table: str) -> str:
    """The first thing that the account may not do in this database, '' if it may do all that is needed.

    It is tried on a table of that name, which is gone afterwards.
    """
    steps = ["create_message_table", "try_insert", "try_select", "try_update", "try_delete"]
    if session.engine == "mysql":
        steps.append("try_alter")
    missing = ""
    for name in (*steps, "drop_message_table"):
        try:
            session.run(step(session, name, table=table))
        except db_errors.Final:
            missing = missing or _RIGHTS[name]
    return missing
