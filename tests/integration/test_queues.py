"""Topics that are expanded and shrunk, and queues that are closed and opened, while groups
read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.nodes import registry
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import queue_sql, reader_sql
from messagestore.topology import queue_states, queues, subscriptions, topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    Forbidden,
    Invalid,
    NodeUnavailable,
    NotFound,
)
from metadata.groups import groups
from metadata.groups import layout as queue_rows
from metadata.membership import rebalance
from metadata.models import AuditLog, Queue, QueueOffset, Topic
from metadata.topics import topic_rows
from metadata.topics.topic_rows import TopicView
from tests.support import tampering
from tests.support.instances import Instance

ME = command("test")


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def orders(node: str) -> list[int]:
    """The ids of the four queues of topic `orders` on node `main`."""
    made = topics.create(name="orders", queues=4, actor=ME)
    snapshot.refresh()
    return [one.queue.queue for one in made.queues]


def shown(name: str = "orders") -> TopicView:
    snapshot.refresh()
    return topic_rows.find_topic(name=name, actor=ME)


def states() -> dict[int, str]:
    """Queue → its state in metadata."""
    return {one.queue: one.state for one in shown().queues}


def heads() -> dict[int, str]:
    """Queue → its state on its node, '' without a head."""
    found = {}
    for one in shown().queues:
        with node_pools.node(one.node_id).reading() as session:
            head = queue_sql.read_head(session, queue=one.queue)
        found[one.queue] = head.state if head else ""
    return found


def send(queue: int | None = None, *, key: str | None = None, **batch: Any) -> Any:
    message = NewMessage(body=b"m", queue=queue, key=key)
    return publish(
        topic="orders", messages=[message], actor=ME, **{"batch_id": None, **batch}
    )[0]


def subscribe(group: str, *, start: str = "earliest", **more: Any) -> None:
    groups.create(name=group, actor=ME, **more)
    subscriptions.create(group=group, topic="orders", start=start, actor=ME)


def refused(code: Code, kind: type[CatmqError], call: Callable[[], object]) -> CatmqError:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def dies(*args: object, **kwargs: object) -> Any:
    raise Crash


def away(*args: object, **kwargs: object) -> Any:
    raise NodeUnavailable("The node is away.")


# ------------------------------------------------------------------------------------------
# expanding


def test_new_queues_get_their_share_of_the_slots_from_the_others_evenly(
    orders: list[int],
) -> None:
    done = queues.expand(topic="orders", queues=2, actor=ME)

    after = shown()
    new = [one.queue for one in done.queues]
    assert (len(new), [one.number for one in done.queues]) == (2, [4, 5])
    assert states() == dict.fromkeys([*orders, *new], "read_write")
    assert heads() == dict.fromkeys([*orders, *new], "rw")
    assert sorted(Counter(after.layout).values()) == [170, 170, 171, 171, 171, 171]
    assert after.layout_version == done.layout_version == 2
    assert done.moved_slots == after.layout.count(new[0]) + after.layout.count(new[1])
    assert send(new[1]) == (new[1], 0)


def test_every_group_reads_a_new_queue_from_its_beginning(orders: list[int]) -> None:
    subscribe("early")
    subscribe("late", start="latest")
    subscribe("news", start="latest", mode="broadcasting")
    one, two = Instance("one").join(), Instance("two").join()
    rebalance.rebalance(groups.describe(name="early", actor=ME).id)

    (new,) = queues.expand(topic="orders", queues=1, actor=ME).queues

    snapshot.refresh()
    send(new.queue)
    rows = dict(
        QueueOffset.objects.filter(queue=new.queue).values_list("group__name", "epoch")
    )
    bases = dict(
        QueueOffset.objects.filter(queue=orders[0]).values_list("group__name", "epoch")
    )
    assert rows == bases
    placed = tampering.readers(new.queue)
    assert [(epoch, committed) for _, _, epoch, _, committed in placed] == sorted(
        [(bases["early"], 0), (bases["late"], 0), (bases["news"], 0), (bases["news"], 0)]
    )
    early = groups.describe(name="early", actor=ME)
    assert early.rebalancing and early.id in rebalance.pending_groups()
    rebalance.rebalance(groups.describe(name="news", actor=ME).id)
    for instance in (one, two):
        assert instance.take()[new.queue] == ("ok", 0)


def test_new_queues_go_where_the_topic_has_fewest_or_where_one_says(
    orders: list[int], make_node: Callable[..., str]
) -> None:
    make_node("second")
    make_node("apart", dedicated=True)

    assert [
        one.node for one in queues.expand(topic="orders", queues=3, actor=ME).queues
    ] == ["second"] * 3
    made = queues.expand(topic="orders", queues=1, node="apart", actor=ME)
    assert [one.node for one in made.queues] == ["apart"]


@pytest.mark.one_engine
def test_a_preview_of_an_expansion_says_what_moves_and_changes_nothing(
    orders: list[int],
) -> None:
    subscribe("billing")
    for _ in range(3):
        send(orders[0])
    send(orders[1])

    planned = queues.expand(topic="orders", queues=4, actor=ME, dry_run=True)

    assert (planned.dry_run, planned.moved_slots, planned.moved_share) == (True, 512, 0.5)
    assert [(one.group, one.messages) for one in planned.unread] == [("billing", 4)]
    assert [(one.number, one.node) for one in planned.queues] == [
        (n, "main") for n in (4, 5, 6, 7)
    ]
    assert (list(states()), shown().layout_version) == (orders, 1)
    assert not AuditLog.objects.filter(verb="expand").exists()


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"queues": 0}, Code.INVALID),
        ({"queues": 253}, Code.INVALID),
        ({"queues": 1, "node": "nowhere"}, Code.NODE_NOT_FOUND),
        ({"queues": 1, "node": "bad"}, Code.INVALID),
        ({"queues": 1, "node": "shut"}, Code.INVALID),
        ({"queues": 1, "topic": "nothing"}, Code.TOPIC_NOT_FOUND),
        ({"queues": 1, "actor": Actor(kind="key", name="x")}, Code.FORBIDDEN),
    ],
)
def test_an_expansion_that_cannot_be_is_refused_and_makes_nothing(
    orders: list[int], make_node: Callable[..., str], given: dict[str, Any], code: Code
) -> None:
    if "node" in given:
        make_node("bad", kind="failure")
        make_node("shut")
        registry.update(name="shut", settings={"state": "read_only"}, actor=ME)

    refused(
        code, CatmqError, lambda: queues.expand(**{"topic": "orders", "actor": ME, **given})
    )

    assert list(states()) == orders


def test_while_queues_are_being_made_there_is_no_second_expansion(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sql, "create_queue", dies)
    with pytest.raises(Crash):
        queues.expand(topic="orders", queues=1, actor=ME)

    refused(
        Code.IN_USE, Conflict, lambda: queues.expand(topic="orders", queues=1, actor=ME)
    )
    (new,) = set(states()) - set(orders)
    refused(
        Code.INVALID, Invalid, lambda: queues.shrink(topic="orders", queues=[new], actor=ME)
    )
    subscribe("billing")
    assert not QueueOffset.objects.filter(queue=new).exists()
    assert set(shown().layout) == set(orders)


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (queue_sql, "create_queue"),
        (reader_sql, "insert_readers"),
        (queue_rows, "make_ready"),
    ],
)
def test_an_expansion_that_died_anywhere_is_finished_by_the_sweep(
    orders: list[int], monkeypatch: pytest.MonkeyPatch, module: Any, step: str
) -> None:
    subscribe("billing")
    with monkeypatch.context() as dying, pytest.raises(Crash):
        dying.setattr(module, step, dies)
        queues.expand(topic="orders", queues=2, actor=ME)
    assert queues.sweep() == 0  # it may be going on

    assert queues.sweep(-1) == 1

    assert queues.sweep(-1) == 0
    assert set(states().values()) == {"read_write"}
    new = set(states()) - set(orders)
    assert set(shown().layout) == {*orders, *new}
    for queue in new:
        assert [row[4] for row in tampering.readers(queue)] == [0]
        assert QueueOffset.objects.filter(queue=queue).count() == 1


def test_an_expansion_that_another_process_finished_meanwhile_may_have_messages(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = queue_sql.create_queue

    def late(*given: Any, **queue: Any) -> bool:
        monkeypatch.setattr(queue_sql, "create_queue", real)
        assert queues.sweep(-1) == 1
        snapshot.refresh()
        message = NewMessage(body=b"early", queue=queue["queue"])
        publish(topic="orders", messages=[message], batch_id=None, actor=ME)
        return real(*given, **queue)

    monkeypatch.setattr(queue_sql, "create_queue", late)
    (new,) = queues.expand(topic="orders", queues=1, actor=ME).queues

    assert states()[new.queue] == "read_write"
    with node_pools.node(shown().queues[-1].node_id).reading() as session:
        assert queue_sql.read_heads(session, queues=[new.queue]) == {new.queue: 1}


def test_an_expansion_that_cannot_be_finished_is_taken_back_and_can_be_repeated(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying, pytest.raises(Crash):
        dying.setattr(queue_sql, "create_queue", dies)
        queues.expand(topic="orders", queues=1, actor=ME)
    with monkeypatch.context() as failing:
        failing.setattr(queue_sql, "create_queue", away)
        assert queues.sweep(-1) == 1
        refused(
            Code.NODE_UNAVAILABLE,
            NodeUnavailable,
            lambda: queues.expand(topic="orders", queues=1, actor=ME),
        )
    assert sorted(states().values()) == ["read_write"] * 4 + ["retired"] * 2
    assert set(shown().layout) == set(orders)

    (new,) = queues.expand(topic="orders", queues=1, actor=ME).queues

    assert (new.number, states()[new.queue]) == (6, "read_write")


def test_a_group_that_subscribes_meanwhile_has_its_places_too(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = queue_rows.make_ready, []

    def late(**given: Any) -> Any:
        if not asked:
            subscribe("billing")
        asked.append(real(**given))
        return asked[-1]

    monkeypatch.setattr(queue_rows, "make_ready", late)
    (new,) = queues.expand(topic="orders", queues=1, actor=ME).queues

    assert [one is None for one in asked] == [True, False]
    assert len(tampering.readers(new.queue)) == 1
    assert QueueOffset.objects.filter(queue=new.queue).count() == 1


def test_the_process_that_was_slow_finds_its_queues_taken_back(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = queue_rows.make_ready

    def slow(*, topic_id: int, queues: Any, **given: Any) -> Any:
        queue_rows.abandon_expansion(topic_id=topic_id, queues=queues, actor=ME)
        return real(topic_id=topic_id, queues=queues, **given)

    monkeypatch.setattr(queue_rows, "make_ready", slow)
    refused(
        Code.IN_USE, Conflict, lambda: queues.expand(topic="orders", queues=1, actor=ME)
    )
    assert sorted(heads().values()) == ["retired"] + ["rw"] * 4


def test_a_topic_that_is_deleted_while_it_is_expanded_loses_the_new_tables_with_the_others(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(**given: Any) -> Any:
        topics.delete(name="orders", confirm="orders", actor=ME)
        return real(**given)

    real = queue_rows.make_ready
    monkeypatch.setattr(queue_rows, "make_ready", gone)
    refused(
        Code.TOPIC_NOT_FOUND,
        NotFound,
        lambda: queues.expand(topic="orders", queues=1, actor=ME),
    )
    assert topics.drop_deleted(-1) == 1
    assert not Queue.objects.exists()


# ------------------------------------------------------------------------------------------
# shrinking


def test_shrinking_moves_the_slots_of_the_queues_that_go_and_closes_them(
    orders: list[int],
) -> None:
    before = shown().layout

    done = queues.shrink(topic="orders", queues=orders[2:], actor=ME)

    after = shown()
    assert {
        queue: state for queue, state in states().items() if state == "read_only"
    }.keys() == set(orders[2:])
    assert heads() == {orders[0]: "rw", orders[1]: "rw", orders[2]: "ro", orders[3]: "ro"}
    assert Counter(after.layout) == {orders[0]: 512, orders[1]: 512}
    assert all(
        now == then
        for now, then in zip(after.layout, before, strict=True)
        if then in orders[:2]
    )
    assert (done.moved_share, done.layout_version, after.layout_version) == (0.5, 2, 2)
    refused(Code.QUEUE_NOT_WRITABLE, Conflict, lambda: send(orders[3]))
    assert send().queue in orders[:2]


@pytest.mark.one_engine
def test_the_newest_queues_go_when_a_number_is_given(orders: list[int]) -> None:
    planned = queues.shrink(topic="orders", count=2, actor=ME, dry_run=True)
    assert [one.queue for one in planned.queues] == orders[2:]
    assert (planned.moved_slots, set(states().values()), heads()) == (
        512,
        {"read_write"},
        dict.fromkeys(orders, "rw"),
    )
    queues.shrink(topic="orders", count=1, actor=ME)
    assert [queue for queue, state in states().items() if state == "read_only"] == orders[
        3:
    ]


def test_a_preview_of_a_shrinking_counts_what_each_group_has_not_read(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe("billing")
    subscribe("news", mode="broadcasting")
    Instance("one").join()
    send(orders[0])
    send(orders[3])
    send(orders[3])

    planned = queues.shrink(topic="orders", queues=[orders[3]], actor=ME, dry_run=True)
    assert [(one.group, one.messages) for one in planned.unread] == [
        ("billing", 2),
        ("news", 2),
    ]

    monkeypatch.setattr(reader_sql, "read_positions", away)
    planned = queues.shrink(topic="orders", queues=[orders[3]], actor=ME, dry_run=True)
    assert [(one.group, one.messages) for one in planned.unread] == [
        ("billing", None),
        ("news", None),
    ]


def test_a_broker_whose_picture_is_older_cannot_write_to_a_queue_that_drains(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = snapshot.current()
    queues.shrink(topic="orders", queues=[orders[0]], actor=ME)
    monkeypatch.setattr(snapshot._holder, "snapshot", old)
    monkeypatch.setattr(snapshot, "refresh", lambda: False)

    refused(Code.QUEUE_NOT_WRITABLE, Conflict, lambda: send(orders[0]))


def test_a_queue_is_closed_on_its_node_before_metadata_says_so(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = queue_rows.shrink, []

    def watched(**given: Any) -> Any:
        seen.append((given.get("dry_run", False), heads()[orders[0]], states()[orders[0]]))
        return real(**given)

    monkeypatch.setattr(queue_rows, "shrink", watched)
    queues.shrink(topic="orders", queues=[orders[0]], actor=ME)
    assert seen == [(True, "rw", "read_write"), (False, "ro", "read_write")]


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("given", "kind", "code"),
    [
        ({"queues": []}, Invalid, Code.INVALID),
        ({}, Invalid, Code.INVALID),
        ({"queues": [0], "count": 1}, Invalid, Code.INVALID),
        ({"queues": [0, 0]}, Invalid, Code.INVALID),
        ({"queues": [-1]}, Invalid, Code.INVALID),
        ({"count": 0}, Invalid, Code.INVALID),
        ({"queues": [0, 1, 2, 3]}, Conflict, Code.LAST_QUEUE),
        ({"count": 4}, Conflict, Code.LAST_QUEUE),
        ({"count": 1000}, Conflict, Code.LAST_QUEUE),
        ({"count": 1, "actor": Actor(kind="key", name="x")}, Forbidden, Code.FORBIDDEN),
        ({"count": 1, "topic": "nothing"}, NotFound, Code.TOPIC_NOT_FOUND),
    ],
)
def test_a_shrinking_that_cannot_be_is_refused_and_closes_nothing(
    orders: list[int], given: dict[str, Any], kind: Any, code: Code
) -> None:
    """Numbers stand for the topic's queues, -1 for one of another topic."""
    other = topics.create(name="other", queues=1, actor=ME).queues[0].queue.queue
    asked = {"topic": "orders", "actor": ME, **given}
    if "queues" in given:
        asked["queues"] = [
            other if number < 0 else orders[number] for number in given["queues"]
        ]

    refused(code, kind, lambda: queues.shrink(**asked))

    assert (set(states().values()), set(heads().values())) == ({"read_write"}, {"rw"})


