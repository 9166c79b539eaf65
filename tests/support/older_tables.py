"""Nodes as an earlier release created them, and schema steps of a later release."""

from __future__ import annotations

import pytest

from messagestore.engine import schema_steps
from messagestore.engine.schema_steps import SchemaStep
from messagestore.pool import node_guard, node_pools, session_pool
from messagestore.tables import node_sql, statements
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.rules.nodes import Engine
from tests.support.spare_nodes import NodeDatabase

LATER = SchemaStep(4, schema_steps.QUEUES, "lane", "add_lane", "what a test needs")
_TEXTS = {
    "mysql": "-- name: add_lane\nALTER TABLE {table} ADD COLUMN lane INT NULL, ALGORITHM=INSTANT",
    "sqlite": "-- name: add_lane\nALTER TABLE {table} ADD COLUMN lane INTEGER NULL",
}


def database(info: NodeInfo) -> NodeDatabase:
    """Return the database of a node, for direct access."""
    address = {
        "engine": info.engine,
        "host": info.host,
        "port": info.port,
        "username": info.username,
    }
    name = (
        str(session_pool.sqlite_path(info.database))
        if info.engine == "sqlite"
        else info.database
    )
    return NodeDatabase({**address, "database": name, "password": info.password})


def make_older(name: str = "main") -> NodeInfo:
    """Give a node schema version 1, whose identity table has no other columns."""
    info = snapshot.find_node(name)
    with database(info).cursor() as cursor:
        for column in ("schema_version", "min_release"):
            cursor.execute(f"ALTER TABLE node_identity DROP COLUMN {column}")
    evict(info)
    return info


def evict(info: NodeInfo) -> None:
    """Forget the cached state of a node, as in a process that has just started."""
    node_pools.evict_all()
    node_guard._schemas.pop(info.id, None)
    node_guard._misfits.pop(info.id, None)


def declare(
    monkeypatch: pytest.MonkeyPatch, step: SchemaStep = LATER, *, oldest: int = 1
) -> None:
    """Add a schema step to those of this release."""
    for engine, text in _TEXTS.items():
        changed = statements.parse(text)[step.statement]
        monkeypatch.setitem(statements.load(Engine(engine)), step.statement, changed)
    monkeypatch.setattr(schema_steps, "STEPS", (*schema_steps.STEPS, step))
    monkeypatch.setattr(schema_steps, "VERSION", step.version)
    monkeypatch.setattr(schema_steps, "OLDEST", oldest)


def columns(info: NodeInfo, table: str) -> list[str]:
    """Return the columns of a table in order."""
    with database(info).cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0")
        return [description[0] for description in cursor.description]


def need(info: NodeInfo, release: str) -> None:
    """Make a node require a newer release."""
    with session_pool.direct(info, any_schema=True) as session:
        node_sql.write_min_release(session, release=release)
