"""Commits wait for no writer, although they read the head row that a writer holds."""

from __future__ import annotations

from uuid import uuid4

from messagestore.consume import positions
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.engine.messages import NewMessage
from messagestore.engine.mysql_session import MySqlSession
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.topology import membership, subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.groups import groups
from metadata.membership import consumers

ACTOR = actors.command("test")


def test_a_commit_does_not_wait_for_a_send_that_holds_the_head(node: str) -> None:
    queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    publish(
        topic="orders", messages=[NewMessage(body=b"x")] * 5, batch_id=None, actor=ACTOR
    )
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    member = consumer_ids.check(joined.consumer_id)
    (claim,) = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    positions.acquire(consumer=member, queues=[Claim(queue, claim.epoch)])
    writer = session_pool.connect(node_pools.node_of(queue).info)
    assert isinstance(writer, MySqlSession)
    try:
        writer.send(
            b"START TRANSACTION; UPDATE queue_head SET head = head + 1 WHERE queue_id = %d"
            % queue,
            statements=2,
            ends_transaction=False,
        )
        done = positions.commit(
            consumer=member, offsets=[CommitOffset(queue, claim.epoch, 3)]
        )
        assert [(one.state, one.handled) for one in done] == [("ok", 3)]
    finally:
        writer.close()
