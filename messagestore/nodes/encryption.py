"""TLS of a node: the default mode of a new node, checks, and explanations of failed
connects.

An Answer is a verdict, a key of `preflight.TEXTS` and the values for its text.
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
from metadata.rules import addresses, tls
from metadata.rules.nodes import Engine
from metadata.rules.tls import TlsMode

ENDING_DAYS = 30  # warn of a certificate that ends sooner
ACCESS_DENIED = 1045  # also from MariaDB 10.11 if the account requires TLS
DAY_MS = 86_400_000

Answer = tuple[str, str, dict[str, Any]]


def choose_tls(info: NodeInfo) -> NodeInfo:
    """Return a new node with the default TLS mode, for a registration that names none.

    TLS is on if the server is on another machine and offers it.
    """
    if info.engine != Engine.MYSQL or is_local(info):
        return replace(info, tls=TlsMode.OFF)
    # Each server of a list alone: the error of the list names only that none can be used.
    errors = [
        _try_connect(replace(info, host=place.host, port=place.port, tls=TlsMode.ON))
        for place in addresses.parse_addresses(info.host, info.port)
    ]
    is_offered = not any(
        error is not None and isinstance(error.__cause__, tls.PlainText) for error in errors
    )
    return replace(info, tls=TlsMode.ON if is_offered else "off")


def is_local(info: NodeInfo) -> bool:
    """Return True if no connection to a node leaves this machine."""
    try:
        places = addresses.parse_addresses(info.host, info.port)
    except ValueError:
        return tls.is_local(info.host)
    return all(tls.is_local(place.host) for place in places)


def explain_failure(error: CatmqError, info: NodeInfo) -> Answer | None:
    """Return why TLS prevented a connection, None if it failed for another reason."""
    if error.__cause__ is None or len(error.__cause__.args) < 2:
        return None
    number, *_, text = error.__cause__.args
    text_key = tls.classify_error(number, str(text), ca=info.tls_ca)
    if (
        # The server does not say that TLS is missing, so try the same account with TLS.
        number == ACCESS_DENIED
        and info.tls == TlsMode.OFF
        and _try_connect(replace(info, tls=TlsMode.ON)) is None
    ):
        text_key = "tls_required"
    return (
        ("bad", text_key, dict(tls.text_values(info.host, info.tls_ca, str(text))))
        if text_key
        else None
    )


def check_session(session: Session, info: NodeInfo) -> Iterator[Answer]:
    """Yield findings about a connection's encryption and the server's certificate."""
    facts = node_sql.read_tls_facts(session)
    if not facts.cipher:
        if is_local(info):
            yield "ok", "tls_local", {}
        else:
            yield "warn", "tls_plain", {"host": info.host}
        return
    values = {"version": facts.version, "cipher": facts.cipher, "until": "?"}
    days = None
    if facts.server_not_after:
        ends_ms = ssl.cert_time_to_seconds(facts.server_not_after) * 1000
        values["until"] = f"{datetime.fromtimestamp(ends_ms / 1000, UTC):%Y-%m-%d}"
        days = (ends_ms - node_sql.now_ms(session)) // DAY_MS
    yield "ok", "tls_verified" if info.tls == TlsMode.VERIFY else "tls_unverified", values
    if days is not None and days < ENDING_DAYS:
        yield (
            ("warn", "tls_ending", {**values, "days": days})
            if days >= 0
            else ("warn", "tls_expired", {})
        )


def _try_connect(info: NodeInfo) -> CatmqError | None:
    """Return why no connection can be made, None if it can."""
    try:
        session_pool.connect(info).close()
    except CatmqError as error:
        return error
    return None