@pytest.mark.one_engine
def test_the_last_queue_on_an_open_node_is_kept(
    orders: list[int], make_node: Callable[..., str]
) -> None:
    make_node("second")
    (new,) = queues.expand(topic="orders", queues=1, node="second", actor=ME).queues
    registry.update(name="second", settings={"state": "read_only"}, actor=ME)
    snapshot.refresh()

    refused(
        Code.LAST_QUEUE,
        Conflict,
        lambda: queues.shrink(topic="orders", queues=orders, actor=ME),
    )
    queues.shrink(topic="orders", queues=orders[:3], actor=ME)

    # none went to the queue that takes no messages
    assert Counter(shown().layout)[orders[3]] > 700
    refused(Code.LAST_QUEUE, Conflict, lambda: change(orders[3], "read_only"))
    change(orders[0], "read_write")
    change(orders[3], "read_only")
    assert states()[new.queue] == "read_write"


@pytest.mark.one_engine
def test_shrinking_twice_is_harmless(orders: list[int]) -> None:
    queues.shrink(topic="orders", queues=orders[:2], actor=ME)
    again = queues.shrink(topic="orders", queues=orders[:2], actor=ME)
    assert (again.moved_slots, again.layout_version, shown().layout_version) == (0, 2, 2)


@pytest.mark.parametrize("crossing", ["set_state", "shrink"])
def test_a_close_that_died_half_way_is_undone_by_the_sweep(
    orders: list[int], monkeypatch: pytest.MonkeyPatch, crossing: str
) -> None:
    real = getattr(queue_rows, crossing)

    def dying(**given: Any) -> Any:
        return real(**given) if given.get("dry_run") else dies()

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(queue_rows, crossing, dying)
        patched.setattr(queue_states, "settle_later", lambda queues: None)
        if crossing == "shrink":
            queues.shrink(topic="orders", queues=[orders[0]], actor=ME)
        else:
            change(orders[0], "read_only")
    assert (heads()[orders[0]], states()[orders[0]]) == ("ro", "read_write")

    assert queue_states.sweep() == 1

    assert heads()[orders[0]] == "rw"
    assert queue_states.sweep() == 0


