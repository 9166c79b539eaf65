"""Servers that cannot be nodes, or hardly: behind a proxy, too old, out of support, with
short limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from messagestore.nodes import preflight, registry
from messagestore.nodes.preflight import Preflight
from messagestore.nodes.server_checks import check_limits
from messagestore.pool import session_pool
from messagestore.tables import node_sql
from messagestore.tables.shapes import ServerFacts
from metadata.actors import command
from metadata.errors import Code, Invalid
from tests.support.mariadb import MariaDB
from tests.support.posing import Posing

ACTOR = command("test")


@pytest.fixture
def given(mariadb: MariaDB, metadata_db: None) -> Iterator[dict[str, Any]]:
    """An empty database, as `registry.register` takes it."""
    with mariadb.schema() as schema:
        account = {"username": "catmq", "password": mariadb.password}
        yield {
            "engine": "mysql",
            "host": "127.0.0.1",
            "port": mariadb.port,
            "database": schema,
            **account,
        }


def examined(given: dict[str, Any], **more: Any) -> Preflight:
    return preflight.examine(name="n1", actor=ACTOR, **{**given, **more})


def found(given: dict[str, Any], about: str, **more: Any) -> preflight.Finding:
    """The finding about one thing."""
    (one,) = (one for one in examined(given, **more).findings if one.about == about)
    return one


def is_mariadb(server: MariaDB) -> bool:
    return "MariaDB" in server.execute("SELECT VERSION()")[0][0]


def test_a_server_itself_and_a_proxy_that_passes_all_are_no_proxy_of_sql(
    mariadb: MariaDB, given: dict[str, Any]
) -> None:
    assert found(given, "way").verdict == "ok"
    with Posing(mariadb.port) as proxy:
        assert found(given, "way", port=proxy.port).verdict == "ok"


def signs(mariadb: MariaDB) -> dict[str, tuple[dict[str, Any], str]]:
    """How a proxy of SQL shows itself, and what is said of it."""
    other = "10.6.99-MariaDB" if is_mariadb(mariadb) else "8.0.30"
    version = mariadb.execute("SELECT VERSION()")[0][0]
    return {
        "version": (
            {"version": other},
            f"the greeting says {other}, the server is {version}",
        ),
        "connection": ({"shift": 1000}, "of the server"),
        "comment": (
            {"answers": {b"select @@version_comment": b"(ProxySQL)"}},
            "it calls itself (ProxySQL)",
        ),
        "variable": (
            {"answers": {b"SELECT @@proxy_version": b"2.7.1"}},
            "@@proxy_version is 2.7.1",
        ),
        "lost": (
            {"answers": {b"SET @catmq_mark": b""}},
            "user variables are lost between statements",
        ),
    }


@pytest.mark.parametrize("sign", ["version", "connection", "comment", "variable", "lost"])
def test_a_proxy_is_refused_by_any_of_its_signs(
    mariadb: MariaDB, given: dict[str, Any], sign: str
) -> None:
    shown, said = signs(mariadb)[sign]
    with Posing(mariadb.port, **shown) as proxy:
        at = {**given, "port": proxy.port}
        one = found(at, "way")
        assert one.verdict == "bad"
        assert said in one.detail and "Give the address of the server itself" in one.detail
        with pytest.raises(Invalid, match="A proxy stands between") as caught:
            registry.register(name="n1", actor=ACTOR, **at)
        assert caught.value.code == Code.NODE_REFUSED
        assert mariadb.execute(f"SHOW TABLES FROM {given['database']}") == []
        assert found(at, "way", unsafe=True).verdict == "warn"


def test_a_proxy_that_greets_as_the_other_kind_of_server_is_named(
    mariadb: MariaDB, given: dict[str, Any]
) -> None:
    other = "8.4.3" if is_mariadb(mariadb) else "5.5.5-10.11.6-MariaDB-log"
    with Posing(mariadb.port, version=other) as proxy:
        one = found(given, "reachable", port=proxy.port)
    assert one.verdict == "bad"
    assert f"it greets as {other.removeprefix('5.5.5-')}" in one.detail
    assert "is there a proxy in between?" in one.detail


def test_a_server_that_is_too_old_for_a_session_is_named_as_such(
    mariadb: MariaDB, given: dict[str, Any]
) -> None:
    old = "5.7.44" if is_mariadb(mariadb) else "5.5.5-10.2.44-MariaDB"
    needed = (
        f"{old.removeprefix('5.5.5-')} is too old. MariaDB 10.6 or MySQL 8.0.29 is "
        "required, or a later "
        "version."
    )
    with Posing(mariadb.port, version=old) as proxy:
        one = found(given, "reachable", port=proxy.port)
        with pytest.raises(Invalid) as caught:
            registry.register(name="n1", actor=ACTOR, **{**given, "port": proxy.port})
    assert one.verdict == "bad"
    assert one.detail.endswith(needed)
    assert caught.value.detail.endswith(needed)


@contextmanager
def session(given: dict[str, Any]) -> Iterator[Any]:
    info = preflight.candidate(name="n1", actor=ACTOR, **given)
    with session_pool.direct(info) as made:
        yield made


def facts(given: dict[str, Any], version: str) -> tuple[ServerFacts, list[str]]:
    """The facts of the server as if it had a version, and the texts of its warnings."""
    with session(given) as made:
        told = node_sql.read_server_facts(made)._replace(version=version)
        return told, [text for _, _, text, _ in check_limits(made, told)]


@pytest.mark.parametrize(
    ("version", "verdict", "warned"),
    [
        ("5.7.44", "bad", False),
        ("8.0.28", "bad", False),
        ("8.0.44", "ok", True),
        ("8.4.7", "ok", False),
        ("8.0.39-30", "ok", True),  # Percona Server
        ("9.7.4", "ok", False),
        ("10.5.28-MariaDB-log", "bad", False),
        ("5.5.5-10.6.21-MariaDB-log", "ok", True),
        ("10.11.11-MariaDB", "ok", False),
        ("11.2.6-MariaDB", "ok", True),
        ("11.8.3-MariaDB", "ok", False),
        ("nonsense", "bad", False),
    ],
)
def test_versions_are_too_old_out_of_support_or_neither(
    given: dict[str, Any], version: str, verdict: str, warned: bool
) -> None:
    told, warnings = facts(given, version)
    one = next(iter(preflight.check_settings(told, database="d", unsafe=False)))
    assert (one.about, one.verdict) == ("version", verdict)
    if verdict == "bad":
        assert "MariaDB 10.6 or MySQL 8.0.29 is required" in one.detail
    assert ("unmaintained" in warnings) == warned


def test_limits_of_a_server_that_get_in_the_way_are_warned_of(
    mariadb: MariaDB, given: dict[str, Any]
) -> None:
    name, value = (
        ("max_statement_time", 2) if is_mariadb(mariadb) else ("max_execution_time", 2000)
    )
    before = {
        one: mariadb.execute(f"SELECT @@GLOBAL.{one}")[0][0]
        for one in (name, "max_allowed_packet")
    }
    try:
        mariadb.execute(f"SET GLOBAL {name} = {value}")
        mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
        details = [one.detail for one in examined(given).findings if one.about == "limits"]
    finally:
        for one, old in before.items():
            mariadb.execute(f"SET GLOBAL {one} = {old}")
    assert len(details) == 2
    assert "max_allowed_packet is 1048576 bytes" in details[0]
    assert f"{name} ends statements after 2 s" in details[1]
    assert [one for one in examined(given).findings if one.about == "limits"] == []
