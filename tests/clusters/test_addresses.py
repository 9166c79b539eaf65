"""A node on the addresses of a cluster: its writer dies, freezes or is cut off, and sends go on
without a hand, at the next offsets.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from messagestore.engine import batch_ids
from messagestore.nodes import registry
from messagestore.pool import node_guard, writers
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable
from metadata.models import Alarm, AuditLog, DbNode
from metadata.rules.addresses import parse_addresses
from tests.support.clusters import Cluster, require_links
from tests.support.orders import send, try_send
from tests.support.waiting import until

ACTOR = command("test")
RESUME_S = 30.0


def send_until_stored() -> tuple[int, float]:
    """Send one batch again and again until it is stored. Return its offset and the seconds."""
    started_at = time.monotonic()
    batch_id = batch_ids.new()
    (offset,) = until(lambda: try_send(batch_id), limit_s=RESUME_S, every_s=0.2)
    return offset, time.monotonic() - started_at


def writer_number(cluster: Cluster) -> int:
    """Return the number of the member that this process writes to."""
    member = writers.current(snapshot.find_node("listed"))
    assert member is not None
    return next(
        number
        for number, state in cluster.members.items()
        if (state.host, state.port) == tuple(member.address)
    )


def test_the_order_of_the_list_means_nothing(node: str) -> None:
    info = snapshot.find_node(node)
    places = parse_addresses(info.host, info.port)
    chosen = set()
    for turn in range(len(places)):
        host = ",".join(map(str, (*places[turn:], *places[:turn])))
        chosen.add(writers.find_writer(replace(info, host=host)).address)
    assert len(chosen) == 1
    assert DbNode.objects.get(name=node).writer == str(*chosen)


@pytest.mark.rounds
@pytest.mark.parametrize("fault", ["kill", "freeze", "cut"])
def test_sends_go_on_at_the_next_offset_without_a_hand(
    node: str, cluster: Cluster, fault: str
) -> None:
    if fault == "cut":
        require_links(cluster)
    assert [send() for _ in range(5)] == [0, 1, 2, 3, 4]
    registry.probe()
    former = writer_number(cluster)
    getattr(cluster, fault)(former)
    offset, _ = send_until_stored()
    # Neither a gap nor an offset twice, and no quarantine of a member that is a moment late.
    assert offset == 5
    assert [send() for _ in range(3)] == [6, 7, 8]
    assert node_guard.quarantined() == {}
    assert writer_number(cluster) != former
    registry.probe()
    row = DbNode.objects.get(name=node)
    assert (row.epoch, row.quarantined) == (1, "")
    assert row.writer == str(writers.current(snapshot.find_node(node)).address)  # type: ignore[union-attr]
    assert row.writer in Alarm.objects.get(kind="node_moved", name=node).detail
    assert AuditLog.objects.filter(verb="follow", name=node).count() == 1
    # It comes back without a hand, and sends go on whether it is the writer again or not.
    cluster.await_whole()
    registry.probe()
    snapshot.refresh()
    assert send() == 9


@pytest.mark.rounds
def test_a_minority_alone_is_refused_by_name(node: str, cluster: Cluster) -> None:
    require_links(cluster)
    send()
    minority = writer_number(cluster)
    cluster.cut(minority)
    cluster.await_state(lambda members: not members[minority].primary)
    alone = cluster.members[minority]
    # A broker that reaches only the minority: a list with an address that nobody has.
    info = replace(
        snapshot.find_node(node), host=f"{alone.host}:{alone.port},{alone.host}:1"
    )
    with pytest.raises(writers.NoWriter, match=f"{alone.host}:{alone.port}"):
        writers.find_writer(info)
    with pytest.raises(NodeUnavailable):
        writers.connect(info)
