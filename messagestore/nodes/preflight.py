"""Findings for and against a database as a node, made without leaving anything in it.

Each finding is about one thing and says what was found and, where it is wrong, what to do.
`registry.register` refuses by the same findings, so what passes a preflight can be
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

from messagestore.engine import db_errors, schema_steps
from messagestore.engine.mysql_session import MySqlSession, Session, UnsupportedServer
from messagestore.nodes import encryption, server_checks
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
from metadata.nodes import node_rows
from metadata.rules import engines, tls
from metadata.rules.grants import grant_statements

PROBE_QUEUE = 0  # no queue has this id: a registration tries a database with it
CLOCK_MS = 1000  # by so much two clocks may differ before anybody notices it
TEXTS = {  # what each finding says; the portal has them in other languages
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
    "normal": "The node will store messages of topics.",
    "failure": "The node will store only retries and dead letters.",
    "first_failure": "There is no retry node yet, so failed messages cannot be stored for "
                     "a retry. Register "
        "one, too.",
    "same_server": "Node %(others)s is on the same server. If it fails, both nodes are down.",
    "capacity": "Free space is watched.",
    "no_capacity": "Without a capacity, free space is not watched.",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """`about` one thing; `verdict` is ok, warn or bad; `text` is a key of TEXTS, filled
    with `words`.
    """

    about: str
    verdict: str
    text: str
    words: Mapping[str, Any] = field(default_factory=dict)

    @property
    def detail(self) -> str:
        return TEXTS[self.text] % self.words


@dataclass(frozen=True, slots=True)
class Preflight:
    """All findings about a database; those that are bad keep it from being a node."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(one.verdict != "bad" for one in self.findings)


def examine(
    *, name: str, actor: Actor, password: str = "", unsafe: bool = False, **given: Any
) -> Preflight:
    """Return the findings for and against a database as a node, with the arguments of
    `registry.register`.

    Needs `admin`. Nothing is changed or left behind. Raises Invalid and Conflict for the
    arguments.
    """
    info = candidate(name=name, actor=actor, password=password, **given)
    if info.engine == "sqlite" and not session_pool.sqlite_path(info.database).exists():
        found = [*_of_place(info), *_of_role(info, actor)]
    else:
        found = [*_of_database(info, unsafe=unsafe, rights=True), *_of_role(info, actor)]
    return Preflight(tuple(found))


def candidate(*, name: str, actor: Actor, password: str, **given: Any) -> NodeInfo:
    """Return the node that a database would be, with TLS chosen if it is not given. Needs
    `admin`.

    Raises Invalid, Conflict.
    """
    values: dict[str, Any] = {
        "kind": "normal", "host": "", "port": None, "username": "", "dedicated": False,
        "capacity_gb": None,
        **node_rows.check_new(name=name, actor=actor, **given),
    }  # fmt: skip
    info = NodeInfo(
        id=0, name=name, password=password, state="read_write", epoch=1, **values
    )
    return info if "tls" in values else encryption.chosen(info)


def reexamine(*, name: str, actor: Actor, rights: bool = True) -> Preflight:
    """Examine a node that was registered long ago, offline or not: asked directly, not
    through the pool.

    Needs `admin`. Nothing is changed; `rights` are tried on a table that is gone
    afterwards. Raises NotFound (node_not_found).
    """
    found = node_rows.find_node(name=name, actor=actor)
    info = snapshot.node_by_id(found.id)
    findings = list(_of_database(info, unsafe=False, rights=rights))
    if info.engine == "mysql":
        findings.append(_of_capacity(info))
    return Preflight(tuple(findings))


def reason(error: CatmqError, info: NodeInfo) -> str:
    """Return what went wrong, for who registers; a failed connect tells others neither
    address nor reason.
    """
    cause = error.__cause__
    if (
        not isinstance(error, NodeUnavailable)
        or cause is None
        or isinstance(cause, CatmqError)
    ):
        return error.detail.rstrip(".")
    where = f"{info.host}:{info.port or 3306}" if info.engine == "mysql" else info.database
    return (
        f"Node {info.name} cannot be reached at {where}: {str(cause.args[-1]).rstrip('.')}"
    )