def test_what_metadata_refuses_in_the_end_is_open_again(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = queue_rows.shrink

    def meanwhile(**given: Any) -> Any:
        """Somebody else closes all other queues between the look and the change."""
        if not given.get("dry_run"):
            for queue in orders[1:]:
                queue_rows.set_state(
                    topic="orders", queue=queue, state="read_only", actor=ME
                )
        return real(**given)

    monkeypatch.setattr(queue_rows, "shrink", meanwhile)
    refused(
        Code.LAST_QUEUE,
        Conflict,
        lambda: queues.shrink(topic="orders", queues=[orders[0]], actor=ME),
    )
    assert (heads()[orders[0]], states()[orders[0]]) == ("rw", "read_write")


# -------------------------------------------------------------------------------------
# closing by hand


def change(queue: int, state: str, **more: Any) -> Any:
    return queues.set_state(
        **{"topic": "orders", "queue": queue, "state": state, "actor": ME, **more}
    )


def test_a_queue_is_closed_and_opened_and_keeps_its_slots(orders: list[int]) -> None:
    layout = shown().layout
    closed = change(orders[0], "read_only")
    assert (closed.queue.state, closed.slots, closed.draining) == ("read_only", 256, False)
    assert (heads()[orders[0]], shown().layout) == ("ro", layout)
    refused(Code.QUEUE_NOT_WRITABLE, Conflict, lambda: send(orders[0]))

    assert change(orders[0], "read_write").queue.state == "read_write"
    assert (heads()[orders[0]], shown().layout, shown().layout_version) == ("rw", layout, 1)
    assert send(orders[0]) == (orders[0], 0)


def test_a_draining_queue_that_is_opened_gets_its_share_back(orders: list[int]) -> None:
    queues.shrink(topic="orders", queues=[orders[0]], actor=ME)
    opened = change(orders[0], "read_write")
    assert (opened.slots, opened.draining, shown().layout_version) == (256, False, 3)
    assert set(heads().values()) == {"rw"}


@pytest.mark.one_engine
def test_the_last_open_queue_stays_open(orders: list[int]) -> None:
    for queue in orders[1:]:
        change(queue, "read_only")
    refused(Code.LAST_QUEUE, Conflict, lambda: change(orders[0], "read_only"))
    assert heads()[orders[0]] == "rw"


def test_a_queue_opened_on_a_closed_node_takes_messages_when_the_node_does(
    orders: list[int],
) -> None:
    change(orders[0], "read_only")
    registry.update(name="main", settings={"state": "read_only"}, actor=ME)
    snapshot.refresh()
    change(orders[0], "read_write")
    assert heads()[orders[0]] == "ro"
    registry.update(name="main", settings={"state": "read_write"}, actor=ME)
    assert set(heads().values()) == {"rw"}


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("given", "kind", "code"),
    [
        ({"state": "retired"}, Invalid, Code.INVALID),
        ({"queue": 999_999}, NotFound, Code.QUEUE_NOT_FOUND),
        ({"topic": "nothing"}, NotFound, Code.TOPIC_NOT_FOUND),
        ({"actor": Actor(kind="key", name="x")}, Forbidden, Code.FORBIDDEN),
    ],
)
def test_a_wrong_change_of_a_queue_is_refused(
    orders: list[int], given: dict[str, Any], kind: Any, code: Code
) -> None:
    refused(
        code, kind, lambda: change(**{"queue": orders[0], "state": "read_only", **given})
    )


