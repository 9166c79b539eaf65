"""Upgrade of the tables of nodes to this release: one table after the other, while brokers
serve them.

Each change is one statement that copies nothing, and waits a second at most for its table
(`partitions.alter`). What a table lacks is read from the node itself, so a run that was
killed is repeated: it goes on where the other ended. The version of the node is written
last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

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

log = logging.getLogger(__name__)
PAUSE_MS = 100  # between two tables: whoever sends feels each change


@dataclass(frozen=True, slots=True)
class NodeUpgrade:
    """A node, its schema version before and after, its changes, and why one or all were not
    made.

    After a dry run `after` is what a run would reach, and `changes` are those that it would
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
    """Upgrade the tables of one node, or of all; return what came of each. Needs `admin`.

    A node that cannot be upgraded stops none of the others. Raises Forbidden, NotFound
    (node_not_found).
    """
    access.require_everything(actor, node or "list", what="node")
    snapshot.refresh()
    known = [snapshot.find_node(node)] if node else snapshot.current().nodes.values()
    found = []
    for info in sorted(known, key=lambda one: one.name):
        found.append(
            upgrade_node(info, dry_run=dry_run, pause_ms=pause_ms, progress=progress)
        )
        if not dry_run:
            _audit(found[-1], actor)
    return found


def upgrade_node(
    info: NodeInfo,
    *,
    dry_run: bool = False,
    pause_ms: int = PAUSE_MS,
    progress: Callable[[Progress], None] = lambda _: None,
) -> NodeUpgrade:
    """Upgrade the tables of a node; metadata is not asked."""
    before: int | None = None
    made: list[TableChange] = []
    try:
        if info.state == "offline":
            raise NodeUnavailable(f"Node {info.name} is offline: open it first.")
        with session_pool.direct(
            info, any_schema=True, read_timeout_s=MAINTENANCE_TIMEOUT_S
        ) as session:
            before = _own_schema(session, info).version
            pending = node_sql.pending_changes(session)
            after = max(before, schema_steps.VERSION)
            if dry_run:
                return NodeUpgrade(info.name, before, after, tuple(pending))
            for change in _changed(session, info, pause_ms) if pending else ():
                made.append(change)
                progress(Progress(f"{info.name}: tables changed", len(made), len(pending)))
            if before != after:
                node_sql.write_schema_version(session, version=after)
    except (NodeUnavailable, db_errors.Final) as error:
        return NodeUpgrade(info.name, before, before, tuple(made), error.detail)
    return NodeUpgrade(info.name, before, after, tuple(made))


def _audit(done: NodeUpgrade, actor: Actor) -> None:
    if done.changes or done.before != done.after:
        node_rows.audit_schema_change(
            verb="upgrade",
            name=done.node,
            before={"schema_version": done.before},
            after={
                "schema_version": done.after,
                "changes": len(done.changes),
                **({"problem": done.problem} if done.problem else {}),
            },
            actor=actor,
        )


def _own_schema(session: Session, info: NodeInfo) -> Schema:
    """Read the version of the node's tables. Raises NodeUnavailable if this release may not
    change them.
    """
    try:
        standing = promotion_sql.read_contents(session)
    except db_errors.Final:
        standing = promotion_sql.NodeContents("", {})
    if not info.identity or standing.identity != info.identity:
        raise NodeUnavailable(
            f"The database at the address of node {info.name} has no data, or that of "
            "another node: repair "
            f"that, then run manage.py adopt_restored_node {info.name}."
        )
    if is_older(VERSION, standing.schema.min_release):
        node_guard.check_schema(info, standing.schema)
    return standing.schema


def _changed(session: Session, info: NodeInfo, pause_ms: int) -> Iterator[TableChange]:
    """Make the changes that are pending, and yield each. Raises NodeUnavailable,
    `db_errors.Final`.
    """
    if not node_sql.take_upgrade_lock(session):
        raise NodeUnavailable(
            f"Another run upgrades node {info.name} now: wait for its end, then repeat."
        )
    pending = node_sql.pending_changes(session)  # again: now no other run makes one of them
    for number, change in enumerate(pending):
        if number:
            time.sleep(pause_ms / 1000)
        make = partial(node_sql.make_change, session, change)
        if session.engine == "sqlite":
            make()
        else:
            partitions.alter(session, table=change.table, change=make)
        log.info(
            "Node %s: table %s has schema version %d",
            info.name,
            change.table,
            change.step.version,
        )
        yield change


def require_release(*, node: str, release: str, actor: Actor) -> None:
    """Keep releases before `release` from a node, for a feature whose data they would
    misread.

    It comes before the first use of the feature, and is not taken back: from then on there
    is no downgrade. Brokers of older releases refuse the node within a pass of
    `registry.probe`. Needs
    `admin`. Raises
    Conflict while one of them lives, NodeUnavailable, NotFound(node_not_found).
    """
    access.require_everything(actor, node, what="node")
    older = [
        one
        for one in discovery.list_brokers(actor=actor)
        if one.alive and is_older(one.version, release)
    ]
    if older:
        names = ", ".join(f"{one.name} ({one.version})" for one in older)
        raise Conflict(
            f"These brokers are older than CatMQ {release}: {names}. Upgrade them first."
        )
    info = snapshot.find_node(node)
    with session_pool.direct(info) as session:
        found = _own_schema(session, info)
        if found.version < schema_steps.VERSION:
            raise Conflict(
                f"Node {node} has schema version {found.version}: run manage.py upgrade_nodes."
            )
        if is_older(found.min_release, release):
            node_sql.write_min_release(session, release=release)
            before, after = {"min_release": found.min_release}, {"min_release": release}
            node_rows.audit_schema_change(
                verb="require", name=node, before=before, after=after, actor=actor
            )
