"""Checks of a node: its server, replica, connections, transactions, disk, delayed messages.

Each check opens a connection of its own, so that a statement that hangs holds up no other
check. Only `examine` reports that the node does not answer; the others leave it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from messagestore.doctor.checkup import Check
from messagestore.doctor.findings import Finding, SubjectKind, finding, from_preflight
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.nodes import disks, preflight
from messagestore.nodes.preflight import describe_error
from messagestore.pool import session_pool, writers
from messagestore.tables import (
    delayed_sql,
    node_sql,
    partition_sql,
    promotion_sql,
    queue_sql,
)
from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.errors import NodeUnavailable
from metadata.nodes import size_rows
from metadata.rules.addresses import describe
from metadata.rules.disks import DiskState, next_disk_state
from metadata.rules.growth import days_left
from metadata.rules.nodes import Engine, NodeKind, NodeState

READ_TIMEOUT_S = 3  # of a statement; with the time to connect, below the limit of a check
ISOLATION = "READ-COMMITTED"
LONG_TRANSACTION_S = 60
NEAR_PERCENT = 90  # of the connections that a server allows
REPLICA_PATIENCE_S = 2.0  # time in which a replica must have what the node had
OVERDUE_S = 60
ADMINISTRATORS = ("root", "admin", "rdsadmin")


def _report(node: NodeInfo, key: str, **values: Any) -> Finding:
    return finding(key, SubjectKind.NODE, node.name, node=node.name, **values)


def list_checks(nodes: Sequence[NodeInfo], *, actor: Actor) -> list[Check]:
    """Return the checks of all nodes. A node that is set offline has a single one."""
    checks = [Check("nodes", partial(check_kinds, nodes))]
    for node in nodes:
        if node.state == NodeState.OFFLINE:
            checks.append(Check(f"{node.name}: state", partial(check_offline, node)))
            continue
        checks += [
            Check(f"{node.name}: {name}", partial(check, node))
            for name, check in NODE_CHECKS.items()
        ]
        checks.append(
            Check(f"{node.name}: server", partial(examine_node, node, actor=actor))
        )
    return checks


def check_kinds(nodes: Sequence[NodeInfo]) -> Iterator[Finding]:
    if not nodes:
        yield finding("no_node", SubjectKind.NODE)
    elif not any(node.kind == NodeKind.FAILURE for node in nodes):
        yield finding("no_retry_node", SubjectKind.NODE)


def check_offline(node: NodeInfo) -> Iterator[Finding]:
    yield _report(node, "node_offline")


def examine_node(node: NodeInfo, *, actor: Actor) -> list[Finding]:
    """Make the checks of a registration again, see `preflight.reexamine`."""
    result = preflight.reexamine(name=node.name, actor=actor, read_timeout_s=READ_TIMEOUT_S)
    return from_preflight(result.findings, kind=SubjectKind.NODE, name=node.name)


@contextmanager
def _open(node: NodeInfo) -> Iterator[Session]:
    with session_pool.direct(
        node, any_schema=True, read_timeout_s=READ_TIMEOUT_S
    ) as session:
        yield session


@contextmanager
def _open_replica(target: NodeInfo) -> Iterator[Session]:
    """Return a session on a replica, of several that on the first with the node's data."""
    with session_pool.lent(
        writers.connect_to_read(target, read_timeout_s=READ_TIMEOUT_S)
    ) as session:
        yield session


def check_account(node: NodeInfo) -> Iterator[Finding]:
    """Check the account's name and password, without a connection."""
    if node.engine != Engine.MYSQL:
        return
    user = node.username
    if not node.password:
        yield _report(node, "no_password", user=user)
    if node.username in ADMINISTRATORS:
        yield _report(node, "root_account", user=user)


def check_operation(node: NodeInfo) -> Iterator[Finding]:
    """Check the isolation level, the binary log, and the number of connections."""
    with suppress(NodeUnavailable), _open(node) as session:
        if isinstance(session, MySqlSession):
            yield from inspect_operation(session, kind=SubjectKind.NODE, name=node.name)


def inspect_operation(
    session: MySqlSession, *, kind: SubjectKind, name: str = ""
) -> Iterator[Finding]:
    """Check how a MySQL or MariaDB server is operated, beyond what a preflight checks."""
    isolation = node_sql.read_isolation(session)
    if isolation != ISOLATION:
        yield finding("isolation", kind, name, found=isolation)
    facts = node_sql.read_operation(session)
    if facts.row_image not in ("", "FULL"):
        yield finding("row_image", kind, name, found=facts.row_image)
    if facts.connections * 100 >= facts.max_connections * NEAR_PERCENT:
        usage = {"used": facts.connections, "limit": facts.max_connections}
        yield finding("connections_near", kind, name, **usage)
    # Brokers of all machines share the server's connections.
    workers = snapshot_acks.count_workers()
    needed = workers * config.pool_size
    if needed > facts.max_connections:
        need = {"workers": workers, "needed": needed}
        yield finding("connections_short", kind, name, **need, limit=facts.max_connections)


