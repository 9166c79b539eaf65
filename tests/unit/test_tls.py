"""TLS of URLs and of connections: the server and Spark tasks, which share no code, mean the same."""

from __future__ import annotations

from itertools import product

import pytest

from metadata.config import parse_database_url
from metadata.rules import tls
from spark_tasks.errors import OptionError
from spark_tasks.nodes import plans
from spark_tasks.nodes import tls as of_spark

NODE = {"name": "n1", "engine": "mysql", "host": "h", "port": 1, "database": "d", "identity": "i"}
UNREAD = {**NODE, "username": "", "password": "", "tls": "verify", "tls_ca": "/of/node.pem"}


def test_spark_tasks_connect_as_the_server_does() -> None:
    for mode, ca in product(tls.MODES, ("", "/ca.pem")):
        assert of_spark.arguments(mode, ca) == tls.arguments(mode, ca)
        for capabilities in (0, tls.CLIENT_SSL, ~tls.CLIENT_SSL):
            assert of_spark.is_plain(mode, capabilities) == tls.is_plain(mode, capabilities)


@pytest.mark.parametrize(
    "query", ["tls=off", "tls=on", "tls=verify", "tls=verify&ca=/ca.pem", "tls=verify&ca=/a%20b.pem"]
)
def test_a_url_says_how_to_encrypt(query: str) -> None:
    found = parse_database_url(f"mysql://u:p@h/d?{query}").encryption
    assert found == of_spark.of_query(query, ("off", ""))
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
        tls.of_query(query)
    with pytest.raises(OptionError, match="CATMQ_NODE_N1_URL must end with"):
        plans._address(UNREAD, {"CATMQ_NODE_N1_URL": f"mysql://u:p@h/d?{query}"})


def test_a_job_reads_a_node_as_brokers_do_unless_its_url_says_otherwise() -> None:
    address = plans._address(UNREAD, {"CATMQ_NODE_N1_URL": "mysql://u:p@h/d"})
    assert (address.tls, address.tls_ca) == ("verify", "/of/node.pem")
    older = {name: value for name, value in UNREAD.items() if not name.startswith("tls")}
    assert plans._address(older, {"CATMQ_NODE_N1_URL": "mysql://u:p@h/d"}).tls == "off"
    assert tls.of_query("") == ("", "")


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("SSL connection error: error:0A000086:SSL routines::certificate verify failed", "tls_unknown_ca"),
        ("TLS/SSL error: unable to get local issuer certificate", "tls_unknown_ca"),
        ("TLS/SSL error: certificate is not yet valid", "tls_early"),
        ("TLS/SSL error: No such file or directory (2)", "tls_no_ca"),
        ("TLS/SSL error: unsupported protocol", "tls_no_handshake"),
    ],
)
def test_words_of_the_drivers_are_understood(said: str, key: str) -> None:
    advice = tls.advice(Exception(2026, said), host="db1", ca="/ca.pem")
    assert advice == tls.FAILURES[key] % {"host": "db1", "ca": "/ca.pem", "said": said}
    assert tls.advice(Exception(2002, said), host="db1", ca="/ca.pem") == ""


def test_without_a_ca_file_those_of_the_machine_are_named() -> None:
    said = "TLS/SSL error: unable to get local issuer certificate"
    assert "a CA that this machine trusts. Set tls_ca" in tls.advice(Exception(2026, said), host="h", ca="")
