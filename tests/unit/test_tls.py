"""TLS of URLs and of connections: the server and Spark tasks, which share no code, mean the
same.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from metadata.config import parse_database_url
from metadata.rules import tls
from spark_tasks.errors import OptionError
from spark_tasks.nodes import plans
from spark_tasks.nodes import tls as of_spark
from tests.support import documents
from tests.support.certificates import Authority
from tests.support.environment import ROOT

NODE = {
    "name": "n1",
    "engine": "mysql",
    "host": "h",
    "port": 1,
    "database": "d",
    "identity": "i",
}
UNREAD = {**NODE, "username": "", "password": "", "tls": "verify", "tls_ca": "/of/node.pem"}


def refusal(mode: str, host: str, library: str) -> str:
    """Return the advice for a connection that the driver would not verify; '' if it would."""
    try:
        tls.check_driver(mode, host, library, os.environ)
    except tls.Refused as error:
        return tls.find_remedy(error, host=host, ca="")
    return ""


def test_a_driver_that_verifies_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Use another name or address" in refusal("verify", "::1", "3.4.10")
    monkeypatch.setenv("MARIADB_TLS_DISABLE_PEER_VERIFICATION", "0")
    assert "Remove it" in refusal("verify", "db1", "3.3.14")
    assert "remove it" in of_spark.find_driver_problem("verify", "db1", "3.3.14")
    assert refusal("on", "db1", "3.4.10") == ""


def test_without_a_ca_file_those_of_the_machine_are_named_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cert.pem"
    file.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert (
        tls.connect_arguments("verify", "")["ssl"]
        == of_spark.system_cas()
        == {"ca": str(file)}
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setattr(tls, "_DEBIAN_CAS", str(tmp_path / "none"))
    assert tls.connect_arguments("verify", "")["ssl"] == {"capath": str(tmp_path)}


def test_spark_tasks_connect_as_the_server_does() -> None:
    for mode, ca in product(tls.MODES, ("", "/ca.pem")):
        assert of_spark.connect_arguments(mode, ca) == tls.connect_arguments(mode, ca)
        for host, library in product(
            ("127.0.0.1", "::1", "localhost", "db1"), ("3.3.14", "3.4.10", "9.7.0")
        ):
            refused = bool(refusal(mode, host, library))
            assert bool(of_spark.find_driver_problem(mode, host, library)) == refused
            assert refused == (mode == "verify" and host != "db1" and library == "3.4.10")
        for capabilities in (0, tls.CLIENT_SSL, ~tls.CLIENT_SSL):
            assert of_spark.is_plain(mode, capabilities) == tls.is_plain(mode, capabilities)


@pytest.mark.parametrize(
    "query",
    [
        "tls=off",
        "tls=on",
        "tls=verify",
        "tls=verify&ca=/ca.pem",
        "tls=verify&ca=/a%20b.pem",
    ],
)
def test_a_url_says_how_to_encrypt(query: str) -> None:
    found = parse_database_url(f"mysql://u:p@h/d?{query}").encryption
    assert found == of_spark.parse_query(query, ("off", ""))
    address = plans._address(UNREAD, {"CATMQ_NODE_N1_URL": f"mysql://u:p@h/d?{query}"})
    assert (address.tls, address.tls_ca) == found


@pytest.mark.parametrize(
    "query",
    [
        "tls=",
        "tls=yes",
        "ca=/ca.pem",
        "tls=on&ca=/ca.pem",
        "tls=verify&ca=ca.pem",
        "tls=on&tls=off&tls=on",
        "x=1",
    ],
)
def test_a_url_that_says_anything_else_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match="must end with"):
        tls.parse_query(query)
    with pytest.raises(OptionError, match="CATMQ_NODE_N1_URL must end with"):
        plans._address(UNREAD, {"CATMQ_NODE_N1_URL": f"mysql://u:p@h/d?{query}"})


def test_a_job_reads_a_node_as_brokers_do_unless_its_url_says_otherwise() -> None:
    address = plans._address(UNREAD, {"CATMQ_NODE_N1_URL": "mysql://u:p@h/d"})
    assert (address.tls, address.tls_ca) == ("verify", "/of/node.pem")
    older = {name: value for name, value in UNREAD.items() if not name.startswith("tls")}
    assert plans._address(older, {"CATMQ_NODE_N1_URL": "mysql://u:p@h/d"}).tls == "off"
    assert tls.parse_query("") == ("", "")


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (
            "SSL connection error: error:0A000086:SSL routines::certificate verify failed",
            "tls_unknown_ca",
        ),
        ("TLS/SSL error: unable to get local issuer certificate", "tls_unknown_ca"),
        ("TLS/SSL error: Hostname verification failed", "tls_wrong_name"),
        ("TLS/SSL error: certificate is not yet valid", "tls_early"),
        ("TLS/SSL error: No such file or directory (2)", "tls_no_ca"),
        ("TLS/SSL error: unsupported protocol", "tls_no_handshake"),
    ],
)
def test_words_of_the_drivers_are_understood(said: str, key: str) -> None:
    advice = tls.find_remedy(Exception(2026, said), host="db1", ca="/ca.pem")
    assert advice == tls.FAILURES[key] % {"host": "db1", "ca": "/ca.pem", "said": said}
    assert tls.find_remedy(Exception(2002, said), host="db1", ca="/ca.pem") == ""


def test_the_commands_of_the_page_make_certificates_for_strict_clients(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/how-to/encrypt-connections.md").read_text()
    (commands,) = (
        block for block in documents.blocks(page) if block.startswith("openssl req")
    )
    environ = {**os.environ, "HOME": str(tmp_path)}
    printed = documents.typed(commands, directory=tmp_path, environ=environ)
    assert printed.endswith("server-cert.pem: OK\n")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server-cert.pem", tmp_path / "server-key.pem")
    for name in ("db1", "10.0.0.7"):
        shake_hands(server, tmp_path / "ca.pem", name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(server, tmp_path / "ca.pem", "db2")


def test_certificates_of_tests_are_for_strict_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    shake_hands(server, authority.ca, "127.0.0.1")


def shake_hands(server: ssl.SSLContext, ca: Path, name: str) -> None:
    """Run the handshake of a strict client in memory. Raises SSLCertVerificationError."""
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(up, down, server_side=True),
        client.wrap_bio(down, up, server_hostname=name),
    ]
    while sides:
        with suppress(ssl.SSLWantReadError):
            sides[-1].do_handshake()
            del sides[-1]
        sides.reverse()


def test_without_a_ca_file_those_of_the_machine_are_named() -> None:
    said = "TLS/SSL error: unable to get local issuer certificate"
    assert "a CA that this machine trusts. Set tls_ca" in tls.find_remedy(
        Exception(2026, said), host="h", ca=""
    )
