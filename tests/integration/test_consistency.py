"""Metadata against nodes: each defect is planted, found, and mended where no message can be
lost by it.
"""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from messagestore import verify
from messagestore.pool import node_pools
from messagestore.tables import audit_sql, queue_sql
from messagestore.topology import subscriptions, topics
from messagestore.verify import Finding
from messagestore.verify import check as verb
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db.clock import database_now
from metadata.errors import Conflict, Forbidden, NotFound
from metadata.groups import groups
from metadata.models import (
    Alarm,
    AuditLog,
    Broker,
    BrokerProcess,
    ConsumerGroupTopic,
    DbNode,
    Heartbeat,
    Queue,
    QueueOffset,
    Topic,
)
from tests.support import failing
from tests.support.failing import ME
from tests.support.tampering import look, plant, readers


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the second look."""
    monkeypatch.setattr("messagestore.verify.run.AGAIN_AFTER_S", 0.01)


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of topic `orders`, with two messages, which group `billing` reads."""
    queue = failing.billing()
    failing.send(b"a", b"b")
    assert verb(actor=ME).findings == ()
    return queue


@pytest.fixture
def fresh(queue: int) -> int:
    """A queue in which no message was ever stored."""
    state = topics.create(name="fresh", queues=1, node="main", actor=ME)
    snapshot.refresh()
    return state.queues[0].queue.queue


def found() -> Finding:
    """The only finding."""
    (one,) = verb(actor=ME).findings
    return one


def mended(one: Finding) -> None:
    """Repairs it; it is gone then, and audited."""
    assert one.safe
    verify.repair(key=one.key, actor=ME)
    assert verb(actor=ME).findings == ()
    row = AuditLog.objects.get(verb="repair")
    assert (row.kind, row.name, row.before) == (
        "finding",
        one.kind,
        {"where": one.where, "what": one.what},
    )


def refused(one: Finding) -> None:
    """No repair is offered, and none is made by hand."""
    assert not one.safe
    with pytest.raises(Conflict, match="cannot be repaired safely"):
        verify.repair(key=one.key, actor=ME)
    assert AuditLog.objects.filter(verb="repair").count() == 0


def test_a_missing_table_is_made_if_no_message_was_ever_stored(fresh: int) -> None:
    plant(fresh, "DROP TABLE message_{q}")
    one = found()
    assert (one.kind, one.ids, "ever stored" in one.what) == (
        "table_missing",
        (fresh,),
        True,
    )
    mended(one)
    assert look(fresh, "SELECT COUNT(*) FROM message_{q}") in ([(0,)], ((0,),))


def test_a_missing_table_that_held_messages_is_not_hidden_by_an_empty_one(
    queue: int,
) -> None:
    plant(queue, "DROP TABLE message_{q}")
    one = found()
    assert (one.kind, one.what) == ("table_missing", "its log end offset was 2")
    refused(one)
    assert "restore the table" in one.advice


def test_a_table_without_a_queue_is_dropped_only_if_it_never_held_a_message(
    queue: int,
) -> None:
    with node_pools.node_of(queue).writing() as session:
        queue_sql.create_queue(session, queue=900, node_epoch=1)
    one = found()
    assert (one.kind, one.ids) == ("table_unknown", (900,))
    mended(one)
    with node_pools.node_of(queue).reading() as session:
        assert 900 not in audit_sql.list_message_tables(
            session
        ) and 900 not in queue_sql.read_heads(session, queues=None)


@pytest.mark.parametrize("left", ["rows", "head"])
def test_a_table_without_a_queue_that_may_hold_messages_stays(
    queue: int, left: str
) -> None:
    with node_pools.node_of(queue).writing() as session:
        queue_sql.create_queue(session, queue=900, node_epoch=1)
    if left == "rows":
        plant(
            queue, "DROP TABLE message_900", "ALTER TABLE message_{q} RENAME TO message_900"
        )
        Queue.objects.filter(pk=queue).update(state="retired")
        snapshot.refresh()
    else:
        plant(queue, "UPDATE queue_head SET head = 5 WHERE queue_id = 900")
    one = found()
    assert (one.kind, one.ids) == ("table_unknown", (900,))
    refused(one)
    with node_pools.node_of(queue).reading() as session:
        assert 900 in audit_sql.list_message_tables(session)


