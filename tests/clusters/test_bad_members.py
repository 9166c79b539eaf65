"""Members that must not be written to, and lists that are wrong: each is named, nothing is
stored at a wrong place, and sends go on at the next offset afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from messagestore.nodes import cluster_checks, registry
from messagestore.pool import node_guard, node_pools, session_pool, writers
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import Invalid, NodeUnavailable, OutcomeUnknown
from metadata.models import DbNode
from tests.support import mariadb
from tests.support.clusters import Cluster, Member, require_links
from tests.support.environment import free_port
from tests.support.orders import send, try_send
from tests.support.waiting import until

pytestmark = pytest.mark.rounds
ACTOR = command("test")
BACKLOG = 30  # sends that a member lacks


def findings(node: str) -> dict[str, dict[str, Any]]:
    """Return the findings about the cluster: {text: words}."""
    info = snapshot.find_node(node)
    with session_pool.direct(info) as session:
        return {text: words for _, _, text, words in cluster_checks.check(info, session)}  # type: ignore[arg-type]


@contextmanager
def locked(members: Sequence[Member]) -> Iterator[None]:
    """Hold read locks on all tables of servers, so that they receive and apply nothing."""
    with ExitStack() as stack:
        for member in members:
            connection = stack.enter_context(closing(member.connect()))
            connection.cursor().execute("FLUSH TABLES WITH READ LOCK")
        yield


def test_a_member_that_lags_is_named_and_waited_for(
    node: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send() == 0
    info = snapshot.find_node(node)
    monkeypatch.setattr(cluster_checks, "MAX_QUEUE", BACKLOG // 2)
    writer = cluster.find_written()
    others = [m for m in cluster.members.values() if m.member != writer.member]
    places = {f"{other.host}:{other.port}" for other in others}
    with locked(others):
        assert [send() for _ in range(BACKLOG)] == [*range(1, BACKLOG + 1)]
        if cluster.kind == "galera":
            # The lock takes a member out of flow control, and out of the choice of a writer.
            until(lambda: findings(node)["member_fault"]["server"] in places)
            assert "desynced" in findings(node)["member_fault"]["why"]
        else:
            until(lambda: findings(node)["member_queue"]["server"] in places)
            assert findings(node)["member_queue"]["transactions"] > BACKLOG // 2
        cluster.kill(writer.member)
        if cluster.kind == "group":  # Galera takes the lock for its own view, too
            cluster.await_state(
                lambda members: any(m.primary and m.size == 2 for m in members.values())
            )
        with pytest.raises(NodeUnavailable):
            send()
        with pytest.raises(NodeUnavailable) as refused:
            writers.connect(info)
        reason = str(refused.value.__cause__)
        assert any(place in reason for place in places), reason
        assert ("desynced" if cluster.kind == "galera" else "has applied") in reason
    (offset,) = until(try_send, limit_s=60)
    assert offset == BACKLOG + 1
    assert node_guard.quarantined() == {}


def test_a_writer_that_was_cut_off_a_moment_ago_is_not_waited_for(
    node: str, cluster: Cluster
) -> None:
    """It looks healthy until it suspects the others, and can catch up with nobody."""
    require_links(cluster)
    assert send() == 0
    info = snapshot.find_node(node)
    cluster.cut(cluster.find_written().member)
    with pytest.raises(NodeUnavailable) as refused:
        writers.connect(info)
    reason = str(refused.value.__cause__)
    assert "does not catch up with its cluster" in reason
    if cluster.kind == "group":  # Galera ends the wait by itself, with 1205
        assert "within 2 s" in reason
    (offset,) = until(try_send, limit_s=60)
    assert offset == 1


def test_a_send_that_waits_on_a_minority_ends_with_an_unknown_outcome(
    node: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit waits there for the others, on MySQL without an end."""
    require_links(cluster)
    monkeypatch.setattr(
        session_pool, "connect", partial(session_pool.connect, read_timeout_s=300)
    )
    node_pools.node(snapshot.find_node(node).id).discard()
    assert send() == 0
    alone = cluster.find_written().member
    for number in cluster.members:
        if number != alone:
            cluster.cut(number, "--only-clients")
    cluster.cut(alone)
    with ThreadPoolExecutor(1) as threads:
        assert isinstance(threads.submit(send).exception(60), OutcomeUnknown)
    with pytest.raises(NodeUnavailable):
        send()
    cluster.heal()
    (offset,) = until(try_send, limit_s=90)
    assert offset in (1, 2)  # the first may have been stored


def test_a_server_of_another_node_in_the_list_is_refused_by_name(
    node: str, cluster: Cluster, tmp_path: Path
) -> None:
    if cluster.kind == "group":
        pytest.skip("the other server has no TLS, so a node on MySQL does not reach it")
    assert send() == 0
    info = snapshot.find_node(node)
    (queue,) = [q.id for q in snapshot.current().queues.values() if q.node_id == info.id]
    other = mariadb.start(tmp_path, port=free_port(), password=info.password)
    try:
        other.execute(f"CREATE DATABASE {info.database} CHARACTER SET utf8mb4")
        registry.register(
            name="other",
            engine="mysql",
            host="127.0.0.1",
            port=other.port,
            database=info.database,
            username="catmq",
            password=info.password,
            actor=ACTOR,
        )
        foreign = f"127.0.0.1:{other.port}"
        with pytest.raises(
            Invalid, match=f"{foreign} does not have the data of node {node}"
        ):
            settings = {"host": f"{info.host},{foreign}"}
            registry.update(name=node, settings=settings, actor=ACTOR)
        assert DbNode.objects.get(name=node).host == info.host
        # A list that got into metadata by another way.
        DbNode.objects.filter(name=node).update(host=f"{info.host},{foreign}")
        snapshot.evict()
        with pytest.raises(NodeUnavailable):
            send()
        with pytest.raises(writers.NoWriter, match=f"{foreign} has the data of another"):
            writers.find_writer(snapshot.find_node(node))
        tables = other.execute(f"SHOW TABLES FROM {info.database}")
        assert (f"message_{queue}",) not in tables
    finally:
        DbNode.objects.filter(name=node).update(host=info.host)
        snapshot.evict()
        other.stop()
    assert send() == 1
