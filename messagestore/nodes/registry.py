"""Nodes: databases that hold message tables. Registration proves that one can; probes tell how it is."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from messagestore import tables
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads.heads import board
from messagestore.nodes.preflight import Finding, of_data, of_server, reason
from messagestore.pool import node_guard, node_pools, session_pool
from messagestore.tables import ServerFacts
from metadata.actors import Actor, job
from metadata.cache import snapshot
from metadata.cache.snapshot import NodeInfo
from metadata.errors import CatmqError, Code, Invalid, NodeUnavailable
from metadata.nodes import failovers, node_rows
from metadata.nodes.node_rows import NodeView

log = logging.getLogger(__name__)
_PROBE_QUEUE = 0  # no queue has this id
_latencies: dict[int, float | None] = {}
_told: dict[int, int] = {}  # node → the epoch under which it was offline when its heads were told


def register(
    *,
    name: str,
    engine: str,
    database: str,
    actor: Actor,
    kind: str = "normal",
    host: str = "",
    port: int | None = None,
    username: str = "",
    password: str = "",
    special: bool = False,
    capacity_gb: int | None = None,
    unsafe: bool = False,
) -> NodeView:
    """Registers a database as a node, once it proved that it can serve as one. Needs `admin`.

    The node's tables are made and every right is tried. Raises Invalid (node_refused) with the remedy when
    it cannot be reached, has the wrong character set, lacks a right or would lose acknowledged messages
    (`unsafe` allows the last); Invalid and Conflict for the arguments themselves.
    """
    given: dict[str, Any] = {
        "name": name, "kind": kind, "engine": engine, "host": host, "port": port, "database": database,
        "username": username, "special": special, "capacity_gb": capacity_gb,
    }  # fmt: skip
    node_rows.check_new(actor=actor, **given)
    identity = _prove(NodeInfo(id=0, password=password, state="read_write", epoch=1, **given), unsafe)
    return node_rows.create(actor=actor, password=password, identity=identity, **given)


def _prove(info: NodeInfo, unsafe: bool) -> str:
    """Tries that a database can serve, and marks it; the identity that it has now."""
    if info.engine == "sqlite":
        session_pool.sqlite_path(info.database).parent.mkdir(parents=True, exist_ok=True)
    try:
        session = session_pool.connect(info)
        try:
            if info.engine == "mysql":
                check_server(tables.server_facts(session), info, unsafe=unsafe)
            _try_rights(session)
            return _mark(session, info, unsafe)
        finally:
            session.close()
    except (NodeUnavailable, db_errors.Ambiguous, db_errors.Final) as error:
        remedy = "Check host, port, database and credentials, and that the account has all rights there."
        raise Invalid(f"{reason(error, info)}. {remedy}", code=Code.NODE_REFUSED) from error


def _mark(session: Session, info: NodeInfo, unsafe: bool) -> str:
    """Writes an identity into a database that is nobody's."""
    _refuse(of_data(session, unsafe=unsafe), info)
    identity = str(uuid.uuid4())
    tables.write_identity(session, identity=identity)
    return identity


def check_server(facts: ServerFacts, info: NodeInfo, *, unsafe: bool) -> None:
    """Raises Invalid (node_refused) if a server loses messages (`unsafe`: it may) or cannot hold them."""
    for finding in of_server(facts, database=info.database, unsafe=unsafe):
        _refuse(finding, info)


def _refuse(finding: Finding, info: NodeInfo) -> None:
    if finding.verdict == "bad":
        where = f"{info.database} on {info.host}:{info.port}" if info.engine == "mysql" else info.database
        what = f"Database {where} cannot be a node. {finding.detail}"
        raise Invalid(what, code=Code.NODE_REFUSED)


def _try_rights(session: Session) -> None:
    tables.create_node_tables(session)
    tables.create_queue(session, queue=_PROBE_QUEUE, node_epoch=1)
    if session.engine == "mysql":
        tables.add_partitions(session, queue=_PROBE_QUEUE, ends=[400_000])
    tables.set_queue_state(session, queue=_PROBE_QUEUE, state="ro")
    tables.read_head(session, queue=_PROBE_QUEUE)
    tables.drop_queue(session, queue=_PROBE_QUEUE)


def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> NodeView:
    """The node with state, special or capacity_gb changed. Needs `admin`.

    A node that closes is closed where its messages are before metadata says so: brokers may hold an older
    picture. One that goes offline need not answer; one that opens must, or repeat this. Raises Invalid,
    NotFound(node_not_found), NodeUnavailable.
    """
    node = node_rows.check_update(name=name, settings=settings, actor=actor)
    state = settings.get("state")
    if state is None:
        return node_rows.update(name=name, settings=settings, actor=actor)
    if state != "read_write":
        _apply(node.id, state)
    view = node_rows.update(name=name, settings=settings, actor=actor)
    _settle(view, actor)
    return view


def set_reader(*, name: str, username: str, password: str, actor: Actor, dry_run: bool = False) -> None:
    """Gives a node the account with which jobs read it, once it was tried; '' takes it away. Needs `admin`.

    `dry_run` only tries it. Raises NotFound(node_not_found), Invalid(node_refused) when it cannot read or is
    a file.
    """
    found = node_rows.named(name=name, actor=actor)
    if username:
        if found.engine != "mysql":
            raise Invalid.field("username", f"node {name} is a file; who may read it, the system decides")
        _try_reader(replace(snapshot.node_by_id(found.id), username=username, password=password))
    if not dry_run:
        node_rows.set_reader(name=name, username=username, password=password, actor=actor)


