"""Accounts with exactly the rights that `manage.py grants` prints are enough on a cluster, and
what a group needs in addition is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest

from catmq_site.mysql import servers
from messagestore.engine.messages import NewMessage
from messagestore.nodes import preflight, registry
from messagestore.pool import node_pools, writers
from messagestore.produce.publish import publish
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import Invalid
from metadata.rules import grants
from tests.support.clusters import Cluster

ACTOR = command("test")
PASSWORD = "least"
REQUIRED = tuple(grant for grant in grants.NODE if not grant.optional)


@dataclass
class Least:
    """An account without rights beyond those that it was given, and its database."""

    cluster: Cluster
    name: str

    def grant(self, rights: tuple[grants.Grant, ...]) -> None:
        flavour = "mysql" if self.cluster.kind == "group" else "mariadb"
        for statement in grants.grant_statements(
            rights, flavour=flavour, database=self.name, username=self.name
        ):
            self.cluster.execute(statement)

    @property
    def given(self) -> dict[str, Any]:
        return {
            "engine": "mysql",
            "host": self.cluster.addresses,
            "database": self.name,
            "username": self.name,
            "password": PASSWORD,
        }


@pytest.fixture
def least(metadata_db: None, cluster: Cluster) -> Iterator[Least]:
    name = f"least_{uuid4().hex[:12]}"
    cluster.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    cluster.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
    yield Least(cluster, name)
    node_pools.evict_all()
    cluster.execute(f"DROP USER '{name}'@'%'")
    cluster.execute(f"DROP DATABASE {name}")


def test_a_node(least: Least) -> None:
    least.grant(REQUIRED)
    if least.cluster.kind == "group":
        with pytest.raises(Invalid, match=r"manage\.py grants group") as refused:
            registry.register(name="least", actor=ACTOR, **least.given)
        assert "replication_group_members" in refused.value.detail
        least.grant(grants.GROUP)
    registry.register(name="least", actor=ACTOR, **least.given)
    snapshot.refresh()
    topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()
    message = NewMessage(body=b"x")
    (receipt,) = publish(topic="orders", messages=[message], batch_id=None, actor=ACTOR)
    assert receipt.offset == 0  # type: ignore[union-attr]
    registry.probe()
    found = {one.text for one in preflight.reexamine(name="least", actor=ACTOR).findings}
    assert "cluster" in found
    # The same through one address, as behind a proxy.
    info = snapshot.find_node("least")
    place = writers.find_writer(info).address
    writers.connect(replace(info, host=place.host, port=place.port)).close()


def test_metadata(least: Least) -> None:
    import MySQLdb

    least.grant(grants.METADATA)
    parameters = {"user": least.name, "passwd": PASSWORD, "db": least.name}
    listed = servers.Servers(MySQLdb, least.cluster.addresses)
    if least.cluster.kind == "group":
        with pytest.raises(MySQLdb.OperationalError, match=r"manage\.py grants group"):
            listed.find_writer(parameters)
        least.grant(grants.GROUP)
    writer = listed.find_writer(parameters)
    connection = MySQLdb.connect(
        **parameters, host=writer.address.host, port=writer.address.port
    )
    listed.settle(connection, writer)
    connection.close()
