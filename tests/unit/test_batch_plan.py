"""How a batch is cut into parts, without a node or a metadata database."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.produce import batch_routing
from messagestore.produce.batch_plan import Batch, cut, cut_again, part_id
from metadata.cache.snapshot_types import QueueInfo, Routing, TopicInfo
from metadata.errors import NotFound
from metadata.rules.topics.routing_rules import queue_for_key

# Queues 1 and 2 are on node 1, queue 3 is on node 2.
QUEUES = {
    queue: QueueInfo(
        id=queue, topic_id=7, number=queue - 1, node_id=1 + queue // 3, state="read_write"
    )
    for queue in (1, 2, 3)
}
TOPIC = TopicInfo(
    id=7,
    name="orders",
    kind="normal",
    state="ready",
    keyed="strict",
    on_unknown="",
    layout=tuple(1 + slot % 3 for slot in range(1024)),
    layout_version=1,
    queues=(1, 2, 3),
    retention_days=7,
    retention_bytes=None,
)


def batch_of(
    *messages: NewMessage, has_new_id: bool = False, id: UUID | None = None
) -> Batch:
    return Batch(id or batch_ids.new(), has_new_id, messages, TOPIC, QUEUES)


def current_routing(batch: Batch) -> Routing:
    return batch_routing.current_routing(batch.topic, batch.queues)


def test_messages_of_one_queue_form_one_part_in_their_order() -> None:
    batch = batch_of(*(NewMessage(body=b"", queue=queue) for queue in (2, 1, 2, 1)))
    parts = cut(batch, current_routing(batch))
    assert [(part.queues, part.movable, part.indexes) for part in parts] == [
        ((2,), False, [0, 2]),
        ((1,), False, [1, 3]),
    ]


def test_delayed_messages_and_those_that_may_move_form_parts_of_their_own() -> None:
    batch = batch_of(
        NewMessage(body=b"", queue=1),
        NewMessage(body=b"", queue=1, delay_ms=1000),
        NewMessage(body=b"", queue=1, queue_strict=False),
        NewMessage(body=b"", queue=1),
    )
    parts = cut(batch, current_routing(batch))
    assert [part.indexes for part in parts] == [[0, 3], [1], [2]]
    assert [(part.delayed, part.movable) for part in parts] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert len({part_id(batch, part) for part in parts}) == 3


def test_a_key_decides_the_queue() -> None:
    messages = [NewMessage(body=b"", key=f"key-{n}") for n in range(50)]
    batch = batch_of(*messages)
    for part in cut(batch, current_routing(batch)):
        assert not part.movable  # the topic is `keyed` strictly
        assert {
            queue_for_key(messages[n].key or "", TOPIC.layout) for n in part.indexes
        } == {part.queues[0]}


def test_a_repeat_is_cut_alike_and_has_the_same_part_ids() -> None:
    messages = [NewMessage(body=b""), NewMessage(body=b"", key="a"), NewMessage(body=b"")]
    first = batch_of(*messages)
    again = batch_of(*messages, id=first.id)
    parts = cut(first, current_routing(first))
    assert cut(again, current_routing(again)) == parts
    assert [part_id(again, part) for part in parts] == [
        part_id(first, part) for part in parts
    ]


def test_a_part_that_may_have_been_tried_stays_on_its_node_while_its_queue_is_open() -> (
    None
):
    message = NewMessage(body=b"", queue=1, queue_strict=False)
    new = batch_of(message, has_new_id=True)
    (part,) = cut(new, current_routing(new))
    assert part.queues[0] == 1 and set(part.queues) == {1, 2, 3}
    repeated = batch_of(message)
    (part,) = cut(repeated, current_routing(repeated))
    assert part.queues == (1, 2)
    closed = {**QUEUES, 1: replace(QUEUES[1], state="read_only")}
    repeated = repeated._replace(queues=closed)
    (part,) = cut(repeated, current_routing(repeated))
    assert part.queues == (1, 2, 3)


def test_a_queue_that_was_just_added_is_taken_and_another_topics_is_not() -> None:
    added = QueueInfo(id=9, topic_id=7, number=3, node_id=1, state="creating")
    foreign = QueueInfo(id=8, topic_id=6, number=0, node_id=1, state="read_write")
    batch = batch_of(NewMessage(body=b"", queue=9))
    batch = batch._replace(queues={**QUEUES, 9: added, 8: foreign})
    assert cut(batch, current_routing(batch))[0].queues == (9,)
    for queue in (8, 10):
        batch = batch._replace(messages=[NewMessage(body=b"", queue=queue)])
        with pytest.raises(
            NotFound, match=f"{queue} is not a queue of topic orders"
        ) as caught:
            cut(batch, current_routing(batch))
        assert [error.field for error in caught.value.errors] == ["messages[0].queue"]


def test_a_refused_part_is_cut_again_once_and_only_by_another_routing() -> None:
    batch = batch_of(NewMessage(body=b""), NewMessage(body=b""))
    former = Routing(
        TOPIC.layout, "strict", (1,), batch_routing.current_routing(TOPIC, QUEUES).until_ms
    )
    (part,) = cut(batch, former)
    (piece,) = cut_again(batch, part, routing=former)
    assert piece.piece_of == part.number and piece.indexes == part.indexes
    assert part_id(batch, piece) != part_id(batch, piece._replace(piece_of=None))
    assert cut_again(batch, piece, routing=former) == []
    assert cut_again(batch, part, routing=current_routing(batch)) == []