def check_transactions(node: NodeInfo) -> Iterator[Finding]:
    with suppress(NodeUnavailable), _open(node) as session:
        if isinstance(session, MySqlSession):
            yield from inspect_transactions(session, kind=SubjectKind.NODE, name=node.name)


def inspect_transactions(
    session: MySqlSession, *, kind: SubjectKind, name: str = ""
) -> Iterator[Finding]:
    for transaction in partition_sql.list_long_transactions(
        session, seconds=LONG_TRANSACTION_S
    ):
        yield finding("long_transaction", kind, name, **transaction._asdict())


def check_replica(node: NodeInfo) -> Iterator[Finding]:
    """Check that the replica has the node's data, applies it soon, and takes no writes."""
    if not node.replica_host:
        return
    port = node.replica_port or 3306
    target = replace(node, host=node.replica_host, port=port)
    try:
        with _open_replica(target) as session:
            identity = ""
            with suppress(db_errors.Final):  # no such table
                identity = promotion_sql.read_identity(session)
            if identity != node.identity:
                address = describe(node.replica_host, port)
                yield _report(node, "replica_foreign", address=address)
                return
            if not node_sql.read_server_facts(session).read_only:
                yield _report(node, "replica_writable")
            if (
                promotion_sql.can_see_all_threads(session)
                and not promotion_sql.read_replication(session).threads
            ):
                yield _report(node, "replica_stopped")
                return
            yield from _check_lag(node, session)
    except (NodeUnavailable, db_errors.Final) as error:
        yield _report(node, "replica_away", reason=describe_error(error, target))


def _check_lag(node: NodeInfo, replica: Session) -> Iterator[Finding]:
    """Compare heads: what the node had must be on the replica soon.

    SHOW REPLICA STATUS would need a further right, and counts seconds by the binary log,
    which are 0 while the receiving thread is late.
    """
    try:
        with _open(node) as session:
            heads = queue_sql.read_heads(session, queues=None)
    except NodeUnavailable:  # reported by examine_node
        return
    deadline = time.monotonic() + REPLICA_PATIENCE_S
    while True:
        copied = queue_sql.read_heads(replica, queues=None)
        missing = sum(max(0, head - copied.get(queue, 0)) for queue, head in heads.items())
        if not missing:
            return
        if time.monotonic() >= deadline:
            values = {"messages": missing, "seconds": REPLICA_PATIENCE_S}
            yield _report(node, "replica_behind", **values)
            return
        time.sleep(0.1)


def check_disk(node: NodeInfo) -> Iterator[Finding]:
    """Check free space, by the limits of CATMQ_MIN_FREE_PERCENT and the alarms."""
    with suppress(NodeUnavailable):
        with _open(node) as session:
            space = disks.measure(session, node)
        if space is None:
            return
        state = next_disk_state(
            DiskState.OK,
            free_percent=space.free_percent,
            full_below=config.min_free_percent,
            low_below=config.alarm_free_percent,
        )
        if state != DiskState.OK:
            yield _report(
                node,
                f"disk_{state}",
                percent=space.free_percent,
                total=space.total / disks.GB,
                full=config.min_free_percent,
            )
        growth = size_rows.read_growth().get(node.id)
        days = days_left(space.usable, growth.per_day if growth else None)
        if state != DiskState.FULL and days is not None and days < config.alarm_full_days:
            yield _report(node, "disk_filling", days=days)


def check_delayed(node: NodeInfo) -> Iterator[Finding]:
    """Check that delayed messages and retries are moved to their queues when due."""
    with suppress(NodeUnavailable, db_errors.Final), _open(node) as session:
        due_in_ms = delayed_sql.read_delayed_queues(session).values()
        late_ms = [-due for due in due_in_ms if due < -OVERDUE_S * 1000]
        if late_ms:
            values = {"queues": len(late_ms), "seconds": max(late_ms) // 1000}
            yield _report(node, "delayed_overdue", **values)


# A check of a node that is not offline: add a function here, and its texts to advice.py.
NODE_CHECKS: dict[str, Callable[[NodeInfo], Iterator[Finding]]] = {
    "account": check_account,
    "operation": check_operation,
    "transactions": check_transactions,
    "replica": check_replica,
    "disk": check_disk,
    "delayed messages": check_delayed,
}
