"""Which queue a message goes to."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catmq_client.errors import OptionError
from catmq_client.sending.routing import Kind, Layout, Routes, layout_from, slot_of
from tests.support.simulated import SimulatedBroker

SLOTS = tuple([10, 11, 12, 13][slot % 4] for slot in range(1024))
LAYOUT = Layout(
    topic="t",
    version=1,
    slots=SLOTS,
    nodes={10: "a", 11: "a", 12: "b", 13: "b"},
    writable=(10, 11, 12, 13),
)


def queue_of(
    routes: Routes, key: str | None = None, queue: int | None = None, strict: bool = True
) -> int | None:
    return routes.choose(key=key, queue=queue, strict_queue=strict).queue


@given(key=st.text(max_size=50))
def test_a_key_goes_to_the_queue_of_its_slot(key: str) -> None:
    slot = zlib.crc32(key.encode()) % 1024
    assert slot_of(key) == slot
    assert Routes(LAYOUT).choose(key=key, queue=None, strict_queue=True) == (
        SLOTS[slot],
        Kind.KEYED,
    )


def test_messages_without_key_fill_one_queue_and_then_the_next() -> None:
    routes = Routes(LAYOUT)
    seen = []
    for _ in range(8):
        first, again = queue_of(routes), queue_of(routes)
        assert first == again
        seen.append(first)
        routes.next_queue(after=first)
    assert seen[:4] == seen[4:]
    assert set(seen) == {10, 11, 12, 13}


def test_a_strict_key_waits_for_its_queue_and_an_available_one_moves() -> None:
    key = next(str(n) for n in range(1000) if SLOTS[slot_of(str(n))] == 12)
    closed = replace(LAYOUT, writable=(10, 11))
    assert Routes(closed).choose(key=key, queue=None, strict_queue=True) == (12, Kind.KEYED)
    available = Routes(replace(closed, strict=False)).choose(
        key=key, queue=None, strict_queue=True
    )
    assert available.queue in (10, 11)
    assert available.kind == Kind.FREE


def test_a_named_queue_is_kept_when_strict_and_left_when_lenient() -> None:
    routes = Routes(replace(LAYOUT, writable=(10, 11)))
    assert routes.choose(key=None, queue=12, strict_queue=True) == (12, Kind.NAMED)
    assert queue_of(routes, queue=12, strict=False) in (10, 11)
    assert queue_of(routes, queue=11, strict=False) == 11


def test_a_foreign_queue_is_refused_by_name() -> None:
    with pytest.raises(
        OptionError, match="queue 99 is not one of t's queues: 10, 11, 12, 13"
    ):
        queue_of(Routes(LAYOUT), queue=99)


def test_the_queues_of_a_node_that_refused_are_avoided() -> None:
    routes = Routes(LAYOUT)
    routes.avoid(12, whole_node=True)
    seen = set()
    for _ in range(8):
        queue = queue_of(routes)
        routes.next_queue(after=queue)
        seen.add(queue)
    assert seen == {10, 11}
    assert routes.another_queue({10, 11}) is None


def test_when_no_queue_is_usable_any_writable_one_is_tried() -> None:
    routes = Routes(LAYOUT)
    for queue in (10, 12):
        routes.avoid(queue, whole_node=True)
    assert queue_of(routes) in LAYOUT.writable


def test_without_a_layout_the_broker_chooses() -> None:
    routes = Routes(Layout("t"))
    assert routes.choose(key="k", queue=None, strict_queue=True) == (None, Kind.FREE)


def test_a_layout_is_read_from_the_topic() -> None:
    broker = SimulatedBroker()
    topic = broker.create_topic(
        "t", queues=2, nodes=["a", "b"], keyed="available", on_unknown="resend"
    )
    topic.queues[1].state = "read_only"
    layout = layout_from(broker.request("GET", "/api/v1/topics/t"))
    assert layout.slots == tuple(topic.slots)
    assert layout.writable == (topic.queues[0].id,)
    assert layout.nodes == {1: "a", 2: "b"}
    assert (layout.strict, layout.resend_unknown) == (False, True)
