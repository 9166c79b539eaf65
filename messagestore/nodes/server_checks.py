"""Proxies between brokers and a server, and limits of the server, found on a connection to
it.

A proxy that understands SQL (ProxySQL, MaxScale, RDS Proxy) hands statements of one
connection to several, so user variables, locks and KILL do not work as the store needs.
Such a proxy gives itself away: it greets with a version and a connection id of its own,
while combined questions are answered by the server behind it.
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

TEXTS = {  # those of findings, see preflight.TEXTS
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
_BIG = 2  # times a body may grow when it is escaped
_AROUND = 100_000  # bytes of a statement around one message
_IDLE_S = 300
_THREAD_BITS = 0xFFFF_FFFF  # of a connection's id, that a greeting holds
Found = tuple[str, str, str, dict[str, Any]]  # a finding's about, verdict, text and words


def of_way(session: MySqlSession, *, unsafe: bool) -> Found:
    """Return the finding about what stands between; `unsafe` takes a proxy."""
    signs = list(_signs(session))
    if signs:
        return "way", "warn" if unsafe else "bad", "proxy", {"signs": "; ".join(signs)}
    return "way", "ok", "direct", {"comment": node_sql.read_version_comment(session) or "-"}


def of_limits(session: MySqlSession, facts: ServerFacts) -> Iterator[Found]:
    """Yield warnings about a server that can be a node."""
    with reachable():
        now = database_now()
    if engines.is_supported(facts.version) and not engines.is_maintained(
        facts.version, now=(now.year, now.month)
    ):
        yield "version", "warn", "unmaintained", {"version": facts.version}
    needed = _BIG * config.max_body_bytes + _AROUND
    if session.max_packet < needed:
        words = {
            "found": session.max_packet,
            "body": config.max_body_bytes,
            "needed": needed,
        }
        yield "limits", "warn", "packet", words
    limits = node_sql.read_time_limits(session)
    for name, per_s in (("max_statement_time", 1), ("max_execution_time", 1000)):
        seconds = float(limits.get(name, 0)) / per_s
        if 0 < seconds < READ_TIMEOUT_S:
            about = {"name": name, "seconds": seconds, "needed": READ_TIMEOUT_S}
            yield "limits", "warn", "statement_limit", about
    idle = int(limits.get("wait_timeout", _IDLE_S))
    # of MySQL each session sets its own
    if session.flavour == "mariadb" and idle < _IDLE_S:
        yield "limits", "warn", "idle_limit", {"found": idle, "needed": _IDLE_S}


def _signs(session: MySqlSession) -> Iterator[str]:
    greeting, thread = session.greeting
    place = node_sql.read_connection_info(session, mark="")
    said, is_ = engines.parse_version(greeting), engines.parse_version(place.version)
    if said != is_:
        yield f"the greeting says {greeting}, the server is {place.version}"
    if thread & _THREAD_BITS != place.connection & _THREAD_BITS:
        yield f"connection {thread} is connection {place.connection} of the server"
    node_sql.set_mark(session, mark="here")
    later = [node_sql.read_connection_info(session, mark="here") for _ in range(3)]
    if any(not one.marked or one.connection != place.connection for one in later):
        yield "user variables are lost between statements"
    for name in (greeting, node_sql.read_version_comment(session)):
        if any(proxy in name.lower() for proxy in PROXIES):
            yield f"it calls itself {name}"
    with suppress(db_errors.Final):  # servers do not know the variable
        yield f"@@proxy_version is {node_sql.read_proxy_version(session)}"
