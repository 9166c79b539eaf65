"""A send that names no queue is stored once, also when the topic's queues change before it
is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce import batch_routing
from messagestore.produce.publish import Receipt, publish
from messagestore.tables import audit_sql
from messagestore.topology import queues, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import OutcomeUnknown
from metadata.models import TopicRouting
from metadata.nodes import node_rows
from metadata.topics import routings, topic_rows

ACTOR = command("test")
KEYED = [NewMessage(body=b"%d" % index, key=f"k{index}") for index in range(20)]
UNKEYED = [NewMessage(body=b"1"), NewMessage(body=b"2")]
MIXED = [*KEYED[:5], *UNKEYED, *KEYED[5:8]]


def send(messages: Sequence[NewMessage], batch_id: UUID) -> list[Any]:
    return publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)


def ids(count: int, *, ahead_s: float = 0) -> list[UUID]:
    """Ids that a client makes whose clock is so much ahead."""
    made = [batch_ids.new() for _ in range(count)]
    return [UUID(int=one.int + (round(ahead_s * 1000) << 80)) for one in made]


def stored() -> int:
    """Return how many messages the topic has."""
    snapshot.refresh()
    count = 0
    for queue in snapshot.find_topic("orders").queues:
        with node_pools.node_of(queue).reading() as session:
            count += audit_sql.count_rows(session, queue=queue, first=0, end=10**6).rows
    return count


def expand() -> None:
    queues.expand(topic="orders", queues=4, actor=ACTOR)


def shrink() -> None:
    queues.shrink(topic="orders", count=2, actor=ACTOR)


def follow_keys() -> None:
    topic_rows.update(name="orders", settings={"keyed": "available"}, actor=ACTOR)


def make_topic() -> None:
    topics.create(name="orders", queues=4, actor=ACTOR)
    snapshot.refresh()


@pytest.mark.parametrize("change", [expand, shrink, follow_keys])
@pytest.mark.parametrize(
    "messages", [KEYED, UNKEYED, MIXED], ids=["keyed", "unkeyed", "mixed"]
)
@pytest.mark.parametrize("ahead_s", [-30, 0, 600])
def test_a_repeat_gets_the_first_receipts_after_the_topic_has_changed(
    node: str, change: Callable[[], None], messages: list[NewMessage], ahead_s: float
) -> None:
    make_topic()
    sent = ids(6, ahead_s=ahead_s)
    first = [send(messages, one) for one in sent]
    change()
    snapshot.refresh()
    assert [send(messages, one) for one in sent] == first
    assert stored() == 6 * len(messages)


def test_a_delayed_send_is_stored_once_as_well(node: str) -> None:
    make_topic()
    sent = ids(6)
    messages = [
        NewMessage(body=b"x", key=f"k{index}", delay_ms=3_600_000) for index in range(5)
    ]
    first = [send(messages, one) for one in sent]
    expand()
    snapshot.refresh()
    assert [send(messages, one) for one in sent] == first


def test_a_repeat_on_another_node_finds_what_was_stored(
    make_node: Callable[..., str],
) -> None:
    make_node("one")
    topics.create(name="orders", queues=2, node="one", actor=ACTOR)
    make_node("two")
    snapshot.refresh()
    sent = ids(12, ahead_s=600)
    first = [send(UNKEYED, one) for one in sent]
    queues.expand(topic="orders", queues=4, node="two", actor=ACTOR)
    snapshot.refresh()
    assert [send(UNKEYED, one) for one in sent] == first
    assert stored() == 12 * 2


def test_ids_of_long_after_a_change_use_the_new_queues(node: str) -> None:
    make_topic()
    expand()
    snapshot.refresh()
    later = ids(40, ahead_s=2 * 3600)
    used = {receipt.queue for one in later for receipt in send(UNKEYED[:1], one)}
    assert used & set(snapshot.find_topic("orders").queues[4:])


def test_a_first_try_of_before_a_shrink_goes_where_there_is_a_queue(node: str) -> None:
    make_topic()
    sent = ids(4)
    shrink()
    snapshot.refresh()
    receipts = [send(KEYED, one) for one in sent]
    assert all(isinstance(one, Receipt) for fates in receipts for one in fates)
    assert [send(KEYED, one) for one in sent] == receipts
    assert stored() == 4 * len(KEYED)


def test_while_nobody_can_say_whether_it_was_stored_a_repeat_is_not_stored_again(
    make_node: Callable[..., str],
) -> None:
    make_node("one")
    topics.create(name="orders", queues=2, node="one", actor=ACTOR)
    make_node("two")
    snapshot.refresh()
    (sent,) = ids(1, ahead_s=600)
    send(UNKEYED, sent)
    queues.expand(topic="orders", queues=4, node="two", actor=ACTOR)
    snapshot.refresh()
    node_rows.update(name="one", settings={"state": "offline"}, actor=ACTOR)
    snapshot.refresh()
    with pytest.raises(OutcomeUnknown, match="before the topic's queues changed"):
        send(UNKEYED, sent)


def test_former_routings_are_forgotten_with_the_sends_that_went_by_them(node: str) -> None:
    make_topic()
    expand()
    assert routings.prune() == 0
    snapshot.refresh()
    (former,) = snapshot.find_topic("orders").earlier
    assert len(former.queues) == 4 and former.until_ms > time.time() * 1000
    assert routings.prune(days=-1) == 1
    snapshot.refresh()
    assert snapshot.find_topic("orders").earlier == ()
    assert not TopicRouting.objects.exists()


def test_a_preview_of_a_shrink_leaves_no_routing(node: str) -> None:
    make_topic()
    queues.shrink(topic="orders", count=2, actor=ACTOR, dry_run=True)
    assert not TopicRouting.objects.exists()


def test_a_routing_of_which_a_queue_is_gone_is_passed(node: str) -> None:
    make_topic()
    expand()
    TopicRouting.objects.update(queues=[10**9])
    snapshot.evict()
    topic = snapshot.find_topic("orders")
    assert topic.earlier
    known = snapshot.current().queues
    assert batch_routing.routing_of_batch(
        topic, known, batch_id=batch_ids.new()
    ) == batch_routing.current_routing(topic, known)
