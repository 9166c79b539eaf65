"""A former writer still answers reads, and lacks what the next writer has stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.pool import node_pools
from messagestore.topology import membership, subscriptions
from metadata.actors import command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.errors import NodeUnavailable
from metadata.groups import groups
from metadata.membership import consumers
from tests.support.clusters import Cluster, Member
from tests.support.orders import send
from tests.support.waiting import until

ACTOR = command("test")


@contextmanager
def applying_nothing(member: Member, table: str) -> Iterator[None]:
    """Keep a member from applying what others write to a table."""
    holder = member.connect()
    try:
        holder.cursor().execute(f"LOCK TABLES {table} READ")
        yield
    finally:
        holder.close()


def test_a_consumer_is_not_sent_back_to_the_beginning(node: str, cluster: Cluster) -> None:
    (queue,) = snapshot.current().queues
    info = snapshot.find_node(node)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    consumer = consumer_ids.check(joined.consumer_id)
    (given,) = consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    positions.acquire(consumer=consumer, queues=[Claim(given.queue, given.epoch)])
    for _ in range(3):
        send()

    def pull_at(offset: int) -> PulledQueue:
        (pulled,) = pull.pull(
            consumer=consumer,
            queues=[PullQueue(queue, given.epoch, offset)],
            max_messages=10,
            max_bytes=1 << 20,
        )
        return pulled

    assert len(pull_at(0).messages) == 3
    member = node_pools.node(info.id).member
    assert member is not None
    former, successor = _members(cluster, str(member.address))
    table = f"{info.database}.queue_head"
    with applying_nothing(former, table):
        if cluster.kind == "group":
            _move_primary(successor)
        # What another broker stores there meanwhile.
        successor.execute(f"UPDATE {table} SET head = head + 4 WHERE queue_id = {queue}")
        # Galera's former writer has to apply that before it can tell; a group has another one.
        if cluster.kind == "galera":
            with pytest.raises(NodeUnavailable):
                pull_at(7)
        else:
            assert (pull_at(7).state, pull_at(8).state) == ("ok", "out_of_range")
    until(lambda: _try_state(pull_at, 7) == "ok")
    assert until(lambda: _try_state(pull_at, 8)) == "out_of_range"


def _members(cluster: Cluster, address: str) -> tuple[Member, Member]:
    members = {f"{one.host}:{one.port}": one for one in cluster.members.values()}
    former = members.pop(address)
    return former, next(iter(members.values()))


def _move_primary(successor: Member) -> None:
    ((server_id,),) = successor.execute("SELECT @@server_uuid")
    successor.execute(f"SELECT group_replication_set_as_primary('{server_id}')")


def _try_state(pull_at: object, offset: int) -> str | None:
    try:
        return str(pull_at(offset).state)  # type: ignore[operator]
    except NodeUnavailable:
        return None
