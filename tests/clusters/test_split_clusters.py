"""Clusters that were split: in two equal halves, and by an operator who made a member with old
data a cluster of its own. Each has a cluster of its own, because some never join again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore.inspect import raise_alarms
from messagestore.nodes import registry
from messagestore.pool import node_guard, writers
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable, OutcomeUnknown
from tests.support import clusters
from tests.support.clusters import Cluster, Member
from tests.support.orders import send, try_send
from tests.support.waiting import until

pytestmark = pytest.mark.rounds
ACTOR = command("test")


@pytest.fixture(params=["galera", "group"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of the test's own, with three members."""
    with (
        tempfile.TemporaryDirectory(prefix=f"catmq-{request.param}-") as directory,
        clusters.running(request.param, Path(directory, "cluster")) as own,
    ):
        clusters.require_links(own)
        yield own


def count(member: Member) -> int:
    """Return the number of messages on a member."""
    info = snapshot.find_node("listed")
    (queue,) = [q.id for q in snapshot.current().queues.values() if q.node_id == info.id]
    (row,) = member.execute(f"SELECT COUNT(*) FROM {info.database}.message_{queue}")
    return int(row[0])


def make_a_cluster_of_its_own(cluster: Cluster, member: Member) -> None:
    """Do what an operator does who takes a member for the last that is left."""
    if cluster.kind == "galera":
        member.execute("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
    else:
        member.execute(
            f"SET GLOBAL group_replication_force_members = '{member.group_host}:33061'"
        )
    cluster.await_state(lambda members: members[member.member].writer)


def test_two_equal_halves_are_both_refused_and_go_on_when_they_are_one_again(
    node: str, cluster: Cluster
) -> None:
    third = next(
        number for number, m in cluster.members.items() if not m.writer or number > 1
    )
    cluster.stop(third)
    cluster.await_state(
        lambda members: sum(m.size == 2 and m.primary for m in members.values()) == 2
    )
    (offset,) = until(try_send, limit_s=60)
    halves = [m for m in cluster.members.values() if m.member != third]
    cluster.cut(halves[0].member)
    cluster.await_state(
        lambda members: not any(members[half.member].primary for half in halves)
    )
    registry.probe()  # as every worker does, or a send on a former connection is unknown
    with pytest.raises(NodeUnavailable):
        send()
    with pytest.raises(writers.NoWriter) as refused:
        writers.find_writer(snapshot.find_node(node))
    for half in halves:
        assert f"{half.host}:{half.port} has no contact to a majority" in str(refused.value)
    # The alarm says so, too, with the addresses.
    assert str(refused.value) in raise_alarms.find_nodes_away().active[node]
    cluster.heal()
    (resumed,) = until(try_send, limit_s=90)
    assert resumed == offset + 1
    assert raise_alarms.find_nodes_away().active == {}
    assert snapshot.find_node(node).id not in node_guard.quarantined()


def test_a_member_with_old_data_that_is_a_cluster_of_its_own_is_refused_by_name(
    node: str, cluster: Cluster
) -> None:
    assert [send() for _ in range(5)] == [0, 1, 2, 3, 4]
    old = next(
        m for m in cluster.members.values() if m.member != cluster.find_written().member
    )
    until(lambda: count(old) == 5)
    cluster.cut(old.member)
    cluster.await_state(lambda members: not members[old.member].primary)
    stored = [send() for _ in range(5)]
    assert stored == [5, 6, 7, 8, 9]
    make_a_cluster_of_its_own(cluster, old)
    # Brokers reach all members: none is chosen, since both parts may have other data.
    with pytest.raises(writers.NoWriter, match="in separate parts of one cluster"):
        writers.find_writer(snapshot.find_node(node))
    # Brokers reach only the member with old data: its log end offset is too low.
    for member in cluster.members:
        if member != old.member:
            cluster.cut(member, "--only-clients")
    with pytest.raises((NodeUnavailable, OutcomeUnknown)):
        send()

    node_id = snapshot.find_node(node).id

    def is_quarantined() -> bool:
        try_send()
        return node_id in node_guard.quarantined()

    until(is_quarantined, limit_s=60)
    _epoch, why = node_guard.quarantined()[node_id]
    assert "has log end offset 5, but it was 10 before" in why
    assert count(old) == 5
