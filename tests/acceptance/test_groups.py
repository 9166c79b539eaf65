"""Groups whose members come, go, die and freeze: short forms of what script/chaos plays at
length.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.acceptance.scenarios import frozen, slow_group, storm
from tests.acceptance.scenarios.stage import Stage
from tests.support.server import Server


def test_a_storm_of_joins_leaves_and_deaths_gives_no_queue_two_owners_and_stops_no_other(
    mariadb_server: Server, on_stage: Callable[[Server], Stage]
) -> None:
    storm.run(on_stage(mariadb_server), calm_s=4, storm_s=13, session_ms=6_000)


def test_frozen_members_are_fenced_and_come_back_by_themselves(stage: Stage) -> None:
    frozen.run(stage)


def test_a_slow_group_pulls_what_it_handles_and_a_buffer_and_nothing_again(
    stage: Stage,
) -> None:
    slow_group.run_short(stage, handled=150)