def test_a_message_that_comes_before_the_drop_is_kept(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_pools.node_of(queue).writing() as session:
        queue_sql.create_queue(session, queue=900, node_epoch=1)
    one = found()
    real = queue_sql.set_queue_state

    def meanwhile(session: object, *, queue: int, state: str) -> None:
        plant(queue, f"UPDATE queue_head SET head = 1 WHERE queue_id = {queue}")
        real(session, queue=queue, state=state)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_sql, "set_queue_state", meanwhile)
    monkeypatch.setattr(node_pools, "node_of", lambda _queue: node_pools.node(one.node))
    with pytest.raises(Conflict, match="holds messages now"):
        verify.repair(key=one.key, actor=ME)


def test_a_missing_head_and_one_that_fell_are_for_verify(fresh: int, queue: int) -> None:
    plant(fresh, "DELETE FROM queue_head WHERE queue_id = {q}")
    Queue.objects.filter(pk=queue).update(head_seen=5)
    missing, fell = sorted(verb(actor=ME).findings, key=lambda one: one.kind, reverse=True)
    assert (missing.kind, missing.ids) == ("head_missing", (fresh,))
    assert (fell.kind, fell.what) == ("head_fell", "the log end offset is 2; it was 5")
    for one in (missing, fell):
        refused(one)
        assert "verify" in one.advice


@pytest.mark.parametrize(("head", "safe"), [(0, True), (7, False)])
def test_a_head_row_without_queue_and_table_goes_if_nothing_was_stored(
    queue: int, head: int, safe: bool
) -> None:
    with node_pools.node_of(queue).writing() as session:
        queue_sql.create_queue(session, queue=900, node_epoch=1)
    plant(
        queue,
        "DROP TABLE message_900",
        f"UPDATE queue_head SET head = {head} WHERE queue_id = 900",
    )
    one = found()
    assert one.kind == "head_unknown"
    (mended if safe else refused)(one)


def test_positions_of_a_subscription_that_is_gone_are_forgotten_and_others_stay(
    queue: int,
) -> None:
    groups.create(name="other", actor=ME)
    subscriptions.create(group="other", topic="orders", start="latest", actor=ME)
    snapshot.refresh()
    before = readers(queue)
    columns = "group_id, instance, queue_id, epoch, owner, committed, rewinds"
    plant(queue, f"INSERT INTO reader ({columns}) VALUES (4711, '', {{q}}, 5, '', 1, 0)")
    one = found()
    assert (one.kind, one.group, one.ids) == ("readers_unknown", 4711, (queue,))
    mended(one)
    assert readers(queue) == before


def test_positions_in_metadata_without_a_subscription_are_dropped(fresh: int) -> None:
    group = groups.describe(name="billing", actor=ME).id
    QueueOffset.objects.create(group_id=group, queue_id=fresh)
    one = found()
    assert (one.kind, one.ids) == ("position_unknown", (fresh,))
    mended(one)
    assert not QueueOffset.objects.filter(queue=fresh).exists()


def test_a_queue_that_a_group_lost_in_metadata_is_read_again_where_it_was(
    queue: int,
) -> None:
    group = groups.describe(name="billing", actor=ME).id
    QueueOffset.objects.filter(group=group, queue=queue).delete()
    one = found()
    assert (one.kind, one.ids) == ("position_missing", (queue,))
    before = readers(queue)
    mended(one)
    assert readers(queue) == before
    assert queue in failing.member().owned


def test_a_failure_topic_that_is_missing_is_made_and_one_that_is_left_stays(
    queue: int,
) -> None:
    topic = Topic.objects.get(kind="failure")
    ConsumerGroupTopic.objects.filter(topic=topic).delete()
    QueueOffset.objects.filter(queue__topic=topic).delete()
    Topic.objects.filter(pk=topic.pk).update(
        failure_of=None, failure_group=None, name="old_fail"
    )
    snapshot.refresh()
    kinds = {one.kind: one for one in verb(actor=ME).findings}
    assert set(kinds) >= {"failure_topic_missing", "failure_topic_unknown"}
    refused(kinds["failure_topic_unknown"])
    verify.repair(key=kinds["failure_topic_missing"].key, actor=ME)
    assert (
        Topic.objects.get(kind="failure", failure_of__isnull=False).name
        == "billing_orders_fail"
    )


