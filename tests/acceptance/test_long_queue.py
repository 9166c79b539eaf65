"""A queue longer than its first partition: a short form of `script/chaos long-queue`."""

from __future__ import annotations

from tests.acceptance.scenarios import long_queue
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_a_queue_is_read_in_order_beyond_its_first_partition_which_is_dropped(
    on_pair: Stage, pair: Pair
) -> None:
    long_queue.run(on_pair, pair, messages=long_queue.FIRST_END + long_queue.MORE)
