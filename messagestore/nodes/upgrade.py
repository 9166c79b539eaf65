"""Upgrade of the tables of nodes to this release: one table after the other, while brokers serve them.

Each change is one statement that copies nothing, and waits a second at most for its table
(`partitions.alter`). What a table lacks is read from the node itself, so a run that was killed is repeated:
it goes on where the other ended. The version of the node is written last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
class Upgraded:
    """A node, its schema version before and after, its changes, and why one or all were not made.

    After a dry run `after` is what a run would reach, and `changes` are those that it would make.
    """

    node: str
    before: int | None = None
    after: int | None = None
    changes: tuple[TableChange, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _Run:
    dry_run: bool
    pause_ms: int
    say: Callable[[Progress], None]
    actor: Actor
    made: list[TableChange] = field(default_factory=list)


def upgrade(
    *,
    actor: Actor,
    node: str | None = None,
    dry_run: bool = False,
    pause_ms: int = PAUSE_MS,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[Upgraded]:
    """Upgrade the tables of one node, or of all; return what came of each. Needs `admin`.

    A node that cannot be upgraded stops none of the others. Raises Forbidden, NotFound (node_not_found).
    """
    access.require_everything(actor, node or "list", what="node")
    snapshot.refresh()
    known = [snapshot.find_node(node)] if node else snapshot.current().nodes.values()
    return [
        _upgrade(info, _Run(dry_run, pause_ms, progress, actor))
        for info in sorted(known, key=lambda one: one.name)
    ]


def _upgrade(info: NodeInfo, run: _Run) -> Upgraded:
    before: int | None = None
    try:
        if info.state == "offline":
            raise NodeUnavailable(f"Node {info.name} is offline.")
        with session_pool.direct(info, any_schema=True, read_timeout_s=MAINTENANCE_TIMEOUT_S) as session:
            before = _own_schema(session, info).version
            pending = node_sql.pending_changes(session)
            after = max(before, schema_steps.VERSION)
            if run.dry_run or (not pending and before == after):
                return Upgraded(info.name, before, after, tuple(pending))
            _change(session, info, run)
            if before != after:
                node_sql.write_schema_version(session, version=after)
        problem = ""
    except (NodeUnavailable, db_errors.Final) as error:
        problem, after = error.detail, before or 0
    if run.made or (not problem and before != after):
        node_rows.note_schema(
            verb="upgrade",
            name=info.name,
            before={"schema_version": before},
            after={"schema_version": after, "changes": len(run.made), "problem": problem},
            actor=run.actor,
        )
    return Upgraded(info.name, before, after, tuple(run.made), problem)


def _own_schema(session: Session, info: NodeInfo) -> Schema:
    """Read the version of the node's tables. Raises NodeUnavailable if this release may not change them."""
    try:
        standing = promotion_sql.read_standing(session)
    except db_errors.Final:
        standing = promotion_sql.Standing("", {})
    if not info.identity or standing.identity != info.identity:
        raise NodeUnavailable(
            f"The database at the address of node {info.name} has no data, or that of another node: repair "
            f"that, then run manage.py adopt_restored_node {info.name}."
        )
    if is_older(VERSION, standing.schema.min_release):
        node_guard.check_schema(info, standing.schema)
    return standing.schema


def _change(session: Session, info: NodeInfo, run: _Run) -> None:
    """Make the changes that are pending. Raises NodeUnavailable, `db_errors.Final`."""
    if not node_sql.take_upgrade_lock(session):
        raise NodeUnavailable(f"Another run upgrades node {info.name} now: wait for its end, then repeat.")
    pending = node_sql.pending_changes(session)  # under the lock: no other run makes one of them
    for done, change in enumerate(pending):
        run.say(Progress(f"{info.name}: tables changed", done, len(pending)))
        if done:
            time.sleep(run.pause_ms / 1000)
        make = partial(node_sql.make_change, session, change)
        if session.engine == "sqlite":
            make()
        else:
            partitions.alter(session, table=change.table, change=make)
        run.made.append(change)
        log.info("Node %s: table %s has schema version %d", info.name, change.table, change.step.version)


def require_release(*, node: str, release: str, actor: Actor) -> None:
    """Keep releases before `release` from a node, for a feature whose data they would misread.

    It comes before the first use of the feature, and is not taken back: from then on there is no downgrade.
    Brokers of older releases refuse the node within a pass of `registry.probe`. Needs `admin`. Raises
    Conflict while one of them lives, NodeUnavailable, NotFound(node_not_found).
    """
    access.require_everything(actor, node, what="node")
    older = [one for one in discovery.listed(actor=actor) if one.alive and is_older(one.version, release)]
    if older:
        names = ", ".join(f"{one.name} ({one.version})" for one in older)
        raise Conflict(f"These brokers are older than CatMQ {release}: {names}. Upgrade them first.")
    info = snapshot.find_node(node)
    with session_pool.direct(info) as session:
        found = _own_schema(session, info)
        if found.version < schema_steps.VERSION:
            raise Conflict(f"Node {node} has schema version {found.version}: run manage.py upgrade_nodes.")
        if is_older(found.min_release, release):
            node_sql.write_min_release(session, release=release)
            before, after = {"min_release": found.min_release}, {"min_release": release}
            node_rows.note_schema(verb="require", name=node, before=before, after=after, actor=actor)