def refusal(error: CatmqError, info: NodeInfo, *, remedy: str) -> str:
    """Return the same with what to do: about TLS if that failed, else `remedy` unless it is
    known.
    """
    found = encryption.failure(error, info)
    known = "" if isinstance(error.__cause__, UnsupportedServer) else remedy
    return f"{reason(error, info)}. {Finding('tls', *found).detail if found else known}".rstrip()


def of_server(facts: ServerFacts, *, database: str, unsafe: bool) -> Iterator[Finding]:
    """Yield the findings for and against a server by its settings; `unsafe`: it may lose
    messages.
    """
    words = {"version": facts.version, "oldest": engines.oldest_versions()}
    yield _either(
        engines.is_supported(facts.version), "version", "version", "old_version", **words
    )
    good = facts.character_set == "utf8mb4"
    yield _either(
        good, "text", "text", "wrong_text", found=facts.character_set, database=database
    )
    yield _either(not facts.read_only, "writable", "writable", "read_only")
    losing = [
        (facts.flush_log_at_commit != 1, "flush"),
        (facts.log_bin and not facts.binlog_engine and facts.sync_binlog != 1, "binlog"),
        (facts.log_bin and facts.binlog_format == "STATEMENT", "statement"),
    ]
    wrong = [text for is_wrong, text in losing if is_wrong]
    verdict = "warn" if unsafe else "bad"
    yield from (Finding("durable", verdict, text) for text in wrong)
    if not wrong:
        yield Finding("durable", "ok", "durable")


def of_data(session: Session, *, unsafe: bool) -> Finding:
    """Check that a database is nobody's."""
    found = ""
    with suppress(db_errors.Final):  # no such table
        found = promotion_sql.read_identity(session)
    owner = node_rows.find_name_by_identity(found) if found else None
    if owner is not None:
        return Finding("data", "bad", "taken", {"owner": owner})
    with suppress(db_errors.Final):
        if queue_sql.read_heads(session, queues=None).keys() - {PROBE_QUEUE}:
            return Finding("data", "warn" if unsafe else "bad", "strange")
    return Finding("data", "ok", "empty")


def _of_own_data(session: Session, info: NodeInfo) -> Finding:
    """Check that a registered node's database holds what it must."""
    try:
        found = promotion_sql.read_contents(session)
    except db_errors.Final:
        return Finding("data", "bad", "foreign")
    if info.identity and found.identity != info.identity:
        return Finding("data", "bad", "foreign")
    if info.quarantined:
        return Finding("data", "bad", "quarantined", {"why": info.quarantined})
    return Finding("data", "ok", "own", {"queues": len(found.heads)})


def _of_schema(session: Session, info: NodeInfo) -> Iterator[Finding]:
    """Compare the version of the tables, if there are any, with that of this release."""
    try:
        found = promotion_sql.read_schema(session)
    except db_errors.Final:
        return
    why = node_guard.describe_misfit(info.name, found)
    if why:
        yield Finding("schema", "bad", "misfit", {"why": why})
    elif info.id:
        words = {
            "version": found.version,
            "changes": len(node_sql.pending_changes(session)),
        }
        newer = found.version > schema_steps.VERSION
        text = "old_schema" if words["changes"] else "new_schema" if newer else "schema"
        yield Finding("schema", "ok" if text == "schema" else "warn", text, words)


def _either(good: bool, about: str, right: str, wrong: str, /, **words: Any) -> Finding:
    return Finding(about, "ok" if good else "bad", right if good else wrong, words)


def _of_place(info: NodeInfo) -> Iterator[Finding]:
    """A file that will be made: whether it can be."""
    place = session_pool.sqlite_path(info.database).parent
    while not place.exists():
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        yield Finding("reachable", "ok", "new_file")
    else:
        yield Finding("reachable", "bad", "no_directory", {"path": str(place)})


