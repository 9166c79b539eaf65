"""Topics, nodes, keys, groups, subscriptions, leases, job runs: the verbs and what they
refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.db import audit, leases
from metadata.db.clock import database_now
from metadata.db.paging import Window
from metadata.errors import (
    Code,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NoWritableQueue,
    Unavailable,
)
from metadata.groups import groups, subscription_rows
from metadata.jobs import runs
from metadata.membership import rebalance
from metadata.models import (
    ApiKey,
    AuditLog,
    ConsumerGroup,
    ConsumerGroupTopic,
    JobRun,
    Lease,
    Queue,
    QueueOffset,
    Topic,
)
from metadata.nodes import node_rows
from metadata.topics import topic_rows
from metadata.users import api_keys
from tests.support import rows
from tests.support.rows import ME, Member

pytestmark = pytest.mark.usefixtures("metadata_db")
NOBODY = Actor(kind="key", name="nobody", rights={"produce": ("x",)}, key_id=1)


def raised(code: Code, kind: type[Exception], call: Callable[[], object]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert getattr(caught.value, "code", None) == code


def test_a_new_topic_spreads_its_queues_over_normal_nodes_that_are_open() -> None:
    rows.node("n1")
    rows.node("n2")
    rows.node("bad", kind="failure")
    rows.node("apart", dedicated=True)
    rows.node("shut")
    node_rows.update(name="shut", settings={"state": "read_only"}, actor=ME)

    made = topic_rows.plan_topic(name="orders", queues=4, actor=ME)

    assert [one.node for one in made.queues] == ["n1", "n2", "n1", "n2"]
    assert (made.state, made.layout) == ("creating", ())


def test_a_topic_can_be_put_on_one_node_even_a_special_one() -> None:
    rows.node("n1")
    rows.node("apart", dedicated=True)

    made = topic_rows.plan_topic(name="orders", queues=2, node="apart", actor=ME)

    assert [one.node for one in made.queues] == ["apart", "apart"]
    raised(
        Code.NODE_NOT_FOUND,
        NotFound,
        lambda: topic_rows.plan_topic(name="t", queues=1, node="none", actor=ME),
    )


def test_without_an_open_node_no_topic_can_be_made() -> None:
    raised(
        Code.NO_WRITABLE_QUEUE,
        NoWritableQueue,
        lambda: topic_rows.plan_topic(name="orders", queues=1, actor=ME),
    )
    assert not Topic.objects.exists()


@pytest.mark.one_engine
@pytest.mark.parametrize("queues", [0, 257])
def test_too_few_or_too_many_queues_are_refused(queues: int) -> None:
    rows.node()

    raised(
        Code.INVALID,
        Invalid,
        lambda: topic_rows.plan_topic(name="orders", queues=queues, actor=ME),
    )


def test_a_topic_name_can_be_taken_once_and_in_four_spellings(
    in_threads: Callable[..., list[Any]],
) -> None:
    rows.node()

    def make() -> str:
        try:
            return topic_rows.plan_topic(name="orders", queues=1, actor=ME).name
        except Conflict as error:
            return error.code

    made = in_threads([make] * 4)

    assert sorted(made) == ["already_exists"] * 3 + ["orders"]
    for spelling in ("Orders", "ORDERS", "orders."):
        topic_rows.plan_topic(name=spelling, queues=1, actor=ME)


def test_a_deleted_topic_frees_its_name_and_keeps_its_queues_until_removed() -> None:
    rows.node()
    queues = rows.topic("orders", queues=2)

    raised(
        Code.NOT_CONFIRMED,
        Invalid,
        lambda: topic_rows.mark_deleted(name="orders", confirm=None, actor=ME),
    )
    gone = topic_rows.mark_deleted(name="orders", confirm="orders", actor=ME)
    again = rows.topic("orders", queues=2)

    assert set(queues).isdisjoint(again)
    assert gone.name == f"orders~{gone.id}"
    assert list(topic_rows.iterate_due_for_drop()) == []
    Topic.objects.filter(pk=gone.id).update(
        deleted_at=database_now() - timedelta(days=3, seconds=1)
    )
    assert [one.id for one in topic_rows.iterate_due_for_drop()] == [gone.id]
    topic_rows.remove(gone.id)
    topic_rows.remove(gone.id)
    assert set(Queue.objects.values_list("pk", flat=True)) == set(again)


def test_a_topic_in_use_is_not_deleted() -> None:
    rows.world()

    raised(
        Code.IN_USE,
        Conflict,
        lambda: topic_rows.mark_deleted(name="orders", confirm="orders", actor=ME),
    )


def test_what_a_crash_left_creating_is_listed_and_can_be_given_up() -> None:
    rows.node()
    planned = topic_rows.plan_topic(name="orders", queues=2, actor=ME)
    ready = rows.topic("ready")

    assert list(topic_rows.iterate_unfinished(60)) == []
    assert [one.id for one in topic_rows.iterate_unfinished(-1)] == [planned.id]
    assert topic_rows.abandon(planned.id)
    topic_rows.remove(planned.id)

    assert set(Queue.objects.values_list("pk", flat=True)) == set(ready)
    assert not topic_rows.abandon(topic_rows.find_topic(name="ready", actor=ME).id)
    assert Topic.objects.filter(name="ready").exists()


def test_making_a_topic_ready_twice_changes_nothing() -> None:
    rows.node()
    rows.topic("orders")
    topic = topic_rows.find_topic(name="orders", actor=ME)

    assert topic_rows.make_ready(topic.id) == topic


def test_changing_a_topic_audits_only_what_changed() -> None:
    rows.node()
    rows.topic("orders")

    topic_rows.update(name="orders", settings={"retention_days": 3, "owners": ""}, actor=ME)

    row = AuditLog.objects.order_by("id").last()
    assert row is not None
    assert (row.verb, row.name, row.before, row.after) == (
        "update",
        "orders",
        {"retention_days": 7},
        {"retention_days": 3},
    )
    assert (row.actor_kind, row.actor_name) == ("command", "test")


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "call",
    [
        lambda: topic_rows.plan_topic(name="orders2", queues=1, actor=NOBODY),
        lambda: topic_rows.update(name="orders", settings={}, actor=NOBODY),
        lambda: topic_rows.mark_deleted(name="orders", confirm="orders", actor=NOBODY),
        lambda: topic_rows.find_topic(name="orders", actor=NOBODY),
        lambda: groups.create(name="g", actor=NOBODY),
        lambda: groups.update(name="billing", settings={}, actor=NOBODY),
        lambda: groups.delete(name="billing", confirm="billing", actor=NOBODY),
        lambda: groups.describe(name="billing", actor=NOBODY),
        lambda: subscription_rows.plan(
            group="billing", topic="orders", start="latest", actor=NOBODY
        ),
        lambda: subscription_rows.mark_deleting(
            group="billing", topic="orders", actor=NOBODY
        ),
        lambda: subscription_rows.update(
            group="billing", topic="orders", settings={}, actor=NOBODY
        ),
        lambda: node_rows.create(name="n2", engine="sqlite", database="x", actor=NOBODY),
        lambda: node_rows.update(name="n1", settings={}, actor=NOBODY),
        lambda: node_rows.delete(name="n1", confirm="n1", actor=NOBODY),
        lambda: api_keys.create(name="k", rights={"produce": ["*"]}, actor=NOBODY),
        lambda: api_keys.delete(name="k", confirm="k", actor=NOBODY),
    ],
)
def test_every_verb_refuses_an_actor_without_the_right_and_writes_nothing(
    call: Callable[[], object],
) -> None:
    rows.world()
    audited = AuditLog.objects.count()

    raised(Code.FORBIDDEN, Forbidden, call)

    assert AuditLog.objects.count() == audited


def test_a_key_is_shown_once_and_kept_as_a_digest() -> None:
    view, plaintext = api_keys.create(name="app", rights={"produce": ["orders*"]}, actor=ME)

    assert plaintext.startswith("catmq_")
    assert plaintext not in str(
        list(ApiKey.objects.values()) + list(AuditLog.objects.values())
    )
    found = snapshot.find_key(api_keys.digest(plaintext))
    assert found is not None
    assert (found.name, dict(found.rights)) == ("app", {"produce": ("orders*",)})
    assert api_keys.find_key(name="app", actor=ME) == view
    assert snapshot.find_key("0" * 64) is None


def test_a_node_with_queues_is_not_deleted_and_its_password_is_never_shown() -> None:
    rows.node("n1", password="hunter2")
    rows.topic()
    rows.node("n2")

    raised(
        Code.IN_USE, Conflict, lambda: node_rows.delete(name="n1", confirm="n1", actor=ME)
    )
    node_rows.delete(name="n2", confirm="n2", actor=ME)

    assert "hunter2" not in str(node_rows.find_node(name="n1", actor=ME)) + str(
        list(AuditLog.objects.values())
    )
    raised(Code.NODE_NOT_FOUND, NotFound, lambda: node_rows.find_node(name="n2", actor=ME))


def test_lists_are_paged_by_name_and_show_only_what_the_actor_may_see() -> None:
    rows.node()
    for number in range(5):
        rows.topic(f"a{number}", queues=1)
        rows.topic(f"b{number}", queues=1)
    actor = Actor(kind="key", name="k", rights={"produce": ("b*",)})

    first = topic_rows.list_topics(actor=actor, window=Window(limit=2))
    second = topic_rows.list_topics(
        actor=actor, window=Window(limit=2, after=first.next or "")
    )
    last = topic_rows.list_topics(
        actor=actor, window=Window(limit=2, after=second.next or "")
    )

    assert [one.name for one in (*first.items, *second.items, *last.items)] == [
        "b0",
        "b1",
        "b2",
        "b3",
        "b4",
    ]
    assert last.next is None
    assert [
        one.name
        for one in topic_rows.list_topics(actor=ME, window=Window(search="3")).items
    ] == ["a3", "b3"]
    raised(
        Code.INVALID,
        Invalid,
        lambda: topic_rows.list_topics(actor=ME, window=Window(limit=1001)),
    )


@pytest.mark.one_engine
def test_an_unknown_mode_is_refused() -> None:
    raised(Code.INVALID, Invalid, lambda: groups.create(name="g", mode="both", actor=ME))
    assert not ConsumerGroup.objects.exists()


def test_a_group_shows_members_with_heartbeat_age_and_queues() -> None:
    queues = rows.world()
    member = Member("a", instance_id="one").register()
    member.beat()

    [shown] = groups.describe(name="billing", actor=ME).members

    assert (shown.name, shown.instance_id, shown.queues) == ("a", "one", queues)
    assert shown.heartbeat_age_ms is not None
    assert 0 <= shown.heartbeat_age_ms < 10_000
    assert member.id is not None
    assert member.id.text.startswith(shown.consumer_id_prefix)
    assert member.id.text != shown.consumer_id_prefix


def test_a_group_with_members_is_not_deleted_and_a_deleted_one_frees_its_name() -> None:
    rows.world()
    member = Member("a").register()
    raised(
        Code.IN_USE,
        Conflict,
        lambda: groups.delete(name="billing", confirm="billing", actor=ME),
    )
    member.leave()

    groups.delete(name="billing", confirm="billing", actor=ME)
    groups.create(name="billing", actor=ME)

    [left] = subscription_rows.unfinished(60)
    assert left.state == "deleting"
    subscription_rows.remove(left.id)
    assert not QueueOffset.objects.exists()


def test_a_subscription_is_planned_made_ready_and_taken_down() -> None:
    rows.node()
    queues = rows.topic()
    rows.group(topics=())
    planned = subscription_rows.plan(
        group="billing", topic="orders", start="latest", actor=ME
    )
    assert (planned.state, planned.start, planned.queues) == ("creating", "latest", queues)
    base = planned.base_epoch
    assert set(QueueOffset.objects.values_list("queue_id", "epoch")) == {
        (queue, base) for queue in queues
    }
    raised(
        Code.BUSY,
        Unavailable,
        lambda: subscription_rows.plan(
            group="billing", topic="orders", start="latest", actor=ME
        ),
    )
    member = Member("a").register()
    assert member.beat().assigned == ()

    subscription_rows.make_ready(planned.id)
    assert rebalance.pending_groups() == [planned.group_id]
    rebalance.rebalance(planned.group_id)
    assert len(member.beat().assigned) == 4

    going = subscription_rows.mark_deleting(group="billing", topic="orders", actor=ME)
    rebalance.rebalance(planned.group_id)
    assert set(member.beat().revoked) == set(queues)
    member.beat()
    assert set(QueueOffset.objects.values_list("owner", flat=True)) == {None}
    subscription_rows.remove(going.id)
    assert not ConsumerGroupTopic.objects.exists()
    assert not QueueOffset.objects.exists()


def test_subscribing_to_what_is_not_there_is_refused() -> None:
    rows.world()

    def plan(group: str, topic: str, start: str = "earliest") -> Callable[[], object]:
        return lambda: subscription_rows.plan(
            group=group, topic=topic, start=start, actor=ME
        )

    raised(Code.GROUP_NOT_FOUND, NotFound, plan("none", "orders"))
    raised(Code.TOPIC_NOT_FOUND, NotFound, plan("billing", "none"))
    raised(Code.INVALID, Invalid, plan("billing", "orders", "middle"))


def test_background_work_is_asked_for_when_the_mark_is_set_first_and_after_the_commit() -> (
    None
):
    from django.db import transaction

    rows.node()
    rows.topic("t1")
    rows.topic("t2")
    rows.group(topics=())
    group_id = ConsumerGroup.objects.get().pk
    asked: list[int] = []
    rebalance.set_background(asked.append)
    try:
        with transaction.atomic():
            rebalance.request(group_id, "a test")
            rebalance.request(group_id, "a test")
            assert asked == []
        rows.subscribe("billing", "t1")
        assert asked == [group_id]
        rebalance.rebalance(group_id)
        rows.subscribe("billing", "t2")
        assert asked == [group_id, group_id]
    finally:
        rebalance.set_background(None)


def test_a_rebalance_that_moves_nothing_keeps_the_generation_and_clears_the_mark() -> None:
    rows.world()
    Member("a").register()
    group = ConsumerGroup.objects.get()

    moves = rebalance.rebalance(group.pk)

    assert (moves.granted, moves.revoked, moves.generation) == ((), (), group.generation)
    assert rebalance.pending_groups() == []


def test_two_topics_are_shared_evenly_and_a_second_topic_moves_nothing_of_the_first() -> (
    None
):
    rows.world(queues=3)
    first, second = Member("a").register(), Member("b").register()
    for _ in range(2):
        first.beat(), second.beat()
    held = [dict(first.owned), dict(second.owned)]

    rows.topic("more", queues=3)
    rows.subscribe("billing", "more")
    rebalance.rebalance(ConsumerGroup.objects.get().pk)
    first.beat(), second.beat()

    assert len(first.owned) == len(second.owned) == 3
    assert held[0].items() <= first.owned.items()
    assert held[1].items() <= second.owned.items()


def test_a_lease_has_one_holder_and_a_new_holder_a_new_term(
    in_threads: Callable[..., list[Any]],
) -> None:
    taken = in_threads(
        [
            lambda who=who: leases.acquire(name="x", holder=f"h{who}", ttl_s=60)
            for who in range(5)
        ]
    )
    assert taken.count(True) == 1
    holder = f"h{taken.index(True)}"
    assert leases.acquire(name="x", holder=holder, ttl_s=60)
    assert leases.acquire_term(name="x", holder="other", ttl_s=60) is None

    Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    term = leases.acquire_term(name="x", holder="other", ttl_s=60)

    assert term == 2
    assert not leases.acquire(name="x", holder=holder, ttl_s=60)
    leases.release(name="x", holder="other")
    assert leases.acquire(name="x", holder=holder, ttl_s=60)


def test_a_lease_is_renewed_when_about_half_of_it_is_over() -> None:
    mine = leases.LeaseHolder("x", "me", ttl_s=60)
    assert mine.acquire()
    begun = Lease.objects.get().expires_at
    assert mine.acquire() and Lease.objects.get().expires_at == begun, "nobody was asked"

    mine._renew_at = float("-inf")
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=31))

    assert mine.acquire()
    assert Lease.objects.get().expires_at > database_now() + timedelta(seconds=50)
    mine.release()
    assert leases.acquire(name="x", holder="other", ttl_s=60) and not mine.acquire()


def test_job_runs_are_recorded_as_done_or_failed_and_trimmed() -> None:
    with runs.record_run("sweep") as run:
        run.count = 3
    with pytest.raises(ZeroDivisionError), runs.record_run("sweep"):
        raise ZeroDivisionError("no")

    failed, done = JobRun.objects.order_by("-id")
    assert (done.state, done.count) == ("done", 3)
    assert (failed.state, failed.detail) == ("failed", "ZeroDivisionError: no")
    assert done.finished_at is not None
    assert runs.prune(days=-1) == 2


def test_the_audit_log_is_trimmed() -> None:
    rows.node()

    assert audit.prune() == 0
    assert audit.prune(days=-1) == 1
