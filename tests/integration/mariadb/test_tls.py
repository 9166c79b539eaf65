"""TLS to nodes and metadata: real certificates, and a wire that shows what passes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from django.db import OperationalError, connections

from catmq_site.databases import databases
from catmq_site.mysql.base import DatabaseWrapper
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession
from messagestore.nodes import encryption, preflight, promotion, promotion_plans, registry
from messagestore.nodes.preflight import Finding
from messagestore.pool import node_pools, session_pool
from messagestore.tables import node_sql
from metadata.actors import command
from metadata.cache import snapshot
from metadata.config import Config
from metadata.errors import Invalid
from metadata.models import AuditLog, DbNode
from metadata.rules import tls
from spark_tasks.errors import NodeError
from spark_tasks.nodes.connection import ConnectionLost, MySqlNode
from spark_tasks.nodes.plans import Address
from tests.support import failing
from tests.support.certificates import VERIFIED_HOST, YEAR, Authority, is_compared, sign
from tests.support.mariadb import MariaDB
from tests.support.waiting import until
from tests.support.wire import Wire

ME = command("test")
WRONG_NAME = [x509.DNSName("db.example")]
# said by us, by the driver
NOT_OFFERED = re.compile("does not offer TLS|does not support it")
NewDatabase = Callable[..., dict[str, Any]]


@pytest.fixture
def place(metadata_db: None, node_database: NewDatabase) -> dict[str, Any]:
    """An empty database on the session's server, at an address that each driver compares."""
    return {**node_database("mysql"), "host": VERIFIED_HOST}


@pytest.fixture
def wire(mariadb: MariaDB) -> Iterator[Wire]:
    """A wire to the session's server."""
    with Wire(mariadb.port).running() as made:
        yield made


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's address stands for that of another one."""
    monkeypatch.setattr(tls, "is_local", lambda host: False)


def examined(place: dict[str, Any], **more: Any) -> dict[str, Finding]:
    """The findings about a database, and about its TLS the last one."""
    found = preflight.examine(name="n1", actor=ME, **place, **more)
    return {one.about: one for one in found.findings}


def verified(authority: Authority) -> dict[str, str]:
    """What a node is given to verify the server's certificate."""
    return {"tls": "verify", "tls_ca": str(authority.ca)}


def cipher(node_id: int) -> str:
    """What the server says of a connection of the pool."""
    with node_pools.node(node_id).reading() as session:
        return node_sql.read_tls_facts(session).cipher


def test_an_examination_tells_how_a_connection_is_encrypted(
    place: dict[str, Any], authority: Authority
) -> None:
    plain, on = examined(place)["tls"], examined(place, tls="on")["tls"]
    sure = examined(place, **verified(authority))["tls"]

    assert (plain.verdict, plain.text) == ("ok", "tls_local")
    assert (on.text, sure.text) == ("tls_unverified", "tls_verified")
    assert sure.words["version"] == "TLSv1.3" and sure.words["cipher"] in sure.detail
    assert f"ends on 20{(time.gmtime().tm_year + 1) % 100}-" in sure.detail


def test_a_server_on_another_machine_should_be_encrypted(
    place: dict[str, Any], elsewhere: None
) -> None:
    found = examined(place, tls="off")["tls"]
    assert (found.verdict, found.text) == ("warn", "tls_plain")


def test_a_certificate_that_does_not_verify_is_named_with_what_to_do(
    place: dict[str, Any], authority: Authority, mariadb: MariaDB
) -> None:
    other = sign("other CA", None)
    begun = time.monotonic()
    short = authority.issue(lasts=timedelta(seconds=2))
    with authority.presented(mariadb, authority.issue(valid_for=WRONG_NAME)):
        wrong_name = examined(place, **verified(authority))
        assert examined(place, tls="on")["tls"].verdict == "ok"
    with authority.presented(mariadb, sign("server", other), other):
        unknown = examined(place, **verified(authority))
    with authority.presented(mariadb, authority.issue(lasts=timedelta(days=20))):
        ending = examined(place, **verified(authority))["tls"]
    with authority.presented(mariadb, short):
        until(lambda: time.monotonic() - begun > 3)
        expired = examined(place, **verified(authority))
        with pytest.raises(Invalid, match="has expired"):
            registry.register(name="n1", actor=ME, **place, **verified(authority))

    found = {one["tls"].text for one in (wrong_name, unknown, expired)}
    assert found == {"tls_wrong_name", "tls_unknown_ca", "tls_expired"}
    assert "reachable" not in wrong_name and VERIFIED_HOST in wrong_name["tls"].detail
    assert str(authority.ca) in unknown["tls"].detail
    assert (ending.verdict, ending.text, ending.words["days"]) == ("warn", "tls_ending", 19)
    assert not DbNode.objects.exists()