@pytest.mark.one_engine
def test_every_change_is_in_the_audit_log_once(orders: list[int]) -> None:
    queues.expand(topic="orders", queues=1, actor=ME)
    queues.shrink(topic="orders", queues=[orders[0]], actor=ME)
    change(orders[1], "read_only")
    change(orders[1], "read_only")
    rows = AuditLog.objects.filter(
        at__gt=Topic.objects.get().created_at, kind__in=("topic", "queue")
    )
    found = [
        (row.actor_name, row.verb, row.name)
        for row in rows.exclude(verb="create").order_by("id")
    ]
    assert found == [
        ("test", "expand", "orders"),
        ("test", "lay out", "orders"),
        ("test", "shrink", "orders"),
        ("test", "update", f"orders/{orders[1]}"),
    ]


# --------------------------------------------------------------------- senders that leave
# the choice


def test_a_batch_whose_queue_is_closed_goes_to_another_node_and_is_stored_once(
    orders: list[int], make_node: Callable[..., str]
) -> None:
    make_node("second")
    queues.expand(topic="orders", queues=4, node="second", actor=ME)
    snapshot.refresh()
    batches = [batch_ids.new() for _ in range(24)]
    early = {one: send(batch_id=one) for one in batches[:12]}
    queues.shrink(topic="orders", queues=orders, actor=ME)
    snapshot.refresh()

    late = {one: send(batch_id=one) for one in batches[12:]}

    assert {one: send(batch_id=one) for one in batches} == early | late
    assert {receipt.queue for receipt in early.values()} & set(orders)
    assert not {receipt.queue for receipt in late.values()} & set(orders)


def test_a_queue_that_a_client_heard_of_first_is_looked_up(
    orders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = snapshot.current()
    (new,) = queues.expand(topic="orders", queues=1, actor=ME).queues
    monkeypatch.setattr(snapshot._holder, "snapshot", old)

    assert send(new.queue) == (new.queue, 0)
