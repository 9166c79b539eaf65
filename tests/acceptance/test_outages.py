"""Parts of the system die or tell a wrong time while groups work: short forms of what
script/chaos plays.
"""

from __future__ import annotations

from tests.acceptance.scenarios import (
    brokers,
    clocks,
    dead_node,
    frozen_metadata,
    full_node,
    lost_nodes,
    metadata_away,
    soak,
)
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_rebalances_happen_in_time_without_one_broker_of_two_and_without_django_q(
    on_pair: Stage, pair: Pair
) -> None:
    brokers.run(on_pair, pair, victims=[brokers.BOTH])


def test_sends_pulls_and_commits_go_on_while_the_metadata_database_is_frozen_or_dead(
    on_pair: Stage, pair: Pair
) -> None:
    metadata_away.run(on_pair, pair, away_s=9, session_ms=7_000)


def test_members_with_short_sessions_and_queues_on_their_way_go_on_while_metadata_is_frozen(
    on_pair: Stage, pair: Pair
) -> None:
    frozen_metadata.run(on_pair, pair, session_ms=3_000, away_s=9)


def test_a_wall_clock_that_jumps_by_an_hour_expires_nobody_and_makes_no_second_owner(
    on_pair: Stage, pair: Pair
) -> None:
    clocks.run(on_pair, pair, watch_s=1.5)


def test_what_a_node_acknowledged_is_handled_although_it_is_killed(
    on_pair: Stage, pair: Pair
) -> None:
    lost_nodes.run_killed(on_pair, pair, kills=2)


def test_sends_after_the_death_of_one_node_of_two_are_stored_on_the_other_at_once(
    on_pair: Stage, pair: Pair
) -> None:
    dead_node.run(on_pair, pair, rounds=2)


def test_a_frozen_node_disturbs_no_other(on_pair: Stage, pair: Pair) -> None:
    lost_nodes.run_frozen(on_pair, pair, frozen_s=5)


def test_a_full_node_disturbs_no_other(on_pair: Stage, pair: Pair) -> None:
    full_node.run(on_pair, pair, watch_s=4)


def test_a_promoted_replica_that_lacks_the_tail_makes_nobody_skip_silently(
    on_pair: Stage, pair: Pair
) -> None:
    lost_nodes.run_failover(on_pair, pair, tail_s=1)


def test_nothing_grows_in_a_soak(on_pair: Stage, pair: Pair) -> None:
    soak.run(on_pair, pair, seconds=30, every_s=0.5)
