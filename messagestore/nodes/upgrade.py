"""Upgrade of the tables of nodes to this release, while brokers serve them.

Each change is a single statement that copies nothing and waits at most a second for its
table (`partitions.alter`). The missing changes are read from the node itself, so a run that
was killed can be repeated and continues where it ended. The node's version is written last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import Session
from messagestore.heads import partitions
from messagestore.pool import node_guard, session_pool
from messagestore.pool.node import MAINTENANCE_TIMEOUT_S
from messagestore.sweeping import Progress
from messagestore.tables import node_sql, promotion_sql
from messagestore.tables.shapes import Schema, TableChange
from metadata.actors import Actor
from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import access
from metadata.errors import Conflict, NodeUnavailable
from metadata.nodes import node_rows
from metadata.release import VERSION, is_older
from metadata.rules.audit_verbs import Verb
from metadata.rules.nodes import Engine, NodeState

log = logging.getLogger(__name__)
PAUSE_MS = 100  # between two tables: each change delays sends


class NodeUpgrade(Struct, frozen=True):
    """A node, its schema version before and after, its changes, and why an upgrade failed.

    After a dry run, `after` and `changes` are the version and the changes that a run would
    make.
    """

    node: str
    before: int | None = None
    after: int | None = None
    changes: tuple[TableChange, ...] = ()
    problem: str = ""


def upgrade(
    *,
    actor: Actor,
    node: str | None = None,
    dry_run: bool = False,
    pause_ms: int = PAUSE_MS,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[NodeUpgrade]:
    """Upgrade the tables of a node, or of all; return a result for each. Needs `admin`.

    A node that cannot be upgraded does not stop the others. Raises Forbidden, NotFound
    (node_not_found).
    """
    access.require_everything(actor, node or "list", what="node")
    snapshot.refresh()
    infos = [snapshot.find_node(node)] if node else snapshot.current().nodes.values()
    upgrades = []
    for info in sorted(infos, key=lambda info: info.name):
        upgraded = upgrade_node(info, dry_run=dry_run, pause_ms=pause_ms, progress=progress)
        upgrades.append(upgraded)
        has_changed = bool(upgraded.changes) or upgraded.before != upgraded.after
        if has_changed and not dry_run:
            node_rows.audit_schema_change(
                verb=Verb.UPGRADE,
                name=upgraded.node,
                before={"schema_version": upgraded.before},
                after={
                    "schema_version": upgraded.after,
                    "changes": len(upgraded.changes),
                    **({"problem": upgraded.problem} if upgraded.problem else {}),
                },
                actor=actor,
            )
    return upgrades


def upgrade_node(
    info: NodeInfo,
    *,
    dry_run: bool = False,
    pause_ms: int = PAUSE_MS,
    progress: Callable[[Progress], None] = lambda _: None,
) -> NodeUpgrade:
    """Upgrade the tables of a node, without metadata."""
    before: int | None = None
    changes: list[TableChange] = []
    try:
        if info.state == NodeState.OFFLINE:
            raise NodeUnavailable(f"Node {info.name} is offline: open it first.")
        with session_pool.direct(
            info, any_schema=True, read_timeout_s=MAINTENANCE_TIMEOUT_S
        ) as session:
            before = _read_own_schema(session, info).version
            pending = node_sql.pending_changes(session)
            after = max(before, schema_steps.VERSION)
            if dry_run:
                return NodeUpgrade(info.name, before, after, tuple(pending))
            for change in _make_changes(session, info, pause_ms) if pending else ():
                changes.append(change)
                progress(
                    Progress(f"{info.name}: tables changed", len(changes), len(pending))
                )
            # Last: the version promises that all changes are made.
            if before != after:
                node_sql.write_schema_version(session, version=after)
    except (NodeUnavailable, db_errors.Final) as error:
        return NodeUpgrade(info.name, before, before, tuple(changes), error.detail)
    return NodeUpgrade(info.name, before, after, tuple(changes))


def _read_own_schema(session: Session, info: NodeInfo) -> Schema:
    """Return the version of the node's tables.

    Raises NodeUnavailable if they are another node's, or this release may not change them.
    """
    try:
        contents = promotion_sql.read_contents(session)
    except db_errors.Final:
        contents = promotion_sql.NodeContents("", {})
    if not info.identity or contents.identity != info.identity:
        raise NodeUnavailable(
            f"The database at the address of node {info.name} has no data, or that of "
            "another node: repair "
            f"that, then run manage.py adopt_restored_node {info.name}."
        )
    if is_older(VERSION, contents.schema.min_release):
        node_guard.check_schema(info, contents.schema)
    return contents.schema


def _make_changes(session: Session, info: NodeInfo, pause_ms: int) -> Iterator[TableChange]:
    """Make the pending changes and yield each.

    Raises NodeUnavailable, `db_errors.Final`.
    """
    if not node_sql.take_upgrade_lock(session):
        raise NodeUnavailable(
            f"Another run upgrades node {info.name} now: wait for its end, then repeat."
        )
    # Read again under the lock: another run may have made some of the changes.
    for number, change in enumerate(node_sql.pending_changes(session)):
        if number:
            time.sleep(pause_ms / 1000)
        make_change = partial(node_sql.make_change, session, change)
        if session.engine == Engine.SQLITE:
            make_change()
        else:
            # Waits only a moment for the table's lock, because sends queue up behind the
            # wait.
            partitions.alter(session, table=change.table, change=make_change)
        log.info(
            "Node %s: table %s has schema version %d",
            info.name,
            change.table,
            change.step.version,
        )
        yield change


def require_release(*, node: str, release: str, actor: Actor) -> None:
    """Bar releases before `release` from a node, for a feature whose data they would
    misread.

    It is called before the first use of the feature and never undone: after that a
    downgrade is impossible. Brokers of older releases refuse the node within a pass of
    `registry.probe`.

    Needs `admin`. Raises Conflict while such a broker is alive, NodeUnavailable,
    NotFound(node_not_found).
    """
    access.require_everything(actor, node, what="node")
    older_brokers = [
        broker
        for broker in discovery.list_brokers(actor=actor)
        if broker.alive and is_older(broker.version, release)
    ]
    if older_brokers:
        names = ", ".join(f"{broker.name} ({broker.version})" for broker in older_brokers)
        raise Conflict(
            f"These brokers are older than CatMQ {release}: {names}. Upgrade them first."
        )
    info = snapshot.find_node(node)
    with session_pool.direct(info) as session:
        schema = _read_own_schema(session, info)
        if schema.version < schema_steps.VERSION:
            raise Conflict(
                f"Node {node} has schema version {schema.version}: run manage.py upgrade_nodes."
            )
        # Written only if it rises: a node may have been barred for a later release already.
        if is_older(schema.min_release, release):
            node_sql.write_min_release(session, release=release)
            before, after = {"min_release": schema.min_release}, {"min_release": release}
            node_rows.audit_schema_change(
                verb=Verb.REQUIRE, name=node, before=before, after=after, actor=actor
            )
