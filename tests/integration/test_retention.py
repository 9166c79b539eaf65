"""Retention: what goes, by age and by size, who has not read it, and that nothing else ever
goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from messagestore import retention, verify
from messagestore.consume import group_lag, offset_reset, positions
from messagestore.consume.offset_reset import Target
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull import pull
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import NewMessage
from messagestore.heads import partitions
from messagestore.inspect import browse
from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.produce.publish import Receipt, publish
from messagestore.retention import Cleaned, Loss, QueuePlan, cleaning
from messagestore.tables import audit_sql, message_sql, queue_sql
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import Actor, command, job
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError, Forbidden, NotFound
from metadata.groups import groups
from metadata.membership import consumers
from metadata.models import Alarm, AuditLog, ClockMark, ConsumerGroupTopic
from metadata.monitoring import alarms
from metadata.topics import key_index_rows, topic_rows
from tests.support.environment import ENGINE
from tests.support.rows import long_ago
from tests.support.tampering import age, plant

ACTOR = command("test")
DAY = 86_400
partitioned = pytest.mark.skipif(ENGINE != "mysql", reason="SQLite has no partitions")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is spared."""
    monkeypatch.setattr(cleaning, "PACE", 0)


@pytest.fixture
def queue(node: str) -> int:
    """A queue of topic `orders`: ten messages of ten days ago, then ten of now; `billing`
    has read four.
    """
    made = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    for _ in range(4):
        send(made, 5)
    age(made, 0, 10, seconds=10 * DAY)
    return made


def send(queue: int, count: int, body: bytes = b"m") -> None:
    messages = [NewMessage(body=body, queue=queue) for _ in range(count)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)


def keep(**settings: Any) -> None:
    topic_rows.update(name="orders", settings=settings, actor=ACTOR)
    snapshot.refresh()


def clean(*, actor: Actor = ACTOR, **options: Any) -> Cleaned:
    """Cleans the only queue, without waiting for pulls."""
    (one,) = retention.clean(actor=actor, **{"rest_s": 0.0, **options})
    return one


def planned() -> QueuePlan:
    return clean(dry_run=True).plan


def join() -> tuple[ConsumerId, dict[int, int]]:
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    member = consumer_ids.check(joined.consumer_id)
    assigned = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    epochs = {one.queue: one.epoch for one in assigned}
    positions.acquire(consumer=member, queues=[Claim(*one) for one in epochs.items()])
    return member, epochs


def read(queue: int, offset: int) -> ConsumerId:
    """A member of `billing` that has committed up to an offset."""
    member, epochs = join()
    positions.commit(consumer=member, offsets=[CommitOffset(queue, epochs[queue], offset)])
    return member


def offsets(queue: int) -> list[int]:
    """The rows that are there, whatever `low` says."""
    with node_pools.node_of(queue).reading() as session:
        return [
            offset
            for offset, _ in audit_sql.list_offsets(
                session, queue=queue, first=0, end=10**9
            )
        ]


def low(queue: int) -> int:
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_head(session, queue=queue)
    assert head is not None
    return head.low


def cut(queue: int, *ends: int) -> None:
    """Gives the table small partitions instead of its own, with its rows in them."""
    parts = ", ".join(f"PARTITION below_{end} VALUES LESS THAN ({end})" for end in ends)
    plant(queue, f"ALTER TABLE message_{{q}} PARTITION BY RANGE (msg_offset) ({parts})")


def unsubscribed() -> None:
    """Nobody reads: only age counts."""
    subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
    snapshot.refresh()


# ----------------------------------------------------------------------------------------------
# by age


def test_what_is_older_than_the_topic_keeps_is_served_no_more(queue: int) -> None:
    read(queue, 20)
    done = clean()
    assert (done.plan.low, done.plan.keep_from, done.plan.why, done.plan.messages) == (
        0,
        10,
        "age",
        10,
    )
    assert (done.raised, done.problem, done.plan.unread, low(queue)) == (True, None, (), 10)
    assert (clean().raised, low(queue)) == (False, 10)


