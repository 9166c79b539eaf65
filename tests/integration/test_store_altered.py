"""A message table is gone, or somebody altered it: every way to use it names it, and other
queues go on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import pytest

from messagestore.consume import group_lag, positions, pull
from messagestore.consume.positions import Claim, CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.heads import corruption
from messagestore.inspect import browse, search
from messagestore.inspect.search import TimeRange
from messagestore.nodes import corruption_alarms
from messagestore.pool import node_pools
from messagestore.produce.publish import Receipt, publish
from messagestore.tables import queue_sql
from messagestore.topology import membership, subscriptions, topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError, Code, StoreCorrupt
from metadata.groups import groups
from metadata.membership import consumers
from metadata.models import Alarm
from tests.support.tampering import plant

ACTOR = command("test")
WAYS = {
    "missing": "DROP TABLE message_{q}",
    "altered": "ALTER TABLE message_{q} RENAME COLUMN body TO corpse",
}


@pytest.fixture(params=WAYS)
def queues(request: pytest.FixtureRequest, node: str) -> tuple[int, int]:
    """Two queues of topic `orders` with a message each, read by group `billing`; the first
    one is spoilt.
    """
    made = topics.create(name="orders", queues=2, actor=ACTOR)
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    ill, well = (one.queue.queue for one in made.queues)
    for queue in (ill, well):
        send(queue)
    plant(ill, WAYS[request.param])
    corruption._reported.clear()
    return ill, well


def send(queue: int) -> object:
    """The fate of one message, sent to that queue."""
    return publish(
        topic="orders",
        messages=[NewMessage(body=b"m", queue=queue)],
        batch_id=None,
        actor=ACTOR,
    )[0]


def owner() -> tuple[ConsumerId, *tuple[Claim, ...]]:
    """A member of the group, and the queues that it owns."""
    joined = membership.join(
        group="billing", name="one", incarnation=str(uuid4()), actor=ACTOR
    )
    consumer = consumer_ids.check(joined.consumer_id)
    given = consumers.heartbeat(consumer=consumer, generation=0, owned=[]).assigned
    claims = [Claim(one.queue, one.epoch) for one in given]
    assert {one.state for one in positions.acquire(consumer=consumer, queues=claims)} == {
        "ok"
    }
    return consumer, *claims


def pulled(queues: tuple[int, int]) -> dict[int, PulledQueue]:
    """Both queues, pulled at once by a member that owns them."""
    consumer, *claims = owner()
    asked = [PullQueue(one.queue, one.epoch, 0) for one in claims]
    answers = pull.pull(consumer=consumer, queues=asked, max_messages=10, max_bytes=1 << 20)
    return {answer.queue: answer for answer in answers}


def test_a_send_is_refused_by_name_and_no_head_moves(queues: tuple[int, int]) -> None:
    ill, well = queues
    with pytest.raises(StoreCorrupt, match="missing or was altered") as caught:
        send(ill)
    assert (caught.value.code, caught.value.retriable) == (Code.STORE_CORRUPT, False)
    with node_pools.node_of(ill).reading() as session:
        head = queue_sql.read_head(session, queue=ill)
    assert head is not None and head.head == 1
    assert not isinstance(send(well), CatmqError)


def test_a_send_marks_it_and_the_alarm_names_queue_and_table(
    queues: tuple[int, int],
) -> None:
    ill, _ = queues
    for queue in queues:
        with suppress(StoreCorrupt):
            send(queue)
    assert corruption.current() == [ill], "which /readyz and the metrics show"
    assert corruption_alarms.raise_alarms() == 1
    alarm = Alarm.objects.get()
    assert (alarm.kind, alarm.name, alarm.ended_at) == ("corrupt", "orders/0", None)
    assert f"message_{ill}" in alarm.detail or "body" in alarm.detail, (
        "the table, or its column"
    )
    assert "The table is missing or was altered" in alarm.detail


def test_what_a_part_of_a_send_met_is_marked_though_the_rest_was_stored(
    queues: tuple[int, int],
) -> None:
    ill, well = queues
    fates = publish(
        topic="orders",
        messages=[NewMessage(body=b"m", queue=queue) for queue in (ill, well)],
        batch_id=None,
        actor=ACTOR,
    )
    assert isinstance(fates[0], StoreCorrupt) and fates[1] == Receipt(well, 1)
    assert corruption.current() == [ill]


def test_a_pull_delivers_nothing_of_it_and_marks_it(queues: tuple[int, int]) -> None:
    ill, well = queues
    answers = pulled(queues)
    assert (answers[ill].state, answers[ill].messages) == ("corrupt", [])
    assert (answers[ill].next_offset, answers[well].state) == (0, "ok"), (
        "the position stays where it was"
    )
    assert [message.body for message in answers[well].messages] == [b"m"]
    assert corruption.current() == [ill], "which /readyz and the metrics show"


def test_looking_at_it_is_an_error_that_names_it(queues: tuple[int, int]) -> None:
    ill, well = queues
    looks: list[Callable[[], object]] = [
        lambda: browse.read_page(topic="orders", queue=ill, offset=0, limit=1, actor=ACTOR),
        lambda: browse.read_message(topic="orders", message_id=f"{ill}-0", actor=ACTOR),
        lambda: search.search_messages(
            topic="orders",
            queue=ill,
            wanted=MessageSearch(),
            times=TimeRange(),
            actor=ACTOR,
        ),
    ]
    for look in looks:
        with pytest.raises(StoreCorrupt, match="missing or was altered"):
            look()
    found = browse.read_page(topic="orders", queue=well, offset=0, limit=1, actor=ACTOR)
    assert len(found.messages) == 1


@pytest.mark.parametrize(
    ("table", "broken", "state"),
    [
        ("reader", {"acquire", "commit", "lag"}, "corrupt"),
        ("queue_head", {"commit", "lag", "send"}, "corrupt"),
        ("sent_batch", {"send"}, "ok"),
    ],
)
def test_a_table_of_the_node_that_is_gone_is_named_and_moves_nothing(
    node: str, table: str, broken: set[str], state: str
) -> None:
    queue = topics.create(name="orders", queues=1, actor=ACTOR).queues[0].queue.queue
    groups.create(name="billing", actor=ACTOR)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ACTOR)
    snapshot.refresh()
    send(queue)
    consumer, claim = owner()
    plant(queue, f"ALTER TABLE {table} RENAME TO moved_{table}")
    ways: dict[str, Callable[[], object]] = {
        "acquire": lambda: positions.acquire(consumer=consumer, queues=[claim]),
        "commit": lambda: positions.commit(
            consumer=consumer, offsets=[CommitOffset(queue, claim.epoch, 1)]
        ),
        "send": lambda: send(queue),
        "lag": lambda: group_lag.group_offsets(group="billing", actor=ACTOR),
    }
    for name in broken:
        with pytest.raises(StoreCorrupt, match=f"{table}.*missing or was altered"):
            ways[name]()
    assert corruption.current() == ([queue] if "send" in broken else [])
    asked = [PullQueue(queue, claim.epoch, 0)]
    (answer,) = pull.pull(
        consumer=consumer, queues=asked, max_messages=10, max_bytes=1 << 20
    )
    assert answer.state == state
    plant(queue, f"ALTER TABLE moved_{table} RENAME TO {table}")
    node_pools.evict_all()
    for way in ways.values():
        way()
    (answer,) = pull.pull(
        consumer=consumer, queues=asked, max_messages=10, max_bytes=1 << 20
    )
    assert [message.offset for message in answer.messages] == [0, 1]
