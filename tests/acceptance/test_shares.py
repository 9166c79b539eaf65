"""Members of share groups die and freeze: short forms of what script/chaos share plays at length."""

from __future__ import annotations

from tests.acceptance.scenarios import share
from tests.acceptance.scenarios.stage import Stage


def test_members_of_a_share_group_that_are_killed_and_frozen_lose_nothing(stage: Stage) -> None:
    share.run(stage, members=4, seconds=4)


def test_one_poison_message_of_a_thousand_is_dead_and_repeats_few_others(stage: Stage) -> None:
    share.run_poison(stage, count=1_000, lethal=500)
