"""A cluster of each kind for all tests of this folder, and a node on its addresses."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from tests.support import clusters
from tests.support.clusters import Cluster

ACTOR = command("test")


@pytest.fixture(scope="session", params=("galera", "group"))
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[clusters.Cluster]:
    """A cluster of the session."""
    with (
        tempfile.TemporaryDirectory(prefix=f"catmq-{request.param}-") as directory,
        clusters.running(request.param, Path(directory, "cluster")) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(shared_cluster: clusters.Cluster) -> Iterator[clusters.Cluster]:
    """The session's cluster of a kind; all members are joined before and after the test."""
    yield shared_cluster
    shared_cluster.await_whole()


@pytest.fixture
def node(metadata_db: None, cluster: Cluster) -> Iterator[str]:
    """Node `listed` on all members, with topic `orders` of one queue; its loops run."""
    schema = f"test_{uuid4().hex[:12]}"
    members = cluster.members.values()
    cluster.writer.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    registry.register(
        name="listed",
        engine="mysql",
        host=",".join(f"{member.host}:{member.port}" for member in members),
        database=schema,
        username="catmq",
        password=cluster.writer.password,
        actor=ACTOR,
    )
    snapshot.refresh()
    topics.create(name="orders", queues=1, actor=ACTOR)
    snapshot.refresh()
    stop = threading.Event()

    def run(work: Callable[[], None], every_s: float) -> None:
        while not stop.wait(every_s):
            work()

    def watch() -> None:
        for node_id in node_pools.used_node_ids():
            node_pools.watch(node_id)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(run, watch, 0.1)
        yield "listed"
        stop.set()
        watching.result(30)
    node_pools.evict_all()
