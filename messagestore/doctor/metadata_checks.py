"""Checks of the metadata database: its server, isolation level, migrations and size."""

from __future__ import annotations

import os
from collections.abc import Iterator

from messagestore.doctor.checkup import Check
from messagestore.doctor.findings import Finding, SubjectKind, finding, from_preflight
from messagestore.doctor.node_checks import (
    ISOLATION,
    READ_TIMEOUT_S,
    inspect_operation,
    inspect_transactions,
)
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession
from messagestore.nodes import preflight
from messagestore.pool import session_pool
from messagestore.tables import node_sql, partition_sql
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.db import migration_state
from metadata.db.transactions import reachable
from metadata.errors import NodeUnavailable
from metadata.rules.nodes import Engine, NodeKind, NodeState
from metadata.rules.tls import TlsMode

LARGE_BYTES = 10_000_000_000
GB = 1_000_000_000
# Metadata has no message bodies, and its own pages may have any limit.
NODE_ONLY = ("packet",)


def list_checks() -> list[Check]:
    return [
        Check("metadata: migrations", check_migrations),
        Check("metadata: isolation", check_isolation),
        Check("metadata: server", check_server),
    ]


def check_migrations() -> Iterator[Finding]:
    with reachable():
        missing, unknown = migration_state.compare_migrations()
    if missing:
        yield finding(
            "migrations_missing",
            SubjectKind.METADATA,
            count=len(missing),
            first=missing[0][1],
        )
    if unknown:
        names = ", ".join(name for _, name in unknown)
        yield finding("migrations_unknown", SubjectKind.METADATA, names=names)


def check_isolation() -> Iterator[Finding]:
    """Check the level of the connections that change metadata; SQLite has no levels."""
    with reachable():
        level = migration_state.read_isolation()
    if level not in ("", ISOLATION):
        yield finding("isolation", SubjectKind.METADATA, found=level)


def check_server() -> Iterator[Finding]:
    """Check the server as that of a node, and the size of the database."""
    if config.database is None:
        yield from _check_file()
        return
    info = describe_server()
    if info is None:
        return
    try:
        with session_pool.direct(
            info, any_schema=True, read_timeout_s=READ_TIMEOUT_S
        ) as session:
            assert isinstance(session, MySqlSession)  # noqa: S101 - by its engine
            facts = node_sql.read_server_facts(session)
            results = preflight.check_server(session, info, facts=facts, unsafe=False)
            yield from from_preflight(
                [result for result in results if result.text not in NODE_ONLY],
                kind=SubjectKind.METADATA,
            )
            yield from inspect_operation(session, kind=SubjectKind.METADATA)
            yield from inspect_transactions(session, kind=SubjectKind.METADATA)
            yield from _check_size(partition_sql.read_used_bytes(session)[0])
    except (NodeUnavailable, db_errors.Final) as error:
        unreachable = [preflight.explain_unreachable(error, info)]
        yield from from_preflight(unreachable, kind=SubjectKind.METADATA)


def describe_server() -> NodeInfo | None:
    """Return the metadata database in the form of a node, None on SQLite."""
    database = config.database
    if database is None:
        return None
    return NodeInfo(
        id=0,
        name="metadata",
        kind=NodeKind.NORMAL,
        engine=Engine.MYSQL,
        host=database.host,
        port=database.port,
        # Not that of the URL: Django may use another one, as it does in tests.
        database=migration_state.database_name(),
        username=database.username,
        password=database.password,
        state=NodeState.READ_WRITE,
        dedicated=False,
        epoch=0,
        capacity_gb=None,
        tls=database.encryption.mode or TlsMode.OFF,
        tls_ca=database.encryption.ca,
    )


def _check_file() -> Iterator[Finding]:
    disk = os.statvfs(config.data_dir)
    percent = 100.0 * disk.f_bavail / disk.f_blocks
    if percent < config.min_free_percent:
        values = {"percent": percent, "path": str(config.data_dir)}
        yield finding("metadata_disk", SubjectKind.METADATA, **values)
    yield from _check_size(os.path.getsize(migration_state.database_name()))


def _check_size(size: int) -> Iterator[Finding]:
    if size > LARGE_BYTES:
        yield finding("metadata_large", SubjectKind.METADATA, gigabytes=size / GB)
