"""Nodes: databases that hold message tables. Registration proves that one can; probes tell
how it is.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from messagestore import sweeping
from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import Session
from messagestore.heads.heads import board
from messagestore.nodes.preflight import (
    PROBE_QUEUE,
    Finding,
    candidate,
    of_data,
    of_rights,
    of_server,
    of_way,
    refusal,
)
from messagestore.pool import node_guard, node_pools, session_pool
from messagestore.tables import (
    delayed_sql,
    node_sql,
    partition_sql,
    promotion_sql,
    queue_sql,
)
from messagestore.tables.shapes import ServerFacts
from metadata.actors import Actor, job
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError, Code, Invalid, NodeUnavailable
from metadata.nodes import failovers, node_rows
from metadata.nodes.failovers import DelayedCounts
from metadata.nodes.node_rows import NodeView
from metadata.rules.grants import READER, grant_statements

log = logging.getLogger(__name__)
_latencies: dict[int, float | None] = {}
# node → the epoch under which it was offline when its heads were reported
_reported: dict[int, int] = {}


def register(
    *,
    name: str,
    engine: str,
    database: str,
    actor: Actor,
    password: str = "",
    unsafe: bool = False,
    **given: Any,
) -> NodeView:
    """Register a database as a node, once it proved that it can serve as one. Needs
    `admin`.

    The node's tables are made and every right is tried. Raises Invalid (node_refused) with
    the remedy when it cannot be reached, has the wrong character set, lacks a right or
    would lose acknowledged messages (`unsafe` allows the last); Invalid and Conflict for
    the arguments themselves. `given`: those of
    `node_rows.create`.
    """
    given |= {"name": name, "engine": engine, "database": database}
    info = candidate(actor=actor, password=password, **given)
    identity = _prove(info, unsafe)
    given["tls"] = info.tls
    return node_rows.create(actor=actor, password=password, identity=identity, **given)


def _prove(info: NodeInfo, unsafe: bool) -> str:
    """Prove that a database can serve and is nobody's; return the identity that it is
    marked with now.
    """
    if info.engine == "sqlite":
        session_pool.sqlite_path(info.database).parent.mkdir(parents=True, exist_ok=True)
    remedy = (
        "Check host, port, database and credentials, and that the account has all "
        "rights there."
    )
    with _tried(info, remedy) as session:
        if info.engine == "mysql":
            check_way(session, info, unsafe=unsafe)
            check_server(node_sql.read_server_facts(session), info, unsafe=unsafe)
        for finding in of_rights(session, info):
            _refuse(finding, info)
        _make_tables(session)
        _refuse(of_data(session, unsafe=unsafe), info)
        identity = str(uuid.uuid4())
        promotion_sql.write_identity(session, identity=identity)
        return identity


@contextmanager
def _tried(info: NodeInfo, remedy: str = "") -> Iterator[Session]:
    """A session on a node by an account that may lack something. Raises Invalid
    (node_refused).
    """
    try:
        with session_pool.direct(info) as session:
            yield session
    except (NodeUnavailable, db_errors.Final) as error:
        raise Invalid(
            refusal(error, info, remedy=remedy), code=Code.NODE_REFUSED
        ) from error


def check_way(session: Session, info: NodeInfo, *, unsafe: bool) -> None:
    """Raise Invalid (node_refused) if a proxy stands between brokers and a server
    (`unsafe`: it may).
    """
    for finding in of_way(session, unsafe=unsafe):
        _refuse(finding, info)


def check_server(facts: ServerFacts, info: NodeInfo, *, unsafe: bool) -> None:
    """Raise Invalid (node_refused) if a server loses messages (`unsafe`: it may) or cannot
    hold them.
    """
    for finding in of_server(facts, database=info.database, unsafe=unsafe):
        _refuse(finding, info)


def _refuse(finding: Finding, info: NodeInfo) -> None:
    if finding.verdict == "bad":
        where = (
            f"{info.database} on {info.host}:{info.port}"
            if info.engine == "mysql"
            else info.database
        )
        what = f"Database {where} cannot be a node. {finding.detail}"
        raise Invalid(what, code=Code.NODE_REFUSED)


def _make_tables(session: Session) -> None:
    node_sql.create_node_tables(session)
    queue_sql.drop_queue(session, queue=PROBE_QUEUE)  # of a registration that was killed
    queue_sql.create_queue(session, queue=PROBE_QUEUE, node_epoch=1)
    if session.engine == "mysql":
        partition_sql.add_partitions(session, queue=PROBE_QUEUE, ends=[400_000])
    queue_sql.set_queue_state(session, queue=PROBE_QUEUE, state="ro")
    queue_sql.read_head(session, queue=PROBE_QUEUE)
    queue_sql.drop_queue(session, queue=PROBE_QUEUE)


def check_update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """The node as it is, if it could be changed so; TLS is tried, unless it stays beside a
    new state.

    Needs `admin`.

    Raises Invalid, NotFound(node_not_found).
    """
    node = node_rows.check_update(name=name, settings=settings, actor=actor)
    wanted = {key: settings[key] for key in ("tls", "tls_ca") if key in settings}
    stays = all(getattr(node, key) == value for key, value in wanted.items())
    if wanted and not (stays and "state" in settings):
        _try_account(replace(snapshot.node_by_id(node.id), **wanted))
    return node


def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """The node with some of its settings changed. Needs `admin`.

    A node that closes is closed where its messages are before metadata says so: brokers may
    hold an older snapshot. One that goes offline need not answer; one that opens must, or
    repeat this. Raises Invalid, NotFound(node_not_found), NodeUnavailable.
    """
    node = check_update(name=name, settings=settings, actor=actor)
    state = settings.get("state")
    if state is None:
        return node_rows.update(name=name, settings=settings, actor=actor)
    if state != "read_write":
        _apply(node.id, state)
    view = node_rows.update(name=name, settings=settings, actor=actor)
    _settle(view, actor)
    return view


def set_reader(
    *, name: str, username: str, password: str, actor: Actor, dry_run: bool = False
) -> None:
    """Give a node the account with which jobs read it, once it was tried; '' takes it away.
    Needs `admin`.

    `dry_run` only tries it. Raises NotFound(node_not_found), Invalid(node_refused) when it
    cannot read or is a file.
    """
    if username:
        info = _with_account(name, username, password, actor)
        needed = grant_statements(
            READER, flavour="mysql", database=info.database, username=info.username
        )
        with _tried(info, f"It needs: {' '.join(needed)}") as session:
            queue_sql.read_heads(session, queues=None)
    if not dry_run:
        node_rows.set_reader(name=name, username=username, password=password, actor=actor)


def set_account(
    *, name: str, username: str, password: str, actor: Actor, dry_run: bool = False
) -> None:
    """Change the account with which brokers reach a node, once it was tried; `dry_run` only
    tries it.

    Needs `admin`. Brokers take it up within a second; nothing stops. Raises
    NotFound(node_not_found), Invalid(node_refused) when the account does not reach this
    node's data, lacks a right, or it is a file.
    """
    _try_account(_with_account(name, username, password, actor))
    if not dry_run:
        node_rows.set_account(name=name, username=username, password=password, actor=actor)


def _with_account(name: str, username: str, password: str, actor: Actor) -> NodeInfo:
    """Return a node as another account reaches it. Raises Forbidden, NotFound, Invalid if
    it is a file.
    """
    found = node_rows.find_node(name=name, actor=actor)
    if found.engine != "mysql":
        raise Invalid.field("username", f"node {name} is a file, which has no accounts")
    return replace(snapshot.node_by_id(found.id), username=username, password=password)


def _try_account(info: NodeInfo) -> None:
    with _tried(info) as session:
        if info.identity and promotion_sql.read_identity(session) != info.identity:
            raise Invalid(
                "This account reaches the data of another node.", code=Code.NODE_REFUSED
            )
        for finding in of_rights(session, info):
            _refuse(finding, info)


def _settle(view: NodeView, actor: Actor) -> None:
    """Make the node's heads agree with metadata in the end, also when several change its
    state at once.
    """
    applied = None
    while view.state != applied:
        applied = view.state
        _apply(view.id, applied)
        view = node_rows.find_node(name=view.name, actor=actor)


def _apply(node_id: int, state: str) -> None:
    try:
        with session_pool.direct(snapshot.node_by_id(node_id)) as session:
            if state == "read_write":
                queue_sql.open_queues(session, queues=node_rows.open_queues(node_id))
            else:
                queue_sql.close_queues(session)
    except (NodeUnavailable, db_errors.Final) as error:
        if state != "offline":
            raise
        log.warning(
            "Node %d was set offline, but its queues could not be closed: %s",
            node_id,
            error.detail,
        )


def ping(node_id: int) -> float:
    """Seconds that a smallest question to a node takes. Raises NodeUnavailable.

    It is about the version of the node's tables: so a process learns within a pass of
    `probe` that another
    release changed them.
    """
    begun = time.monotonic()
    node = node_pools.node(node_id)
    with node.reading() as session:
        node_guard.refresh_schema(node.info, session)
    return time.monotonic() - begun


def probe() -> None:
    """Ask every node that is not offline; a loop of every worker. The answers: `latencies`."""
    known = snapshot.current().nodes
    for node_id, info in known.items():
        if info.state == "offline":
            _latencies.pop(node_id, None)
            continue
        try:
            _latencies[node_id] = ping(node_id)
            _check_heads(node_id)
        except CatmqError:
            _latencies[node_id] = None
    for gone in set(_latencies) - set(known):
        _latencies.pop(gone, None)
    _report_barred()
    _look_at_misfits()


def _check_heads(node_id: int) -> None:
    """Find a node whose database was restored while connections to it stayed open. Raises
    NodeUnavailable.
    """
    node = node_pools.node(node_id)
    lowest = node_guard.lowest_heads(node.info)
    # without a table: `pull` and `store` tell
    with suppress(db_errors.Final), node.reading() as session:
        node_guard.check_server(node.info, session, lowest=lowest)
        node_guard.check_epochs(node.info, session)


def _look_at_misfits() -> None:
    """Serve nodes again whose tables were upgraded, or restored, for this release
    meanwhile.
    """
    known = snapshot.current().nodes
    for node_id in node_guard.misfits().keys() & known.keys():
        with (
            suppress(CatmqError),
            session_pool.direct(known[node_id], any_schema=True) as session,
        ):
            node_guard.refresh_schema(known[node_id], session)


def _report_barred() -> None:
    """Have every broker stop serving the nodes that this process found to have gone back."""
    known = snapshot.current().nodes
    for node_id, bar in node_guard.quarantined().items():
        info = known.get(node_id)
        if info is None or info.quarantined or info.epoch != bar.epoch:
            continue
        try:
            failovers.quarantine(
                node_id=node_id, epoch=bar.epoch, why=bar.why, actor=job("nodes")
            )
        except CatmqError as error:
            log.warning(
                "Quarantine of node %s not recorded, will retry: %s",
                info.name,
                error.detail,
            )


def report_heads() -> None:
    """Tell metadata how far this process has seen the queues of nodes that went offline: if
    one is promoted, nobody else may know. Raises MetadataUnavailable."""
    known = snapshot.current()
    for node_id, info in known.nodes.items():
        if info.state != "offline" or _reported.get(node_id) == info.epoch:
            continue
        heads = {
            one.id: board.known(one.id)
            for one in known.queues.values()
            if one.node_id == node_id
        }
        failovers.record_seen_heads({queue: head for queue, head in heads.items() if head})
        _reported[node_id] = info.epoch


def quarantined() -> dict[str, str]:
    """{node name: why no broker may serve it}, as this process knows."""
    found = node_guard.misfits() | node_guard.quarantined()
    why = {
        info.name: info.quarantined
        or (found[info.id].why if found.get(info.id, (0,))[0] == info.epoch else "")
        for info in snapshot.current().nodes.values()
    }
    return {name: text for name, text in why.items() if text}


def wrong_epoch(node_id: int) -> str:
    """Ask a node whether it takes writes under the epoch that metadata has; return why not,
    "" if it does.

    Raises NodeUnavailable.
    """
    node = node_pools.node(node_id)
    # without the table: `pull` and `store` tell
    with suppress(db_errors.Final), node.reading() as session:
        return node_guard.check_epochs(node.info, session)
    return ""


def wrong_epochs() -> list[str]:
    """Say of each node that takes no writes under the epoch that metadata has why, as this
    process knows.
    """
    known = snapshot.current().nodes
    wrong = node_guard.wrong_epochs().items()
    return sorted(
        fault.why
        for node_id, fault in wrong
        if node_id in known and known[node_id].epoch == fault.epoch
    )


def schema_version(node_id: int) -> int | None:
    """Version of a node's tables, None before this process has asked the node."""
    info = snapshot.current().nodes.get(node_id)
    found = node_guard.schema(info) if info is not None else None
    return None if found is None else found.version


