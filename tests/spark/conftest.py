"""One server with a node of each engine, and one Spark session, for all tests of the data
pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_tasks import sessions
from tests.spark.stage import Stage
from tests.support import java
from tests.support.certificates import VERIFIED_HOST
from tests.support.mariadb import MariaDB
from tests.support.server import Server

MEMORY = "1g"


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> None:
    """Options of every Java that starts from now on, unless the caller chose some."""
    if "JDK_JAVA_OPTIONS" not in os.environ:
        os.environ["JDK_JAVA_OPTIONS"] = java.options()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's server and archives live."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def stage(home: Path, mariadb: MariaDB) -> Iterator[Stage]:
    """The session's server: node `main` is a file, node `maria` on MariaDB, which only its
    reader reads.
    """
    server = Server(home / "server", environ={"CATMQ_DAILY_REPORTS": "capacity"})
    with ExitStack() as stack:
        schema = stack.enter_context(mariadb.schema())
        name, password = stack.enter_context(mariadb.reader(schema))
        stack.callback(server.clear_away)
        server.start()
        url = f"mysql://catmq:{mariadb.password}@{VERIFIED_HOST}:{mariadb.port}/{schema}"
        server.environ = {
            "CATMQ_NODE_MARIA_URL": url,
            "CATMQ_NODE_MARIA_READER_PASSWORD": password,
        }
        server.manage("register_node", "maria")
        server.manage("set_reader", "maria", name)
        yield Stage(server, mariadb, schema, password)


@pytest.fixture(scope="session")
def spark(stage: Stage) -> Iterator[SparkSession]:
    """The session's Spark, which knows the server by its environment."""
    os.environ["CATMQ_URL"], os.environ["CATMQ_API_KEY"] = (
        stage.server.url,
        stage.server.api_key,
    )
    few = {"spark.sql.shuffle.partitions": "2"}  # small data: each more costs only time
    session = sessions.start("tests", master="local[2]", memory=MEMORY, conf=few)
    yield session
    session.stop()


@pytest.fixture(params=["main", "maria"])
def node(request: pytest.FixtureRequest) -> str:
    """The node of either engine."""
    return str(request.param)
