"""The outbox of a Django application, with everything dying around it."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.scenarios.outbox import Shop
from tests.acceptance.scenarios.stage import Stage


def test_every_committed_sale_is_told_once_and_in_order_whoever_dies_on_mariadb(
    stage: Stage, database_url: str
) -> None:
    Shop(stage, database_url).run()


def test_every_committed_sale_is_told_once_and_in_order_whoever_dies_on_sqlite(
    stage: Stage, tmp_path: Path
) -> None:
    Shop(stage, str(tmp_path / "shop.sqlite3"), seconds=5).run()