def set_account(*, name: str, username: str, password: str, actor: Actor, dry_run: bool = False) -> None:
    """Changes the account with which brokers reach a node, once it was tried; `dry_run` only tries it.

    Needs `admin`. Brokers take it up within a second; nothing stops. Raises NotFound(node_not_found),
    Invalid(node_refused) when the account does not reach this node's data, lacks a right, or it is a file.
    """
    found = node_rows.named(name=name, actor=actor)
    if found.engine != "mysql":
        raise Invalid.field("username", f"node {name} is a file, which has no accounts")
    _try_account(replace(snapshot.node_by_id(found.id), username=username, password=password))
    if not dry_run:
        node_rows.set_account(name=name, username=username, password=password, actor=actor)


def _try_account(info: NodeInfo) -> None:
    try:
        session = session_pool.connect(info)
        try:
            if info.identity and tables.read_identity(session) != info.identity:
                raise Invalid("Another node's data is there.", code=Code.NODE_REFUSED)
            missing = tables.try_rights(session, table=f"examined_{uuid.uuid4().hex[:12]}")
        finally:
            session.close()
    except (NodeUnavailable, db_errors.Ambiguous, db_errors.Final) as error:
        raise Invalid(f"{reason(error, info)}.", code=Code.NODE_REFUSED) from error
    if missing:
        grant = f"GRANT ALL ON `{info.database}`.* TO '{info.username}'"
        raise Invalid(f"The account lacks a right ({missing}): {grant}", code=Code.NODE_REFUSED)


def _try_reader(info: NodeInfo) -> None:
    try:
        session = session_pool.connect(info)
        try:
            tables.read_heads(session, queues=None)
        finally:
            session.close()
    except (NodeUnavailable, db_errors.Ambiguous, db_errors.Final) as error:
        grant = f"GRANT SELECT ON `{info.database}`.* TO '{info.username}'"
        raise Invalid(f"{reason(error, info)}. It needs: {grant}", code=Code.NODE_REFUSED) from error


def _settle(view: NodeView, actor: Actor) -> None:
    """Makes the node's heads agree with metadata in the end, also when several change its state at once."""
    applied = None
    while view.state != applied:
        applied = view.state
        _apply(view.id, applied)
        view = node_rows.named(name=view.name, actor=actor)


def _apply(node_id: int, state: str) -> None:
    try:
        with _direct(node_id) as session:
            if state == "read_write":
                tables.open_queues(session, queues=node_rows.open_queues(node_id))
            else:
                tables.close_queues(session)
    except (NodeUnavailable, db_errors.Ambiguous, db_errors.Final) as error:
        if state != "offline":
            raise
        log.warning("Node %d goes offline, but its queues could not be closed: %s", node_id, error.detail)


@contextmanager
def _direct(node_id: int) -> Iterator[Session]:
    """A session of its own: the pool lends none of a node that is offline."""
    session = session_pool.connect(snapshot.node_by_id(node_id))
    try:
        yield session
    finally:
        session.close()


def ping(node_id: int) -> float:
    """Seconds that a smallest question to a node takes. Raises NodeUnavailable."""
    begun = time.monotonic()
    with node_pools.node(node_id).reading() as session:
        tables.now_ms(session)
    return time.monotonic() - begun


def probe() -> None:
    """Asks every node that is not offline; a loop of every worker. The answers: `latencies`."""
    known = snapshot.current().nodes
    for node_id, info in known.items():
        if info.state == "offline":
            _latencies.pop(node_id, None)
            continue
        try:
            _latencies[node_id] = ping(node_id)
        except CatmqError:
            _latencies[node_id] = None
    for gone in set(_latencies) - set(known):
        _latencies.pop(gone, None)
    _tell_of_bars()


def _tell_of_bars() -> None:
    """Has every broker stop serving the nodes that this process found to have gone back."""
    known = snapshot.current().nodes
    for node_id, bar in node_guard.barred().items():
        info = known.get(node_id)
        if info is None or info.barred or info.epoch != bar.epoch:
            continue
        try:
            failovers.bar(node_id=node_id, epoch=bar.epoch, why=bar.why, actor=job("nodes"))
        except CatmqError as error:
            log.warning("That node %s is barred is told later: %s", info.name, error.detail)


def tell_heads() -> None:
    """Tells metadata how far this process has seen the queues of nodes that went offline: if one is promoted,
    nobody else may know. Raises MetadataUnavailable."""
    known = snapshot.current()
    for node_id, info in known.nodes.items():
        if info.state != "offline" or _told.get(node_id) == info.epoch:
            continue
        heads = {one.id: board.known(one.id) for one in known.queues.values() if one.node_id == node_id}
        failovers.record_known({queue: head for queue, head in heads.items() if head})
        _told[node_id] = info.epoch


def barred() -> dict[str, str]:
    """{node name: why no broker may serve it}, as this process knows."""
    found = node_guard.barred()
    why = {
        info.name: info.barred or (found[info.id].why if found.get(info.id, (0,))[0] == info.epoch else "")
        for info in snapshot.current().nodes.values()
    }
    return {name: text for name, text in why.items() if text}


def note_heads() -> int:
    """Copies the heads of all nodes to metadata, so that a node that goes back is known; how many rose."""
    known = snapshot.current()
    done = 0
    for node_id, info in known.nodes.items():
        if info.state == "offline":
            continue
        try:
            with node_pools.node(node_id).reading() as session:
                heads = tables.read_heads(session, queues=None)
        except CatmqError as error:
            log.warning("The heads of node %s are noted later: %s", info.name, error.detail)
            continue
        mine = [(queue, head) for queue, head in heads.items() if queue in known.queues]
        done += failovers.record_heads(sorted(mine))
    return done


def latencies() -> dict[str, float | None]:
    """{node name: seconds of the last probe, None if it failed}; empty before the first probe."""
    known = snapshot.current().nodes
    return {known[node_id].name: seconds for node_id, seconds in _latencies.items() if node_id in known}
