"""Nodes: registration of databases, changes of nodes, and probes of their state."""

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
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.heads.heads import board
from messagestore.nodes import cluster_checks, server_checks
from messagestore.nodes.preflight import (
    PROBE_QUEUE,
    Finding,
    candidate,
    check_is_empty,
    check_rights,
    check_settings,
    describe_refusal,
)
from messagestore.pool import node_guard, node_pools, session_pool, writers
from messagestore.pool.node import Node
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
from metadata.monitoring import alarms
from metadata.nodes import failovers, node_rows
from metadata.nodes.failovers import DelayedCounts
from metadata.nodes.node_rows import NodeView
from metadata.rules.addresses import DEFAULT_PORT, Address, describe, is_list
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.cluster_members import NoWriter, ServerKind
from metadata.rules.grants import READER, grant_statements
from metadata.rules.nodes import Engine, NodeState

log = logging.getLogger(__name__)
PAUSES_S = (0.1, 0.3, 1.0)  # before a registration that was rolled back is repeated
_latencies: dict[int, float | None] = {}
# node id → the node's epoch when `report_heads` last reported it
_reported: dict[int, int] = {}
# node id → the writer that this process last recorded in metadata, or found recorded
_noted_writers: dict[int, str] = {}


def register(
    *,
    name: str,
    engine: str,
    database: str,
    actor: Actor,
    password: str = "",
    unsafe: bool = False,
    **arguments: Any,
) -> NodeView:
    """Register a database as a node, after all checks of a preflight. Needs `admin`.

    The node's tables are created and every right is tried. `arguments` are those of
    `node_rows.create`. Raises Invalid (node_refused) with the remedy if the database cannot
    be reached, has the wrong character set, lacks a right or would lose acknowledged
    messages (`unsafe` allows the last); Invalid and Conflict for the arguments themselves.
    """
    arguments |= {"name": name, "engine": engine, "database": database}
    info = candidate(actor=actor, password=password, **arguments)
    if info.engine == Engine.SQLITE:
        session_pool.sqlite_path(info.database).parent.mkdir(parents=True, exist_ok=True)
    remedy = (
        "Check host, port, database and credentials, and that the account has all "
        "rights there."
    )
    with _refusing(info, remedy):
        writer, identity = _prepare(info, unsafe=unsafe)
    # The mode may have been chosen by the connection test.
    arguments["tls"] = info.tls
    return node_rows.create(
        actor=actor, password=password, identity=identity, writer=writer, **arguments
    )


def _prepare(info: NodeInfo, *, unsafe: bool) -> tuple[str, str]:
    """Check a database and make it a node.

    Returns the server of a list that is written to, '' for a single address, and the new
    identity. Raises Invalid (node_refused) and `db_errors.*`.
    """
    for pause_s in PAUSES_S:
        try:
            return _prepare_once(info, unsafe=unsafe)
        except db_errors.RolledBack as error:
            # On Galera, tables that another member makes at this moment end transactions.
            # A step that was done before is done again.
            log.info("Node %s is prepared again: %s", info.name, error.detail)
            time.sleep(pause_s)
    return _prepare_once(info, unsafe=unsafe)


def _prepare_once(info: NodeInfo, *, unsafe: bool) -> tuple[str, str]:
    writer = ""
    with session_pool.direct(info) as session:
        if info.engine == Engine.MYSQL:
            if is_list(info.host) and isinstance(session, MySqlSession) and session.member:
                writer = str(session.member.address)
            check_path(session, info, unsafe=unsafe)
            check_server(node_sql.read_server_facts(session), info, unsafe=unsafe)
            if isinstance(session, MySqlSession) and not unsafe:
                for fields in cluster_checks.check(info, session):
                    _raise_if_bad(Finding(*fields), info)
        for finding in check_rights(session, info):
            _raise_if_bad(finding, info)
        node_sql.create_node_tables(session)
        # Every kind of statement on a test queue. A registration that was killed may have
        # left it.
        queue_sql.drop_queue(session, queue=PROBE_QUEUE)
        queue_sql.create_queue(session, queue=PROBE_QUEUE, node_epoch=1)
        if session.engine == Engine.MYSQL:
            partition_sql.add_partitions(session, queue=PROBE_QUEUE, ends=[400_000])
        queue_sql.set_queue_state(session, queue=PROBE_QUEUE, state="ro")
        queue_sql.read_head(session, queue=PROBE_QUEUE)
        queue_sql.drop_queue(session, queue=PROBE_QUEUE)
        _raise_if_bad(check_is_empty(session, unsafe=unsafe), info)
        # Last: a database with an identity counts as taken.
        identity = str(uuid.uuid4())
        promotion_sql.write_identity(session, identity=identity)
    return writer, identity


