"""Checks on a connection to a server: proxies on the way to it, and its limits.

A proxy that understands SQL (ProxySQL, MaxScale, RDS Proxy) sends statements of one
connection to several servers. User variables, locks and KILL then do not work as the store
needs them. Such a proxy reveals itself: it greets with its own version and connection id,
while the server behind it answers combined queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S, MySqlSession
from messagestore.tables import node_sql
from messagestore.tables.shapes import ServerFacts
from metadata.config import config
from metadata.db.clock import database_now
from metadata.db.transactions import reachable
from metadata.rules import engines

TEXTS = {  # texts of findings, part of preflight.TEXTS
    "direct": "The connection ends at the server itself: %(comment)s.",
    "proxy": (
        "A proxy stands between brokers and the server (%(signs)s). Proxies that share "
        "connections, such as "
        "ProxySQL, MaxScale or RDS Proxy, are not supported. Give the address of the server itself."
    ),
    "unmaintained": (
        "%(version)s gets no security fixes for long, or none any more. Upgrade to a "
        "series with long-term "
        "support."
    ),
    "packet": (
        "max_allowed_packet is %(found)d bytes. Messages of up to %(body)d bytes may need "
        "%(needed)d. Raise "
        "it."
    ),
    "statement_limit": (
        "%(name)s ends statements after %(seconds)g s. The outcome of a send is then "
        "unknown. Set it to 0, "
        "or to %(needed)d s or more."
    ),
    "idle_limit": (
        "wait_timeout closes connections after %(found)d s. Set it to %(needed)d or more, "
        "or brokers connect "
        "again and again."
    ),
}
PROXIES = ("proxy", "maxscale")
_ESCAPE_FACTOR = 2  # an escaped body may have twice its size
_STATEMENT_BYTES = 100_000  # of a statement in addition to the body
_IDLE_S = 300
_THREAD_BITS = 0xFFFF_FFFF  # bits of a connection id that a greeting holds
FindingFields = tuple[
    str, str, str, dict[str, Any]
]  # about, verdict, text, words of a Finding


def check_proxy(session: MySqlSession, *, unsafe: bool) -> FindingFields:
    """Return the finding about a proxy; with `unsafe` a proxy is only a warning."""
    signs = list(_find_proxy_signs(session))
    if signs:
        return "way", "warn" if unsafe else "bad", "proxy", {"signs": "; ".join(signs)}
    return "way", "ok", "direct", {"comment": node_sql.read_version_comment(session) or "-"}


def check_limits(session: MySqlSession, facts: ServerFacts) -> Iterator[FindingFields]:
    """Yield warnings about limits of a server that can be a node."""
    with reachable():
        now = database_now()
    if engines.is_supported(facts.version) and not engines.is_maintained(
        facts.version, now=(now.year, now.month)
    ):
        yield "version", "warn", "unmaintained", {"version": facts.version}
    # The limit has to hold a whole statement, in which the body is escaped.
    needed = _ESCAPE_FACTOR * config.max_body_bytes + _STATEMENT_BYTES
    if session.max_packet < needed:
        packet_values = {
            "found": session.max_packet,
            "body": config.max_body_bytes,
            "needed": needed,
        }
        yield "limits", "warn", "packet", packet_values
    limits = node_sql.read_time_limits(session)
    # MariaDB has max_statement_time in seconds, MySQL max_execution_time in ms.
    for name, per_s in (("max_statement_time", 1), ("max_execution_time", 1000)):
        seconds = float(limits.get(name, 0)) / per_s
        if 0 < seconds < READ_TIMEOUT_S:
            limit_values = {"name": name, "seconds": seconds, "needed": READ_TIMEOUT_S}
            yield "limits", "warn", "statement_limit", limit_values
    idle = int(limits.get("wait_timeout", _IDLE_S))
    # On MySQL each session sets its own wait_timeout, so the server's does not matter.
    if session.flavour == "mariadb" and idle < _IDLE_S:
        yield "limits", "warn", "idle_limit", {"found": idle, "needed": _IDLE_S}


def _find_proxy_signs(session: MySqlSession) -> Iterator[str]:
    greeting, thread = session.greeting
    connection = node_sql.read_connection_info(session, mark="")
    greeting_server, answering_server = (
        engines.parse_version(greeting),
        engines.parse_version(connection.version),
    )
    if greeting_server != answering_server:
        yield f"the greeting says {greeting}, the server is {connection.version}"
    # The greeting has only 32 bits of the id.
    if thread & _THREAD_BITS != connection.connection & _THREAD_BITS:
        yield f"connection {thread} is connection {connection.connection} of the server"
    node_sql.set_mark(session, mark="here")
    # A proxy that shares connections may send these to another one, without the variable.
    later_connections = [
        node_sql.read_connection_info(session, mark="here") for _ in range(3)
    ]
    if any(
        not other.marked or other.connection != connection.connection
        for other in later_connections
    ):
        yield "user variables are lost between statements"
    for name in (greeting, node_sql.read_version_comment(session)):
        if any(proxy in name.lower() for proxy in PROXIES):
            yield f"it calls itself {name}"
    with suppress(db_errors.Final):  # only proxies know this variable
        yield f"@@proxy_version is {node_sql.read_proxy_version(session)}"
