"""What a job says when it cannot read: no account, a wrong one, a node or a broker that is
away, no Java.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_tasks import sessions
from spark_tasks.errors import JobError, NodeError, OptionError
from spark_tasks.jobs.__main__ import describe_error, main
from spark_tasks.nodes import plans
from spark_tasks.nodes.connection import connect
from spark_tasks.nodes.plans import Address
from tests.spark.stage import Stage
from tests.support.environment import free_port

NODE = {
    "name": "node-1",
    "engine": "mysql",
    "host": "10.0.0.1",
    "port": 3306,
    "database": "d",
    "identity": "i",
}
NOWHERE = Address("node-1", "mysql", "127.0.0.1", 1, "d", "i", "reader", "hidden")


def test_a_node_without_a_reader_account_is_read_by_the_account_of_the_environment() -> (
    None
):
    node = {**NODE, "username": "", "password": ""}
    with pytest.raises(NodeError, match="set CATMQ_NODE_NODE_1_URL"):
        plans._address(node, {})
    found = plans._address(
        node, {"CATMQ_NODE_NODE_1_URL": "mysql://me:a%40b@10.0.0.2:3307/other"}
    )
    assert (found.host, found.port, found.database) == ("10.0.0.2", 3307, "other")
    assert (found.username, found.password) == ("me", "a@b")


def test_a_node_that_a_later_release_changed_is_refused_with_the_release_it_needs() -> None:
    node = {**NODE, "username": "me", "password": "p", "min_release": "9.1"}
    with pytest.raises(
        NodeError, match=r"node node-1 needs CatMQ >= 9\.1, this is \d+\.\d+\.\d+: install"
    ):
        plans._address(node, {})
    assert plans._address({**node, "min_release": "0.1"}, {}).username == "me"


def test_an_address_never_shows_its_account() -> None:
    assert "hidden" not in f"{NOWHERE} {NOWHERE!r}"
    assert "reader" not in repr(NOWHERE)


def test_a_node_that_is_away_is_named(stage: Stage) -> None:
    with pytest.raises(
        NodeError, match=r"node node-1 cannot be read at 127.0.0.1:\d+/d"
    ) as caught:
        connect(replace(NOWHERE, port=free_port()))
    assert "hidden" not in str(caught.value)
    with pytest.raises(
        NodeError, match="node node-1 cannot be read at /nowhere/x: unable to open"
    ):
        connect(replace(NOWHERE, engine="sqlite", database="/nowhere/x"))


def test_a_password_that_was_changed_fails_the_read_in_one_line(
    stage: Stage, spark: SparkSession
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 10)
    (node,) = (one for one in stage.admin.read_plan(topic)["nodes"])
    account = f"{node['username']}@'127.0.0.1'"
    stage.mariadb.execute(f"ALTER USER {account} IDENTIFIED BY 'another'")
    try:
        with pytest.raises(PySparkException) as caught:
            spark.read.format("catmq").option("topic", topic).load().collect()
    finally:
        stage.mariadb.execute(f"ALTER USER {account} IDENTIFIED BY '{stage.password}'")
    said = describe_error(caught.value)
    assert "node maria cannot be read at" in said
    assert "Access denied" in said
    assert "\n" not in said


def test_a_broker_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PATIENCE_S", 0.0)
    monkeypatch.setenv("CATMQ_API_KEY", "x")
    with pytest.raises(JobError, match="the read plan of topic orders cannot be had"):
        plans.fetch("orders", url=f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("CATMQ_API_KEY")
    with pytest.raises(OptionError, match="set CATMQ_API_KEY"):
        plans.fetch("orders", url="http://127.0.0.1:1")


def test_a_missing_java_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JobError, match="apt-get install -y default-jre-headless"):
        sessions.start("none")


def test_a_job_without_a_setting_or_a_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["archive", str(tmp_path)]) == 1
    assert "archive failed: setting topic is missing" in capsys.readouterr().err
    assert main(["nonsense", str(tmp_path)]) == 1
    assert "NAME: archive, replay" in capsys.readouterr().err
