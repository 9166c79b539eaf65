"""Links and sessions break, members and brokers die while groups work: short forms of
script/chaos.
"""

from __future__ import annotations

from tests.acceptance.scenarios import disturbed, java, linked
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_what_a_node_did_and_nobody_heard_of_is_done_once(
    on_pair: Stage, pair: Pair
) -> None:
    linked.run_lost_answers(on_pair, pair, times=4)


def test_sessions_that_are_killed_lose_nothing_and_double_nothing(
    on_pair: Stage, pair: Pair
) -> None:
    disturbed.run_kill_rain(on_pair, pair, seconds=6)


def test_a_send_that_is_repeated_through_the_other_broker_is_stored_once(
    on_pair: Stage, pair: Pair
) -> None:
    linked.run_repeats(on_pair, pair, seconds=4)


def test_python_and_java_members_of_one_group_lose_nothing_when_members_and_a_broker_die(
    on_pair: Stage, pair: Pair
) -> None:
    java.run(on_pair, pair, rounds=1)