@contextmanager
def _open_or_refuse(info: NodeInfo, remedy: str = "") -> Iterator[Session]:
    """Return a session on a node; the node's errors become Invalid (node_refused).

    `remedy` is added to the text if the cause has no remedy of its own.
    """
    with _refusing(info, remedy), session_pool.direct(info) as session:
        yield session


@contextmanager
def _refusing(info: NodeInfo, remedy: str) -> Iterator[None]:
    try:
        yield
    except (NodeUnavailable, db_errors.Final) as error:
        raise Invalid(
            describe_refusal(error, info, remedy=remedy), code=Code.NODE_REFUSED
        ) from error


def check_path(session: Session, info: NodeInfo, *, unsafe: bool) -> None:
    """Raise Invalid (node_refused) if there is a proxy in between (`unsafe` allows it)."""
    if isinstance(session, MySqlSession):
        _raise_if_bad(Finding(*server_checks.check_proxy(session, unsafe=unsafe)), info)


def check_server(facts: ServerFacts, info: NodeInfo, *, unsafe: bool) -> None:
    """Raise Invalid (node_refused) for bad settings (`unsafe` allows loss of messages)."""
    for finding in check_settings(facts, database=info.database, unsafe=unsafe):
        _raise_if_bad(finding, info)


def _raise_if_bad(finding: Finding, info: NodeInfo) -> None:
    if finding.verdict == "bad":
        address = (
            f"{info.database} on {describe(info.host, info.port)}"
            if info.engine == Engine.MYSQL
            else info.database
        )
        text = f"Database {address} cannot be a node. {finding.detail}"
        raise Invalid(text, code=Code.NODE_REFUSED)


def check_update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """Return the node as it is, if the settings can be changed. Needs `admin`.

    New TLS settings are tried. Raises Invalid, NotFound(node_not_found).
    """
    node = node_rows.check_update(name=name, settings=settings, actor=actor)
    tls_settings = {key: settings[key] for key in ("tls", "tls_ca") if key in settings}
    is_unchanged = all(getattr(node, key) == value for key, value in tls_settings.items())
    # Unchanged TLS settings together with a new state are not tried: a node that is
    # unreachable can be set offline with the same form.
    if tls_settings and not (is_unchanged and "state" in settings):
        _try_account(replace(snapshot.node_by_id(node.id), **tls_settings))
    if settings.get("host", node.host) != node.host:
        choose_writer(snapshot.node_by_id(node.id), settings["host"])
    return node


def choose_writer(info: NodeInfo, host: str) -> str:
    """Return the server of a node's new list that is written to, '' for a single address.

    Raises Invalid unless every server that answers has the node's data. Nor may the list
    move a node on servers without a cluster: only a promotion knows what that loses.
    """
    present = writers.at_writer(info)
    place = Address(present.host, present.port or DEFAULT_PORT)
    listed = replace(info, host=host, writer="")
    found = writers.survey(listed)
    for member in found.members:
        if info.identity and member.identity != info.identity:
            problem = f"{member.address} does not have the data of node {info.name}"
            raise Invalid.field("host", problem)
    try:
        member = writers.choose(listed, found)
    except NoWriter as error:
        raise Invalid.field("host", str(error)) from error
    if member.kind == ServerKind.SINGLE and member.address != place:
        raise Invalid.field(
            "host",
            f"{place} is the primary, and must stay in the list; to move the node: manage.py "
            f"promote_node {info.name}",
        )
    return str(member.address) if is_list(host) else ""


def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """Change settings of a node and return it. Needs `admin`.

    A node that goes offline need not answer. A node that opens must, or the call has to be
    repeated. Raises Invalid, NotFound(node_not_found), NodeUnavailable.
    """
    node = check_update(name=name, settings=settings, actor=actor)
    listed = {}
    if settings.get("host", node.host) != node.host:
        listed["writer"] = choose_writer(snapshot.node_by_id(node.id), settings["host"])
    state = settings.get("state")
    if state is None:
        return node_rows.update(name=name, settings=settings, actor=actor, **listed)
    # Close the queues on the node before metadata changes, because brokers may have an
    # older snapshot; open them after it.
    if state != NodeState.READ_WRITE:
        _apply_state(node.id, state)
    view = latest = node_rows.update(name=name, settings=settings, actor=actor, **listed)
    # Several callers may change the state at once. Each reads metadata again after writing,
    # so the node agrees with metadata in the end.
    applied = None
    while latest.state != applied:
        applied = latest.state
        _apply_state(latest.id, applied)
        latest = node_rows.find_node(name=latest.name, actor=actor)
    return view


