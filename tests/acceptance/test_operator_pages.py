"""Pages for operators do what they say, by their own blocks."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from tests.support import documents
from tests.support.environment import ROOT, free_port
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.server import Server, clean_environment
from tests.support.waiting import until

HOW_TO = ROOT / "docs/how-to"
PROGRAMS = f"{ROOT}/.venv/bin:{os.environ['PATH']}"


def blocks(page: str) -> list[documents.Block]:
    return documents.blocks((HOW_TO / page).read_text())


def account(server: Server) -> dict[str, str]:
    """The environment of a terminal where `credentials.env` was read."""
    return (
        clean_environment()
        | server.credentials
        | {"CATMQ_URL": server.url, "PATH": PROGRAMS}
    )


def test_run_on_mariadb(tmp_path: Path) -> None:
    text = (HOW_TO / "run-on-mariadb.md").read_text()
    copy, port, password = documents.checkout(tmp_path), free_port(), secrets.token_hex(8)
    text = text.replace("3307", str(port)).replace("catmq:…@", f"team:{password}@")
    start, configure, register = documents.blocks(text)
    statements = text.split("```sql\n")[1].split("```")[0]
    assert statements.count("catmq@'%'") == 4
    printed = documents.typed(start, directory=copy, environ=clean_environment())
    server = MariaDB(copy / "var/mariadb", printed.strip().splitlines()[-1])
    try:
        assert server.execute("SHOW DATABASES LIKE 'catmq\\_node1'"), (
            "step 3 needs it on a private server"
        )
        # the page makes them on a server of one's own
        for name in ("catmq", "catmq_node1"):
            server.execute(f"DROP DATABASE {name}")
        for statement in filter(
            str.strip, statements.replace("catmq@", "team@").split(";")
        ):
            server.execute(statement.replace("…", password))
        http = free_port()
        with documents.serving(
            copy, configure.replace("script/server", f"script/server --port {http}")
        ):
            ours = configure.splitlines()[0]
            keys = (
                f"PATH={PROGRAMS}; set -a; . var/credentials.env; set +a; "
                f"CATMQ_URL=http://127.0.0.1:{http}"
            )
            said = documents.typed(
                f"{ours}\n{keys}\n{register}", directory=copy, environ=clean_environment()
            )
        assert f"127.0.0.1:{port}/catmq_node1" in said
    finally:
        server.stop()


def test_drain_a_broker(pair: Pair, tmp_path: Path) -> None:
    listed, drain, enable = blocks("take-a-broker-out.md")
    environ = account(pair.first) | {"CATMQ_URL": pair.urls}
    admin = Admin(HttpTransport(pair.first.url, api_key=pair.first.api_key))
    (name,) = [one["name"] for one in admin.brokers() if one["url"] == pair.second.url]

    def state() -> str:
        return next(one["state"] for one in admin.brokers() if one["name"] == name)

    assert name in documents.typed(listed, directory=tmp_path, environ=environ)
    for step, after in ((drain, "out"), (enable, "in")):
        assert "box-1:8000" in step
        documents.typed(
            step.replace("box-1:8000", name), directory=tmp_path, environ=environ
        )
        until(lambda after=after: state() == after)  # type: ignore[misc]


def test_copy_topics_and_groups_to_another_installation(
    server: Server, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    export, compare, apply = blocks("copy-definitions.md")
    other = new_server()
    admin = Admin(HttpTransport(server.url, api_key=server.api_key))
    admin.create_topic("shop.orders", queues=3)
    admin.create_topic("other", queues=1)
    admin.create_group("billing")
    admin.subscribe("billing", "shop.orders")
    documents.typed(export, directory=tmp_path, environ=account(server))
    assert "create" in documents.typed(compare, directory=tmp_path, environ=account(other))
    there = Admin(HttpTransport(other.url, api_key=other.api_key))
    assert not list(there.topics())
    documents.typed(apply, directory=tmp_path, environ=account(other))
    assert [
        (topic["name"], len(there.topic(topic["name"])["queues"]))
        for topic in there.topics()
    ] == [("shop.orders", 3)]
    assert "same" in documents.typed(compare, directory=tmp_path, environ=account(other))
    admin.unsubscribe("billing", "shop.orders")
    admin.delete_group("billing")
    for topic in ("shop.orders", "other"):  # examples/shop has a topic of this name
        admin.delete_topic(topic)
