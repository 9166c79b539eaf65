"""Tasks of a Django project when workers, a broker and databases die: short forms of
script/chaos tasks.
"""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.scenarios import tasks
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_every_task_ends_when_workers_and_the_broker_die_on_sqlite(
    stage: Stage, tmp_path: Path
) -> None:
    tasks.run(stage, str(tmp_path / "shop.sqlite3"), kills=2, restarts=1)


def test_every_task_ends_when_workers_a_broker_and_the_databases_die_on_mariadb(
    on_pair: Stage, pair: Pair
) -> None:
    tasks.run_on_databases(on_pair, pair, kills=3, restarts=1, outages=1)
