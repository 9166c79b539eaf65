"""Celery's workers die, the broker restarts, a countdown is long: short forms of
`script/chaos celery`.
"""

from __future__ import annotations

from tests.acceptance.scenarios import celery
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_every_task_ends_though_workers_are_killed_and_the_broker_is_restarted(
    stage: Stage,
) -> None:
    celery.run(stage, kills=2, restarts=1)


def test_a_countdown_of_two_hours_runs_once(stage: Stage) -> None:
    celery.run_countdown(stage)


def test_every_task_ends_though_the_database_that_has_it_is_restarted(
    on_pair: Stage, pair: Pair
) -> None:
    celery.run_on_database(on_pair, pair, kills=1, outages=2)
