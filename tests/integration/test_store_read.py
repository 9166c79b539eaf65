"""Pulls, acquires, commits, resets and lag through the store, fenced; on whichever engine
is under test.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from messagestore.consume import (
    behind,
    group_lag,
    node_owners,
    offset_reset,
    positions,
    pull,
)
from messagestore.consume.offset_reset import Move, Target
from messagestore.consume.positions import Acquired, Claim, CommitOffset, Committed
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import ROW_OFFSET, NewMessage
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption
from messagestore.inspect import browse
from messagestore.pool import node_pools
from messagestore.pool.session_pool import SessionPool
from messagestore.produce.publish import publish
from messagestore.tables import message_sql, partition_sql, reader_sql, shapes
from messagestore.tables.shapes import Position
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import (
    Code,
    Forbidden,
    Invalid,
    MetadataUnavailable,
    NodeUnavailable,
    NotFound,
)
from metadata.groups import groups, offset_resets, ownership, subscription_rows
from metadata.membership import consumers, rebalance
from metadata.nodes import node_rows
from metadata.rules.addresses import Address
from metadata.rules.cluster_members import Member, ServerKind
from metadata.topics import topic_rows
from tests.support.tampering import declare_gap, plant, raise_low, remove

ACTOR = command("test")


@pytest.fixture
def queues(node: str) -> list[int]:
    """Topic `orders` with two queues, and group `billing` that reads it from the earliest
    message.
    """
    state = topics.create(name="orders", queues=2, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    return [queue.queue.queue for queue in state.queues]


def join(name: str = "one") -> ConsumerId:
    joined = membership.join(
        group="billing", name=name, incarnation=str(uuid4()), actor=ACTOR
    )
    return consumer_ids.check(joined.consumer_id)


def claims(consumer: ConsumerId) -> dict[int, int]:
    """{queue: epoch} that metadata assigns to a member."""
    answer = consumers.heartbeat(consumer=consumer, generation=0, owned=[])
    return {one.queue: one.epoch for one in answer.assigned}


def take_over(consumer: ConsumerId) -> dict[int, int]:
    """Acquires all that is assigned; {queue: epoch}."""
    assigned = claims(consumer)
    acquired = positions.acquire(
        consumer=consumer, queues=[Claim(*claim) for claim in assigned.items()]
    )
    assert {one.state for one in acquired} == {"ok"}
    return assigned


def send(queue: int, count: int, body: bytes = b"m") -> None:
    publish(
        topic="orders",
        messages=[
            NewMessage(body=body + b"%d" % index, queue=queue) for index in range(count)
        ],
        batch_id=None,
        actor=ACTOR,
    )


def pull_one(
    consumer: ConsumerId, queue: int, epoch: int, offset: int = 0, **limits: int
) -> PulledQueue:
    given = {"max_messages": 100, "max_bytes": 1 << 20, **limits}
    return pull.pull(consumer=consumer, queues=[PullQueue(queue, epoch, offset)], **given)[
        0
    ]


def test_a_lone_member_owns_every_queue_and_reads_it_from_the_start(
    queues: list[int],
) -> None:
    send(queues[0], 3)
    member = join()
    epochs = take_over(member)
    assert set(epochs) == set(queues)
    answer = pull_one(member, queues[0], epochs[queues[0]])
    assert (answer.state, answer.next_offset, answer.head) == ("ok", 3, 3)
    assert [message.body for message in answer.messages] == [b"m0", b"m1", b"m2"]
    assert pull_one(member, queues[1], epochs[queues[1]]).messages == []


def test_a_pull_of_several_queues_reads_positions_and_rows_in_one_round_trip(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in queues:
        send(queue, 3)
    member = join()
    asked = [PullQueue(queue, epoch, 0) for queue, epoch in take_over(member).items()]
    lent: list[object] = []
    taken = SessionPool.take

    def noted(*given: Any, **more: Any) -> Any:
        lent.append(given)
        return taken(*given, **more)

    monkeypatch.setattr(SessionPool, "take", noted)

    answers = [
        pull.pull(consumer=member, queues=asked, max_messages=3, max_bytes=1 << 20)
        for _ in queues
    ]

    assert len(lent) == len(queues), "one connection is borrowed for each pull"
    counts = [
        [(one.state, len(one.rows), one.head) for one in answer] for answer in answers
    ]
    assert sorted(counts) == [[("ok", 0, 3), ("ok", 3, 3)], [("ok", 3, 3), ("ok", 0, 3)]], (
        "in turn"
    )


def test_a_pull_of_several_queues_tells_what_is_wrong_with_each(queues: list[int]) -> None:
    for queue in queues:
        send(queue, 2)
    member = join()
    epochs = take_over(member)
    first, second = (PullQueue(queue, epochs[queue], 0) for queue in queues)
    gone = PullQueue(10**6, 1, 0)
    asked = [first, second._replace(epoch=second.epoch + 1), gone]
    for _ in asked:  # whichever has its turn
        answer = pull.pull(
            consumer=member, queues=asked, max_messages=10, max_bytes=1 << 20
        )
        assert [(one.state, len(one.rows)) for one in answer] == [
            ("ok", 2),
            ("fenced", 0),
            ("fenced", 0),
        ]


def test_a_commit_is_where_the_next_owner_goes_on(queues: list[int]) -> None:
    send(queues[0], 5)
    first = join("first")
    epochs = take_over(first)
    queue = queues[0]
    assert positions.commit(
        consumer=first, offsets=[CommitOffset(queue, epochs[queue], 3)]
    ) == [Committed(queue, "ok", 3)]
    consumers.leave(consumer=first, actor=ACTOR)
    second = join("second")
    epoch = claims(second)[queue]
    assert positions.acquire(consumer=second, queues=[Claim(queue, epoch)]) == [
        Acquired(queue, "ok", 3)
    ]


def test_a_former_owner_is_fenced_from_the_moment_the_next_one_acquired(
    queues: list[int],
) -> None:
    send(queues[0], 5)
    queue, first = queues[0], join("first")
    old = take_over(first)[queue]
    consumers.leave(consumer=first, actor=ACTOR)
    second = join("second")
    new = claims(second)[queue]
    assert pull_one(first, queue, old).state == "ok", (
        "until then the node knows no other owner"
    )
    take_over(second)
    assert pull_one(first, queue, old).state == "fenced"
    assert pull_one(first, queue, new).state == "fenced", "an epoch alone opens nothing"
    assert positions.commit(consumer=first, offsets=[CommitOffset(queue, old, 5)]) == [
        Committed(queue, "fenced")
    ]
    assert pull_one(second, queue, new).state == "ok"


def test_an_acquire_that_metadata_did_not_grant_is_fenced(queues: list[int]) -> None:
    member = join()
    epoch = claims(member)[queues[0]]
    assert positions.acquire(consumer=member, queues=[Claim(queues[0], epoch + 1)]) == [
        Acquired(queues[0], "fenced")
    ]
    assert positions.acquire(consumer=member, queues=[Claim(10**6, 1)]) == [
        Acquired(10**6, "fenced")
    ]


def test_made_up_queues_and_epochs_are_fenced_and_change_nothing(queues: list[int]) -> None:
    member = join()
    epochs = take_over(member)
    assert pull_one(member, 10**6, 1).state == "fenced"
    assert pull_one(member, queues[0], epochs[queues[0]] + 1).state == "fenced"
    assert positions.commit(consumer=member, offsets=[CommitOffset(10**6, 1, 0)]) == [
        Committed(10**6, "fenced")
    ]
    assert pull_one(member, queues[0], epochs[queues[0]]).state == "ok"


def test_an_acquire_is_fenced_while_another_owner_has_its_epoch(queues: list[int]) -> None:
    member = join()
    epoch = take_over(member)[queues[0]]
    plant(queues[0], "UPDATE reader SET owner = 'other' WHERE queue_id = {q}")
    (acquired,) = positions.acquire(consumer=member, queues=[Claim(queues[0], epoch)])
    assert acquired.state == "fenced"


def test_an_offset_above_the_head_is_out_of_range(queues: list[int]) -> None:
    send(queues[0], 2)
    member = join()
    epoch = take_over(member)[queues[0]]
    assert pull_one(member, queues[0], epoch, 3).state == "out_of_range"
    refused = positions.commit(consumer=member, offsets=[CommitOffset(queues[0], epoch, 3)])
    assert refused == [Committed(queues[0], "out_of_range")]


@pytest.fixture
def former_writer(queues: list[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Queue 0 of a node whose pooled sessions are on a former writer: it lacks 2 of 5 messages."""
    queue = queues[0]
    send(queue, 5)
    node = node_pools.node_of(queue)
    node.member = Member(Address("db1", 3306), ServerKind.GROUP, "", "db1", "9.7")

    def lowered(session: Session, position: Position) -> Position:
        in_use = [pooled.session for pooled in node.pool._out]
        is_pooled = any(session is pooled for pooled in in_use)
        return position._replace(head=3) if is_pooled else position

    read_positions, read_rows = (
        reader_sql.read_positions,
        message_sql.read_positions_and_rows,
    )

    def positions_behind(session: Session, **query: Any) -> dict[int, Position]:
        found = read_positions(session, **query)
        return {one: lowered(session, position) for one, position in found.items()}

    def rows_behind(session: Session, **query: Any) -> Any:
        found, rows, origins = read_rows(session, **query)
        return (
            {one: lowered(session, position) for one, position in found.items()},
            [row for row in rows if row[ROW_OFFSET] < 3],
            origins,
        )

    monkeypatch.setattr(reader_sql, "read_positions", positions_behind)
    monkeypatch.setattr(message_sql, "read_positions_and_rows", rows_behind)
    return queue


