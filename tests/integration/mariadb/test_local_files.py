"""A server that asks for a file of this machine, as LOAD DATA LOCAL does and any server
may, gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connections as django_connections

from messagestore.pool import node_pools
from spark_tasks.nodes.connection import MySqlNode
from spark_tasks.nodes.plans import Address
from tests.support.mariadb import MariaDB


def by_the_store(node: str, load: str) -> None:
    with node_pools.node(_id(node)).writing() as session:
        session.send(load.encode(), statements=1)  # type: ignore[attr-defined]


def by_metadata(node: str, load: str) -> None:
    with django_connections["default"].cursor() as cursor:
        cursor.execute(load)


def by_spark(node: str, load: str) -> None:
    info = node_pools.node(_id(node)).info
    address = Address(
        name=node, engine="mysql", host=info.host, port=info.port, database=info.database,
        identity=info.identity, username=info.username, password=info.password,
    )  # fmt: skip
    with closing(MySqlNode(address)) as session:
        session.read_rows(load)


def _id(node: str) -> int:
    from metadata.cache import snapshot

    return snapshot.find_node(node).id


@pytest.mark.parametrize("way", [by_the_store, by_metadata, by_spark])
def test_no_connection_gives_a_local_file_away(
    make_node: Callable[..., str],
    mariadb: MariaDB,
    tmp_path: Path,
    way: Callable[[str, str], None],
) -> None:
    node, secret = make_node("server", engine="mysql"), tmp_path / "secret"
    secret.write_text("secret\n")
    schema = node_pools.node(_id(node)).info.database
    mariadb.execute("SET GLOBAL local_infile = 1")
    mariadb.execute(f"CREATE TABLE {schema}.taken (line TEXT)")
    with pytest.raises(Exception, match=r"LOCAL|local|not allowed|disabled"):
        way(node, f"LOAD DATA LOCAL INFILE '{secret}' INTO TABLE {schema}.taken")
    assert mariadb.execute(f"SELECT * FROM {schema}.taken") == []
