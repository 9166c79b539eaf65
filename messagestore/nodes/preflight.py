"""Preflight: findings for and against a database as a node, without changing it.

Each finding is about a single subject, and has a remedy if something is wrong.
`registry.register` uses the same findings, so a database that passes the preflight can be
registered.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import (
    READ_TIMEOUT_S,
    MySqlSession,
    Session,
    UnsupportedServer,
)
from messagestore.nodes import cluster_checks, encryption, server_checks
from messagestore.pool import node_guard, session_pool
from messagestore.tables import node_sql, promotion_sql, queue_sql
from messagestore.tables.shapes import ServerFacts
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db.clock import database_now, ms
from metadata.db.paging import MAX_LIMIT, Window
from metadata.db.transactions import reachable
from metadata.errors import CatmqError, NodeUnavailable
from metadata.installation import name_programs
from metadata.nodes import node_rows
from metadata.rules import engines, tls
from metadata.rules.addresses import describe, parse_addresses
from metadata.rules.grants import grant_statements
from metadata.rules.nodes import Engine, NodeKind, NodeState

PROBE_QUEUE = 0  # id of a registration's test queue; no real queue has it
CLOCK_MS = 1000  # a difference between two clocks below this is not noticed
TEXTS = {  # text of each finding; the portal translates them
    "reached": "The response time is %(ms).1f ms.",
    "away": "%(reason)s. Check host, port, database, account and password.",
    "unfit": "%(reason)s.",
    "new_file": "The file does not exist yet. It will be created.",
    "no_directory": (
        "%(path)s is not writable. Choose another directory, or give the server write permission."
    ),
    **tls.FAILURES,
    "tls_local": "The connection is not encrypted. The server is on this machine.",
    "tls_plain": "The connection to %(host)s is not encrypted. Set tls to verify, or to on.",
    "tls_unverified": (
        "The connection is encrypted with %(version)s, %(cipher)s. The certificate, which "
        "ends on %(until)s, "
        "is not verified."
    ),
    "tls_verified": (
        "The connection is encrypted with %(version)s, %(cipher)s. The certificate, which "
        "ends on %(until)s, "
        "is verified."
    ),
    "tls_ending": "The certificate of the server ends on %(until)s, in %(days)d days. Renew it.",
    "version": "It is %(version)s.",
    "old_version": engines.TOO_OLD,
    **server_checks.TEXTS,
    **cluster_checks.TEXTS,
    "text": "The character set is %(found)s.",
    "wrong_text": (
        "The character set is %(found)s. Run ALTER DATABASE %(database)s CHARACTER SET utf8mb4."
    ),
    "writable": "It is writable.",
    "read_only": "The server is read-only. Run SET GLOBAL read_only = 0, or register the primary.",
    "durable": "Acknowledged messages survive a crash.",
    "flush": (
        "The server may lose acknowledged messages in a crash. Run SET GLOBAL "
        "innodb_flush_log_at_trx_commit = 1, or set it in the parameter group of a managed server."
    ),
    "binlog": "The binary log may lose acknowledged messages in a crash. Run SET GLOBAL "
              "sync_binlog = "
        "1, or set it in the parameter group of a managed server.",
    "statement": "Statement-based replication may give a replica different data. Run SET GLOBAL "
        "binlog_format = ROW, or set it in the parameter group of a managed server.",
    "rights": "The account has all necessary rights.",
    "no_right": "The account lacks a right (%(right)s). Run %(grant)s",
    "fewer_rights": "The account lacks %(right)s, which allows: %(why)s. Run %(grant)s",
    "clock": "The clock differs by %(ms)d ms from that of the metadata database.",
    "wrong_clock": (
        "The clock differs by %(ms)d ms from that of the metadata database. Delays and ages "
        "would be wrong by this amount. Synchronize both with NTP."
    ),
    "empty": "It is empty.",
    "taken": "The database is already registered as node %(owner)s.",
    "strange": "The database has queues of another installation. Use an empty database.",
    "own": "The database has the data of this node, with %(queues)d queues.",
    "foreign": "The database has the data of another node, or none.",
    "quarantined": "Brokers do not serve the node: %(why)s",
    "schema": "The tables have schema version %(version)d.",
    "old_schema": (
        "The tables have schema version %(version)d. Missing changes: %(changes)d. Brokers "
        "work without "
        "them. Run manage.py upgrade_nodes when all brokers have this release."
    ),
    "new_schema": (
        "The tables have schema version %(version)d of a later release. This release works "
        "with them."
    ),
    "misfit": "Brokers of this release do not serve the node: %(why)s",
    NodeKind.NORMAL: "The node will store messages of topics.",
    NodeKind.FAILURE: "The node will store only retries and dead letters.",
    "first_failure": "There is no retry node yet, so failed messages cannot be stored for "
                     "a retry. Register "
        "one, too.",
    "same_server": "Node %(others)s is on the same server. If it fails, both nodes are down.",
    "capacity": "Free space is watched.",
    "no_capacity": "Without a capacity, free space is not watched.",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a subject. `verdict` is ok, warn or bad.

    `text` is a key of TEXTS, `words` are the values for it.
    """

    about: str
    verdict: str
    text: str
    words: Mapping[str, Any] = field(default_factory=dict)

    @property
    def detail(self) -> str:
        return name_programs(TEXTS[self.text] % self.words)


