"""Nodes over HTTP: examined, given accounts, moved; each refused without the right `admin`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from messagestore.nodes import registry, upgrade
from metadata import actors
from metadata.models import AuditLog, DbNode
from tests.support.broker import Broker, problem
from tests.support.certificates import VERIFIED_HOST, Authority
from tests.support.mariadb import MariaDB
from tests.support.older_tables import make_older

Given = dict[str, Any]


def place(database: Given) -> Given:
    """A database as a request names it."""
    return {name: value for name, value in database.items() if value not in ("", 0)}


def test_a_database_is_examined_and_nothing_is_made(
    broker: Broker, node_database: Callable[..., Given]
) -> None:
    database = place(node_database())
    found = broker.ok("POST", "/nodes/second/examine", database)
    assert found["passed"] is True
    verdicts = {one["about"]: one["verdict"] for one in found["findings"]}
    assert verdicts["reachable"] == "ok" and verdicts["kind"] in ("ok", "warn")
    problem(broker.call("GET", "/nodes/second"), 404, "node_not_found")
    problem(broker.call("POST", "/nodes/main/examine", database), 409, "already_exists")
    problem(
        broker.call("POST", "/nodes/second/examine", {**database, "colour": 1}),
        400,
        "invalid",
        "colour",
    )
    without_host = {"engine": "mysql", "database": "somewhere"}
    problem(
        broker.call("POST", "/nodes/second/examine", without_host), 400, "invalid", "host"
    )
    broker.ok("POST", "/nodes", {"name": "second", **database})
    taken = broker.ok("POST", "/nodes/third/examine", database)
    assert taken["passed"] is False
    assert "second" in next(
        one["detail"] for one in taken["findings"] if one["about"] == "data"
    )


def test_accounts_are_tried_and_never_shown(
    broker: Broker, make_node: Callable[..., str], mariadb: MariaDB
) -> None:
    make_node("server", engine="mysql")
    schema = DbNode.objects.get(name="server").database
    with mariadb.reader(schema) as (name, password):
        account = {"username": name, "password": password}
        assert broker.call("PATCH", "/nodes/server/reader", account).status_code == 204
        assert broker.ok("GET", "/nodes/server")["reader_username"] == name
        weak = problem(
            broker.call("PATCH", "/nodes/server/account", account), 400, "node_refused"
        )
        assert "DROP" in weak["detail"] and password not in str(weak)
        assert broker.call("DELETE", "/nodes/server/reader").status_code == 204
    assert broker.ok("GET", "/nodes/server")["reader_username"] == ""
    mine = {"username": "catmq", "password": mariadb.password}
    assert broker.call("PATCH", "/nodes/server/account", mine).status_code == 204
    problem(
        broker.call("PATCH", "/nodes/server/account", {**mine, "password": "x"}),
        400,
        "node_refused",
    )
    assert mariadb.password not in str(list(AuditLog.objects.values()))


def test_tls_of_a_node_is_tried_and_shown(
    broker: Broker, node_database: Callable[..., Given], authority: Authority
) -> None:
    verified = {"tls": "verify", "tls_ca": str(authority.ca)}
    made = broker.ok(
        "POST",
        "/nodes",
        {"name": "server", **place(node_database("mysql")), "host": VERIFIED_HOST},
    )
    assert (made["tls"], made["tls_ca"]) == ("off", "")
    assert broker.ok("PATCH", "/nodes/server", verified).items() >= verified.items()
    problem(broker.call("PATCH", "/nodes/server", {"tls": "on"}), 400, "invalid", "tls_ca")
    problem(broker.call("PATCH", "/nodes/server", {"tls": "maybe"}), 400, "invalid", "tls")
    assert broker.ok("GET", "/nodes/server").items() >= verified.items()


def test_what_a_move_would_do_is_said_and_then_it_is_done(
    broker: Broker, queue: int
) -> None:
    # as a job saw it before
    DbNode.objects.filter(name="main").update(delayed_given=91, delayed_waiting=5)
    plan = broker.ok("POST", "/nodes/main/adopt", {"dry_run": True})
    assert ["up to 5 messages that waited" in note for note in plan["notes"]] == [True]
    assert (plan["dry_run"], plan["state"], plan["epoch"]) == (True, None, None)
    assert plan["plan"]["primary_answers"] is None and plan["queues"] == 1
    assert broker.ok("GET", "/nodes/main")["epoch"] == 1
    done = broker.ok("POST", "/nodes/main/adopt", {})
    assert (done["dry_run"], done["state"], done["epoch"], done["plan"]) == (
        False,
        "read_write",
        2,
        None,
    )
    assert plan["notes"][0] in done["notes"]
    assert (done["queues"], done["gaps"]) == (plan["queues"], plan["gaps"])


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_node_is_not_promoted_to_where_nothing_is(
    broker: Broker, *, dry_run: bool
) -> None:
    asked = {"host": "127.0.0.1", "port": 1, "dry_run": dry_run}
    answer = broker.call("POST", "/nodes/main/promote", asked)
    assert (
        answer.status_code in (400, 503)
        and "application/problem+json" in answer.headers["Content-Type"]
    )
    assert broker.ok("GET", "/nodes/main")["epoch"] == 1


def test_all_of_it_needs_the_right_admin(broker: Broker) -> None:
    weak = broker.as_key({"manage": ["*"]})
    account = {"username": "u", "password": "p"}
    for method, path, body in (
        ("POST", "/nodes/new/examine", {"engine": "sqlite", "database": "x"}),
        ("PATCH", "/nodes/main/account", account),
        ("PATCH", "/nodes/main/reader", account),
        ("DELETE", "/nodes/main/reader", None),
        ("POST", "/nodes/main/promote", {"host": "h"}),
        ("POST", "/nodes/main/adopt", {}),
    ):
        problem(weak.call(method, path, body), 403, "forbidden")


def test_a_node_tells_the_version_of_its_tables(broker: Broker, queue: int) -> None:
    make_older()
    registry.probe()
    node = broker.ok("GET", "/nodes/main")
    assert (node["schema_version"], node["upgrade_possible"]) == (1, True)
    upgrade.upgrade(actor=actors.command("test"))
    registry.probe()
    (node,) = [one for one in broker.ok("GET", "/nodes")["nodes"] if one["name"] == "main"]
    assert (node["schema_version"], node["upgrade_possible"]) == (3, False)
    assert [
        one["min_release"] for one in broker.ok("GET", "/topics/single/read-plan")["nodes"]
    ] == [""]
