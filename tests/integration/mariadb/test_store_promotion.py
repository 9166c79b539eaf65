"""Two real servers in GTID replication: pulls from the replica, a planned move, a promotion
without tail.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from messagestore.consume import positions, pull
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.nodes import promotion, promotion_plans, registry
from messagestore.pool import node_pools, session_pool
from messagestore.produce.publish import publish
from messagestore.tables import promotion_sql
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import command
from metadata.brokers import registration, snapshot_acks
from metadata.brokers.snapshot_acks import SnapshotAck
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Conflict, Invalid, NodeUnavailable, Unavailable
from metadata.groups import groups
from metadata.membership import consumers
from metadata.models import DbNode
from tests.support import forms
from tests.support.mariadb import MariaDB
from tests.support.replication import await_caught_up, follow
from tests.support.waiting import until

ACTOR = command("test")


class Place(NamedTuple):
    """A queue on node `moving`, in this schema, with ten messages that the replica has too."""

    queue: int
    schema: str


@pytest.fixture
def place(ill: MariaDB, replica: MariaDB, make_node: Callable[..., str]) -> Iterator[Place]:
    """Topic `orders`, read by group `billing`."""
    with ill.schema() as schema:
        account = {
            "host": "127.0.0.1",
            "port": ill.port,
            "username": "catmq",
            "password": ill.password,
        }
        make_node("moving", engine="mysql", database=schema, **account)
        made = topics.create(name="orders", queues=1, actor=ACTOR)
        groups.create(name="billing", actor=ACTOR)
        subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
        snapshot.refresh()
        send(10)
        await_caught_up(replica, ill)
        yield Place(made.queues[0].queue.queue, schema)
        node_pools.evict_all()
        ill.execute("SET GLOBAL read_only = 0")


def send(count: int = 1) -> list[Any]:
    messages = [NewMessage(body=b"%d" % index) for index in range(count)]
    return publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def reader(queue: int, name: str = "one") -> tuple[ConsumerId, int]:
    """A member that has acquired the queue, and its epoch."""
    joined = membership.join(
        group="billing", name=name, incarnation=str(uuid4()), actor=ACTOR
    )
    member = consumer_ids.check(joined.consumer_id)
    (assigned,) = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    claim = Claim(queue, assigned.epoch)
    assert positions.acquire(consumer=member, queues=[claim])[0].state == "ok"
    return member, assigned.epoch


def pulled(member: ConsumerId, queue: int, epoch: int, offset: int) -> PulledQueue:
    asked = [PullQueue(queue, epoch, offset)]
    return pull.pull(consumer=member, queues=asked, max_messages=100, max_bytes=1 << 20)[0]


def promote(replica: MariaDB, **more: Any) -> promotion.Outcome:
    done = promotion.promote(
        name="moving", host="127.0.0.1", port=replica.port, actor=ACTOR, **more
    )
    snapshot.refresh()
    return done


def test_pulls_go_on_from_the_replica_while_the_node_is_away_and_nothing_else_does(
    watched: None, place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    there = {"replica_host": "127.0.0.1", "replica_port": replica.port}
    registry.update(name="moving", settings=there, actor=ACTOR)
    snapshot.refresh()
    member, epoch = reader(place.queue)
    await_caught_up(replica, ill)
    os.kill(ill.pid, signal.SIGSTOP)
    try:
        until(lambda: _is_served(member, place.queue, epoch), limit_s=20)
        answer = pulled(member, place.queue, epoch, 4)
        assert (answer.state, answer.stale) == ("ok", True)
        assert [one.offset for one in answer.messages] == [4, 5, 6, 7, 8, 9]
        # read from the node before it went away
        ahead = pulled(member, place.queue, epoch, 12)
        assert (ahead.state, ahead.messages, ahead.next_offset) == ("ok", [], 12)
        with pytest.raises(NodeUnavailable):
            positions.commit(consumer=member, offsets=[CommitOffset(place.queue, epoch, 5)])
        with pytest.raises(NodeUnavailable):
            pulled(member, place.queue, epoch - 1, 0)  # not what metadata granted
        consumers.leave(consumer=member, actor=ACTOR)
        with pytest.raises(NodeUnavailable):
            # its reader row on the replica still names it
            pulled(member, place.queue, epoch, 0)
    finally:
        os.kill(ill.pid, signal.SIGCONT)


def _is_served(member: ConsumerId, queue: int, epoch: int) -> bool:
    """Return True if the replica answers; a node that is only slow is not waited for, which
    is ok, too.
    """
    try:
        found = pulled(member, queue, epoch, 0)
        return found.state == "ok" and found.stale
    except NodeUnavailable:
        return False


def test_a_planned_move_loses_nothing_and_closes_the_old_primary(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    member, epoch = reader(place.queue)
    done = promote(replica)
    assert (done.state, done.epoch, done.gaps, done.messages) == ("read_write", 2, 0, 0)
    assert ill.execute("SELECT @@read_only")[0][0] == 1
    closed = ill.execute(f"SELECT state, node_epoch FROM {place.schema}.queue_head")
    assert closed == [("ro", 2)]
    assert [one.offset for one in send(3)] == [10, 11, 12]
    assert len(pulled(member, place.queue, epoch, 0).messages) == 13
    ill.execute("SET GLOBAL read_only = 0")
    follow(replica, ill)


def test_the_portal_says_what_a_promotion_would_do_and_then_does_it(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    there = {"replica_host": "127.0.0.1", "replica_port": replica.port}
    registry.update(name="moving", settings=there, actor=ACTOR)
    plan = promotion_plans.promote(name="moving", actor=ACTOR)
    assert (plan.target, plan.primary_answers, plan.copies) == (
        f"127.0.0.1:{replica.port}",
        True,
        True,
    )
    assert (plan.queues, plan.gaps, plan.messages, plan.lost) == (1, 0, 0, ())
    ada = forms.browser("ada", administrator=True)
    seen = forms.filled(ada, "/nodes/moving/promote")
    assert "no messages would be lost" in forms.text(
        seen
    ) and "The old primary answers" in forms.text(seen)
    assert DbNode.objects.get().epoch == 1
    said = forms.text(forms.confirm(ada, "/nodes/moving/promote", seen))
    assert "in service with epoch 2. No messages were lost." in said
    snapshot.refresh()
    assert (DbNode.objects.get().port, DbNode.objects.get().replica_host) == (
        replica.port,
        "",
    )
    assert [one.offset for one in send(1)] == [10]
    ill.execute("SET GLOBAL read_only = 0")
    follow(replica, ill)


def test_a_promotion_without_the_tail_skips_nothing_silently(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    member, epoch = reader(place.queue)
    await_caught_up(replica, ill)
    replica.execute("STOP REPLICA")
    send(5)
    assert pulled(member, place.queue, epoch, 0).next_offset == 15
    registry.note_heads()
    registry.note_heads()
    os.kill(ill.pid, signal.SIGKILL)
    plan = promotion_plans.promote(
        name="moving", host="127.0.0.1", port=replica.port, actor=ACTOR
    )
    assert (plan.primary_answers, plan.gaps, plan.messages) == (False, 1, 5)
    done = promote(replica)
    assert (done.state, done.gaps, done.messages, done.lost) == (
        "read_write",
        1,
        5,
        plan.lost,
    )
    assert [(one.group, one.messages) for one in done.lost] == [("billing", 5)]
    refilled = [one.offset for one in send(20)]  # past the old head, before anybody looks
    told = pulled(member, place.queue, epoch, 15)
    assert (told.state, told.next_offset) == ("lost_tail", refilled[0])
    assert [
        one.offset for one in pulled(member, place.queue, epoch, refilled[0]).messages
    ] == refilled
    assert [one.offset for one in pulled(member, place.queue, epoch, 0).messages] == list(
        range(10)
    )
    commit = positions.commit(
        consumer=member, offsets=[CommitOffset(place.queue, epoch, refilled[-1] + 1)]
    )
    assert commit[0].state == "ok"
    ill.start()
    follow(replica, ill)


def test_a_dead_primary_is_left_only_when_every_live_broker_has_let_go_of_it(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    life = registration.BrokerIdentity("b1", "http://127.0.0.1:1", "test", str(uuid4()))
    registration.heartbeat(identity=life, held=False)
    SnapshotAck("b1/1").acknowledge(identity=life, change=snapshot.current().version[1])
    replica.execute("STOP REPLICA")
    send(3)
    os.kill(ill.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="b1/1") as caught:
        promote(replica, patience_s=0.3)
    assert "--i-know-it-is-dead" in caught.value.detail
    assert DbNode.objects.get().state == "offline"
    snapshot.refresh()
    assert node_pools.drop_outdated()
    registry.report_heads()  # with what it says, the promotion knows what is missing
    SnapshotAck("b1/1").acknowledge(identity=life, change=snapshot.current().version[1])
    assert snapshot_acks.find_late_workers(snapshot.current().version[1]) == []
    # another worker, which is behind
    SnapshotAck("b1/2").acknowledge(identity=life, change=0)
    with pytest.raises(Unavailable, match="b1/2"):
        promote(replica, patience_s=0.3)
    done = promote(replica, known_dead=True)
    assert (done.state, done.messages) == ("read_write", 3)
    send()
    ill.start()
    follow(replica, ill)


def test_a_replica_that_lacks_what_a_living_primary_holds_is_not_promoted(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    replica.execute("STOP REPLICA")
    send(2)
    with pytest.raises(Conflict, match="has messages that the replica lacks"):
        promote(replica, patience_s=0.3)
    snapshot.refresh()
    ill.execute("SET GLOBAL read_only = 0")
    done = promotion.adopt(name="moving", actor=ACTOR)  # back to the old one
    snapshot.refresh()
    assert done.state == "read_write"
    send()
    follow(replica, ill)


def test_a_replica_has_caught_up_when_workers_have_applied_what_it_received(
    place: Place, ill: MariaDB, replica: MariaDB
) -> None:
    there = replace(snapshot.find_node("moving"), port=replica.port)
    with (
        closing(replica.connect(db=place.schema)) as holding,
        session_pool.direct(there) as session,
    ):
        holding.autocommit(False)
        holding.cursor().execute("SELECT * FROM queue_head FOR UPDATE")
        send()
        waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        # the server looks no more often
        until(lambda: replica.execute(waiting) == [(1,)], every_s=0.15)
        assert promotion_sql.read_replication(session).threads > 1
        promotion_sql.stop_receiving(session)
        assert not promotion_sql.read_replication(session).caught_up
        holding.rollback()
        until(lambda: promotion_sql.read_replication(session).caught_up)
    replica.execute("START REPLICA")


def test_nonsense_is_refused_before_anything_happens(
    place: Place, ill: MariaDB, replica: MariaDB, node: str
) -> None:
    with pytest.raises(Invalid, match="metadata knows no replica"):
        promotion.promote(name="moving", actor=ACTOR)
    with pytest.raises(Invalid, match="adopt_restored_node"):
        promotion.promote(name="moving", host="127.0.0.1", port=ill.port, actor=ACTOR)
    other = session_pool.connect(replace(snapshot.find_node("moving"), port=replica.port))
    other.close()
    replica.execute(f"UPDATE {place.schema}.node_identity SET identity = 'x'")
    with pytest.raises(Invalid, match="the data of another node"):
        promote(replica)
    assert DbNode.objects.get(name="moving").epoch == 1
    replica.execute(
        f"UPDATE {place.schema}.node_identity SET identity = %s",
        [DbNode.objects.get(name="moving").identity],
    )