def test_a_former_writer_sends_no_consumer_back_to_the_beginning(
    former_writer: int,
) -> None:
    member = join()
    epoch = take_over(member)[former_writer]
    # As far as the former writer knows, offset 5 is above the log end.
    pulled = pull_one(member, former_writer, epoch, 5)
    assert (pulled.state, pulled.messages, pulled.next_offset) == ("ok", [], 5)
    pulled = pull_one(member, former_writer, epoch, 6)
    assert (pulled.state, pulled.head) == ("out_of_range", 5)
    # A member with an epoch that only the writer could give.
    assert pull_one(member, former_writer, epoch + 1, 2).state == "fenced"


def test_all_queues_of_a_pull_are_asked_at_once(
    former_writer: int, queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    epochs = take_over(member)
    asked = []
    ask = behind.ask_writer

    def note(*place: Any, **query: Any) -> dict[int, Position]:
        asked.append(set(query["queues"]))
        return ask(*place, **query)

    monkeypatch.setattr(behind, "ask_writer", note)
    pulled = pull.pull(
        consumer=member,
        queues=[PullQueue(one, epochs[one], 5) for one in queues],
        max_messages=10,
        max_bytes=1000,
    )
    assert [one.state for one in pulled] == ["ok", "out_of_range"]
    assert asked == [set(queues)]


def test_a_former_writer_refuses_no_commit_for_good(
    former_writer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    epoch = take_over(member)[former_writer]
    monkeypatch.setattr(reader_sql, "update_committed", lambda *_, **__: [None])
    states = [
        positions.commit(
            consumer=member, offsets=[CommitOffset(former_writer, epoch + more, offset)]
        )[0].state
        for more, offset in ((0, 6), (1, 5))
    ]
    assert states == ["out_of_range", "fenced"]
    with pytest.raises(NodeUnavailable, match="Repeat the commit"):
        positions.commit(consumer=member, offsets=[CommitOffset(former_writer, epoch, 5)])


def test_a_pull_keeps_to_its_limits(queues: list[int]) -> None:
    send(queues[0], 40, body=b"x" * 1000)
    member = join()
    epoch = take_over(member)[queues[0]]
    assert len(pull_one(member, queues[0], epoch, max_messages=7).messages) == 7
    some = pull_one(member, queues[0], epoch, max_bytes=10_000)
    assert 5 <= len(some.messages) <= 10 and some.next_offset == len(some.messages)
    assert len(pull_one(member, queues[0], epoch, max_bytes=10).messages) == 1, (
        "a large one comes alone"
    )


def test_the_queues_of_a_pull_take_turns(queues: list[int]) -> None:
    for queue in queues:
        send(queue, 10)
    member = join()
    epochs = take_over(member)
    asked = [PullQueue(queue, epochs[queue], 0) for queue in queues]
    first = set()
    for _ in range(4):
        answers = pull.pull(
            consumer=member, queues=asked, max_messages=5, max_bytes=1 << 20
        )
        assert [answer.queue for answer in answers] == queues
        first |= {answer.queue for answer in answers if answer.messages}
    assert first == set(queues)


def test_a_hole_that_nobody_declared_delivers_nothing_past_it(queues: list[int]) -> None:
    queue = queues[0]
    send(queue, 5)
    member = join()
    epoch = take_over(member)[queue]
    remove(queue, 2)
    answer = pull_one(member, queue, epoch)
    assert (answer.state, answer.next_offset) == ("ok", 2)
    answer = pull_one(member, queue, epoch, 2)
    assert (answer.state, answer.messages, answer.next_offset) == ("corrupt", [], 2)
    assert queue in corruption.current()
    corruption.delivered(queue, next_offset=3)
    assert queue not in corruption.current()


def test_a_declared_gap_is_told_with_its_size(queues: list[int]) -> None:
    queue = queues[0]
    send(queue, 5)
    member = join()
    epoch = take_over(member)[queue]
    remove(queue, 2, 3)
    declare_gap(queue, 2, 4)
    answer = pull_one(member, queue, epoch, 2)
    assert (answer.state, answer.gap, answer.next_offset) == ("lost_tail", (2, 4), 4)
    assert [message.offset for message in pull_one(member, queue, epoch, 4).messages] == [4]


def test_a_position_below_low_is_told_where_low_is(queues: list[int]) -> None:
    queue = queues[0]
    send(queue, 5)
    member = join()
    epoch = take_over(member)[queue]
    raise_low(queue, 3)
    answer = pull_one(member, queue, epoch, 1)
    assert (answer.state, answer.low) == ("cleaned", 3)


def test_a_stopped_group_gets_nothing_until_it_is_started(queues: list[int]) -> None:
    send(queues[0], 1)
    member = join()
    epoch = take_over(member)[queues[0]]
    groups.update(name="billing", settings={"stopped": True}, actor=ACTOR)
    snapshot.refresh()
    assert pull_one(member, queues[0], epoch).state == "stopped"
    groups.update(name="billing", settings={"stopped": False}, actor=ACTOR)
    snapshot.refresh()
    assert pull_one(member, queues[0], epoch).state == "ok"


def test_a_node_that_is_away_makes_only_its_queues_unavailable(
    make_node: Callable[..., str], queues: list[int]
) -> None:
    make_node("other")
    state = topics.create(name="elsewhere", queues=1, node="other", actor=ACTOR)
    subscriptions.create(group="billing", topic="elsewhere", start="earliest", actor=ACTOR)
    member = join()
    epochs = take_over(member)
    node_rows.update(name="other", settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    away = state.queues[0].queue.queue
    asked = [PullQueue(queue, epochs[queue], 0) for queue in (queues[0], away)]
    answers = pull.pull(consumer=member, queues=asked, max_messages=10, max_bytes=1 << 20)
    assert [answer.state for answer in answers] == ["ok", "unavailable"]
    with pytest.raises(NodeUnavailable):
        pull_one(member, away, epochs[away])


def test_a_group_that_subscribes_at_the_latest_sees_only_what_comes_after(
    queues: list[int],
) -> None:
    send(queues[0], 3)
    groups.create(name="late", actor=ACTOR)
    subscriptions.create(group="late", topic="orders", start="latest", actor=ACTOR)
    offsets = {
        row.queue: row.committed
        for row in group_lag.group_offsets(group="late", actor=ACTOR)
    }
    assert offsets == {queues[0]: 3, queues[1]: 0}


def test_lag_counts_what_was_not_committed(queues: list[int]) -> None:
    send(queues[0], 5)
    member = join()
    epoch = take_over(member)[queues[0]]
    positions.commit(consumer=member, offsets=[CommitOffset(queues[0], epoch, 2)])
    one, two = group_lag.group_offsets(group="billing", actor=ACTOR)
    assert (one.queue, one.committed, one.head, one.lag, one.owner) == (
        queues[0],
        2,
        5,
        3,
        "one",
    )
    assert one.lag_ms is not None and 0 <= one.lag_ms < 60_000
    assert (two.lag, two.lag_ms) == (0, 0)


def test_unsubscribing_forgets_positions_and_fences_the_readers(queues: list[int]) -> None:
    send(queues[0], 2)
    member = join()
    epoch = take_over(member)[queues[0]]
    subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
    snapshot.refresh()
    assert pull_one(member, queues[0], epoch).state == "fenced"
    assert group_lag.group_offsets(group="billing", actor=ACTOR) == []
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    assert {
        row.committed for row in group_lag.group_offsets(group="billing", actor=ACTOR)
    } == {0}


def test_a_second_subscription_never_repeats_an_epoch_of_the_first(
    queues: list[int],
) -> None:
    send(queues[0], 10)
    member = join()
    first = take_over(member)[queues[0]]
    positions.commit(consumer=member, offsets=[CommitOffset(queues[0], first, 3)])
    subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    rebalance.rebalance(member.group_id)
    second = take_over(member)[queues[0]]
    assert second > first
    late = positions.commit(consumer=member, offsets=[CommitOffset(queues[0], first, 8)])
    assert late == [Committed(queues[0], "fenced")]
    assert group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed == 0


def test_a_sweep_with_an_old_list_leaves_a_later_subscription_alone(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = subscription_rows.find_subscription(group="billing", topic="orders", actor=ACTOR)
    subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="latest", actor=ACTOR)
    monkeypatch.setattr(subscription_rows, "unfinished", lambda older_than_s: [old])
    subscriptions.sweep()
    assert [
        row.committed for row in group_lag.group_offsets(group="billing", actor=ACTOR)
    ] == [
        0,
        0,
    ]


def test_a_creation_whose_commit_was_not_seen_takes_nothing_back(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the last step is lost: the topic and the subscription are ready, and
    stay so.
    """
    for module in (topic_rows, subscription_rows):
        monkeypatch.setattr(module, "make_ready", _unseen(module.make_ready))
    with pytest.raises(MetadataUnavailable):
        topics.create(name="unseen", queues=1, actor=ACTOR)
    groups.create(name="late", actor=ACTOR)
    with pytest.raises(MetadataUnavailable):
        subscriptions.create(group="late", topic="orders", start="earliest", actor=ACTOR)
    assert publish(
        topic="unseen", messages=[NewMessage(body=b"")], batch_id=None, actor=ACTOR
    )
    assert [
        row.committed for row in group_lag.group_offsets(group="late", actor=ACTOR)
    ] == [0, 0]


def _unseen(verb: Callable[..., Any]) -> Callable[..., Any]:
    def commit_and_lose_the_answer(*args: Any, **kwargs: Any) -> Any:
        verb(*args, **kwargs)
        raise MetadataUnavailable("the answer was lost")

    return commit_and_lose_the_answer


def test_a_sweep_drops_no_table_of_a_topic_that_became_ready_meanwhile(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = topic_rows.find_topic(name="orders", actor=ACTOR)
    monkeypatch.setattr(topic_rows, "iterate_unfinished", lambda older_than_s: [ready])
    topics.sweep()
    send(queues[0], 1)


def test_a_sweep_takes_back_a_topic_that_a_crash_left_half_made(queues: list[int]) -> None:
    left = topic_rows.plan_topic(name="half", queues=2, actor=ACTOR)
    assert topics.sweep(older_than_s=-1) == 1
    with pytest.raises(NotFound):
        topic_rows.make_ready(left.id)
    topics.create(name="half", queues=1, actor=ACTOR)


def test_unknown_queues_of_a_request_cost_one_look_at_metadata(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    looks = []
    monkeypatch.setattr(snapshot._holder, "renew_after_miss", lambda: looks.append(1))
    asked = [PullQueue(10**6 + number, 1, 0) for number in range(50)]
    answers = pull.pull(consumer=member, queues=asked, max_messages=1, max_bytes=1)
    assert {answer.state for answer in answers} == {"fenced"}
    positions.commit(
        consumer=member,
        offsets=[CommitOffset(10**6 + number, 1, 0) for number in range(50)],
    )
    assert len(looks) == 2


def test_a_pull_reads_little_more_than_it_may_answer(queues: list[int]) -> None:
    """The first message is tiny, so the guess of how many rows to ask for is wrong by far."""
    send(queues[0], 1, body=b"")
    member = join()
    epoch = take_over(member)[queues[0]]
    pull_one(member, queues[0], epoch)
    for _ in range(3):
        send(queues[0], 10, body=b"x" * 1_000_000)
    tracemalloc.start()
    answer = pull_one(member, queues[0], epoch, 1, max_messages=1000, max_bytes=2_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(answer.messages) == 1 and answer.next_offset == 2
    assert peak < 25_000_000
    assert [
        m.offset
        for m in pull_one(member, queues[0], epoch, 2, max_bytes=5_000_000).messages
    ] == [
        2,
        3,
        4,
        5,
    ]


def test_a_joining_consumer_makes_the_group_and_the_subscription_it_names(
    queues: list[int],
) -> None:
    def joined(name: str) -> membership.Joined:
        return membership.join(
            group="fresh",
            topics=["orders"],
            name=name,
            incarnation=str(uuid4()),
            actor=ACTOR,
        )

    assert joined("a").created == ("group:fresh", "subscription:fresh/orders")
    assert joined("b").created == ()


def test_joining_needs_consume_and_making_a_group_needs_manage(queues: list[int]) -> None:
    key = Actor(kind="key", name="k", rights={"consume": ("*",)}, key_id=None)
    with pytest.raises(Forbidden, match="manage"):
        membership.join(
            group="fresh", topics=["orders"], name="a", incarnation=str(uuid4()), actor=key
        )
    with pytest.raises(Forbidden, match="consume"):
        membership.join(
            group="billing",
            name="a",
            incarnation=str(uuid4()),
            actor=Actor(kind="key", name="k"),
        )
    with pytest.raises(NotFound):
        membership.join(group="nobody", name="a", incarnation=str(uuid4()), actor=ACTOR)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target("earliest"), 0),
        (Target("latest"), 5),
        (Target("offset", offset=4), 4),
        (Target("time", at_ms=0), 0),
        (Target("time", at_ms=1 << 45), 5),
        (Target("time", ago_ms=3_600_000), 0),
    ],
)
@pytest.mark.parametrize("stopped", [True, False])
def test_a_group_is_moved_running_or_stopped(
    queues: list[int], target: Target, expected: int, stopped: bool
) -> None:
    send(queues[0], 5)
    member = join()
    epoch = take_over(member)[queues[0]]
    positions.commit(consumer=member, offsets=[CommitOffset(queues[0], epoch, 2)])
    groups.update(name="billing", settings={"stopped": stopped}, actor=ACTOR)
    reset = {
        "group": "billing",
        "topic": "orders",
        "queues": [queues[0]],
        "target": target,
        "actor": ACTOR,
    }
    planned = [Move(queues[0], 0, 2, expected)]
    assert offset_reset.reset(**reset, dry_run=True) == planned
    assert group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed == 2
    assert offset_reset.reset(**reset) == planned
    assert group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed == expected


def test_after_a_reset_the_owner_goes_on_at_the_new_place_under_a_new_epoch(
    queues: list[int],
) -> None:
    send(queues[0], 5)
    member = join()
    epoch = take_over(member)[queues[0]]
    groups.update(name="billing", settings={"stopped": True}, actor=ACTOR)
    offset_reset.reset(
        group="billing",
        topic="orders",
        target=Target("offset", offset=0),
        queues=[queues[0]],
        actor=ACTOR,
    )
    groups.update(name="billing", settings={"stopped": False}, actor=ACTOR)
    snapshot.refresh()
    assert pull_one(member, queues[0], epoch).state == "fenced"
    again = take_over(member)[queues[0]]
    assert again > epoch
    assert pull_one(member, queues[0], again).state == "ok"


def test_a_reset_that_died_before_metadata_heard_of_it_heals_at_the_next_acquire(
    queues: list[int],
) -> None:
    member = join()
    epoch = take_over(member)[queues[0]]
    with node_pools.node_of(queues[0]).writing() as session:
        reader_sql.reset_reader(
            session, reader=shapes.ReaderKey(member.group_id, queues[0]), offset=0
        )
    assert pull_one(member, queues[0], epoch).state == "fenced"
    assert (
        positions.acquire(consumer=member, queues=[Claim(queues[0], epoch)])[0].state
        == "fenced"
    )
    assert take_over(member)[queues[0]] > epoch + 1


def test_a_reset_to_nowhere_is_refused(queues: list[int]) -> None:
    send(queues[0], 5)
    join()
    wrong = [
        Target("offset"),
        Target("offset", offset=-1),
        Target("sometime"),
        Target("latest", offset=1),
        Target("time", at_ms=1, ago_ms=1),
    ]
    for target in wrong:
        with pytest.raises(Invalid):
            offset_reset.reset(group="billing", topic="orders", target=target, actor=ACTOR)
    with pytest.raises(NotFound):
        offset_reset.reset(
            group="billing", topic="nowhere", target=Target("earliest"), actor=ACTOR
        )
    assert group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed == 0


def test_messages_are_browsed_by_offset_and_found_by_id(queues: list[int]) -> None:
    send(queues[0], 30)
    page = browse.read_page(
        topic="orders", queue=queues[0], offset=10, limit=5, actor=ACTOR
    )
    assert ([message.offset for message in page.messages], page.next) == (
        [10, 11, 12, 13, 14],
        15,
    )
    last = browse.read_page(
        topic="orders", queue=queues[0], offset=10, limit=100, actor=ACTOR
    )
    assert (len(last.messages), last.next) == (20, None)
    found = browse.read_message(topic="orders", message_id=f"{queues[0]}-7", actor=ACTOR)
    assert [message.body for message in found.messages] == [b"m7"]


def test_a_page_names_the_offsets_that_it_skipped(queues: list[int]) -> None:
    send(queues[0], 40)
    raise_low(queues[0], 3)
    remove(queues[0], *range(5, 20), 30)
    declare_gap(queues[0], 5, 20)

    def page(offset: int, limit: int) -> browse.MessagePage:
        return browse.read_page(
            topic="orders", queue=queues[0], offset=offset, limit=limit, actor=ACTOR
        )

    first = page(0, 3)
    assert [message.offset for message in first.messages] == [3, 4]
    assert (first.missing, first.next) == (((0, 3, "expired"),), 5)
    # A page that begins in a gap longer than the page continues after the gap.
    second = page(5, 2)
    assert [message.offset for message in second.messages] == [20, 21]
    assert second.missing == ((5, 20, "lost"),)
    assert page(29, 3).missing == ((30, 31, "unexplained"),)
    hole = page(30, 1)
    assert (hole.messages, hole.missing, hole.next) == (
        (),
        ((30, 31, "unexplained"),),
        31,
    )
    assert page(31, 100).missing == ()


def test_what_cannot_be_browsed_is_told(queues: list[int]) -> None:
    with pytest.raises(NotFound) as caught:
        browse.read_message(topic="orders", message_id=f"{queues[0]}-7", actor=ACTOR)
    assert caught.value.code == "message_not_found"
    with pytest.raises(NotFound) as caught:
        browse.read_page(topic="orders", queue=10**6, offset=0, limit=1, actor=ACTOR)
    assert caught.value.code == "queue_not_found"
    with pytest.raises(Invalid):
        browse.read_page(topic="orders", queue=queues[0], offset=-1, limit=1, actor=ACTOR)
    with pytest.raises(Forbidden):
        browse.read_page(
            topic="orders",
            queue=queues[0],
            offset=0,
            limit=1,
            actor=Actor(kind="key", name="k"),
        )


def test_who_may_not_manage_joins_a_group_that_was_just_made_for_others(
    queues: list[int],
) -> None:
    """This process has not heard of the group yet."""
    old = snapshot._holder.snapshot
    membership.join(
        group="fresh", topics=["orders"], name="a", incarnation=str(uuid4()), actor=ACTOR
    )
    snapshot._holder.snapshot = old
    key = Actor(kind="key", name="k", rights={"consume": ("*",)}, key_id=None)

    joined = membership.join(
        group="fresh", topics=["orders"], name="b", incarnation=str(uuid4()), actor=key
    )

    assert joined.created == ()


@pytest.mark.parametrize(("asked", "expected"), [(99, 5), (5, 5), (0, 2), (3, 3)])
def test_an_offset_that_a_queue_has_not_becomes_the_nearest_it_has_and_the_move_says_so(
    queues: list[int], asked: int, expected: int
) -> None:
    send(queues[0], 5)
    with node_pools.node_of(queues[0]).writing() as session:
        partition_sql.raise_low(session, queue=queues[0], low=2)
    (move,) = offset_reset.reset(
        group="billing",
        topic="orders",
        queues=[queues[0]],
        target=Target("offset", offset=asked),
        dry_run=True,
        actor=ACTOR,
    )
    assert (move.to_offset, move.asked) == (expected, asked if asked != expected else None)
    # The group stood at 0, where nothing is any more.
    assert (move.skipped, move.repeated) == (expected - 2, 0)


def test_who_was_reading_commits_nothing_of_before_a_reset(queues: list[int]) -> None:
    send(queues[0], 5)
    member = join()
    epoch = take_over(member)[queues[0]]
    assert pull_one(member, queues[0], epoch).state == "ok"
    positions.commit(consumer=member, offsets=[CommitOffset(queues[0], epoch, 1)])
    offset_reset.reset(
        group="billing", topic="orders", target=Target("offset", offset=3), actor=ACTOR
    )
    for late in (2, 4, 5):
        assert positions.commit(
            consumer=member, offsets=[CommitOffset(queues[0], epoch, late)]
        ) == [(queues[0], "fenced", 0)]
    assert group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed == 3
    assert pull_one(member, queues[0], epoch).state == "fenced"
    assert take_over(member)[queues[0]] > epoch


def test_a_commit_between_plan_and_move_is_where_an_undo_goes_back_to(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(queues[0], 5)
    member = join()
    epoch = take_over(member)[queues[0]]
    begin = offset_resets.begin_move

    def overtaken(**given: Any) -> int:
        positions.commit(consumer=member, offsets=[CommitOffset(queues[0], epoch, 4)])
        return begin(**given)

    monkeypatch.setattr(offset_resets, "begin_move", overtaken)
    reset = {"group": "billing", "topic": "orders", "queues": [queues[0]], "actor": ACTOR}
    (made,) = offset_reset.reset(**reset, target=Target("earliest"))
    assert (made.from_offset, made.to_offset, made.repeated) == (4, 0, 4)
    monkeypatch.undo()
    (back,) = offset_reset.undo(group="billing", actor=ACTOR)
    assert (back.from_offset, back.to_offset) == (0, 4)


def test_an_owner_that_comes_between_node_and_metadata_gets_the_queue_in_the_end(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(queues[0], 5)
    member = join()
    epoch = take_over(member)[queues[0]]
    adopt = ownership.adopt_node_epoch

    def overtaken(**given: Any) -> int:
        monkeypatch.setattr(ownership, "adopt_node_epoch", adopt)
        assert (
            positions.acquire(consumer=member, queues=[Claim(queues[0], epoch)])[0].state
            == "fenced"
        )
        assert take_over(member)[queues[0]] > epoch
        return adopt(**given)

    monkeypatch.setattr(ownership, "adopt_node_epoch", overtaken)
    offset_reset.reset(
        group="billing", topic="orders", target=Target("offset", offset=2), actor=ACTOR
    )
    again = take_over(member)[queues[0]]
    answer = pull_one(member, queues[0], again)
    assert (
        answer.state,
        group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed,
    ) == (
        "ok",
        2,
    )


def test_a_subscription_that_ends_while_an_epoch_is_adopted_does_not_hinder_other_queues(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    epochs = take_over(member)
    # as if the broker had died before
    monkeypatch.setattr(ownership, "adopt_node_epoch", lambda **_: 0)
    reset = {"group": "billing", "topic": "orders", "queues": [queues[0]], "actor": ACTOR}
    offset_reset.reset(**reset, target=Target("earliest"))

    def ended(**_: Any) -> int:
        raise NotFound("no subscription", code=Code.SUBSCRIPTION_NOT_FOUND)

    monkeypatch.setattr(ownership, "adopt_node_epoch", ended)
    claims = [Claim(queue, epochs[queue]) for queue in queues[:2]]
    states = [
        acquired.state for acquired in positions.acquire(consumer=member, queues=claims)
    ]
    assert states == ["fenced", "ok"]


def test_owners_that_are_remembered_do_not_name_a_queue_that_was_deleted(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_owners, "BELIEVED_S", 60.0)
    member = join()
    take_over(member)
    node_owners._remembered.clear()
    assert {owned.queue for owned in node_owners.owned(member)} == {*queues}
    subscriptions.delete(group="billing", topic="orders", actor=ACTOR)
    topics.delete(name="orders", confirm="orders", actor=ACTOR)
    snapshot.refresh()
    assert node_owners.owned(member) == []


def test_resets_are_undone_one_after_the_other_and_an_undo_too(queues: list[int]) -> None:
    send(queues[0], 5)
    join()
    for offset in (1, 2, 3):
        offset_reset.reset(
            group="billing",
            topic="orders",
            queues=[queues[0]],
            target=Target("offset", offset=offset),
            actor=ACTOR,
        )

    def stands() -> int | None:
        return group_lag.group_offsets(group="billing", actor=ACTOR)[0].committed

    assert offset_reset.undo(group="billing", dry_run=True, actor=ACTOR)[0].to_offset == 2
    assert stands() == 3
    (first,) = offset_reset.undo(group="billing", actor=ACTOR)
    assert stands() == 2
    offset_reset.undo(group="billing", actor=ACTOR)
    assert stands() == 1
    offset_reset.undo(group="billing", reset=first.reset, actor=ACTOR)
    assert stands() == 3
    offset_reset.undo(group="billing", actor=ACTOR)
    assert stands() == 0
    with pytest.raises(NotFound) as caught:
        offset_reset.undo(group="billing", actor=ACTOR)
    assert caught.value.code == "reset_not_found"
    past = offset_resets.list_moves(group="billing", limit=3, after=None, actor=ACTOR)
    assert [(one.from_offset, one.to_offset, one.done) for one in past.items] == [
        (3, 0, True),
        (1, 3, True),
        (2, 1, True),
    ]
    assert offset_resets.prune() == 0