def test_members_without_a_heartbeat_get_one_and_silent_ones_are_named(queue: int) -> None:
    failing.member("one")
    failing.member("two")
    first, second = Heartbeat.objects.order_by("pk")
    Heartbeat.objects.filter(pk=second.pk).update(
        last_seen=database_now() - timedelta(hours=1)
    )
    silent = found()
    assert (silent.kind, silent.ids) == ("member_silent", (second.pk,))
    refused(silent)
    Heartbeat.objects.filter(pk=second.pk).update(last_seen=database_now())
    Heartbeat.objects.filter(pk=first.pk).delete()
    mended(found())
    assert Heartbeat.objects.filter(pk=first.pk).exists()


def test_a_node_with_other_data_is_named_and_nothing_else_is_said_of_it(queue: int) -> None:
    plant(
        queue,
        "UPDATE node_identity SET identity = 'somebody-else'",
        "DROP TABLE message_{q}",
    )
    one = found()
    assert one.kind == "identity_differs" and "somebody-else" in one.what
    refused(one)


def test_a_worker_that_does_not_follow_metadata_is_named(queue: int) -> None:
    now = database_now()
    broker = Broker.objects.create(
        name="b1", url="http://b1", started_at=now, last_seen=now
    )
    BrokerProcess.objects.create(broker=broker, name="b1/7", acknowledged=1, last_seen=now)
    one = found()
    assert (one.kind, one.where) == ("worker_behind", "b1/7")
    refused(one)


def test_a_node_that_is_away_is_said_to_be_unchecked(queue: int, fresh: int) -> None:
    DbNode.objects.filter(name="main").update(
        database="/nowhere/at/all", host="127.0.0.1", port=1
    )
    snapshot.evict()
    report = verb(actor=ME)
    assert list(report.unchecked) == ["main"] and report.findings == ()


def test_what_is_only_under_way_is_not_found(
    fresh: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(fresh, "DROP TABLE message_{q}")
    one = found()
    with node_pools.node_of(fresh).writing() as session:
        queue_sql.create_queue(session, queue=fresh, node_epoch=1)
    with pytest.raises(NotFound, match="no longer found"):
        verify.repair(key=one.key, actor=ME)
    Queue.objects.filter(pk=fresh).update(state="creating")
    plant(fresh, "DROP TABLE message_{q}")
    assert verb(actor=ME).findings == ()  # a queue that is being made


def test_only_administrators_check_and_repair(queue: int) -> None:
    olga = Actor(kind="user", name="olga", rights={"manage": ["*"]})
    with pytest.raises(Forbidden):
        verb(actor=olga)
    with pytest.raises(Forbidden):
        verify.repair(key="x", actor=olga)


def test_the_job_raises_an_alarm_and_ends_it(fresh: int) -> None:
    plant(fresh, "DROP TABLE message_{q}")
    assert verify.watch(actor=ME) == 1
    assert Alarm.objects.get(ended_at=None).name == "table_missing"
    verify.repair(key=found().key, actor=ME)
    assert verify.watch(actor=ME) == 1
    assert not Alarm.objects.filter(ended_at=None).exists()


def test_the_command_lists_repairs_and_tells_by_its_exit_code(
    fresh: int, queue: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = StringIO()
    call_command("consistency", stdout=out)
    assert out.getvalue() == "Metadata and the nodes agree.\n"
    plant(fresh, "DROP TABLE message_{q}")
    Queue.objects.filter(pk=queue).update(head_seen=5)
    with pytest.raises(CommandError, match="2 findings") as caught:
        call_command("consistency", stdout=out)
    assert caught.value.returncode == 1 and "--repair table_missing-" in out.getvalue()
    with pytest.raises(CommandError, match="1 findings"):
        call_command("consistency", "--repair-all", stdout=out)
    assert "Repaired table_missing-" in out.getvalue()
