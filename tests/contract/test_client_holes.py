"""The client where messages are missing: it is told, goes on where it should, and skips
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from catmq_client import Consumer
from catmq_client.errors import OffsetReset
from tests.support.broker import Broker
from tests.support.tampering import declare_gap, raise_low, remove
from tests.support.waiting import until


@pytest.fixture
def filled(broker: Broker, queue: int) -> int:
    """Queue of topic `single` with messages 0 to 9, which group `readers` subscribes to."""
    messages = [{"body": str(number), "queue": queue} for number in range(10)]
    broker.ok("POST", "/topics/single/messages", {"messages": messages})
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok(
        "POST", "/groups/readers/subscriptions", {"topic": "single", "start": "earliest"}
    )
    return queue


@pytest.fixture
def consumer(broker: Broker, filled: int) -> Iterator[Consumer]:
    """A member of group `readers`."""
    with Consumer(
        broker.url, api_key=broker.api_key, group="readers", fetch_max_wait_ms=500
    ) as consumer:
        yield consumer


def offsets_up_to(consumer: Consumer, last: int) -> list[int]:
    """The offsets that come until `last` did."""
    came: list[int] = []
    until(
        lambda: came.extend(m.offset for m in consumer.poll(timeout_s=0.2)) or last in came,
        limit_s=30,
    )
    return came


def test_a_declared_gap_is_crossed_and_the_first_message_behind_it_comes(
    consumer: Consumer, filled: int
) -> None:
    remove(filled, 3, 4)
    declare_gap(filled, 3, 5)
    assert offsets_up_to(consumer, 9) == [0, 1, 2, 5, 6, 7, 8, 9]


def test_what_retention_took_is_left_out(consumer: Consumer, filled: int) -> None:
    remove(filled, 0, 1, 2)
    raise_low(filled, 3)
    assert offsets_up_to(consumer, 9) == [3, 4, 5, 6, 7, 8, 9]


def test_a_seek_above_the_head_goes_back_to_the_first_message(
    consumer: Consumer, filled: int
) -> None:
    assert offsets_up_to(consumer, 9) == list(range(10))
    consumer.seek(filled, 1000)
    assert offsets_up_to(consumer, 9) == list(range(10))


def test_a_seek_above_the_head_is_an_error_where_resets_are_off(
    broker: Broker, filled: int
) -> None:
    options = {"group": "readers", "auto_offset_reset": "none", "fetch_max_wait_ms": 500}
    with Consumer(broker.url, api_key=broker.api_key, **options) as consumer:
        offsets_up_to(consumer, 9)
        consumer.seek(filled, 1000)
        with pytest.raises(OffsetReset, match="1000"):
            until(lambda: consumer.poll(timeout_s=0.2))


def test_nothing_behind_an_undeclared_hole_is_delivered(
    consumer: Consumer, filled: int
) -> None:
    remove(filled, 3)
    assert offsets_up_to(consumer, 2) == [0, 1, 2]
    assert consumer.poll(timeout_s=1.0) == []
    declare_gap(filled, 3, 4)
    assert offsets_up_to(consumer, 9) == [4, 5, 6, 7, 8, 9]