def _of_database(info: NodeInfo, *, unsafe: bool, rights: bool) -> Iterator[Finding]:
    begun = time.monotonic()
    try:
        with session_pool.direct(info, any_schema=True) as session:
            yield Finding(
                "reachable", "ok", "reached", {"ms": (time.monotonic() - begun) * 1000}
            )
            yield from _of_session(session, info, unsafe=unsafe, rights=rights)
    except (db_errors.Final, NodeUnavailable) as error:
        found = encryption.failure(error, info)
        text = "unfit" if isinstance(error.__cause__, UnsupportedServer) else "away"
        away = Finding("reachable", "bad", text, {"reason": reason(error, info)})
        yield Finding("tls", *found) if found else away


def _of_session(
    session: Session, info: NodeInfo, *, unsafe: bool, rights: bool
) -> Iterator[Finding]:
    if info.engine == "mysql":
        yield from (Finding("tls", *one) for one in encryption.of_session(session, info))
        facts = node_sql.read_server_facts(session)
        rights = rights and not facts.read_only
        yield from of_way(session, unsafe=unsafe)
        yield from of_server(facts, database=info.database, unsafe=unsafe)
        yield from (Finding(*one) for one in _limits(session, facts))
    if rights:
        yield from of_rights(session, info)
    yield _of_clock(session)
    yield from _of_schema(session, info)
    yield of_data(session, unsafe=unsafe) if info.id == 0 else _of_own_data(session, info)


def of_way(session: Session, *, unsafe: bool) -> Iterator[Finding]:
    """Yield the finding about what stands between brokers and a server."""
    if isinstance(session, MySqlSession):
        yield Finding(*server_checks.of_way(session, unsafe=unsafe))


def _limits(session: Session, facts: ServerFacts) -> Iterator[server_checks.Found]:
    if isinstance(session, MySqlSession):
        yield from server_checks.of_limits(session, facts)


def of_rights(session: Session, info: NodeInfo) -> Iterator[Finding]:
    """Try every right that a node's account needs (`grants.NODE`), on a table that is gone
    afterwards.
    """
    lacking = node_sql.try_rights(session, table=f"examined_{secrets.token_hex(6)}")
    if not lacking:
        yield Finding("rights", "ok", "rights")
        return
    user, host = (
        node_sql.read_account(session) if isinstance(session, MySqlSession) else ("", "")
    )
    for optional in (False, True):
        some = [one for one in lacking if one.optional == optional]
        words = {
            "right": ", ".join(one.right for one in some),
            "why": "; ".join(one.why for one in some),
        }
        words["grant"] = " ".join(
            grant_statements(
                some, flavour="mysql", database=info.database, username=user, host=host
            )
        )
        if some:
            yield Finding(
                "rights",
                *(("warn", "fewer_rights") if optional else ("bad", "no_right")),
                words,
            )


def _of_clock(session: Session) -> Finding:
    with reachable():
        before = ms(database_now())
        there = node_sql.now_ms(session)
        after = ms(database_now())
    apart = max(before - there, there - after, 0)
    return Finding(
        "clock",
        *(("warn", "wrong_clock") if apart > CLOCK_MS else ("ok", "clock")),
        {"ms": apart},
    )


def _of_role(info: NodeInfo, actor: Actor) -> Iterator[Finding]:
    yield Finding("kind", "ok", info.kind)
    others = node_rows.list_nodes(actor=actor, window=Window(limit=MAX_LIMIT)).items
    if info.kind == "normal" and not any(one.kind == "failure" for one in others):
        yield Finding("kind", "warn", "first_failure")
    if info.engine == "mysql":
        near = [
            one.name
            for one in others
            if (one.host, one.port or 3306) == (info.host, info.port or 3306)
        ]
        if near:
            yield Finding("place", "warn", "same_server", {"others": ", ".join(near)})
        yield _of_capacity(info)


def _of_capacity(info: NodeInfo) -> Finding:
    guarded = info.capacity_gb is not None
    return Finding(
        "capacity", *(("ok", "capacity") if guarded else ("warn", "no_capacity"))
    )