def set_reader(
    *, name: str, username: str, password: str, actor: Actor, dry_run: bool = False
) -> None:
    """Set the account with which jobs read a node, after trying it; '' removes it. Needs
    `admin`.

    `dry_run` only tries it. Raises NotFound(node_not_found), and Invalid(node_refused) if
    the account cannot read or the node is a file.
    """
    if username:
        info = _with_account(name, username, password, actor)
        needed = grant_statements(
            READER, flavour="mysql", database=info.database, username=info.username
        )
        with _open_or_refuse(info, f"It needs: {' '.join(needed)}") as session:
            queue_sql.read_heads(session, queues=None)
    if not dry_run:
        node_rows.set_reader(name=name, username=username, password=password, actor=actor)


def set_account(
    *, name: str, username: str, password: str, actor: Actor, dry_run: bool = False
) -> None:
    """Change the account with which brokers use a node, after trying it. Needs `admin`.

    `dry_run` only tries it. Brokers use it within a second, without a restart. Raises
    NotFound(node_not_found), and Invalid(node_refused) if the account reaches other data,
    lacks a right, or the node is a file.
    """
    _try_account(_with_account(name, username, password, actor))
    if not dry_run:
        node_rows.set_account(name=name, username=username, password=password, actor=actor)


def _with_account(name: str, username: str, password: str, actor: Actor) -> NodeInfo:
    """Return a node with another account.

    Raises Forbidden, NotFound, and Invalid if the node is a file.
    """
    node = node_rows.find_node(name=name, actor=actor)
    if node.engine != Engine.MYSQL:
        raise Invalid.field("username", f"node {name} is a file, which has no accounts")
    return replace(snapshot.node_by_id(node.id), username=username, password=password)


def _try_account(info: NodeInfo) -> None:
    with _open_or_refuse(info) as session:
        if info.identity and promotion_sql.read_identity(session) != info.identity:
            raise Invalid(
                "This account reaches the data of another node.", code=Code.NODE_REFUSED
            )
        for finding in check_rights(session, info):
            _raise_if_bad(finding, info)


def _apply_state(node_id: int, state: str) -> None:
    """Open or close a node's queues. Only an offline node may be unreachable."""
    try:
        with session_pool.direct(snapshot.node_by_id(node_id)) as session:
            if state == NodeState.READ_WRITE:
                queue_sql.open_queues(session, queues=node_rows.open_queues(node_id))
            else:
                queue_sql.close_queues(session)
    except (NodeUnavailable, db_errors.Final) as error:
        if state != NodeState.OFFLINE:
            raise
        log.warning(
            "Node %d was set offline, but its queues could not be closed: %s",
            node_id,
            error.detail,
        )


def ping(node_id: int) -> float:
    """Return the seconds that a small query to a node takes. Raises NodeUnavailable.

    The query reads the version of the node's tables, so each pass of `probe` notices if
    another release has changed them.
    """
    started_at = time.monotonic()
    node = node_pools.node(node_id)
    with node.reading() as session:
        node_guard.refresh_schema(node.info, session)
    return time.monotonic() - started_at


def probe() -> None:
    """Query every node that is not offline; a loop of every worker. See `latencies`."""
    nodes = snapshot.current().nodes
    for node_id, info in nodes.items():
        if info.state == NodeState.OFFLINE:
            _latencies.pop(node_id, None)
            continue
        try:
            node = node_pools.node(node_id)
            node.follow_writer()
            _latencies[node_id] = ping(node_id)
            _note_writer(node)
            # Before the node's heads are read: see `lowest_heads`.
            lowest = node_guard.lowest_heads(node.info)
            # Finds a database that was restored under open connections. If a table is
            # missing, pulls and sends report it.
            with suppress(db_errors.Final), node.reading() as session:
                node_guard.check_server(node.info, session, lowest=lowest)
                node_guard.check_epochs(node.info, session)
        except CatmqError:
            _latencies[node_id] = None
    for deleted_id in set(_latencies) - set(nodes):
        _latencies.pop(deleted_id, None)
    # Quarantined nodes are reported to metadata, so that every broker stops serving them.
    for node_id, quarantine in node_guard.quarantined().items():
        node_info = snapshot.current().nodes.get(node_id)
        # Reported already, or repaired since: a new epoch ends a quarantine.
        if (
            node_info is None
            or node_info.quarantined
            or node_info.epoch != quarantine.epoch
        ):
            continue
        try:
            failovers.quarantine(
                node_id=node_id,
                epoch=quarantine.epoch,
                why=quarantine.why,
                actor=job("nodes"),
            )
        except CatmqError as error:
            log.warning(
                "Quarantine of node %s not recorded, will retry: %s",
                node_info.name,
                error.detail,
            )
    # Serve nodes again whose tables have been upgraded or restored for this release.
    for node_id in node_guard.misfits().keys() & nodes.keys():
        with (
            suppress(CatmqError),
            session_pool.direct(nodes[node_id], any_schema=True) as session,
        ):
            node_guard.refresh_schema(nodes[node_id], session)


