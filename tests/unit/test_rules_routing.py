"""Names, slots, routing, placement, settings: the small rules."""

from __future__ import annotations

import zlib
from collections import Counter
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import Code, Invalid
from metadata.rules.settings import GROUP, TOPIC, check_settings
from metadata.rules.topics.names import check_confirmed, check_name, check_spelling
from metadata.rules.topics.placement import spread_over_nodes
from metadata.rules.topics.routing_rules import (
    derived_batch_id,
    order_queues,
    queue_for_key,
)
from metadata.rules.topics.slots import SLOTS, initial_layout, slot_of

BATCHES = st.uuids()


@pytest.mark.parametrize("name", ["a", "Orders", "orders.v2", "0_-.", "x" * 100])
def test_good_names_are_taken(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a b",
        "x_fail",
        "x" * 101,
        "_a",
        "-a",
        "ördérs",
        "a\n",
        "a~1",
        "orders ",
    ],
)
def test_bad_names_are_refused_naming_the_field(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_name("topic", name)

    assert caught.value.errors[0].field == "name"


def test_a_consumer_may_be_called_what_a_topic_may_not() -> None:
    assert check_spelling("consumer", "host_fail") == "host_fail"


def test_deleting_without_repeating_the_name_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        check_confirmed("orders", None)

    assert caught.value.code == Code.NOT_CONFIRMED


@given(st.text(min_size=1))
def test_a_slot_is_the_crc_of_the_utf8_key(key: str) -> None:
    assert slot_of(key) == zlib.crc32(key.encode()) % SLOTS


def test_a_layout_gives_every_queue_its_share_of_the_slots() -> None:
    layout = initial_layout([5, 6, 7])

    assert len(layout) == SLOTS
    assert max(Counter(layout).values()) - min(Counter(layout).values()) <= 1
    assert queue_for_key("42", layout) == layout[slot_of("42")]


@given(BATCHES, st.sets(st.integers(1, 10_000), min_size=1, max_size=20))
def test_candidates_are_a_permutation_whatever_the_order_and_number_of_mentions(
    batch: UUID, queues: set[int]
) -> None:
    result = order_queues(batch, tuple(sorted(queues)))

    assert sorted(result) == sorted(queues)
    assert order_queues(batch, (*sorted(queues, reverse=True), *queues)) == result


@given(BATCHES, st.sets(st.integers(1, 10_000), min_size=2, max_size=20))
def test_the_order_of_candidates_does_not_depend_on_the_others(
    batch: UUID, queues: set[int]
) -> None:
    result = order_queues(batch, tuple(sorted(queues)))

    assert order_queues(batch, result[1:]) == result[1:]


def test_batches_spread_over_the_queues() -> None:
    first = Counter(order_queues(uuid4(), (1, 2, 3, 4))[0] for _ in range(4_000))

    assert min(first.values()) > 800


@given(BATCHES, st.integers(1, 1 << 40))
def test_a_derived_batch_id_keeps_the_time_and_is_a_version_7(
    batch: UUID, queue: int
) -> None:
    result = derived_batch_id(batch, queue)

    assert result.bytes[:6] == batch.bytes[:6]
    assert result.version == 7
    assert result.variant == "specified in RFC 4122"
    assert result == derived_batch_id(batch, queue) != derived_batch_id(batch, queue + 1)


def test_queues_are_spread_over_nodes_before_the_emptier_is_preferred() -> None:
    assert spread_over_nodes(count=5, load={1: 100, 2: 0, 3: 50}) == [2, 3, 1, 2, 3]


def test_settings_that_do_not_exist_are_refused_by_name() -> None:
    with pytest.raises(Invalid) as caught:
        check_settings(
            TOPIC, {"retention_day": 7, "keyed": "sometimes", "description": "fine"}
        )

    assert [one.field for one in caught.value.errors] == ["retention_day", "keyed"]


@pytest.mark.parametrize("value", [1_999, 300_001, True, "15000", None, 2.5])
def test_session_timeouts_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(Invalid):
        check_settings(GROUP, {"session_timeout_ms": value})
