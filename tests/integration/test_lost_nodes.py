"""A node whose database was restored from a backup: detected, adopted, and no offset is
given twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from brokerapi.http import health
from catmq_site.management import outcomes
from messagestore import verify
from messagestore.consume import group_lag, positions, pull
from messagestore.consume.positions import Acquired, Claim, CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.inspect import raise_alarms
from messagestore.nodes import promotion, registry, replica_inspection
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import node_sql
from messagestore.topology import membership, queues, subscriptions, topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.changes import record_change
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    Forbidden,
    Invalid,
    NodeUnavailable,
    OutcomeUnknown,
    StoreCorrupt,
)
from metadata.groups import groups
from metadata.membership import consumers
from metadata.models import AuditLog, DbNode, Queue
from metadata.nodes import failovers
from tests.support import restoring
from tests.support.tampering import look, plant

ACTOR = command("test")
JUMP = replica_inspection.JUMP


@pytest.fixture
def queue(node: str) -> int:
    """The only queue of topic `orders`, with six messages and four, read by group
    `billing`.
    """
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    made = state.queues[0].queue.queue
    send(6)
    send(4)
    return made


def send(count: int = 1) -> list[Any]:
    messages = [NewMessage(body=b"%d" % index) for index in range(count)]
    return publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def reader(queue: int) -> tuple[ConsumerId, int]:
    """A member that has acquired the queue, and its epoch."""
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    member = consumer_ids.check(joined.consumer_id)
    (assigned,) = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    claim = Claim(queue, assigned.epoch)
    assert positions.acquire(consumer=member, queues=[claim])[0].state == "ok"
    return member, assigned.epoch


def pulled(member: ConsumerId, queue: int, epoch: int, offset: int) -> PulledQueue:
    asked = [PullQueue(queue, epoch, offset)]
    return pull.pull(consumer=member, queues=asked, max_messages=100, max_bytes=1 << 20)[0]


def adopt() -> promotion.Outcome:
    done = promotion.adopt(name="main", actor=ACTOR)
    snapshot.refresh()
    return done


def test_a_node_whose_head_went_back_is_not_served_and_that_is_told_to_all(
    queue: int,
) -> None:
    restoring.lose_tail(queue, 6)
    with pytest.raises(NodeUnavailable) as caught:
        send()
    assert (
        f"queue {queue} has log end offset 6, but it was 10 before" in caught.value.detail
    )
    assert "adopt_restored_node main" in caught.value.detail
    registry.probe()
    snapshot.refresh()
    assert "has log end offset 6" in DbNode.objects.get().quarantined
    assert AuditLog.objects.filter(verb="quarantine", name="main").count() == 1
    state = health.readiness()
    assert state.status == "unready"
    assert any("node main is not served" in one for one in state.because)


def test_metadata_restored_to_before_an_adoption_is_reported_with_its_remedy(
    queue: int,
) -> None:
    adopt()
    with transaction.atomic():
        row = DbNode.objects.get()
        DbNode.objects.update(epoch=row.epoch - 1)  # as a backup of metadata has it
        record_change("node", row.pk)
    snapshot.refresh()
    with pytest.raises(NodeUnavailable, match=r"takes no writes.*adopt_restored_node main"):
        send()
    registry.probe()
    state = health.readiness()
    assert state.status == "degraded"
    assert ["adopt_restored_node main" in one for one in state.because] == [True]
    assert [*raise_alarms.find_nodes_away().active] == ["main"]
    adopt()
    assert send()[0].offset >= 10
    registry.probe()
    assert health.readiness().status == "ok"
    assert raise_alarms.find_nodes_away().active == {}


@pytest.mark.parametrize("rows", ["keep", "drop"])
def test_messages_of_a_queue_that_the_backup_does_not_have_are_kept_or_dropped_by_choice(
    queue: int, rows: str
) -> None:
    """The restored backup leaves the table of the queue, and has no rows about it."""
    plant(
        queue,
        "DELETE FROM queue_head WHERE queue_id = {q}",
        "DELETE FROM reader WHERE queue_id = {q}",
        "DELETE FROM sent_batch WHERE queue_id = {q}",
    )
    node_pools.evict_all()
    with pytest.raises(Conflict, match=r"10 messages of them.*--rows keep.*--rows drop"):
        adopt()
    assert DbNode.objects.get().state == "read_write", (
        "nothing is changed before the choice"
    )
    promotion.adopt(name="main", rows=rows, actor=ACTOR)
    snapshot.refresh()
    gaps = look(queue, "SELECT from_offset FROM queue_gap WHERE queue_id = {q}")
    stored = look(queue, "SELECT COUNT(*) FROM message_{q}")
    assert (gaps, stored) == (([(10,)], [(10,)]) if rows == "keep" else ([(0,)], [(0,)]))
    assert send()[0].offset >= 10


def test_an_adoption_that_ended_before_it_placed_a_head_may_be_repeated(queue: int) -> None:
    """It had made the head row anew, over messages that the backup does not know."""
    plant(queue, "UPDATE queue_head SET head = 0, low = 0 WHERE queue_id = {q}")
    node_pools.evict_all()
    promotion.adopt(name="main", rows="keep", actor=ACTOR)
    snapshot.refresh()
    assert look(queue, "SELECT from_offset FROM queue_gap WHERE queue_id = {q}") == [(10,)]
    assert send()[0].offset >= 10


def test_a_backup_that_is_restored_under_open_connections_is_found_by_the_next_probe(
    queue: int,
) -> None:
    registry.probe()
    restoring.lose_tail(queue, 6, connected=True)
    registry.probe()
    snapshot.refresh()
    assert "has log end offset 6, but it was 10 before" in DbNode.objects.get().quarantined


def test_a_send_into_a_restored_backup_is_in_doubt_and_found_when_the_node_was_adopted(
    queue: int,
) -> None:
    member, epoch = reader(queue)
    assert send()[0].offset == 10
    restoring.lose_tail(queue, 6, connected=True)
    batch_id = batch_ids.new()
    given: dict[str, Any] = {
        "topic": "orders",
        "messages": [NewMessage(body=b"kept")],
        "actor": ACTOR,
    }
    with pytest.raises(OutcomeUnknown, match="has log end offset 6, but it was 11 before"):
        publish(**given, batch_id=batch_id)
    with pytest.raises(NodeUnavailable, match="adopt_restored_node main"):
        send()
    adopt()
    assert publish(**given, batch_id=batch_id)[0].offset == 6
    assert send()[0].offset >= 7 + JUMP
    assert pulled(member, queue, epoch, 6).messages[0].body == b"kept"


def test_a_process_that_has_just_started_knows_the_heads_from_metadata(queue: int) -> None:
    registry.note_heads()
    registry.note_heads()  # what was still there a minute later counts
    assert Queue.objects.get().head_seen == 10
    node_pools.evict_all()
    restoring.evict_known_heads()
    snapshot.evict()
    assert send()[0].offset == 10
    restoring.lose_tail(queue, 6)
    restoring.evict_known_heads()
    with pytest.raises(NodeUnavailable, match="has log end offset 6, but it was 10 before"):
        send()


def test_a_head_that_was_noted_but_never_seen_again_bars_nothing(queue: int) -> None:
    registry.note_heads()
    restoring.lose_tail(queue, 6)  # a crash took back what was not on the disk
    restoring.evict_known_heads()
    snapshot.evict()
    assert send()[0].offset == 6
    registry.note_heads()
    assert Queue.objects.get().head_seen == 7


def test_an_adopted_node_gives_no_offset_twice_and_consumers_are_told(queue: int) -> None:
    member, epoch = reader(queue)
    assert len(pulled(member, queue, epoch, 0).messages) == 10
    restoring.lose_tail(queue, 6)
    with pytest.raises(NodeUnavailable):
        send()
    done = adopt()
    assert (done.state, done.epoch, done.gaps) == ("read_write", 2, 1)
    first = send()[0].offset
    assert first >= 6 + JUMP
    told = pulled(member, queue, epoch, 8)
    assert (told.state, told.next_offset, told.gap) == ("lost_tail", first, (8, first))
    assert [one.offset for one in pulled(member, queue, epoch, first).messages] == [first]
    assert len(pulled(member, queue, epoch, 0).messages) == 6, (
        "what is left of the old ones is dense"
    )
    assert health.readiness().status == "ok"


def test_what_a_group_had_read_when_its_lag_was_recorded_is_not_called_unread(
    queue: int,
) -> None:
    member, epoch = reader(queue)
    positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, 8)])
    with node_pools.node_of(queue).reading() as session:
        before = node_sql.now_ms(session)
    group_lag.record()
    registry.note_heads()
    registry.note_heads()
    restoring.lose_tail(queue, 6)
    done = adopt()
    (lost,) = done.lost
    assert (done.messages, lost.messages) == (4, 2)
    assert lost.as_of_ms is not None and lost.as_of_ms >= before
    shown = datetime.fromtimestamp(lost.as_of_ms / 1000, UTC).strftime(
        "%Y-%m-%d %H:%M:%S UTC"
    )
    line = f"group billing had not read 2 of them in orders, queue {queue}, as of {shown}"
    assert outcomes.describe_outcome(done)[-1].strip() == line


def test_what_groups_lost_is_reported_and_lag_counts_no_gap(queue: int) -> None:
    member, epoch = reader(queue)
    positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, 3)])
    registry.note_heads()
    registry.note_heads()
    restoring.lose_tail(queue, 6)
    done = adopt()
    assert done.messages == 4
    assert [(one.group, one.queue, one.messages) for one in done.lost] == [
        ("billing", queue, 4)
    ]
    row = AuditLog.objects.get(verb="adopt", kind="node")
    assert row.after[f"lost billing/orders/{queue}"] == 4  # type: ignore[index]
    assert done.lost[0].as_of_ms is None, "nobody has looked"
    send(2)
    (behind,) = group_lag.group_offsets(group="billing", actor=ACTOR)
    assert behind.lag == 3 + 2


def test_a_group_that_stands_in_a_gap_has_read_everything(queue: int) -> None:
    member, epoch = reader(queue)
    positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, 10)])
    restoring.lose_tail(queue, 6)
    adopt()
    (behind,) = group_lag.group_offsets(group="billing", actor=ACTOR)
    assert (behind.lag, behind.lag_ms) == (0, 0)


def test_an_epoch_that_a_backup_does_not_know_is_raised_and_its_owner_comes_back(
    queue: int,
) -> None:
    member, epoch = reader(queue)
    plant(
        queue,
        f"UPDATE reader SET epoch = {epoch - 1}, owner = 'earlier' WHERE queue_id = {queue}",
    )
    adopt()
    assert pulled(member, queue, epoch, 0).state == "fenced"
    assert (
        positions.acquire(consumer=member, queues=[Claim(queue, epoch)])[0].state
        == "fenced"
    )
    (again,) = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    assert again.epoch > epoch
    granted = positions.acquire(consumer=member, queues=[Claim(queue, again.epoch)])
    assert granted == [Acquired(queue, "ok", 0)]


def test_a_broker_with_an_older_picture_cannot_write_to_an_adopted_node(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = snapshot.current()
    promotion.adopt(name="main", actor=ACTOR)
    monkeypatch.setattr(snapshot._holder, "snapshot", old)
    monkeypatch.setattr(snapshot, "refresh", lambda: False)
    with pytest.raises(CatmqError) as caught:
        send()
    assert caught.value.retriable


def test_a_queue_that_a_backup_does_not_know_is_made_again(queue: int) -> None:
    expanded = queues.expand(topic="orders", queues=1, actor=ACTOR).queues[0].queue
    plant(
        expanded,
        "DROP TABLE message_{q}",
        f"DELETE FROM queue_head WHERE queue_id = {expanded}",
    )
    plant(queue, f"DELETE FROM reader WHERE queue_id = {expanded}")
    assert adopt().gaps == 2
    message = NewMessage(body=b"x", queue=expanded)
    receipt = publish(topic="orders", messages=[message], batch_id=None, actor=ACTOR)[0]
    assert receipt.offset == JUMP  # type: ignore[union-attr]
    behind = {
        one.queue: one.lag for one in group_lag.group_offsets(group="billing", actor=ACTOR)
    }
    assert behind[expanded] == 1


def test_a_read_only_node_stays_so_and_a_crash_half_way_is_repeated(queue: int) -> None:
    registry.update(name="main", settings={"state": "read_only"}, actor=ACTOR)
    assert adopt().state == "read_only"
    registry.update(name="main", settings={"state": "read_write"}, actor=ACTOR)
    failovers.begin(name="main", verb="adopt", actor=ACTOR)  # and nothing more
    snapshot.refresh()
    with pytest.raises(NodeUnavailable, match="offline"):
        send()
    done = adopt()
    assert (done.state, done.epoch) == ("read_write", 4)
    send()


def test_a_database_with_the_data_of_another_node_is_neither_adopted_nor_served(
    queue: int, make_node: Callable[..., str]
) -> None:
    make_node("second")
    DbNode.objects.filter(name="second").update(identity=str(uuid4()))
    node_pools.evict_all()
    snapshot.evict()
    with pytest.raises(NodeUnavailable, match="has no data, or that of another node"):
        registry.ping(snapshot.find_node("second").id)
    with pytest.raises(Invalid, match="has the data of another node") as caught:
        promotion.adopt(name="second", actor=ACTOR)
    assert caught.value.code == Code.NODE_REFUSED
    assert DbNode.objects.get(name="second").state == "read_write", "nothing was begun"


def test_a_database_is_registered_once(
    node_database: Callable[..., dict[str, Any]], queue: int
) -> None:
    info = snapshot.find_node("main")
    place = {"host": info.host, "port": info.port, "database": info.database}
    account = {"username": info.username, "password": info.password}
    with pytest.raises(Invalid, match="already registered as node main"):
        registry.register(name="again", engine=info.engine, actor=ACTOR, **place, **account)
    DbNode.objects.update(identity="")
    with pytest.raises(Invalid, match="queues of another installation"):
        registry.register(name="again", engine=info.engine, actor=ACTOR, **place, **account)


def test_only_administrators_adopt_and_promote(queue: int) -> None:
    nobody = Actor(kind="key", name="nobody")
    with pytest.raises(Forbidden):
        promotion.adopt(name="main", actor=nobody)
    with pytest.raises(Forbidden):
        promotion.promote(name="main", host="127.0.0.1", actor=nobody)


def test_an_adopted_node_passes_the_auditor(queue: int) -> None:
    reader(queue)
    restoring.lose_tail(queue, 6)
    adopt()
    send(3)
    report = verify.verify(topics=["orders"], actor=ACTOR, rows_per_s=0)
    assert (report.complete, report.findings) == (True, ())


def test_the_replica_of_a_file_is_refused_and_that_of_a_server_is_kept(
    queue: int, engine: str
) -> None:
    if engine == "sqlite":
        with pytest.raises(Invalid, match="which has no replica"):
            registry.update(name="main", settings={"replica_host": "h"}, actor=ACTOR)
        with pytest.raises(Invalid, match="is a file"):
            promotion.promote(name="main", host="h", actor=ACTOR)
        return
    made = registry.update(
        name="main", settings={"replica_host": "h", "replica_port": 3307}, actor=ACTOR
    )
    snapshot.refresh()
    assert (made.replica_host, snapshot.find_node("main").replica_port) == ("h", 3307)


def test_a_node_without_its_table_of_heads_makes_its_queues_suspect_and_no_pull_fail(
    queue: int,
) -> None:
    member, epoch = reader(queue)
    plant(queue, "ALTER TABLE queue_head RENAME TO gone")
    answer = pulled(member, queue, epoch, 0)
    assert (answer.state, answer.messages) == ("corrupt", [])
    with pytest.raises(StoreCorrupt):
        send()
    plant(queue, "ALTER TABLE gone RENAME TO queue_head")
    assert len(pulled(member, queue, epoch, 0).messages) == 10
