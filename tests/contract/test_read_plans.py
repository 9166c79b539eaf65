"""Read plans over HTTP: what they name, who may have them, and that they hold what a job
needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.admin.shapes import ReadPlan
from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.tables import promotion_sql, sql_steps
from metadata import actors
from metadata.errors import Invalid
from metadata.models import AuditLog, DbNode
from tests.support.broker import Broker, problem
from tests.support.mariadb import MariaDB

ME = actors.command("test")


def plan_of(broker: Broker, topic: str) -> ReadPlan:
    """The plan as the client's call gives it."""
    transport = HttpTransport(broker.url, api_key=broker.api_key, discover=False)
    try:
        return Admin(transport).read_plan(topic)
    finally:
        transport.close()


def test_a_plan_names_tables_and_ranges_up_to_the_durable_head(
    broker: Broker, queue: int
) -> None:
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "a"}, {"body": "b"}]}
    )
    plan = plan_of(broker, "single")
    found = {
        "queue": queue,
        "number": 0,
        "node": "main",
        "table": sql_steps.message_table(queue),
    }
    assert plan["queues"] == [{**found, "low": 0, "head": 2, "gaps": []}]
    (node,) = plan["nodes"]
    assert (node["name"], node["username"], node["password"]) == ("main", "", "")
    if node["engine"] == "sqlite":
        assert Path(node["database"]).is_absolute()


def test_a_plan_tells_of_declared_gaps(broker: Broker, queue: int) -> None:
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    with node_pools.node_of(queue).writing() as session:
        promotion_sql.raise_heads(session, heads=[(queue, 10)], cause="promotion")
    (planned,) = plan_of(broker, "single")["queues"]
    assert (planned["head"], planned["gaps"]) == (10, [[1, 10]])


def test_only_a_key_with_admin_gets_a_plan(broker: Broker, topic: str) -> None:
    manager = broker.as_key({"browse": ["*"], "manage": ["*"]})
    problem(manager.call("GET", "/topics/orders/read-plan"), 403, "forbidden")


def test_a_plan_of_an_unknown_topic_is_refused(broker: Broker) -> None:
    problem(broker.call("GET", "/topics/nothing/read-plan"), 404, "topic_not_found")


def test_a_file_has_no_reader_account(make_node: Callable[..., str]) -> None:
    make_node("main", engine="sqlite")
    with pytest.raises(Invalid, match="is a file"):
        registry.set_reader(name="main", username="reader", password="x", actor=ME)


def test_a_reader_account_is_tried_kept_sealed_and_given_to_jobs(
    bare_broker: Broker, make_node: Callable[..., str], mariadb: MariaDB
) -> None:
    make_node("main", engine="mysql")
    bare_broker.ok("POST", "/topics", {"name": "orders", "queues": 1})
    with pytest.raises(Invalid, match="GRANT SELECT"):
        registry.set_reader(name="main", username="nobody", password="wrong", actor=ME)
    with mariadb.reader(DbNode.objects.get(name="main").database) as (name, password):
        registry.set_reader(name="main", username=name, password=password, actor=ME)
        (node,) = plan_of(bare_broker, "orders")["nodes"]
        assert (node["username"], node["password"]) == (name, password)
        limited = bare_broker.as_key(
            {"admin": ["orders*", "?"]}
        )  # the account would read every other topic, too
        plan = limited.ok("GET", "/topics/orders/read-plan")
        assert plan["queues"] and password not in str(plan)
        assert [(node["username"], node["password"]) for node in plan["nodes"]] == [
            ("", "")
        ]
        assert password not in DbNode.objects.get(name="main").reader_password_encrypted
        assert password not in str(
            AuditLog.objects.filter(verb="set_reader").values_list("after", flat=True)
        )
    registry.set_reader(name="main", username="", password="", actor=ME)
    (node,) = plan_of(bare_broker, "orders")["nodes"]
    assert node["username"] == ""


def test_a_plan_may_be_of_some_queues(broker: Broker, topic: str) -> None:
    whole = broker.ok("GET", f"/topics/{topic}/read-plan")
    chosen = whole["queues"][1]
    some = broker.ok(
        "GET", f"/topics/{topic}/read-plan?queues={chosen['queue']},{chosen['queue']}"
    )
    assert some["queues"] == [chosen]
    refused = broker.call("GET", f"/topics/{topic}/read-plan?queues=999999")
    assert "999999 is not a queue of topic" in problem(refused, 400, "invalid")["detail"]
    problem(broker.call("GET", f"/topics/{topic}/read-plan?queues=1,x"), 400, "invalid")
