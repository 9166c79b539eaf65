"""Members of share groups die and freeze: short forms of what script/chaos share plays at
length.
"""

from __future__ import annotations

from tests.acceptance.scenarios import share, share_outages
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_a_share_group_loses_nothing_when_members_a_broker_and_the_node_die(
    on_pair: Stage, pair: Pair
) -> None:
    share_outages.run(on_pair, pair, members=5, seconds=12, per_s=25)


def test_one_poison_message_of_a_thousand_is_dead_and_repeats_few_others(
    stage: Stage,
) -> None:
    share.run_poison(stage, count=1_000, lethal=500)


def test_nothing_is_leased_for_a_member_that_hung_up_while_it_waited(stage: Stage) -> None:
    share.run_hung_up(stage)


def test_a_message_that_is_held_past_its_lease_stops_nobody(stage: Stage) -> None:
    share.run_held(stage, held_s=8.0, per_s=5)


def test_members_that_lose_answers_and_ask_again_lose_no_message(stage: Stage) -> None:
    share.run_lost_answers(stage, members=4, count=200)
