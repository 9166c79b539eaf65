"""TLS of a node: chosen for a new one, examined, and explained where it fails.

An answer is a verdict, a key of `preflight.TEXTS` and the words that fill its text.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from messagestore.engine.mysql_session import Session
from messagestore.pool import session_pool
from messagestore.tables import node_sql
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError
from metadata.rules import tls

ENDING_DAYS = 30  # a certificate that ends sooner is worth a warning
ACCESS_DENIED = 1045  # MariaDB 10.11 says so, too, where it requires TLS
DAY_MS = 86_400_000

Answer = tuple[str, str, dict[str, Any]]


def chosen(info: NodeInfo) -> NodeInfo:
    """Return a new node with the mode that it gets unless it was given one: on, if its
    server is on another machine and offers TLS."""
    if info.engine != "mysql" or tls.is_local(info.host):
        return replace(info, tls="off")
    fault = _fault(replace(info, tls="on"))
    is_offered = fault is None or not isinstance(fault.__cause__, tls.PlainText)
    return replace(info, tls="on" if is_offered else "off")


def failure(error: CatmqError, info: NodeInfo) -> Answer | None:
    """Return why TLS kept a connection from being made; None if it failed for another
    reason.
    """
    if error.__cause__ is None or len(error.__cause__.args) < 2:
        return None
    number, *_, said = error.__cause__.args
    key = tls.classify_error(number, str(said), ca=info.tls_ca)
    if (
        number == ACCESS_DENIED
        and info.tls == "off"
        and _fault(replace(info, tls="on")) is None
    ):
        key = "tls_required"
    return (
        ("bad", key, dict(tls.text_values(info.host, info.tls_ca, str(said))))
        if key
        else None
    )


def of_session(session: Session, info: NodeInfo) -> Iterator[Answer]:
    """Yield what is to be said of the encryption of a connection, and of the server's
    certificate.
    """
    facts = node_sql.read_tls_facts(session)
    if not facts.cipher:
        if tls.is_local(info.host):
            yield "ok", "tls_local", {}
        else:
            yield "warn", "tls_plain", {"host": info.host}
        return
    words = {"version": facts.version, "cipher": facts.cipher, "until": "?"}
    days = None
    if facts.server_not_after:
        ends_ms = ssl.cert_time_to_seconds(facts.server_not_after) * 1000
        words["until"] = f"{datetime.fromtimestamp(ends_ms / 1000, UTC):%Y-%m-%d}"
        days = (ends_ms - node_sql.now_ms(session)) // DAY_MS
    yield "ok", "tls_verified" if info.tls == "verify" else "tls_unverified", words
    if days is not None and days < ENDING_DAYS:
        yield (
            ("warn", "tls_ending", {**words, "days": days})
            if days >= 0
            else ("warn", "tls_expired", {})
        )


def _fault(info: NodeInfo) -> CatmqError | None:
    """Return why no connection can be made so, None if one was."""
    try:
        session_pool.connect(info).close()
    except CatmqError as error:
        return error
    return None
