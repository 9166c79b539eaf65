"""The auditor: it finds what is planted, and a busy topic never looks wrong; on the engine
under test.

Each interleaving that could fool it is forced: `meanwhile` runs a change before or after
one of its reads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from messagestore import verify
from messagestore.consume import offset_reset, positions, pull
from messagestore.consume.offset_reset import Target
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PullQueue
from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.produce import batches
from messagestore.produce.publish import publish
from messagestore.tables import audit_sql, message_sql, partition_sql, queue_sql, statements
from messagestore.topology import membership, queues, subscriptions, topics
from messagestore.verify import Finding, Report, Since, rows, run, visit
from messagestore.verify import batches as walk
from metadata.actors import command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import NodeUnavailable, NotFound, Unavailable
from metadata.groups import groups, ownership
from metadata.membership import consumers
from metadata.models import BroadcastInstance, Queue, QueueOffset
from metadata.nodes import node_rows
from metadata.rules.nodes import Engine
from tests.support.environment import ENGINE
from tests.support.instances import Instance
from tests.support.tampering import age, declare_gap, plant, raise_low, readers, remove

ACTOR = command("test")
Meanwhile = Callable[..., None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long, and ten messages are two chunks and five pages."""
    monkeypatch.setattr(run, "AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(visit, "PAUSE_S", 0.01)
    monkeypatch.setattr(rows, "CHUNK", 5)
    monkeypatch.setattr(walk, "PAGE", 2)


@pytest.fixture
def queue(node: str) -> int:
    """A queue of topic `orders` with ten messages in five batches, of which group `billing`
    has read four.
    """
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    queue = state.queues[0].queue.queue
    for _ in range(5):
        send(queue, 2)
    for first in range(0, 10, 2):
        age(queue, first, first + 2, seconds=60 - first)
    member = join()
    commit(member, queue, take_over(member)[queue], 4)
    return queue


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """`meanwhile("read_head", act)` runs act once after the first such read, or `before`
    it.

    `at` names another read, 0 every one.
    """

    def arrange(
        read: str, act: Callable[[], object], *, before: bool = False, at: int = 1
    ) -> None:
        verbs = next(
            one for one in (audit_sql, message_sql, queue_sql) if hasattr(one, read)
        )
        real, calls, acting = getattr(verbs, read), [0], list[bool]()

        @functools.wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            # decided first: `act` may read the same
            mine = calls[0] == at or (at == 0 and not acting)
            if mine and before:
                do()
            answer = real(*args, **kwargs)
            if mine and not before:
                do()
            return answer

        def do() -> None:
            acting.append(True)
            act()
            acting.clear()

        monkeypatch.setattr(verbs, read, wrapped)

    return arrange


def send(queue: int, count: int, topic: str = "orders") -> None:
    """A batch, stored after all before it in time, too."""
    messages = [
        NewMessage(body=b"m", key=f"k{index}", headers={"b": "1"}, queue=queue)
        for index in range(count)
    ]
    publish(topic=topic, messages=messages, batch_id=None, actor=ACTOR)


def join(name: str = "one") -> ConsumerId:
    joined = membership.join(
        group="billing", name=name, incarnation=str(uuid4()), actor=ACTOR
    )
    return consumer_ids.check(joined.consumer_id)


def take_over(member: ConsumerId) -> dict[int, int]:
    assigned = consumers.heartbeat(consumer=member, generation=0, owned=[]).assigned
    epochs = {one.queue: one.epoch for one in assigned}
    positions.acquire(consumer=member, queues=[Claim(*one) for one in epochs.items()])
    return epochs


def commit(member: ConsumerId, queue: int, epoch: int, offset: int) -> None:
    positions.commit(consumer=member, offsets=[CommitOffset(queue, epoch, offset)])


def look(**options: Any) -> Report:
    return verify.verify(
        **{"topics": ["orders"], "actor": ACTOR, "rows_per_s": 0, **options}
    )


def findings(**options: Any) -> list[Finding]:
    report = look(**options)
    assert report.complete
    assert [one.unseen for one in report.unseen] == []
    return [finding for one in report.queues for finding in one.findings]


def kinds(**options: Any) -> list[tuple[str, str]]:
    return [(one.kind, one.where) for one in findings(**options)]


def clean_up_to(queue: int, low: int) -> None:
    """What retention does."""
    raise_low(queue, low)
    remove(queue, *range(low))


# -------------------------------------------------------------------------------------------
# healthy


def test_a_healthy_topic_is_clean(queue: int) -> None:
    report = look(digests=True)
    (one,) = report.queues
    assert (report.complete, one.findings, one.notes, one.unseen) == (True, [], [], None)
    assert (one.rows, one.batches, one.readers, one.reached) == (10, 5, 1, 10)


def test_an_empty_topic_is_clean(node: str) -> None:
    topics.create(name="orders", queues=3, actor=ACTOR)
    assert kinds() == []


def test_what_was_cleaned_trimmed_or_declared_lost_is_not_missing(queue: int) -> None:
    clean_up_to(queue, 3)
    remove(queue, 6, 7)
    plant(queue, "DELETE FROM sent_batch WHERE first_offset <= 6")
    declare_gap(queue, 6, 8)
    assert kinds() == []


def test_a_queue_whose_rows_are_all_cleaned_is_clean(queue: int) -> None:
    clean_up_to(queue, 10)
    assert kinds() == []


def test_every_topic_is_looked_at_where_none_is_named(queue: int) -> None:
    topics.create(name="others", queues=2, actor=ACTOR)
    assert [one.expected.topic for one in look(topics=None).queues] == [
        "orders",
        "others",
        "others",
    ]
    with pytest.raises(NotFound):
        look(topics=["orders", "nothing"])


# ------------------------------------------------------------------------------------
# planted defects

COPY = (
    "INSERT INTO message_{q} (msg_offset, body, producer, stored_at) "
    "SELECT msg_offset + 6, body, producer, (SELECT last_stored_at FROM queue_head) "
    "FROM message_{q} WHERE msg_offset IN (4, 5)"
)
SAME_BATCH = (
    "INSERT INTO sent_batch SELECT {id}, queue_id, first_offset, message_count, digest, stored_at "
    "FROM sent_batch WHERE first_offset = 4"
)
NEW_ID = "x'0190163d8694739baea5966c26f8ad91'"

DEFECTS: dict[str, tuple[tuple[str, ...], list[tuple[str, str]]]] = {
    "a row": (("DELETE FROM message_{q} WHERE msg_offset = 3",), [("missing", "offset 3")]),
    "rows": (
        ("DELETE FROM message_{q} WHERE msg_offset IN (1, 2, 4, 5, 6)",),
        [("missing", "offsets 1 … 2"), ("missing", "offsets 4 … 6")],
    ),
    "the first row": (
        ("DELETE FROM message_{q} WHERE msg_offset = 0",),
        [("missing", "offset 0")],
    ),
    "the last rows": (
        ("DELETE FROM message_{q} WHERE msg_offset > 7",),
        [("missing", "offsets 8 … 9")],
    ),
    "all rows": (("DELETE FROM message_{q}",), [("missing", "offsets 0 … 9")]),
    "a head that is too high": (
        ("UPDATE queue_head SET head = 12",),
        [("missing", "offsets 10 … 11")],
    ),
    "a head that was set back": (
        ("UPDATE queue_head SET head = 8",),
        [("batch_outside", "batch"), ("head_behind", "offsets 8 … 9")],
    ),
    "a low above the head": (
        ("UPDATE queue_head SET low = 11",),
        [("low_outside", "queue_head")],
    ),
    "a gap over messages": (
        ("INSERT INTO queue_gap VALUES ({q}, 6, 8, 'test')",),
        [("batch_in_gap", "offsets 6 … 7"), ("row_in_gap", "offset 6")],
    ),
    "a gap above the head": (
        ("INSERT INTO queue_gap VALUES ({q}, 10, 20, 'test')",),
        [("gap_above_head", "offsets 10 … 19")],
    ),
    "a batch that is not there": (
        ("UPDATE sent_batch SET first_offset = 1000 WHERE first_offset = 4",),
        [("batch_outside", "batch"), ("unclaimed", "offsets 4 … 5")],
    ),
    "a batch of nothing": (
        ("UPDATE sent_batch SET message_count = 0 WHERE first_offset = 4",),
        [("batch_malformed", "batch"), ("unclaimed", "offsets 4 … 5")],
    ),
    "a batch that was remembered twice": (
        (SAME_BATCH.replace("{id}", NEW_ID),),
        [("batch_overlap", "offsets 4 … 5")],
    ),
    "batches that overlap": (
        (
            "UPDATE sent_batch SET first_offset = 3, message_count = 3 WHERE first_offset = 4",
        ),
        [("batch_overlap", "offset 3"), ("batch_differs", "offsets 3 … 5")],
    ),
    "a batch that was stored twice": (
        (COPY, "UPDATE queue_head SET head = 12"),
        [("unclaimed", "offsets 10 … 11")],
    ),
    "a message that was changed": (
        ("UPDATE message_{q} SET body = 'other' WHERE msg_offset = 4",),
        [("batch_differs", "offsets 4 … 5")],
    ),
    "a position above the head": (
        ("UPDATE reader SET committed = 11",),
        [("committed_above", "group billing")],
    ),
    "a negative position": (
        ("UPDATE reader SET committed = -1",),
        [("committed_below", "group billing")],
    ),
    "a position of nobody": (
        ("INSERT INTO reader VALUES (4711, '', {q}, 1, '', 11, 0)",),
        [("committed_above", "group with id 4711")],
    ),
    "leases above the head": (
        ("INSERT INTO share_position SELECT group_id, queue_id, epoch, 50 FROM reader",),
        [("leases_wrong", "group billing")],
    ),
    "no reader row": (("DELETE FROM reader",), [("reader_missing", "group billing")]),
    "the reader row of an earlier subscription": (
        ("UPDATE reader SET epoch = 5",),
        [("reader_missing", "group billing")],
    ),
    "an epoch that nobody gave": (
        ("UPDATE reader SET epoch = epoch + 1",),
        [("epoch_ahead", "group billing")],
    ),
    "a closed head": (
        ("UPDATE queue_head SET state = 'ro'",),
        [("state_differs", "queue_head")],
    ),
    "another term of the node": (
        ("UPDATE queue_head SET node_epoch = 7",),
        [("node_epoch_differs", "queue_head")],
    ),
    "no head row": (("DELETE FROM queue_head",), [("head_missing", "queue_head")]),
    "no table": (("DROP TABLE message_{q}",), [("unreadable", "table message_{q}")]),
    "an altered table": (
        ("DROP TABLE message_{q}", "CREATE TABLE message_{q} (place BIGINT)"),
        [("unreadable", "table message_{q}")],
    ),
    "no list of batches": (
        ("ALTER TABLE sent_batch RENAME TO sent_batch_once",),
        [("unreadable", "table sent_batch")],
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(queue: int, defect: str) -> None:
    statements, expected = DEFECTS[defect]
    plant(queue, *statements)
    found = [
        (kind, "batch" if where.startswith("batch ") else where)
        for kind, where in kinds(digests=True)
    ]
    wanted = [(kind, where.replace("{q}", str(queue))) for kind, where in expected]
    assert sorted(found) == sorted(wanted)  # in the order of batch ids, which are random


def test_every_kind_of_finding_is_planted_somewhere_in_this_file() -> None:
    planted = {kind for _, expected in DEFECTS.values() for kind, _ in expected}
    by_themselves = {"time_falls", "batch_twice", "position_missing", "head_fell"}
    assert planted | by_themselves == set(verify.QUEUE_KINDS)


@pytest.mark.parametrize(("first", "where"), [(3, "offset 3"), (5, "offset 5")])
def test_a_time_that_falls_is_found_within_and_between_chunks(
    queue: int, first: int, where: str
) -> None:
    age(queue, first, first + 1, seconds=3600)
    assert kinds() == [("time_falls", where)]


def test_an_instances_position_above_the_head_is_found_by_its_name(node: str) -> None:
    state = topics.create(name="orders", queues=1, actor=ACTOR)
    groups.create(name="news", mode="broadcasting", actor=ACTOR)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    queue = state.queues[0].queue.queue
    here, there = Instance("here").join(), Instance("there").join()
    here.take(), there.take()
    assert kinds() == []
    there_id = BroadcastInstance.objects.get(name="there").pk
    plant(queue, f"UPDATE reader SET committed = 1 WHERE instance = '{there_id}'")
    ((kind, where),) = kinds()
    assert (kind, where) == ("committed_above", "group news, instance there")
    plant(queue, "UPDATE reader SET committed = 0", "UPDATE reader SET epoch = epoch + 1")
    assert [kind for kind, _ in kinds()] == ["epoch_ahead", "epoch_ahead"]
    plant(queue, "DELETE FROM reader")
    assert kinds() == [], "an instance gets its place when it acquires"


def test_a_group_that_metadata_gives_no_queue_is_found(queue: int) -> None:
    QueueOffset.objects.all().delete()
    assert kinds() == [("position_missing", "group billing")]


def test_a_batch_that_is_stored_on_two_nodes_is_found(
    make_node: Callable[..., str],
) -> None:
    make_node("main"), make_node("other")
    state = topics.create(name="orders", queues=2, actor=ACTOR)
    here, there = (one.queue.queue for one in state.queues)
    assert node_pools.node_of(here).info.name != node_pools.node_of(there).info.name
    for queue in (here, there):
        send(queue, 2)
        send(queue, 2)
    assert kinds() == []
    twin = batch_ids.new()
    for queue in (here, there):
        plant(
            queue, f"UPDATE sent_batch SET batch_id = x'{twin.hex}' WHERE first_offset = 2"
        )
    assert kinds() == [("batch_twice", "offsets 2 … 3")] * 2


def test_a_queue_that_is_all_holes_is_given_up(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagestore.verify.findings.MOST", 2)
    remove(queue, 0, 2, 4, 6)
    (one,) = look().queues
    assert [finding.where for finding in one.findings] == ["offset 0", "offset 2"]
    assert (one.reached, one.unseen) == (
        5,
        "too many missing offsets: nothing above offset 4 was checked",
    )


def test_a_defect_before_the_time_of_interest_is_not_looked_for(queue: int) -> None:
    remove(queue, 1, 7)
    assert kinds(since=Since(ago_ms=3_600_000)) == [
        ("missing", "offset 1"),
        ("missing", "offset 7"),
    ]
    with node_pools.node_of(queue).reading() as session:
        at = message_sql.read_stored_at_ms(session, queue=queue, offset=6)
    report = look(since=Since(at_ms=at))
    assert [finding.where for finding in report.queues[0].findings] == ["offset 7"]
    assert (report.queues[0].rows, report.queues[0].batches) == (3, 2)
    assert kinds(since=Since(ago_ms=1)) == []


def sabotage(monkeypatch: pytest.MonkeyPatch, name: str, where: str) -> None:
    """Makes a statement find less than it should, as one does that an engine understands
    otherwise.
    """
    known = statements.load(Engine(ENGINE))
    text = known[name].text
    assert where in text
    changed = statements.parse(
        f"-- name: {name}\n{text.replace(where, f'{where} AND 1 = 0')}"
    )
    monkeypatch.setitem(known, name, changed[name])


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            ("select_batches", "batch_id <= :last"),
            "counts 2 batches from id 0 on and lists 0",
        ),
        (
            ("select_batch_page", "batch_id <= :last"),
            "The batches above id 0 were not listed",
        ),
        (
            ("count_rows", "msg_offset < :end_offset"),
            "counts 0 rows at offsets 0 … 4 and lists 5",
        ),
    ],
)
def test_a_queue_of_which_the_node_tells_less_than_it_has_is_never_clean(
    queue: int, monkeypatch: pytest.MonkeyPatch, statement: tuple[str, str], said: str
) -> None:
    sabotage(monkeypatch, *statement)
    report = look()
    assert report.complete
    assert [said in str(one.unseen) for one in report.unseen] == [True]


# -------------------------------------------------------------------- interleavings that
# must not fool it


@pytest.mark.parametrize(
    "read",
    [
        "read_head",
        "read_batch_ends",
        "list_batches",
        "count_rows",
        "read_offset_ends",
        "read_gaps",
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_messages_that_come_between_two_reads_are_no_defect(
    queue: int, meanwhile: Meanwhile, read: str, before: bool
) -> None:
    for at in (1, 2, 3):
        meanwhile(read, lambda: send(queue, 3), before=before, at=at)
    assert kinds() == []


def test_a_row_above_the_head_as_it_was_read_is_fine_if_the_head_came_along(
    queue: int, meanwhile: Meanwhile
) -> None:
    """The dangerous order would be head, then rows; here the send falls between rows and
    head.
    """
    meanwhile("list_readers", lambda: send(queue, 3), at=0)
    meanwhile("read_offset_ends", lambda: send(queue, 3), at=0)
    assert kinds() == []


def test_a_commit_of_what_has_just_come_is_not_above_the_head(
    queue: int, meanwhile: Meanwhile
) -> None:
    member = join()
    epoch = take_over(member)[queue]

    def send_and_commit() -> None:
        send(queue, 3)
        with node_pools.node_of(queue).reading() as session:
            head = queue_sql.read_heads(session, queues=[queue])[queue]
        commit(member, queue, epoch, head)

    meanwhile("list_readers", send_and_commit, before=True, at=0)
    meanwhile("read_offset_ends", send_and_commit, at=0)
    assert kinds() == []
    assert readers(queue)[0][4] == 16


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("read", ["read_gaps", "read_batch_ends", "count_rows"])
def test_rows_that_retention_takes_meanwhile_are_not_missing(
    queue: int, meanwhile: Meanwhile, read: str, at: int
) -> None:
    meanwhile(read, lambda: clean_up_to(queue, 9), at=at)
    assert kinds() == []


def test_rows_that_go_while_a_short_chunk_is_explained_are_not_missing(
    queue: int, meanwhile: Meanwhile
) -> None:
    """Three times: before the rows are listed, between rows and `low`, and before the
    second look.
    """
    meanwhile("count_rows", lambda: clean_up_to(queue, 2), before=True)
    meanwhile("list_offsets", lambda: clean_up_to(queue, 3), before=True)
    meanwhile("list_offsets", lambda: clean_up_to(queue, 4))
    meanwhile("count_rows", lambda: clean_up_to(queue, 7), before=True, at=2)
    assert kinds() == []


def test_a_hole_stays_one_while_retention_takes_rows_below_it(
    queue: int, meanwhile: Meanwhile
) -> None:
    remove(queue, 4)
    meanwhile("count_rows", lambda: clean_up_to(queue, 2), before=True)
    meanwhile("list_offsets", lambda: clean_up_to(queue, 3))
    assert kinds() == [("missing", "offset 4")]


@pytest.mark.parametrize(
    ("read", "before"), [("list_offsets", False), ("read_offset_ends", True)]
)
def test_a_gap_that_is_declared_meanwhile_explains_what_is_missing(
    queue: int, meanwhile: Meanwhile, read: str, before: bool
) -> None:
    """Before it is looked for, and between the first look and the second."""
    remove(queue, 3)
    plant(queue, "DELETE FROM sent_batch WHERE first_offset <= 2")
    meanwhile(read, lambda: declare_gap(queue, 3, 4), before=before)
    assert kinds() == []


def test_a_promotion_meanwhile_is_no_defect(queue: int, meanwhile: Meanwhile) -> None:
    def promote() -> None:
        plant(
            queue,
            "UPDATE queue_head SET head = 1010",
            "INSERT INTO queue_gap VALUES ({q}, 10, 1010, 'p')",
        )
        send(queue, 2)

    meanwhile("count_rows", promote)
    assert kinds() == []
    assert kinds() == []


def test_batches_that_are_trimmed_meanwhile_leave_no_row_unclaimed(
    queue: int, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk has met the oldest and not yet the others when the three oldest are trimmed."""
    age(queue, 0, 6, seconds=3 * 86_400)
    trimmed: list[int] = []
    meanwhile("list_batches", lambda: trimmed.append(batches.expire()))
    assert kinds() == []
    assert trimmed == [3]


def test_a_head_that_fell_is_named(queue: int, meanwhile: Meanwhile) -> None:
    """A server without durable settings loses its last writes in a crash."""

    def crash() -> None:
        remove(queue, 8, 9)
        plant(
            queue,
            "UPDATE queue_head SET head = 8",
            "DELETE FROM sent_batch WHERE first_offset = 8",
        )

    meanwhile("count_rows", crash)
    assert kinds() == [("head_fell", "queue_head")]


def test_a_reset_between_node_and_metadata_is_explained(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker died after it raised the node's epoch."""
    groups.update(name="billing", settings={"stopped": True}, actor=ACTOR)
    monkeypatch.setattr(ownership, "adopt_node_epoch", lambda **_: 0)
    offset_reset.reset(
        group="billing", topic="orders", target=Target("earliest"), actor=ACTOR
    )
    report = look()
    assert report.findings == ()
    assert "after a reset" in report.queues[0].notes[0]


def test_a_subscription_that_ends_or_begins_anew_meanwhile_misses_nothing(
    queue: int, meanwhile: Meanwhile
) -> None:
    def end() -> None:
        subscriptions.delete(group="billing", topic="orders", actor=ACTOR)

    def begin() -> None:
        subscriptions.create(group="billing", topic="orders", start="latest", actor=ACTOR)

    meanwhile("list_readers", end, before=True, at=0)
    meanwhile("list_readers", begin, at=0)
    assert kinds() == []


def test_a_node_that_is_closed_meanwhile_is_explained(
    queue: int, meanwhile: Meanwhile
) -> None:
    def close() -> None:
        registry.update(name="main", settings={"state": "read_only"}, actor=ACTOR)

    meanwhile("list_readers", close, before=True)
    assert kinds() == []
    report = look()
    assert (report.findings, report.queues[0].notes) == (
        (),
        ["closed, because node main is read_only"],
    )


def test_a_queue_that_is_closed_on_its_node_before_metadata_knows_is_looked_at_again(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which a queue is closed: the first look falls between the two."""
    plant(queue, "UPDATE queue_head SET state = 'ro'")
    monkeypatch.setattr(
        run.time, "sleep", lambda _: Queue.objects.update(state="read_only")
    )
    assert kinds() == []


def test_a_batch_that_a_repair_brings_back_meanwhile_claims_its_rows(
    queue: int, meanwhile: Meanwhile
) -> None:
    plant(queue, "UPDATE sent_batch SET queue_id = 0 WHERE first_offset = 4")
    meanwhile(
        "read_stored_at_ms", lambda: plant(queue, "UPDATE sent_batch SET queue_id = {q}")
    )
    assert kinds() == []


def test_a_topic_that_is_deleted_meanwhile_does_not_count(
    queue: int, meanwhile: Meanwhile
) -> None:
    def delete() -> None:
        subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
        topics.delete(name="orders", confirm="orders", actor=ACTOR)
        topics.drop_deleted(after_days=-1)

    meanwhile("count_rows", delete)
    report = look()
    assert (report.findings, report.unseen) == ((), [])
    assert report.queues[0].notes == ["the topic was deleted meanwhile"]


# -------------------------------------------------------------------------------------
# nodes and stopping


def test_a_node_that_is_away_leaves_its_queues_unseen_and_the_others_looked_at(
    make_node: Callable[..., str], queue: int
) -> None:
    make_node("other")
    topics.create(name="elsewhere", queues=1, node="other", actor=ACTOR)
    node_rows.update(name="other", settings={"state": "offline"}, actor=ACTOR)
    remove(queue, 3)
    report = look(topics=None)
    assert [one.expected.topic for one in report.unseen] == ["elsewhere"]
    assert [finding.kind for one in report.queues for finding in one.findings] == [
        "missing"
    ]


def test_a_node_that_is_away_for_a_moment_is_asked_again(
    queue: int, meanwhile: Meanwhile
) -> None:
    def fail() -> None:
        raise NodeUnavailable("gone")

    for read in ("read_head", "list_batches", "count_rows", "list_readers"):
        meanwhile(read, fail, before=True)
    assert kinds() == []


def test_a_node_that_goes_away_in_the_middle_leaves_its_queue_unseen(
    queue: int, meanwhile: Meanwhile
) -> None:
    def fail() -> None:
        raise NodeUnavailable("gone")

    for at in (2, 3, 4):
        meanwhile("count_rows", fail, before=True, at=at)
    (one,) = look().queues
    assert (one.unseen, one.reached, one.rows) == ("gone", 5, 5)


def test_a_run_that_is_stopped_has_what_it_found_so_far(
    queue: int, meanwhile: Meanwhile
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    remove(queue, 1)
    meanwhile("count_rows", stop, before=True, at=2)
    report = look()
    assert not report.complete
    assert (report.queues[0].reached, [one.where for one in report.queues[0].findings]) == (
        5,
        ["offset 1"],
    )


def test_a_run_keeps_to_its_rate_and_holds_no_connection_meanwhile(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert node_pools.node_of(queue).pool._places._value == 8, (
            "a connection is borrowed"
        )  # type: ignore[attr-defined]

    monkeypatch.setattr(visit.time, "sleep", sleep)
    look(rows_per_s=1)
    assert sum(slept) > 10  # each as if the ones before had been slept, too


# ------------------------------------------------------------------------------------------------
# busy


SENDS_EACH = 20  # between two cleanings


class Busy:
    """Topic `orders` with two queues; group `billing` reads it, group `moved` is reset
    again and again.
    """

    def __init__(self) -> None:
        state = topics.create(name="orders", queues=2, actor=ACTOR)
        for group in ("billing", "moved"):
            groups.create(name=group, actor=ACTOR)
            subscriptions.create(group=group, topic="orders", start="earliest", actor=ACTOR)
        groups.update(name="moved", settings={"stopped": True}, actor=ACTOR)
        snapshot.refresh()
        self.queues = [one.queue.queue for one in state.queues]
        for queue in self.queues:
            send(queue, 60)
        self.member = join()
        self.epochs = take_over(self.member)
        self.read = dict.fromkeys(self.queues, 0)
        self.done = threading.Event()
        self.turns = {"send": 0, "consume": 0, "reset": 0, "clean": 0}
        self.room = threading.Semaphore(SENDS_EACH)

    def until_done(self, name: str) -> Callable[[], None]:
        """Does one kind of work as often as it can; what is busy elsewhere is done in the
        next turn.
        """

        def loop() -> None:
            while not self.done.is_set():
                try:
                    getattr(self, name)()
                    self.turns[name] += 1
                except Unavailable:  # somebody else was writing, to the node or to metadata
                    continue

        return loop

    def send(self) -> None:
        """A batch of 1 to 7, as far as cleaning keeps up: else each look had more to read
        than the last.
        """
        if not self.room.acquire(timeout=1.0):
            raise Unavailable("Cleaning is behind.")
        turn = self.turns["send"]
        send(self.queues[turn % 2], 1 + turn % 7)

    def consume(self) -> None:
        """Pulls what there is, and commits it."""
        for queue in self.queues:
            asked = [PullQueue(queue, self.epochs[queue], self.read[queue])]
            (answer,) = pull.pull(
                consumer=self.member, queues=asked, max_messages=100, max_bytes=1 << 20
            )
            if answer.state == "unavailable":
                raise Unavailable("The node did not answer in time.")
            assert answer.state in ("ok", "cleaned")
            self.read[queue] = (
                (answer.low or 0) if answer.state == "cleaned" else answer.next_offset
            )
            commit(self.member, queue, self.epochs[queue], self.read[queue])

    def reset(self) -> None:
        """Between the ends."""
        target = Target("earliest" if self.turns["reset"] % 2 else "latest")
        offset_reset.reset(group="moved", topic="orders", target=target, actor=ACTOR)

    def clean(self) -> None:
        """Retention by count: `low` first, then the rows; and all but the newest batches
        are forgotten.
        """
        for queue in self.queues:
            with node_pools.node_of(queue).writing() as session:
                head = queue_sql.read_head(session, queue=queue)
                assert head is not None
                low = max(head.low, head.head - 300)
                partition_sql.raise_low(session, queue=queue, low=low)
                partition_sql.delete_below(session, queue=queue, end=low)
        batches.expire(hours=0, chunk=5)
        self.room.release(SENDS_EACH)

    def audit(self) -> list[Report]:
        """Until everybody had some turns; then the others may end."""
        try:
            reports = []
            while len(reports) < 8 or min(self.turns.values()) < 5:
                reports.append(look(digests=len(reports) % 3 == 0))
                assert len(reports) < 500, self.turns
            return reports
        finally:
            self.done.set()


def test_a_busy_topic_is_clean_again_and_again(
    node: str, in_threads: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHUNK", 50)
    monkeypatch.setattr(walk, "PAGE", 20)
    busy = Busy()
    work = [busy.audit, *(busy.until_done(name) for name in busy.turns)]
    reports, *_ = in_threads(work, limit_s=110)
    assert [
        one.findings for report in reports for one in report.queues if one.findings
    ] == []
    assert [one.unseen for report in reports for one in report.unseen] == []
    assert findings() == []
    queue = busy.queues[0]
    remove(queue, busy.read[queue] - 1)
    assert [kind for kind, _ in kinds()] == ["missing"]


def test_queues_of_an_expansion_that_failed_are_not_missed(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are retired, and their tables were never made."""

    def away(*_: Any, **__: Any) -> None:
        raise NodeUnavailable("The node is away.")

    with monkeypatch.context() as patched:
        patched.setattr(topics, "make_tables", away)
        with pytest.raises(NodeUnavailable):
            queues.expand(topic="orders", queues=2, actor=ACTOR)
    assert Queue.objects.filter(topic__name="orders", state="retired").count() == 2
    report = verify.verify(topics=["orders"], actor=ACTOR)
    assert [one for each in report.queues for one in each.findings] == []
