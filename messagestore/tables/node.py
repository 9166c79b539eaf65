"""Verbs on a node itself: its tables, its settings, its clock."""

from __future__ import annotations

from messagestore import faults
from messagestore.sessions import Session
from messagestore.tables.running import rows_of, step
from messagestore.tables.shapes import ServerFacts


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
    except faults.Final:
        create_node_tables(session)
        session.run(step(session, "pulse", worker=worker))