def test_rows_without_partitions_are_deleted_in_batches(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ENGINE == "mysql":
        plant(queue, "ALTER TABLE message_{q} REMOVE PARTITIONING")
    read(queue, 20)
    monkeypatch.setattr(cleaning, "CHUNK", 3)
    said: list[tuple[str, int, int]] = []
    done = clean(progress=lambda one: said.append((one.what, one.done, one.total)))
    assert (done.deleted, done.plan.partitions, offsets(queue)) == (
        10,
        None,
        list(range(10, 20)),
    )
    assert [one[1:] for one in said if "rows" in one[0]] == [
        (3, 10),
        (6, 10),
        (9, 10),
        (10, 10),
    ]


@partitioned
def test_whole_partitions_below_the_kept_are_dropped(queue: int) -> None:
    cut(queue, 4, 8, 12, 100)
    read(queue, 20)
    assert (planned().partitions, offsets(queue)) == (2, list(range(20)))
    done = clean()
    assert (done.dropped, done.deleted, low(queue), offsets(queue)) == (
        2,
        0,
        10,
        list(range(8, 20)),
    )
    send(queue, 1)
    assert offsets(queue) == list(range(8, 21))


@partitioned
def test_the_partition_that_is_written_to_is_never_dropped(queue: int) -> None:
    age(queue, 10, 20, seconds=10 * DAY)
    cut(queue, 10, 20)  # full to the last
    read(queue, 20)
    done = clean()
    assert (low(queue), done.dropped, done.deleted) == (20, 1, 10)
    assert offsets(queue) == []
    plant(
        queue, "ALTER TABLE message_{q} ADD PARTITION (PARTITION p VALUES LESS THAN (99))"
    )
    send(queue, 1)
    assert offsets(queue) == [20]


@partitioned
def test_between_two_drops_it_rests_and_others_may_change_the_table(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(queue, 2, 4, 6, 100)
    read(queue, 20)
    monkeypatch.setattr(cleaning, "PACE", 200)
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        with node_pools.node_of(queue).maintaining() as session:
            partitions.take_turn(session, queue=queue)

    monkeypatch.setattr(cleaning.time, "sleep", rest)
    assert (clean().dropped, len(rests)) == (3, 2)
    assert all(0 < seconds <= cleaning.MOST_PAUSE_S for seconds in rests)


@partitioned
def test_a_build_of_the_key_index_lets_it_wait_without_an_alarm(queue: int) -> None:
    cut(queue, 2, 4, 6, 100)
    read(queue, 20)
    with node_pools.node_of(queue).maintaining() as session:
        partitions.take_turn(session, queue=queue)
        assert "is locked by another session" in str(clean().problem)
        assert alarms_of_cleaning() == ["orders/0"]
        key_index_rows.begin_change(queue=queue)
        waiting = clean()
        assert (waiting.problem, waiting.dropped) == (None, 0)
        assert alarms_of_cleaning() == []
    # Without the lock, the change was interrupted, and keeps nothing waiting.
    assert clean().dropped == 3


def alarms_of_cleaning() -> list[str]:
    active = Alarm.objects.filter(kind="not_cleaned", ended_at=None)
    return list(active.values_list("name", flat=True))


def test_what_a_crash_left_below_low_goes_with_the_next_run(queue: int) -> None:
    if ENGINE == "mysql":
        cut(queue, 10, 100)
    read(queue, 20)
    plant(queue, "UPDATE queue_head SET low = 10 WHERE queue_id = {q}")
    assert (clean().raised, offsets(queue)) == (False, list(range(10, 20)))


def test_a_dry_run_changes_nothing(queue: int) -> None:
    before = (
        offsets(queue),
        low(queue),
        list(ConsumerGroupTopic.objects.values_list("progress", "active_at")),
    )
    read(queue, 4)
    assert planned().keep_from == 4
    after = (
        offsets(queue),
        low(queue),
        list(ConsumerGroupTopic.objects.values_list("progress", "active_at")),
    )
    assert (before, Alarm.objects.count()) == (after, 0)


def test_a_topic_that_nobody_writes_to_any_more_runs_empty_and_says_so(queue: int) -> None:
    age(queue, 10, 20, seconds=8 * DAY)
    read(queue, 20)
    done = clean()
    assert (done.plan.keep_from, low(queue), offsets(queue)) == (20, 20, [])
    assert verify_is_clean()
    send(queue, 2)
    assert offsets(queue) == [20, 21]


# --------------------------------------------------------------------------------------
# what is unread


def test_what_an_active_group_has_not_read_stays(queue: int) -> None:
    read(queue, 4)
    done = clean()
    assert (done.plan.keep_from, done.plan.unread, low(queue)) == (4, (), 4)
    assert "has not read" in done.plan.notes[0]


def test_but_not_for_ever_and_what_goes_is_counted(
    queue: int, caplog: pytest.LogCaptureFixture
) -> None:
    keep(keep_unread_days=9)
    read(queue, 4)
    done = clean()
    assert (done.plan.keep_from, done.plan.unread) == (10, (Loss("billing", 6),))
    alarm = Alarm.objects.get()
    assert (alarm.kind, alarm.name, alarm.count) == ("unread_dropped", "billing/orders", 6)
    assert alarm.detail.startswith("6 unread messages of orders/0 were deleted by ")
    assert [record for record in caplog.records if "unread" in record.getMessage()]


@pytest.mark.one_engine
def test_losses_of_a_group_add_up(queue: int) -> None:
    keep(keep_unread_days=0)
    clean()
    age(queue, 10, 15, seconds=10 * DAY)
    clean()
    assert Alarm.objects.get().count == 10 + 5


@pytest.mark.one_engine
def test_without_the_guard_age_alone_counts(queue: int) -> None:
    keep(keep_unread_days=0)
    read(queue, 4)
    assert planned().keep_from == 10


def test_a_group_without_member_and_commit_for_a_week_keeps_nothing(queue: int) -> None:
    assert planned().keep_from == 0  # it has just subscribed
    ConsumerGroupTopic.objects.update(created_at=long_ago(seconds=8 * DAY))
    assert planned().keep_from == 10


def test_a_commit_or_a_member_makes_it_active_again(queue: int) -> None:
    ConsumerGroupTopic.objects.update(created_at=long_ago(seconds=8 * DAY))
    member = read(queue, 4)
    assert planned().keep_from == 4  # a member is there
    consumers.leave(consumer=member, actor=ACTOR)
    clean()
    ConsumerGroupTopic.objects.update(active_at=long_ago(seconds=8 * DAY))
    assert planned().keep_from == 10
    plant(queue, "UPDATE reader SET committed = 5 WHERE queue_id = {q}")
    assert planned().keep_from == 5  # it has committed since the last look
    clean()
    assert planned().low == 5


def test_a_broadcasting_group_counts_with_its_slowest_instance(queue: int) -> None:
    unsubscribed()
    groups.create(name="screens", mode="broadcasting", actor=ACTOR)
    subscriptions.create(group="screens", topic="orders", start="earliest", actor=ACTOR)
    for name in ("left", "right"):
        membership.join(
            group="screens",
            name=name,
            instance_id=name,
            incarnation=str(uuid4()),
            actor=ACTOR,
        )
    plant(queue, "UPDATE reader SET committed = 7 WHERE queue_id = {q}")
    assert planned().keep_from == 7
    keep(keep_unread_days=0)
    assert planned().unread == (Loss("screens", 3),)


# ---------------------------------------------------------------------------------------------
# by size


def test_a_topic_takes_no_more_than_its_bytes_whoever_has_read_what(queue: int) -> None:
    if ENGINE == "mysql":
        plant(queue, "ALTER TABLE message_{q} REMOVE PARTITIONING")
    send(queue, 40, b"x" * 100_000)
    keep(retention_days=30, retention_bytes=2_100_000)
    done = clean()
    assert (done.plan.why, done.plan.keep_from) == ("size", 40)
    assert done.plan.unread == (Loss("billing", done.plan.keep_from),)
    assert offsets(queue)[0] == low(queue) == done.plan.keep_from


@partitioned
def test_by_size_whole_partitions_count(queue: int) -> None:
    send(queue, 40, b"x" * 100_000)
    cut(queue, 20, 40, 60, 100)
    keep(retention_days=30, retention_bytes=4_000_000)
    plant(queue, "ANALYZE TABLE message_{q}")
    assert (planned().keep_from, planned().partitions, planned().why) == (40, 2, "size")
    assert planned().bytes > 2_000_000


def test_a_size_that_would_leave_nothing_keeps_what_is_being_written_and_says_so(
    queue: int,
) -> None:
    send(queue, 40, b"x" * 100_000)
    keep(retention_days=30, retention_bytes=1 << 20)
    keep_from, notes = planned().keep_from, planned().notes
    if ENGINE == "mysql":
        plant(queue, "ANALYZE TABLE message_{q}")
        assert (planned().keep_from, "that stays" in planned().notes[-1]) == (0, True)
    else:
        assert (keep_from, notes) == (50, ())
        send(queue, 3, b"x" * 1_048_576)
        assert planned().keep_from == 62
        assert "a message takes about" in planned().notes[-1]


# ------------------------------------------------------------------------------- readers
# below `low`


def taken(member: ConsumerId, queue: int, epoch: int, offset: int) -> PulledQueue:
    (got,) = pull(
        consumer=member,
        queues=[PullQueue(queue, epoch, offset)],
        max_messages=100,
        max_bytes=1 << 20,
    )
    return got


def test_readers_browsers_lag_resets_and_verify_agree_after_cleaning(queue: int) -> None:
    keep(keep_unread_days=0)
    if ENGINE == "mysql":
        cut(queue, 5, 12, 100)
    member, epochs = join()
    clean()
    got = taken(member, queue, epochs[queue], 3)
    assert (got.state, got.low, got.messages) == ("cleaned", 10, [])
    assert [one.offset for one in taken(member, queue, epochs[queue], 10).messages] == list(
        range(10, 20)
    )
    assert [
        one.offset
        for one in browse.read_page(
            topic="orders", queue=queue, offset=0, limit=3, actor=ACTOR
        ).messages
    ] == [10, 11, 12]
    with pytest.raises(NotFound, match="was deleted"):
        browse.read_message(topic="orders", message_id=f"{queue}-9", actor=ACTOR)
    (mine,) = group_lag.group_offsets(group="billing", actor=ACTOR)
    assert (mine.committed, mine.lag, mine.low) == (0, 10, 10)
    groups.update(name="billing", settings={"stopped": True}, actor=ACTOR)
    (move,) = offset_reset.reset(
        group="billing", topic="orders", target=Target("earliest"), actor=ACTOR
    )
    assert move.to_offset == 10
    (move,) = offset_reset.reset(
        group="billing",
        topic="orders",
        target=Target("time", ago_ms=9 * DAY * 1000),
        actor=ACTOR,
    )
    assert move.to_offset == 10
    assert verify_is_clean()


def verify_is_clean() -> bool:
    report = verify.verify(topics=["orders"], actor=ACTOR, rows_per_s=0, digests=True)
    return report.complete and not report.findings and not report.unseen


def test_a_pull_that_is_cleaned_under_way_is_told_so(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(keep_unread_days=0)
    if ENGINE == "mysql":
        cut(queue, 10, 100)
    member, epochs = join()
    real = message_sql.read_positions_and_rows

    def cleaned_before(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(message_sql, "read_positions_and_rows", real)
        clean()  # after this pull has read its position, before it reads the rows
        return real(*given, **named)

    monkeypatch.setattr(message_sql, "read_positions_and_rows", cleaned_before)
    got = taken(member, queue, epochs[queue], 3)
    assert (got.state, got.low, low(queue)) == ("cleaned", 10, 10)


def test_it_waits_until_pulls_that_began_before_are_over(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(queue, 20)
    waited: list[tuple[float, int, int]] = []

    def look(seconds: float) -> None:
        waited.append((seconds, low(queue), len(offsets(queue))))

    monkeypatch.setattr(cleaning.time, "sleep", look)
    clean(rest_s=retention.REST_S)
    assert waited[0] == (retention.REST_S, 10, 20)  # low is raised, no row is gone


# ----------------------------------------------------------------------------------------
# what is wrong


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DROP TABLE message_{q}", "message_"),
        ("ALTER TABLE message_{q} RENAME COLUMN stored_at TO stored_then", "stored_at"),
        ("DELETE FROM queue_head WHERE queue_id = {q}", "no row in queue_head"),
        ("UPDATE queue_head SET low = 99 WHERE queue_id = {q}", "log start offset 99"),
    ],
)
def test_a_table_that_is_missing_or_altered_is_named_and_the_others_go_on(
    queue: int, statement: str, named: str
) -> None:
    topics.create(name="other", queues=1, actor=ACTOR)
    plant(queue, statement)
    found = {one.plan.topic: one for one in retention.clean(actor=ACTOR, rest_s=0.0)}
    assert named in str(found["orders"].problem)
    assert found["other"].problem is None
    assert Alarm.objects.get().kind == "not_cleaned"


def test_a_clock_that_jumped_stops_cleaning_by_age_until_it_is_right(queue: int) -> None:
    read(queue, 20)
    # the newest message is from the future: the clock fell back
    age(queue, 19, 20, seconds=-2 * DAY - 60)
    done = clean()
    assert (done.plan.keep_from, low(queue)) == (0, 0)
    assert "2.0 days after the node's present time" in str(done.plan.blocked_by)
    assert Alarm.objects.get(ended_at=None).name == "orders/0"
    age(queue, 19, 20, seconds=2 * DAY + 60)
    assert clean().plan.keep_from == 10
    assert not Alarm.objects.filter(ended_at=None).exists()


def test_a_clock_that_jumped_ahead_everywhere_stops_the_schedule_until_a_person_cleans(
    queue: int,
) -> None:
    read(queue, 20)
    assert (
        clean(actor=job("expire_messages"), topic="orders", dry_run=True).plan.keep_from
        == 10
    )
    # as if the clock had gone so far since that look
    ClockMark.objects.update(at=long_ago(seconds=8 * DAY))
    for _ in range(2):
        done = clean(actor=job("expire_messages"))
        assert (done.plan.keep_from, low(queue)) == (0, 0)
        assert "jumped 8.0 days ahead; if it is right now, run manage.py cleanup" in str(
            done.plan.blocked_by
        )
    assert Alarm.objects.get(ended_at=None).kind == "not_cleaned"
    assert "jumped" in str(clean(dry_run=True).plan.blocked_by)
    assert clean().plan.keep_from == 10
    assert clean(actor=job("expire_messages")).plan.blocked_by is None


def test_a_machine_that_was_started_anew_knows_nothing_of_before(queue: int) -> None:
    clean(dry_run=True)
    ClockMark.objects.update(at=long_ago(seconds=8 * DAY), boot="another")
    assert clean(actor=job("expire_messages")).plan.blocked_by is None


@pytest.mark.one_engine
def test_a_node_that_is_away_is_cleaned_later(queue: int) -> None:
    registry.update(name="main", settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    assert "offline" in str(clean().problem)


@pytest.mark.one_engine
def test_cleaning_needs_the_right_to_manage_and_is_audited(queue: int) -> None:
    stranger = Actor(kind="key", name="shop", rights={"browse": ("*",)})
    with pytest.raises(Forbidden):
        clean(actor=stranger, topic="orders")
    assert low(queue) == 0
    keep(keep_unread_days=0)
    clean()
    row = AuditLog.objects.get(verb="clean")
    assert (row.name, row.before, row.after) == (
        "orders",
        {str(queue): 0},
        {str(queue): 10},
    )
    age(queue, 10, 15, seconds=10 * DAY)
    clean(actor=job("expire_messages"))
    assert AuditLog.objects.filter(verb="clean").count() == 1
    with pytest.raises(CatmqError):
        clean(topic="nowhere")


def test_two_runs_at_once_do_the_work_once(
    queue: int, in_threads: Callable[..., list[Cleaned]]
) -> None:
    if ENGINE == "mysql":
        cut(queue, 5, 10, 100)
    keep(keep_unread_days=0)
    done = in_threads([clean] * 3)
    assert (sum(one.raised for one in done), Alarm.objects.get().count) == (1, 10)
    assert [one.problem for one in done] == [None] * 3
    assert (low(queue), offsets(queue)) == (10, list(range(10, 20)))
    assert verify_is_clean()


def test_alarms_that_nobody_raised_for_long_are_forgotten(queue: int) -> None:
    alarms.raise_alarm(kind="unread_dropped", name="a/b", detail="x", count=1)
    alarms.raise_alarm(kind="node_low", name="main", detail="lasts")
    assert alarms.prune() == 0
    Alarm.objects.update(last_at=long_ago(seconds=91 * DAY))
    assert (alarms.prune(), Alarm.objects.get().name) == (1, "main")


# ----------------------------------------------------------------------------------------
# while writing


def test_cleaning_under_writers_and_a_verifier_takes_only_what_is_below_low(
    queue: int, in_threads: Callable[..., list[Any]]
) -> None:
    """The short form of benchmarks/retention.py, which measures what it costs the writers."""
    if ENGINE == "mysql":
        cut(queue, *range(20, 1000, 20))
    receipts: list[int] = []

    def write() -> None:
        for _ in range(25):
            stored = publish(
                topic="orders",
                messages=[NewMessage(body=b"m")] * 5,
                batch_id=None,
                actor=ACTOR,
            )
            receipts.extend(one.offset for one in stored if isinstance(one, Receipt))

    def clean_behind() -> list[Cleaned]:
        highest = "GREATEST" if ENGINE == "mysql" else "MAX"
        done = []
        for _ in range(8):
            plant(
                queue,
                f"UPDATE queue_head SET low = {highest}(low, head - 15) WHERE queue_id = {{q}}",
            )
            done.append(clean())
        return done

    def check() -> list[bool]:
        return [verify_is_clean() for _ in range(4)]

    _, _, done, clean_ones = in_threads([write, write, clean_behind, check])
    assert sorted(receipts) == list(range(20, 270))
    assert all(clean_ones) and [one.problem for one in done] == [None] * 8
    assert sum(one.dropped + one.deleted for one in done) > 0
    there, kept_from = offsets(queue), low(queue)
    assert there == list(range(there[0], 270)) and there[0] <= kept_from
    assert kept_from - there[0] < 20 if ENGINE == "mysql" else kept_from == there[0]