def _note_writer(node: Node) -> None:
    """Record in metadata which server of a cluster a node is written to, and raise an alarm
    if it has moved.
    """
    member, info = node.member, node.info
    if member is None or member.kind == ServerKind.SINGLE:
        return
    # Behind a single address, a proxy may lead to any member.
    writer = str(member.address)
    if not is_list(info.host):
        writer = f"{writer} ({member.server_id})"
    # Once for each change that this process sees. Two brokers that reach different members
    # would otherwise overwrite each other's record again and again.
    if _noted_writers.get(info.id) == writer:
        return
    former = failovers.note_writer(
        node_id=info.id, epoch=info.epoch, writer=writer, actor=job("nodes")
    )
    _noted_writers[info.id] = writer
    if former:
        detail = alarm_text("moved", before=former, after=writer)
        alarms.raise_alarm(kind=AlarmKind.NODE_MOVED, name=info.name, detail=detail)


def report_heads() -> None:
    """Record how far this process has seen the queues of nodes that went offline.

    If such a node is promoted, no other source may know these heads. Raises
    MetadataUnavailable.
    """
    current = snapshot.current()
    for node_id, info in current.nodes.items():
        if info.state != NodeState.OFFLINE or _reported.get(node_id) == info.epoch:
            continue
        heads = {
            queue_info.id: board.durable_head(queue_info.id)
            for queue_info in current.queues.values()
            if queue_info.node_id == node_id
        }
        failovers.record_seen_heads({queue: head for queue, head in heads.items() if head})
        _reported[node_id] = info.epoch


def quarantined() -> dict[str, str]:
    """Return {node name: reason} of nodes that must not be served, as this process knows."""
    rejections = node_guard.misfits() | node_guard.quarantined()
    reasons = {
        info.name: info.quarantined
        or (
            rejections[info.id].why
            if rejections.get(info.id, (0,))[0] == info.epoch
            else ""
        )
        for info in snapshot.current().nodes.values()
    }
    return {name: text for name, text in reasons.items() if text}


def wrong_epoch(node_id: int) -> str:
    """Return why a node takes no writes under metadata's epoch, "" if it takes them.

    Raises NodeUnavailable.
    """
    node = node_pools.node(node_id)
    # If the table is missing, pulls and sends report it.
    with suppress(db_errors.Final), node.reading() as session:
        return node_guard.check_epochs(node.info, session)
    return ""


def wrong_epochs() -> list[str]:
    """Return the reasons of nodes that take no writes, as this process knows."""
    nodes = snapshot.current().nodes
    rejections = node_guard.wrong_epochs().items()
    return sorted(
        rejection.why
        for node_id, rejection in rejections
        if node_id in nodes and nodes[node_id].epoch == rejection.epoch
    )


def schema_version(node_id: int) -> int | None:
    """Return the version of a node's tables, None before the first query."""
    info = snapshot.current().nodes.get(node_id)
    schema = node_guard.schema(info) if info is not None else None
    return None if schema is None else schema.version


def can_be_upgraded(node_id: int) -> bool:
    version = schema_version(node_id)
    return version is not None and version < schema_steps.VERSION


def note_heads() -> int:
    """Record the heads of all nodes in metadata, to notice later if a node goes back.

    Returns how many heads rose. The number of delayed messages is recorded as well: after a
    restore no other trace of them is left.
    """
    heads: dict[int, int] = {}
    delayed: dict[int, DelayedCounts] = {}

    def read(session: Session, info: NodeInfo) -> None:
        counts = delayed_sql.read_counts(session)
        heads.update(queue_sql.read_heads(session, queues=None))
        delayed[info.id] = DelayedCounts(info.epoch, counts.given, counts.waiting)

    sweeping.query_nodes(sweeping.online_nodes(), read, subject="Log end offsets")
    failovers.record_delayed(delayed)
    queue_infos = snapshot.current().queues
    return failovers.record_heads(
        sorted((queue, head) for queue, head in heads.items() if queue in queue_infos)
    )


def latencies() -> dict[str, float | None]:
    """Return {node name: seconds of the last probe, None if it failed}."""
    nodes = snapshot.current().nodes
    # A copy, because the loop that probes adds and removes nodes meanwhile.
    latencies = _latencies.copy().items()
    return {
        nodes[node_id].name: seconds for node_id, seconds in latencies if node_id in nodes
    }
