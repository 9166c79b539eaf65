"""Nodes: databases that hold message tables. Registration proves that one can; probes tell how it is."""

from __future__ import annotations

import time
from typing import Any

from messagestore import connections, faults, tables
from messagestore.sessions import Session
from messagestore.tables import ServerFacts
from metadata import nodes, snapshot
from metadata.actors import Actor
from metadata.errors import CatmqError, Code, Invalid, NodeUnavailable
from metadata.nodes import NodeView
from metadata.snapshot import NodeInfo

_PROBE_QUEUE = 0  # no queue has this id
_latencies: dict[int, float | None] = {}


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
    nodes.check_new(actor=actor, **given)
    _prove(NodeInfo(id=0, password=password, state="read_write", epoch=1, **given), unsafe)
    return nodes.create(actor=actor, password=password, **given)


def _prove(info: NodeInfo, unsafe: bool) -> None:
    if info.engine == "sqlite":
        connections.sqlite_path(info.database).parent.mkdir(parents=True, exist_ok=True)
    try:
        session = connections.connect(info)
        try:
            if info.engine == "mysql":
                _check_server(tables.server_facts(session), info, unsafe)
            _try_rights(session)
        finally:
            session.close()
    except (NodeUnavailable, faults.Ambiguous, faults.Final) as error:
        remedy = "Check host, port, database and credentials, and that the account has all rights there."
        raise Invalid(f"{error.detail}. {remedy}", code=Code.NODE_REFUSED) from error


def _check_server(facts: ServerFacts, info: NodeInfo, unsafe: bool) -> None:
    wrong = [
        (facts.character_set != "utf8mb4",
         f"its character set is {facts.character_set}; ALTER DATABASE {info.database} CHARACTER SET utf8mb4"),
        (bool(facts.read_only), "it is read-only; SET GLOBAL read_only = 0, or register the primary"),
    ]  # fmt: skip
    if not unsafe:
        wrong += [
            (facts.flush_log_at_commit != 1,
             "it would lose acknowledged messages in a crash; SET GLOBAL innodb_flush_log_at_trx_commit = 1"),
            (bool(facts.log_bin) and facts.sync_binlog != 1,
             "its binary log may lose acknowledged messages in a crash; SET GLOBAL sync_binlog = 1"),
            (bool(facts.log_bin) and facts.binlog_format == "STATEMENT",
             "statements replicate wrongly here; SET GLOBAL binlog_format = ROW"),
        ]  # fmt: skip
    for is_wrong, why in wrong:
        if is_wrong:
            raise Invalid(
                f"Database {info.database} on {info.host}:{info.port} cannot be a node: {why}.",
                code=Code.NODE_REFUSED,
            )


def _try_rights(session: Session) -> None:
    tables.create_node_tables(session)
    tables.create_queue(session, queue=_PROBE_QUEUE, node_epoch=1)
    tables.set_queue_state(session, queue=_PROBE_QUEUE, state="ro")
    tables.read_head(session, queue=_PROBE_QUEUE)
    tables.drop_queue(session, queue=_PROBE_QUEUE)


def ping(node_id: int) -> float:
    """Seconds that a smallest question to a node takes. Raises NodeUnavailable."""
    begun = time.monotonic()
    with connections.node(node_id).reading() as session:
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


def latencies() -> dict[str, float | None]:
    """{node name: seconds of the last probe, None if it failed}; empty before the first probe."""
    known = snapshot.current().nodes
    return {known[node_id].name: seconds for node_id, seconds in _latencies.items() if node_id in known}