class Preflight(Struct, frozen=True):
    """All findings about a database. A bad finding prevents it from being a node."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.verdict != "bad" for finding in self.findings)


def examine(
    *, name: str, actor: Actor, password: str = "", unsafe: bool = False, **arguments: Any
) -> Preflight:
    """Examine a database as a new node, with the arguments of `registry.register`.

    Needs `admin`. Nothing is changed. Raises Invalid and Conflict for the arguments.
    """
    info = candidate(name=name, actor=actor, password=password, **arguments)
    if (
        info.engine == Engine.SQLITE
        and not session_pool.sqlite_path(info.database).exists()
    ):
        directory = session_pool.sqlite_path(info.database).parent
        # Missing directories are created, so the nearest that exists must be writable.
        while not directory.exists():
            directory = directory.parent
        is_writable = directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
        findings = [
            Finding("reachable", "ok", "new_file")
            if is_writable
            else Finding("reachable", "bad", "no_directory", {"path": str(directory)})
        ]
    else:
        findings = list(_examine_database(info, unsafe=unsafe, rights=True))
    return Preflight((*findings, *_check_role(info, actor)))


def candidate(*, name: str, actor: Actor, password: str, **arguments: Any) -> NodeInfo:
    """Return the node that a database would be, with a default TLS mode.

    Needs `admin`. Raises Invalid and Conflict.
    """
    values: dict[str, Any] = {
        "kind": NodeKind.NORMAL, "host": "", "port": None, "username": "", "dedicated": False,
        "capacity_gb": None,
        **node_rows.check_new(name=name, actor=actor, **arguments),
    }  # fmt: skip
    info = NodeInfo(
        id=0, name=name, password=password, state=NodeState.READ_WRITE, epoch=1, **values
    )
    return info if "tls" in values else encryption.choose_tls(info)


def reexamine(
    *, name: str, actor: Actor, rights: bool = True, read_timeout_s: int = READ_TIMEOUT_S
) -> Preflight:
    """Examine a registered node, even if it is offline: directly, not through its pool.

    Needs `admin`. `rights` are tried on a table that is dropped afterwards; nothing else
    changes. `read_timeout_s` limits each statement. Raises NotFound(node_not_found).
    """
    info = snapshot.node_by_id(node_rows.find_node(name=name, actor=actor).id)
    findings = list(
        _examine_database(info, unsafe=False, rights=rights, read_timeout_s=read_timeout_s)
    )
    if info.engine == Engine.MYSQL:
        findings.append(_check_capacity(info))
    return Preflight(tuple(findings))


def describe_error(error: CatmqError, info: NodeInfo) -> str:
    """Return the cause of an error for the administrator who registers a node.

    Other users do not see the address and the reason of a failed connect.
    """
    cause = error.__cause__
    if (
        not isinstance(error, NodeUnavailable)
        or cause is None
        or isinstance(cause, CatmqError)
    ):
        return error.detail.rstrip(".")
    address = (
        describe(info.host, info.port) if info.engine == Engine.MYSQL else info.database
    )
    return f"Node {info.name} cannot be reached at {address}: {str(cause.args[-1]).rstrip('.')}"


def describe_refusal(error: CatmqError, info: NodeInfo, *, remedy: str) -> str:
    """Return the cause of an error with a remedy.

    A TLS failure has its own remedy, and an unsupported server, too. Otherwise it is
    `remedy`.
    """
    tls_failure = encryption.explain_failure(error, info)
    advice = "" if isinstance(error.__cause__, UnsupportedServer) else remedy
    return (
        f"{describe_error(error, info)}. "
        f"{Finding('tls', *tls_failure).detail if tls_failure else advice}"
    ).rstrip()


def check_settings(facts: ServerFacts, *, database: str, unsafe: bool) -> Iterator[Finding]:
    """Check a server's settings. With `unsafe`, possible loss of messages is only a
    warning.
    """
    values = {"version": facts.version, "oldest": engines.oldest_versions()}
    yield _finding_either(
        engines.is_supported(facts.version), "version", "version", "old_version", **values
    )
    is_utf8 = facts.character_set == "utf8mb4"
    yield _finding_either(
        is_utf8, "text", "text", "wrong_text", found=facts.character_set, database=database
    )
    yield _finding_either(not facts.read_only, "writable", "writable", "read_only")
    problems = [
        (facts.flush_log_at_commit != 1, "flush"),
        (facts.log_bin and not facts.binlog_engine and facts.sync_binlog != 1, "binlog"),
        (facts.log_bin and facts.binlog_format == "STATEMENT", "statement"),
    ]
    problem_keys = [text_key for is_wrong, text_key in problems if is_wrong]
    verdict = "warn" if unsafe else "bad"
    yield from (Finding("durable", verdict, text_key) for text_key in problem_keys)
    if not problem_keys:
        yield Finding("durable", "ok", "durable")


def check_is_empty(session: Session, *, unsafe: bool) -> Finding:
    """Check that a database belongs to no node and no other installation."""
    identity = ""
    with suppress(db_errors.Final):  # no such table
        identity = promotion_sql.read_identity(session)
    owner = node_rows.find_name_by_identity(identity) if identity else None
    if owner is not None:
        return Finding("data", "bad", "taken", {"owner": owner})
    with suppress(db_errors.Final):
        # A test queue may be left of a registration that was killed.
        if queue_sql.read_heads(session, queues=None).keys() - {PROBE_QUEUE}:
            return Finding("data", "warn" if unsafe else "bad", "strange")
    return Finding("data", "ok", "empty")


def _check_own_data(session: Session, info: NodeInfo) -> Finding:
    try:
        contents = promotion_sql.read_contents(session)
    except db_errors.Final:
        return Finding("data", "bad", "foreign")
    if info.identity and contents.identity != info.identity:
        return Finding("data", "bad", "foreign")
    if info.quarantined:
        return Finding("data", "bad", "quarantined", {"why": info.quarantined})
    return Finding("data", "ok", "own", {"queues": len(contents.heads)})


def _check_schema(session: Session, info: NodeInfo) -> Iterator[Finding]:
    try:
        schema = promotion_sql.read_schema(session)
    except db_errors.Final:  # no tables yet
        return
    problem = node_guard.describe_misfit(info.name, schema)
    if problem:
        yield Finding("schema", "bad", "misfit", {"why": problem})
    # A new node (id 0) gets all tables in their newest form.
    elif info.id:
        values = {
            "version": schema.version,
            "changes": len(node_sql.pending_changes(session)),
        }
        newer = schema.version > schema_steps.VERSION
        text = "old_schema" if values["changes"] else "new_schema" if newer else "schema"
        yield Finding("schema", "ok" if text == "schema" else "warn", text, values)


def _finding_either(
    is_good: bool, about: str, good_text: str, bad_text: str, /, **words: Any
) -> Finding:
    return Finding(
        about, "ok" if is_good else "bad", good_text if is_good else bad_text, words
    )


def _examine_database(
    info: NodeInfo, *, unsafe: bool, rights: bool, read_timeout_s: int = READ_TIMEOUT_S
) -> Iterator[Finding]:
    started_at = time.monotonic()
    try:
        with session_pool.direct(
            info, any_schema=True, read_timeout_s=read_timeout_s
        ) as session:
            yield Finding(
                "reachable", "ok", "reached", {"ms": (time.monotonic() - started_at) * 1000}
            )
            if isinstance(session, MySqlSession):
                facts = node_sql.read_server_facts(session)
                yield from check_server(session, info, facts=facts, unsafe=unsafe)
                # A read-only server refuses the test table, which would look like missing
                # rights.
                rights = rights and not facts.read_only
            if rights:
                yield from check_rights(session, info)
            with reachable():
                before = ms(database_now())
                node_ms = node_sql.now_ms(session)
                after = ms(database_now())
            # The node's time was read between two readings of the other clock, so only a
            # time outside of them is certainly different.
            difference_ms = max(before - node_ms, node_ms - after, 0)
            clock = ("warn", "wrong_clock") if difference_ms > CLOCK_MS else ("ok", "clock")
            yield Finding("clock", *clock, {"ms": difference_ms})
            yield from _check_schema(session, info)
            yield (
                check_is_empty(session, unsafe=unsafe)
                if info.id == 0
                else _check_own_data(session, info)
            )
    except (db_errors.Final, NodeUnavailable) as error:
        yield explain_unreachable(error, info)


def check_server(
    session: MySqlSession, info: NodeInfo, *, facts: ServerFacts, unsafe: bool
) -> Iterator[Finding]:
    """Check what does not depend on the tables: encryption, proxies, settings, limits."""
    for fields in encryption.check_session(session, info):
        yield Finding("tls", *fields)
    yield Finding(*server_checks.check_proxy(session, unsafe=unsafe))
    yield from check_settings(facts, database=info.database, unsafe=unsafe)
    for limit_fields in server_checks.check_limits(session, facts):
        yield Finding(*limit_fields)
    for cluster_fields in cluster_checks.check(info, session):
        yield Finding(*cluster_fields)


def explain_unreachable(error: CatmqError, info: NodeInfo) -> Finding:
    """Return the finding about a server that did not answer, or refused the connection."""
    tls_failure = encryption.explain_failure(error, info)
    if tls_failure:
        return Finding("tls", *tls_failure)
    text = "unfit" if isinstance(error.__cause__, UnsupportedServer) else "away"
    return Finding("reachable", "bad", text, {"reason": describe_error(error, info)})


def check_rights(session: Session, info: NodeInfo) -> Iterator[Finding]:
    """Try every right that a node's account needs (`grants.NODE`) on a temporary table."""
    missing = node_sql.try_rights(session, table=f"examined_{secrets.token_hex(6)}")
    if not missing:
        yield Finding("rights", "ok", "rights")
        return
    user, host = (
        node_sql.read_account(session) if isinstance(session, MySqlSession) else ("", "")
    )
    for optional in (False, True):
        grants = [grant for grant in missing if grant.optional == optional]
        values = {
            "right": ", ".join(grant.right for grant in grants),
            "why": "; ".join(grant.why for grant in grants),
        }
        values["grant"] = " ".join(
            grant_statements(
                grants, flavour="mysql", database=info.database, username=user, host=host
            )
        )
        if grants:
            yield Finding(
                "rights",
                *(("warn", "fewer_rights") if optional else ("bad", "no_right")),
                values,
            )


def _check_role(info: NodeInfo, actor: Actor) -> Iterator[Finding]:
    yield Finding("kind", "ok", info.kind)
    nodes = node_rows.list_nodes(actor=actor, window=Window(limit=MAX_LIMIT)).items
    if info.kind == NodeKind.NORMAL and not any(
        node.kind == NodeKind.FAILURE for node in nodes
    ):
        yield Finding("kind", "warn", "first_failure")
    if info.engine == Engine.MYSQL:
        own_addresses = set(parse_addresses(info.host, info.port))
        neighbours = [
            node.name
            for node in nodes
            if node.engine == Engine.MYSQL
            and not own_addresses.isdisjoint(parse_addresses(node.host, node.port))
        ]
        if neighbours:
            yield Finding("place", "warn", "same_server", {"others": ", ".join(neighbours)})
        yield _check_capacity(info)


def _check_capacity(info: NodeInfo) -> Finding:
    is_watched = info.capacity_gb is not None
    return Finding(
        "capacity", *(("ok", "capacity") if is_watched else ("warn", "no_capacity"))
    )