@pytest.mark.parametrize("host", sorted({"127.0.0.1", VERIFIED_HOST}))
@pytest.mark.parametrize("has_file", [True, False], ids=["CA file", "CAs of the machine"])
def test_nothing_is_said_to_be_verified_unless_the_name_was_compared(
    *,
    place: dict[str, Any],
    authority: Authority,
    mariadb: MariaDB,
    host: str,
    has_file: bool,
) -> None:
    ca = str(authority.ca) if has_file else ""
    with authority.presented(mariadb, authority.issue(valid_for=WRONG_NAME)):
        found = examined({**place, "host": host}, tls="verify", tls_ca=ca)["tls"]
        address = (
            host,
            mariadb.port,
            place["database"],
            "i",
            place["username"],
            place["password"],
        )
        with pytest.raises(NodeError):
            MySqlNode(Address("n1", "mysql", *address, "verify", ca))
        url = f"mysql://{place['username']}:{place['password']}@{host}:{mariadb.port}/{place['database']}"
        with pytest.raises(OperationalError, match="2026"):
            metadata_at(
                f"{url}?tls=verify" + (f"&ca={ca}" if ca else "")
            ).ensure_connection()
    why = "tls_wrong_name" if has_file else "tls_system_ca"
    assert found.text == (why if is_compared(host) else "tls_not_compared")
    assert found.verdict == "bad"


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_used_is_refused_when_it_is_given(
    place: dict[str, Any], tmp_path: Path, text: str | None
) -> None:
    if text:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(
        Invalid, match="ca.pem holds no certificate" if text else "ca.pem cannot be read"
    ):
        registry.register(
            name="n1", actor=ME, **place, tls="verify", tls_ca=str(tmp_path / "ca.pem")
        )
    with pytest.raises(Invalid, match="tls_ca: is used by tls verify only"):
        registry.register(name="n1", actor=ME, **place, tls="on", tls_ca="/ca.pem")
    with pytest.raises(Invalid, match="must be one of off, on, verify"):
        registry.register(name="n1", actor=ME, **place, tls="please")


def test_a_server_that_requires_tls_says_so_to_a_node_without(
    place: dict[str, Any], mariadb: MariaDB, authority: Authority
) -> None:
    mariadb.execute("SET GLOBAL require_secure_transport = ON")
    try:
        plain = examined(place, tls="off")
        with pytest.raises(Invalid, match="Set tls to verify, or to on"):
            registry.register(name="n1", actor=ME, **place, tls="off")
        made = registry.register(name="n1", actor=ME, **place, **verified(authority))
    finally:
        with mariadb.connect(ssl_mode="REQUIRED") as connection:
            connection.cursor().execute("SET GLOBAL require_secure_transport = OFF")
    assert (plain["tls"].verdict, plain["tls"].text, made.tls) == (
        "bad",
        "tls_required",
        "verify",
    )


def test_a_new_node_on_another_machine_is_encrypted_if_its_server_offers_it(
    place: dict[str, Any], wire: Wire, elsewhere: None
) -> None:
    stripped = {**place, "port": wire.port}
    wire.strips = True
    assert preflight.candidate(name="n1", actor=ME, **stripped).tls == "off"
    assert registry.register(name="n1", actor=ME, **place).tls == "on"
    snapshot.refresh()
    assert cipher(DbNode.objects.get().pk)
    assert AuditLog.objects.get(kind="node").after["tls"] == "on"


@pytest.mark.parametrize("mode", ["on", "verify"])
def test_nobody_goes_on_in_plain_text_where_tls_was_asked_for(
    *, place: dict[str, Any], wire: Wire, authority: Authority, mode: str
) -> None:
    wire.strips = True
    ca = str(authority.ca) if mode == "verify" else ""
    found = examined({**place, "port": wire.port}, tls=mode, tls_ca=ca)
    assert found["tls"].text == "tls_not_offered"
    assert "reachable" not in found

    account = (place["username"], place["password"])
    address = Address(
        "n1", "mysql", VERIFIED_HOST, wire.port, place["database"], "i", *account, mode, ca
    )
    with pytest.raises(NodeError, match=NOT_OFFERED):
        MySqlNode(address)

    query = f"tls={mode}" + (f"&ca={ca}" if ca else "")
    url = f"mysql://{account[0]}:{account[1]}@{VERIFIED_HOST}:{wire.port}/{place['database']}?{query}"
    with pytest.raises(OperationalError, match=NOT_OFFERED):
        metadata_at(url).ensure_connection()


def metadata_at(url: str) -> DatabaseWrapper:
    """A connection to metadata that a process with this CATMQ_DATABASE_URL would have."""
    given = connections.configure_settings(databases(Config(database_url=url)))
    return DatabaseWrapper(given["default"], "default")