def can_be_upgraded(node_id: int) -> bool:
    """Return True if the version of a node's tables is below that of this release."""
    version = schema_version(node_id)
    return version is not None and version < schema_steps.VERSION


def note_heads() -> int:
    """Copy the heads of all nodes to metadata, to know a node that goes back by; return how
    many rose.

    With them goes how many delayed messages a node had: after a restore nothing else tells
    of those.
    """
    heads: dict[int, int] = {}
    delayed: dict[int, DelayedCounts] = {}

    def read(session: Session, info: NodeInfo) -> None:
        counts = delayed_sql.read_counts(session)
        heads.update(queue_sql.read_heads(session, queues=None))
        delayed[info.id] = DelayedCounts(info.epoch, counts.given, counts.waiting)

    sweeping.query_nodes(sweeping.online_nodes(), read, subject="Log end offsets")
    failovers.record_delayed(delayed)
    known = snapshot.current().queues
    return failovers.record_heads(
        sorted((queue, head) for queue, head in heads.items() if queue in known)
    )


def latencies() -> dict[str, float | None]:
    """{node name: seconds of the last probe, None if it failed}; empty before the first
    probe.
    """
    nodes = snapshot.current().nodes
    # A copy, because the loop that probes adds and removes nodes meanwhile.
    latencies = _latencies.copy().items()
    return {
        nodes[node_id].name: seconds for node_id, seconds in latencies if node_id in nodes
    }