def test_messages_pass_the_wire_in_secret(
    place: dict[str, Any], wire: Wire, authority: Authority
) -> None:
    registry.register(name="main", actor=ME, **{**place, "port": wire.port}, tls="off")
    snapshot.refresh()
    queue = failing.billing()
    failing.send(b"in plain text")
    assert b"in plain text" in bytes(wire.heard)

    registry.update(name="main", settings=verified(authority), actor=ME)
    snapshot.refresh()
    wire.heard.clear()
    failing.send(b"in secret")
    member = failing.member()
    found = [one.body for one in member.pull(queue).messages]
    assert found == [b"in plain text", b"in secret"]
    assert wire.heard and b"in secret" not in bytes(wire.heard)


def test_a_connection_that_is_lost_in_the_middle_leaves_its_statement_in_doubt(
    place: dict[str, Any], mariadb: MariaDB, authority: Authority
) -> None:
    info = preflight.candidate(name="n1", actor=ME, **place, **verified(authority))
    reading = MySqlNode(
        Address(
            "n1",
            "mysql",
            info.host,
            info.port,
            info.database,
            "i",
            info.username,
            info.password,
            "on",
        )
    )
    session = session_pool.connect(info)
    assert isinstance(session, MySqlSession)
    listed = "SELECT id FROM information_schema.processlist WHERE db = %s AND info LIKE '%%SLEEP%%'"
    for run, fault in (
        (lambda: session.send(b"SELECT SLEEP(20)", statements=1), db_errors.Ambiguous),
        (lambda: reading.read_rows("SELECT SLEEP(20)"), ConnectionLost),
    ):
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run)
            ((number,),) = until(lambda: mariadb.execute(listed, [place["database"]]))
            mariadb.execute(f"KILL CONNECTION {number}")
            with pytest.raises(fault) as caught:
                running.result(20)
        assert getattr(caught.value, "lost", True)
    session.close()
    reading.close()


def test_tls_of_a_node_is_tried_before_it_is_kept(
    place: dict[str, Any], mariadb: MariaDB, authority: Authority
) -> None:
    node_id = registry.register(name="main", actor=ME, **place).id
    snapshot.refresh()
    wrong_name = authority.issue(valid_for=WRONG_NAME)
    with (
        authority.presented(mariadb, wrong_name),
        pytest.raises(Invalid, match="the server is not for"),
    ):
        registry.update(name="main", settings=verified(authority), actor=ME)
    assert DbNode.objects.get().tls == "off" and cipher(node_id) == ""

    registry.update(name="main", settings=verified(authority), actor=ME)
    snapshot.refresh()
    assert cipher(node_id)
    row = AuditLog.objects.filter(kind="node").latest("pk")
    assert (row.before["tls"], row.after["tls"]) == ("off", "verify")
    with authority.presented(mariadb, wrong_name):
        with pytest.raises(Invalid, match="the server is not for"):
            registry.update(name="main", settings=verified(authority), actor=ME)
        registry.update(
            name="main", settings={"state": "offline", **verified(authority)}, actor=ME
        )
    assert DbNode.objects.get().state == "offline"


def test_a_node_moves_to_an_address_with_tls_of_its_own(
    place: dict[str, Any], mariadb: MariaDB, authority: Authority
) -> None:
    with Wire(mariadb.port).running() as wire:
        node_id = registry.register(
            name="main", actor=ME, **{**place, "port": wire.port}
        ).id
        snapshot.refresh()
        queue = failing.billing()
        failing.send(b"a")
    to = {"host": VERIFIED_HOST, "port": mariadb.port, **verified(authority)}
    with (
        authority.presented(mariadb, authority.issue(valid_for=WRONG_NAME)),
        pytest.raises(Invalid, match="the server is not for"),
    ):
        promotion.promote(name="main", actor=ME, known_dead=True, **to)
    assert DbNode.objects.get().epoch == 1

    assert promotion_plans.promote(name="main", actor=ME, **to).messages == 0
    promotion.promote(name="main", actor=ME, known_dead=True, **to)
    snapshot.refresh()
    row = DbNode.objects.get()
    assert (row.port, row.tls, row.epoch) == (mariadb.port, "verify", 2)
    assert cipher(node_id)
    failing.send(b"b")
    member, offset, found = failing.member(), 0, []
    for _ in ("before the gap", "the gap", "behind it"):
        pulled = member.pull(queue, offset)
        found += [one.body for one in pulled.messages]
        offset = pulled.next_offset
    assert found == [b"a", b"b"]


def test_days_of_a_certificate_are_counted_by_the_clock_of_the_node(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = node_sql.now_ms
    ahead = YEAR / timedelta(milliseconds=1)
    monkeypatch.setattr(
        encryption.node_sql, "now_ms", lambda session: later(session) + int(ahead)
    )
    found = examined(place, tls="on")["tls"]
    assert (found.verdict, found.text) == ("warn", "tls_expired")
